package devplane_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/devplane"
	"github.com/sluice-proxy/sluice/internal/store"
)

// pausedOn has an actor paused on n0, whose two workers cannot be told anything any more.
func pausedOn(t *testing.T) plane {
	t.Helper()
	p := newPlane(t, 1)
	second := worker(1, 0)
	second.Node = "n0"
	p.register(t, second)
	p.register(t, worker(2, 1))
	p.create(t, a1)
	_, _, err := p.ResumeActor(t.Context(), a1)
	_, err2 := p.PauseActor(t.Context(), a1)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if a := p.wantState(t, a1, actor.Paused, ""); a.Node != "n0" {
		t.Fatalf("it is kept on %q", a.Node)
	}
	p.boxes.failing(with(fmt.Errorf("it is not attached: %w", actor.ErrUnavailable)))
	return p
}

// An actor that is kept on a node is lost with the node's last worker, whatever was tried with it meanwhile, and can be deleted or
// reverted then.
func TestPausedOnANodeThatIsGone(t *testing.T) {
	moved := worker(1, 0)
	for name, tc := range map[string]struct {
		try  func(p plane) error
		lose func(p plane) error
	}{
		"deleted":             {nil, func(p plane) error { _, err := p.DeleteWorker(t.Context(), "w1", actor.Terms{}); return err }},
		"attached on another": {nil, func(p plane) error { _, err := p.AttachWorker(t.Context(), moved); return err }},
		"updated to another": {nil, func(p plane) error {
			w, err := p.GetWorker(t.Context(), "w1")
			if err != nil {
				return err
			}
			w.Node = "n1"
			_, err = p.UpdateWorker(t.Context(), w, actor.Terms{UID: w.UID, Version: w.Version})
			return err
		}},
		"while it is to be deleted": {
			func(p plane) error { _, err := p.DeleteActor(t.Context(), a1, actor.Terms{AnyState: true}); return err },
			func(p plane) error { _, err := p.DeleteWorker(t.Context(), "w1", actor.Terms{}); return err },
		},
		"while it is to be suspended": {
			func(p plane) error { _, err := p.SuspendActor(t.Context(), a1); return err },
			func(p plane) error { _, err := p.DeleteWorker(t.Context(), "w1", actor.Terms{}); return err },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pausedOn(t)
			if tc.try != nil {
				wantCode(t, "without the node", tc.try(p), actor.Unavailable, "")
			}
			before, err := p.GetActor(t.Context(), a1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.DeleteWorker(t.Context(), "w0", actor.Terms{}); err != nil {
				t.Fatal(err)
			}
			if a := p.wantState(t, a1, before.State, ""); a.Node != "n0" {
				t.Errorf("with another worker on the node it is %+v", a)
			}
			if err := tc.lose(p); err != nil {
				t.Fatal(err)
			}
			if a := p.wantState(t, a1, actor.Crashed, ""); a.Node != "" || a.Crash != "node n0, where it was kept, is gone" {
				t.Errorf("%+v", a)
			}
			if _, err := p.DeleteActor(t.Context(), a1, actor.Terms{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// An operation that is under way on the node finds that it has lost.
func TestNodeGoesDuringAnOperation(t *testing.T) {
	p := pausedOn(t)
	p.boxes.failing(func(string) error {
		_, err := p.DeleteWorker(t.Context(), "w0", actor.Terms{})
		_, err2 := p.DeleteWorker(t.Context(), "w1", actor.Terms{})
		return errors.Join(err, err2)
	})
	_, err := p.SuspendActor(t.Context(), a1)
	wantCode(t, "suspend", err, actor.Aborted, "taken over")
	p.wantState(t, a1, actor.Crashed, "")
	p.boxes.failing(nil)
	if a, err := p.RevertActor(t.Context(), a1); err != nil || a.State != actor.Suspended {
		t.Errorf("%+v, %v", a, err)
	}
}

// Actors of all atespaces are found, and nobody else's.
func TestNodeOfOthers(t *testing.T) {
	p := pausedOn(t)
	err := p.store.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.Create(store.Key{Kind: devplane.KindAtespace, Name: "other"}, "u", nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	asleep, running := actor.Ref{Atespace: "other", Name: "b1"}, actor.Ref{Atespace: "other", Name: "b2"}
	p.create(t, asleep)
	p.create(t, running)
	p.boxes.failing(nil)
	for _, w := range []string{"w0", "w1"} {
		if _, err := p.DrainWorker(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := p.ResumeActor(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"w0", "w1"} {
		if _, err := p.DeleteWorker(t.Context(), w, actor.Terms{}); err != nil {
			t.Fatal(err)
		}
	}
	p.wantState(t, a1, actor.Crashed, "")
	p.wantState(t, asleep, actor.Suspended, "")
	p.wantState(t, running, actor.Running, "w2")
}
