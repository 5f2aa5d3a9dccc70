package control_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// Who hosts actors learns where they are, by the refusals of another question. What they say decides whether an actor is removed.
func TestWhereabouts(t *testing.T) {
	s := newSystem(t)
	made := s.create(t, a1)
	w1, w2 := s.attach(t, "w1", 2, 1), s.attach(t, "w2", 1, 1)
	want := func(who *worker, ref actor.Ref, uid string, want control.Whereabouts) {
		t.Helper()
		if got, err := who.Whereabouts(t.Context(), ref, uid); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	want(w1, a1, made.UID, control.Elsewhere) // it sleeps
	s.resume(t, a1)
	want(w1, a1, made.UID, control.Here)
	want(w2, a1, made.UID, control.Elsewhere)
	want(w1, a1, "other", control.Gone)
	if _, err := s.admin.SuspendActor(t.Context(), a1); err != nil {
		t.Fatal(err)
	}
	want(w1, a1, made.UID, control.Elsewhere)
	if _, err := s.admin.DeleteActor(t.Context(), a1, actor.Terms{}); err != nil {
		t.Fatal(err)
	}
	want(w1, a1, made.UID, control.Gone)
	again := s.create(t, a1)
	want(w1, a1, made.UID, control.Gone)
	want(w1, a1, again.UID, control.Elsewhere)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := w1.Whereabouts(t.Context(), a1, again.UID); err == nil { // nobody who could say
		t.Errorf("without a control plane it is %d", got)
	}
}
