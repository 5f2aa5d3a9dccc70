package control_test

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
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
)

var (
	_ actor.Source[egress.Kept] = (*control.Source[egress.Kept])(nil)
	_ actor.Source[actor.Actor] = (*control.Source[actor.Actor])(nil)
)

// counted is a source over a counter: each reading is one more.
func counted(keep time.Duration, fail func(n int64) error) (*control.Source[string], *atomic.Int64) {
	n := new(atomic.Int64)
	return control.NewSource(keep, func(ctx context.Context, ref actor.Ref) (string, int64, error) {
		v := n.Add(1)
		if fail != nil {
			if err := fail(v); err != nil {
				return "", 0, err
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return "", 0, ctx.Err()
		}
		return ref.Name, v, nil
	}), n
}

func TestSourceKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := counted(time.Second, nil)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if v, version, err := s.Get(t.Context(), a1); v != "a1" || version != 1 || err != nil {
					t.Errorf("%q, %d, %v", v, version, err)
				}
			})
		}
		all.Wait()
		time.Sleep(899 * time.Millisecond) // the reading has taken the rest
		if _, version, _ := s.Get(t.Context(), a1); version != 1 {
			t.Errorf("before its time it was read again: %d", version)
		}
		time.Sleep(2 * time.Millisecond)
		if _, version, _ := s.Get(t.Context(), a1); version != 2 {
			t.Errorf("after its time it is version %d", version)
		}
		s.Drop(a1)
		if _, version, _ := s.Get(t.Context(), a1); version != 3 || n.Load() != 3 {
			t.Errorf("dropped, it is version %d", version)
		}
	})
}

func TestSourceErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name string
			keep time.Duration
			err  error
			want int64 // readings of two calls, one after the other
		}{
			{"none there", time.Second, actor.Refuse(actor.NotFound, "no"), 1},
			{"unavailable", time.Second, actor.Refuse(actor.Unavailable, "no"), 2},
			{"invalid", time.Second, errors.New("no"), 2},
			{"kept for no time", 0, nil, 2},
		} {
			s, n := counted(tc.keep, func(int64) error { return tc.err })
			for range 2 {
				if _, _, err := s.Get(t.Context(), a1); !errors.Is(err, tc.err) {
					t.Errorf("%s: %v", tc.name, err)
				}
			}
			if n.Load() != tc.want {
				t.Errorf("%s: %d readings, want %d", tc.name, n.Load(), tc.want)
			}
		}
	})
}

// The time that a value may be kept begins when it is asked for: nobody knows when in between it was true.
func TestSourceSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := control.NewSource(time.Second, func(context.Context, actor.Ref) (time.Time, int64, error) {
			n++
			at := time.Now()
			time.Sleep(900 * time.Millisecond) // of the bubble: the answer is on its way
			return at, int64(n), nil
		})
		for range 50 {
			if at, _, err := s.Get(t.Context(), a1); err != nil || time.Since(at) > time.Second {
				t.Fatalf("%s old, %v", time.Since(at), err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// Who leaves does not end what others wait for, and what never answers ends after 4 s.
func TestSourceCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := counted(time.Second, nil)
		ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer leave()
		first := make(chan error, 1)
		go func() {
			_, _, err := s.Get(ctx, a1)
			first <- err
		}()
		synctest.Wait()
		if _, version, err := s.Get(t.Context(), a1); version != 1 || err != nil || n.Load() != 1 {
			t.Errorf("who stayed: version %d, %v, %d readings", version, err, n.Load())
		}
		wantCode(t, "who left", <-first, actor.DeadlineExceeded)
		stuck := control.NewSource(time.Second, func(ctx context.Context, _ actor.Ref) (string, int64, error) {
			<-ctx.Done()
			return "", 0, ctx.Err()
		})
		began := time.Now()
		if _, _, err := stuck.Get(t.Context(), a1); err == nil || time.Since(began) != 4*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// What was read is named once it is old, whoever is slow.
func TestSourceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := counted(time.Second, nil)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		want := map[actor.Ref]bool{}
		for i := range 100 {
			ref := actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)}
			want[ref] = true
			if _, _, err := s.Get(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second) // nobody reads
		for range 100 {
			ref := <-s.Changes()
			if !want[ref] {
				t.Errorf("%s is named twice, or was not read", ref)
			}
			delete(want, ref)
		}
		synctest.Wait()
		select {
		case ref := <-s.Changes():
			t.Errorf("%s is named too", ref)
		default:
		}
		began := time.Now()
		_, _, _ = s.Get(t.Context(), a1)
		if ref := <-s.Changes(); ref != a1 || time.Since(began) != time.Second {
			t.Errorf("%s after %s", ref, time.Since(began))
		}
		stop()
		running.Wait()
	})
}

// Over the wire: a change is seen within the time that values are kept.
func TestPoliciesSource(t *testing.T) {
	s := newSystem(t)
	s.create(t, a1)
	p := s.client(t, "egress").Policies(50 * time.Millisecond)
	_, _, err := p.Get(t.Context(), a1)
	wantCode(t, "without one", err, actor.NotFound)
	if _, err := s.admin.CreatePolicy(t.Context(), a1, egress.Policy{Name: "default", Atespace: "demo"}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is seen", func() bool {
		_, version, err := p.Get(t.Context(), a1)
		return err == nil && version == 1
	})
	if a, _, err := s.client(t, "egress").Actors(time.Second).Get(t.Context(), a1); err != nil || a.State != actor.Suspended {
		t.Errorf("%v, %v", a.State, err)
	}
}
