package worker_test

import (
	"errors"
	"testing"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// What an actor is called ends up in its table of hosts, in the names of namespaces and in those of groups.
func TestActorsThatCannotBe(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	for name, change := range map[string]func(a *worker.Actor){
		"no name":                   func(a *worker.Actor) { a.Ref = "demo" },
		"no atespace":               func(a *worker.Actor) { a.Ref = "/a" },
		"a name in parts":           func(a *worker.Actor) { a.Ref = "demo/a/b" },
		"a name with a line":        func(a *worker.Actor) { a.Ref = "demo/a\n192.0.2.1 api.demo.test" },
		"a name in capitals":        func(a *worker.Actor) { a.Ref = "demo/A" },
		"a name that ends badly":    func(a *worker.Actor) { a.Ref = "demo/a-" },
		"no UID":                    func(a *worker.Actor) { a.UID = "" },
		"a UID that climbs":         func(a *worker.Actor) { a.UID = "../x" },
		"a UID too long":            func(a *worker.Actor) { a.UID = "0123456789012345678901234567890123456789012345" },
		"a UID as a gateway's name": func(a *worker.Actor) { a.UID = "a-at" },
	} {
		t.Run(name, func(t *testing.T) {
			s := h.spec("demo/a")
			change(&s.Actor)
			if err := h.Activate(t.Context(), s); !errors.Is(err, worker.ErrProgram) {
				t.Errorf("activating: %v", err)
			}
			if s.Ref != "demo/a" {
				return
			}
			if err := h.Terminate(t.Context(), s.UID); !errors.Is(err, worker.ErrProgram) {
				t.Errorf("terminating: %v", err)
			}
		})
	}
	expectNothing(t, h)
}

// A user is of one actor alone: what the kernel counts for a user it would count for both.
func TestActorsDoNotShareAUser(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	s := h.activate("demo/a")
	other := h.spec("demo/b")
	other.Program.User = s.Program.User
	if err := h.Activate(t.Context(), other); !errors.Is(err, worker.ErrProgram) {
		t.Errorf("with the same user: %v", err)
	}
}
