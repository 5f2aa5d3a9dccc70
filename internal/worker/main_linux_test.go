package worker_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// The test binary plays three parts: itself, a process that becomes an actor, and the actor.
func TestMain(m *testing.M) {
	worker.Confine()
	if len(os.Args) > 1 && os.Args[1] == "as-actor" {
		act(os.Args[2:])
	}
	goleak.VerifyTestMain(m)
}
