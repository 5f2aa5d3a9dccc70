package atelet_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/atelet"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// A suspended actor goes on though it could not be started any more: what it is made of counts when it begins anew. What it
// writes to stays where it is meanwhile.
func TestThawNeedsNoProgram(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	s.create("a", "counter")
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
	s.suspend("a")
	log, away := atelet.OutputFile(s.path("logs"), demo("a")), s.path("away")
	if err := errors.Join(os.Rename(s.path("programs/counter"), away), os.Truncate(log, 17<<20)); err != nil {
		t.Fatal(err)
	}
	s.resume("a", "w1")
	w1.says("a", "/", "a 2")
	if _, err := os.Lstat(log + ".1"); err == nil {
		t.Error("what it writes to was put aside")
	}
	if _, err := s.admin.DeleteActor(t.Context(), demo("a"), actor.Terms{AnyState: true}); err != nil {
		t.Fatal(err)
	}
	s.create("a", "counter")
	if _, _, err := s.admin.ResumeActor(t.Context(), demo("a")); err == nil || !strings.Contains(err.Error(), "there is no program") {
		t.Errorf("anew, without a program: %v", err)
	}
	if err := os.Rename(away, s.path("programs/counter")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin.RevertActor(t.Context(), demo("a")); err != nil {
		t.Fatal(err)
	}
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
	if info, err := os.Stat(log + ".1"); err != nil || info.Size() != 17<<20 {
		t.Errorf("a long output of an earlier one: %v, %v", info, err)
	}
}

// Without anybody who certifies its key just now an actor cannot run, and loses nothing by it.
func TestKeysThatAreNotCertifiedNow(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	s.create("a", "counter")
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
	s.suspend("a")
	w1.leave()
	w1.mute = true
	w1.attach()
	_, _, err := s.admin.ResumeActor(t.Context(), demo("a"))
	if e := (*actor.Error)(nil); !errors.As(err, &e) || e.Code != actor.Unavailable || !strings.Contains(err.Error(), "not certified") {
		t.Errorf("without a broker: %v", err)
	}
	w1.leave()
	w1.mute = false
	w1.attach()
	s.resume("a", "w1")
	w1.says("a", "/", "a 2")
}

// An agent that ends while an actor is being started loses nothing of it: the start is given up, and tried again.
func TestAgentEndsDuringAStart(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	a := s.create("a", "counter")
	hold := s.path("state/" + s.run.String() + "/trust/hold") // the actor is not ready while it is there
	for _, want := range []string{"a 1", "a 2"} {             // started anew, and thawed
		if err := os.WriteFile(hold, nil, 0o644); err != nil { //nolint:gosec // the actor reads it
			t.Fatal(err)
		}
		resumed := make(chan error, 1)
		go func() {
			_, _, err := s.admin.ResumeActor(t.Context(), demo("a"))
			resumed <- err
		}()
		gatewaytest.Until(t, "it is being started", func() bool {
			_, all := w1.unix("w1", "GET", "/v1/actors", nil)
			return strings.Contains(all, a.UID)
		})
		w1.leave()
		if e, err := (*actor.Error)(nil), <-resumed; !errors.As(err, &e) || e.Code != actor.Unavailable {
			t.Errorf("without its agent: %v", err)
		}
		if err := os.Remove(hold); err != nil {
			t.Fatal(err)
		}
		w1.attach()
		s.resume("a", "w1")
		w1.says("a", "/", want)
		s.suspend("a")
	}
}
