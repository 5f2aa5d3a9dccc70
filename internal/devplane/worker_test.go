package devplane_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
)

func TestScheduling(t *testing.T) {
	p := newPlane(t, 2, 3, 1)
	ctx := t.Context()
	ref := func(i int) actor.Ref { return actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)} }
	for i := range 7 {
		p.create(t, ref(i))
	}
	for i, want := range []string{"w1", "w0", "w1", "w0", "w1", "w2"} { // most room, then by name
		if a, _, err := p.ResumeActor(ctx, ref(i)); err != nil || a.Assignment.Worker != want {
			t.Errorf("actor %d: %+v, %v; want %s", i, a.Assignment, err, want)
		}
	}
	before := p.wantState(t, ref(6), actor.Suspended, "")
	_, _, err := p.ResumeActor(ctx, ref(6))
	wantCode(t, "no room", err, actor.ResourceExhausted, "no free workers available")
	if after := p.wantState(t, ref(6), actor.Suspended, ""); after.Version != before.Version {
		t.Errorf("the actor was written: version %d, then %d", before.Version, after.Version)
	}
	// A paused actor gives its place up and can only go back to its node.
	if _, err := p.PauseActor(ctx, ref(0)); err != nil {
		t.Fatal(err)
	}
	if a, _, err := p.ResumeActor(ctx, ref(6)); err != nil || a.Assignment.Worker != "w1" {
		t.Errorf("into the place: %+v, %v", a.Assignment, err)
	}
	if _, err := p.SuspendActor(ctx, ref(5)); err != nil {
		t.Fatal(err)
	}
	_, _, err = p.ResumeActor(ctx, ref(0))
	wantCode(t, "room on another node only", err, actor.ResourceExhausted, "")
	p.wantState(t, ref(0), actor.Paused, "")
	// Draining workers keep what they have and get nothing.
	if _, err := p.DrainWorker(ctx, "w2"); err != nil {
		t.Fatal(err)
	}
	_, _, err = p.ResumeActor(ctx, ref(5))
	wantCode(t, "room on a draining worker only", err, actor.ResourceExhausted, "")
	_, err = p.DrainWorker(ctx, "none")
	wantCode(t, "drain", err, actor.NotFound, "")
}

func TestSelector(t *testing.T) {
	p := newPlane(t, 5, 1)
	template := actor.Ref{Atespace: "demo", Name: "echo"}
	for name, tc := range map[string]struct {
		selector map[string]string
		worker   string
	}{
		"one": {map[string]string{"n": "1"}, "w1"}, "two": {map[string]string{"n": "0", "m": "0"}, ""}, "none": {nil, "w0"},
		"empty": {map[string]string{"m": ""}, ""},
	} {
		ref := actor.Ref{Atespace: "demo", Name: name}
		if _, err := p.CreateActor(t.Context(), ref, template, tc.selector); err != nil {
			t.Fatal(err)
		}
		a, _, err := p.ResumeActor(t.Context(), ref)
		if tc.worker == "" {
			wantCode(t, name, err, actor.ResourceExhausted, "")
		} else if err != nil || a.Assignment.Worker != tc.worker {
			t.Errorf("%s: %+v, %v", name, a.Assignment, err)
		}
	}
}

// TestRetryOnALostWorker retries a resume whose worker takes no actors any more.
func TestRetryOnALostWorker(t *testing.T) {
	for name, lose := range map[string]func(p plane) error{
		"draining": func(p plane) error { _, err := p.DrainWorker(context.Background(), "w0"); return err },
		"relabelled": func(p plane) error {
			w := worker(0, 1)
			w.Labels = nil
			_, err := p.AttachWorker(context.Background(), w)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, 1)
			if _, err := p.CreateActor(t.Context(), a1, actor.Ref{Atespace: "demo", Name: "echo"}, map[string]string{"n": "0"}); err != nil {
				t.Fatal(err)
			}
			p.boxes.failing(with(actor.ErrUnavailable))
			_, _, err := p.ResumeActor(t.Context(), a1)
			wantCode(t, "first", err, actor.Unavailable, "")
			if err := lose(p); err != nil {
				t.Fatal(err)
			}
			p.boxes.failing(nil)
			_, resumed, err := p.ResumeActor(t.Context(), a1)
			wantCode(t, "retry", err, actor.Aborted, "w0")
			if a := p.wantState(t, a1, actor.Crashed, ""); resumed || len(p.slots(t)) != 0 || !strings.HasPrefix(a.Crash, "resume failed: ") {
				t.Errorf("resumed %v, places %v, crash %q", resumed, p.slots(t), a.Crash)
			}
			_, _, err = p.ResumeActor(t.Context(), a1)
			wantCode(t, "later", err, actor.FailedPrecondition, "")
		})
	}
}

// A worker that goes while an actor is being resumed on it takes the actor along, and the operation finds out.
func TestWorkerGone(t *testing.T) {
	for name, lose := range map[string]func(p plane) error{
		"removed": func(p plane) error { _, err := p.DeleteWorker(context.Background(), "w0", actor.Terms{}); return err },
		"begun anew": func(p plane) error {
			w := worker(0, 1)
			w.Epoch = 2
			_, err := p.AttachWorker(context.Background(), w)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, 1)
			p.create(t, a1)
			p.boxes.failing(func(string) error { return lose(p) })
			_, resumed, err := p.ResumeActor(t.Context(), a1)
			wantCode(t, "resume", err, actor.Aborted, "taken over")
			if a := p.wantState(t, a1, actor.Crashed, ""); resumed || !strings.Contains(a.Crash, "the worker") || len(p.slots(t)) != 0 {
				t.Errorf("resumed %v, crash %q, places %v", resumed, a.Crash, p.slots(t))
			}
			p.boxes.failing(nil)
			_, _, err = p.ResumeActor(t.Context(), a1)
			wantCode(t, "later", err, actor.FailedPrecondition, "CRASHED")
		})
	}
	t.Run("nothing changes when it registers again", func(t *testing.T) {
		p := newPlane(t, 1)
		p.create(t, a1)
		if _, _, err := p.ResumeActor(t.Context(), a1); err != nil {
			t.Fatal(err)
		}
		before := p.register(t, worker(0, 1))
		if w := p.register(t, worker(0, 1)); w.UID != before.UID {
			t.Errorf("another worker: %+v", w)
		}
		p.wantState(t, a1, actor.Running, "w0")
		_, err := p.DeleteWorker(t.Context(), "none", actor.Terms{})
		wantCode(t, "remove", err, actor.NotFound, "")
		_, err = p.AttachWorker(t.Context(), actor.Worker{Name: "W"})
		wantCode(t, "register", err, actor.InvalidArgument, "worker")
	})
}

// A worker without a node cannot keep a paused actor: nobody would find it again.
func TestPauseWithoutNode(t *testing.T) {
	p := newPlane(t)
	w := worker(0, 1)
	w.Node = ""
	p.register(t, w)
	p.create(t, a1)
	if _, _, err := p.ResumeActor(t.Context(), a1); err != nil {
		t.Fatal(err)
	}
	_, err := p.PauseActor(t.Context(), a1)
	wantCode(t, "pause", err, actor.FailedPrecondition, "node")
	p.wantState(t, a1, actor.Running, "w0")
	if _, err := p.SuspendActor(t.Context(), a1); err != nil {
		t.Error(err)
	}
}
