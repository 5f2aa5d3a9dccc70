package devplane_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/devplane"
	"github.com/sluice-proxy/sluice/internal/store"
)

// Fifty at a time: one sandbox results. Who comes while it is made is Aborted, who comes after finds it.
func TestConcurrentResume(t *testing.T) {
	p := newPlane(t, 5)
	p.create(t, a1)
	hold := make(chan struct{})
	p.boxes.failing(func(string) error { <-hold; return nil })
	var aborted, did, found atomic.Int64
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			_, resumed, err := p.ResumeActor(context.Background(), a1)
			var e *actor.Error
			switch {
			case errors.As(err, &e) && e.Code == actor.Aborted:
				if aborted.Add(1) == 49 {
					close(hold)
				}
			case err == nil && resumed:
				did.Add(1)
			case err == nil:
				found.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if did.Load() != 1 || aborted.Load() != 49 || p.boxes.starts != 1 {
		t.Errorf("%d resumed, %d aborted, %d found, %d started", did.Load(), aborted.Load(), found.Load(), p.boxes.starts)
	}
	// Any other operation waits for its turn too.
	hold2, under := make(chan struct{}), make(chan struct{})
	p.boxes.failing(func(string) error { close(under); <-hold2; return nil })
	callers.Go(func() {
		if _, err := p.SuspendActor(context.Background(), a1); err != nil {
			t.Error(err)
		}
	})
	<-under
	_, _, err := p.ResumeActor(t.Context(), a1)
	wantCode(t, "resume while it is suspended", err, actor.Aborted, "under way")
	_, err = p.DeleteActor(t.Context(), a1, actor.Terms{AnyState: true})
	wantCode(t, "delete while it is suspended", err, actor.Aborted, "under way")
	close(hold2)
	callers.Wait()
}

// The caller's departure does not end an operation.
func TestCallerLeaves(t *testing.T) {
	p := newPlane(t, 1)
	p.create(t, a1)
	ctx, leave := context.WithCancel(t.Context())
	p.boxes.failing(func(string) error { leave(); return nil })
	if a, resumed, err := p.ResumeActor(ctx, a1); err != nil || !resumed || a.State != actor.Running {
		t.Errorf("%+v, %v, %v", a, resumed, err)
	}
	p.wantState(t, a1, actor.Running, "w0")
}

// An operation that lasts longer than its lease loses its lock, and can then write nothing, be it that another one is under
// way or that it has ended too.
func TestLease(t *testing.T) {
	for name, overlap := range map[string]bool{"another under way": true, "another that has ended": false} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { outlastLease(t, overlap) }) })
	}
}

func outlastLease(t *testing.T, overlap bool) {
	p := newPlane(t, 1)
	p.create(t, a1)
	resume := func() <-chan error {
		end := make(chan error, 1)
		go func() {
			_, _, err := p.ResumeActor(context.Background(), a1)
			end <- err
		}()
		synctest.Wait()
		return end
	}
	first, second := make(chan struct{}), make(chan struct{})
	p.boxes.failing(func(string) error { <-first; return errors.New("much too late") })
	late := resume()
	p.boxes.failing(func(string) error { <-second; return nil })
	time.Sleep(5*time.Minute - time.Second)
	wantCode(t, "before the end of the lease", <-resume(), actor.Aborted, "under way")
	time.Sleep(2 * time.Second)
	next := resume()
	if !overlap {
		close(second)
		synctest.Wait()
	}
	close(first)
	wantCode(t, "the late one", <-late, actor.Aborted, "taken over")
	if overlap {
		p.wantState(t, a1, actor.Resuming, "w0")
		wantCode(t, "beside the other one", <-resume(), actor.Aborted, "under way")
		close(second)
	}
	if err := <-next; err != nil {
		t.Errorf("the other one: %v", err)
	}
	p.wantState(t, a1, actor.Running, "w0")
}

// A lock that an operation has left is free after a lease, also when it was taken while the clock was ahead: no lock lasts for longer.
func TestLockOfAClockThatWasAhead(t *testing.T) {
	p := newPlane(t, 1)
	p.create(t, a1)
	left := func(until time.Duration) {
		t.Helper()
		err := p.store.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.Create(store.Key{Kind: devplane.KindLock, Group: a1.Atespace, Name: a1.Name}, "left",
				fmt.Appendf(nil, `{"until":%q}`, time.Now().Add(until).Format(time.RFC3339Nano)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	left(24 * time.Hour)
	if _, resumed, err := p.ResumeActor(t.Context(), a1); err != nil || !resumed {
		t.Errorf("with a lock of tomorrow: %v, %v", resumed, err)
	}
	left(4 * time.Minute)
	_, err := p.SuspendActor(t.Context(), a1)
	wantCode(t, "with a lock of now", err, actor.Aborted, "under way")
}
