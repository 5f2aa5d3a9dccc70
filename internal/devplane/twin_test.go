package devplane_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/devplane"
	"github.com/sluice-proxy/sluice/internal/store"
)

// TestActorsTwin does operations by chance, many of which fail by chance, on a few actors and workers, and after each
// compares what is stored with a model and with the rules that must always hold: every place taken belongs to exactly one
// actor that says so, no worker has more actors than it takes, and no lock is left.
func TestActorsTwin(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := newPlane(t, 1, 2)
		states := map[actor.Ref]actor.State{}
		for i := range 4 {
			ref := actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)}
			p.create(t, ref)
			states[ref] = actor.Suspended
		}
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			ref := actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", rapid.IntRange(0, 3).Draw(r, "actor"))}
			failure := rapid.SampledFrom([]error{nil, nil, nil, actor.ErrUnavailable, errors.New("broken")}).Draw(r, "failure")
			p.boxes.failing(with(failure))
			op := actor.Op(rapid.IntRange(0, 3).Draw(r, "op"))
			states[ref] = p.twinStep(r, t, ref, states[ref], op, failure)
			p.checkRules(r, t, states)
		}
	})
}

// twinStep does an operation and returns the state that the actor must be in.
func (p plane) twinStep(r *rapid.T, t *testing.T, ref actor.Ref, was actor.State, op actor.Op, failure error) actor.State {
	var err error
	before := p.slots(t)
	free := 3 - before["w0"] - before["w1"]
	switch op {
	case actor.Resume:
		_, _, err = p.ResumeActor(t.Context(), ref)
	case actor.Suspend:
		_, err = p.SuspendActor(t.Context(), ref)
	case actor.Pause:
		_, err = p.PauseActor(t.Context(), ref)
	default:
		_, err = p.RevertActor(t.Context(), ref)
	}
	var e *actor.Error
	code := actor.Code(0)
	if errors.As(err, &e) {
		code = e.Code
	} else if err != nil {
		r.Fatalf("%v %v: %v", op, ref, err)
	}
	next, want := was, actor.Code(0)
	called := was != actor.Crashed // nothing is left of what has crashed
	switch verdict := devplane.Judge(op, was, false); {
	case verdict == devplane.Already:
	case verdict == devplane.Illegal:
		want = actor.FailedPrecondition
	case op == actor.Resume && code == actor.ResourceExhausted && (free == 0 || was == actor.Paused):
		want = actor.ResourceExhausted
	case failure == nil || !called:
		next = map[actor.Op]actor.State{actor.Resume: actor.Running, actor.Suspend: actor.Suspended, actor.Pause: actor.Paused, actor.Revert: actor.Suspended}[op]
	case errors.Is(failure, actor.ErrUnavailable):
		want = actor.Unavailable
		if op == actor.Resume {
			next = actor.Resuming
		} else if op == actor.Suspend {
			next = actor.Suspending
		}
	default:
		next, want = actor.Crashed, actor.Internal
	}
	if code != want {
		r.Fatalf("%v of %v, which is %v, with %v: %v, want %v", op, ref, was, failure, err, want)
	}
	return next
}

func (p plane) checkRules(r *rapid.T, t *testing.T, states map[actor.Ref]actor.State) {
	on := map[string]int{}
	for ref, want := range states {
		a, err := p.GetActor(t.Context(), ref)
		if err != nil || a.State != want {
			r.Fatalf("%v is %v, %v; want %v", ref, a.State, err, want)
		}
		placed := want == actor.Running || want == actor.Resuming || want == actor.Suspending && a.Node == ""
		if (a.Assignment != nil) != placed {
			r.Fatalf("%v is %v and on %+v", ref, want, a.Assignment)
		}
		if placed {
			on[a.Assignment.Worker]++
		}
		err = p.store.View(t.Context(), func(tx store.Tx) error {
			l, err := tx.List(devplane.KindLock, "demo", "", 10)
			if len(l) > 0 {
				r.Fatalf("locks are left: %v", l)
			}
			if placed {
				_, err = tx.Get(store.Key{Kind: devplane.KindSlot, Group: a.Assignment.Worker, Name: a.UID})
			}
			return err
		})
		if err != nil {
			r.Fatalf("%v: %v", ref, err)
		}
	}
	if got := p.slots(t); fmt.Sprint(got) != fmt.Sprint(on) || got["w0"] > 1 || got["w1"] > 2 {
		r.Fatalf("places taken %v, by actors %v", got, on)
	}
}
