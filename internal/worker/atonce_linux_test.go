package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// atOnce calls all of them at the same moment, more or less.
func atOnce(calls ...func()) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for _, call := range calls {
		wait := rand.IntN(200)
		wg.Go(func() {
			<-begin
			for range wait {
				runtime.Gosched()
			}
			call()
		})
	}
	close(begin)
	wg.Wait()
}

// expectOne is either an actor that runs and answers, or nothing of one.
func expectOne(t *testing.T, h *host, s worker.Spec) (runs bool) {
	t.Helper()
	if len(h.Actors()) == 0 {
		expectNothing(t, h)
		return false
	}
	if _, err := h.get(s.Ref, "/count"); err != nil || h.held.Load() != 1 {
		t.Errorf("an actor is active that does not answer, with %d credentials: %v", h.held.Load(), err)
	}
	return true
}

// However an actor's activations and its end meet, callers are told what there is: one of them has it active and it answers, or it
// is gone and nothing of it is left. Nobody ends what somebody else has just begun without either of them knowing.
func TestTerminateAndActivateAtOnce(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	s := h.spec("demo/a")
	over := within(t, 10*patience)
	active, ended := 0, 0
	for round := range 24 {
		s.Thaw = round%3 == 2
		if s.Thaw { // what is terminated is a frozen actor
			cold := s
			cold.Thaw = false
			if err := errors.Join(h.Activate(over, cold), h.Suspend(over, s.UID)); err != nil {
				t.Fatal(err)
			}
		}
		var failed, terminated [2]error
		var calls []func()
		for i := range failed {
			calls = append(calls, func() { failed[i] = h.Activate(over, s) }, func() { terminated[i] = h.Terminate(over, s.UID) })
		}
		atOnce(calls...)
		for _, err := range terminated {
			if err != nil {
				t.Errorf("round %d: terminating: %v", round, err)
			}
		}
		for _, err := range failed {
			given := errors.Is(err, worker.ErrActive) || errors.Is(err, context.Canceled) || s.Thaw
			if err != nil && !given {
				t.Errorf("round %d: activating: %v", round, err)
			}
		}
		if expectOne(t, h, s) {
			active++
		} else {
			ended++
		}
		if err := h.Terminate(over, s.UID); err != nil {
			t.Errorf("round %d: terminating at last: %v", round, err)
		}
		expectNothing(t, h)
		select {
		case how := <-h.exited:
			t.Errorf("round %d: it ended by itself: %s", round, how)
		default:
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("active after %d rounds, gone after %d", active, ended)
}
