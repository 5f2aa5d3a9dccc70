package service_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/service"
)

// abandon begins flights that nobody waits for.
func abandon(t *testing.T, l *service.Lot[string, string], keys ...string) {
	t.Helper()
	for _, key := range keys {
		ctx, leave := context.WithCancel(t.Context())
		end := ask(ctx, l, key)
		leave()
		if w := <-end; w.stay.Landing != service.Left {
			t.Fatalf("who left %s: %+v", key, w)
		}
		synctest.Wait()
	}
}

// The places are for requests: flights whose callers have left turn nobody away, and end for newer ones.
func TestIdleFlightsTakeNoPlace(t *testing.T) {
	answer := func(_ context.Context, key string, n int) (string, error) {
		if n < 10 {
			return "", errBusy
		}
		return "up", nil
	}
	inBubble(t, exact(places(3)), answer, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		abandon(t, l, "a", "b", "c")
		var ends []<-chan landed
		for _, key := range []string{"x", "y", "z"} {
			ends = append(ends, ask(t.Context(), l, key))
		}
		if got := l.Stats(); got != (service.LotStats{Parked: 3, Flights: 6, Waiting: 3}) {
			t.Errorf("three requests beside three idle flights: %+v", got)
		}
		abandoned := ask(t.Context(), l, "w")
		(<-abandoned).check(t, "a fourth", landed{"", service.Stay{Landing: service.Rejected}, service.ErrLotFull, 0})
		for _, end := range ends {
			if w := <-end; w.value != "up" || w.err != nil {
				t.Errorf("%+v", w)
			}
		}
	})
	inBubble(t, exact(places(2)), answer, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		abandon(t, l, "old", "taken")
		taken := ask(t.Context(), l, "taken") // is not idle any more
		abandon(t, l, "b", "c")
		time.Sleep(time.Second)
		if s.attempts("old") != 1 || s.attempts("taken") < 2 || s.attempts("b") < 2 || s.attempts("c") < 2 {
			t.Errorf("attempts: %d for the oldest, %d for the one waited on, %d and %d for the newest",
				s.attempts("old"), s.attempts("taken"), s.attempts("b"), s.attempts("c"))
		}
		if w := <-taken; w.value != "up" || !w.stay.Joined {
			t.Errorf("who came back: %+v", w)
		}
	})
}

// Attempts under way are bounded too, and an idle flight ends before a request is turned away.
func TestFlightsAreBounded(t *testing.T) {
	for _, tc := range []struct{ places, flights int }{{0, 1024}, {8, 1024}, {600, 1200}} {
		t.Run(fmt.Sprint(tc.places), func(t *testing.T) {
			inBubble(t, exact(places(tc.places)), func(ctx context.Context, key string, _ int) (string, error) {
				if key == "idle" {
					return "", errConflict
				}
				<-ctx.Done()
				return "", ctx.Err()
			}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
				abandon(t, l, "idle")
				for i := range tc.flights {
					abandon(t, l, fmt.Sprint(i))
				}
				if got := l.Stats(); got.Flights != tc.flights || s.attempts("idle") != 1 {
					t.Errorf("%+v, want %d flights", got, tc.flights)
				}
				(<-ask(t.Context(), l, "more")).check(t, "one more", landed{"", service.Stay{Landing: service.Rejected}, service.ErrLotFull, 0})
				if got := l.Stats(); got.Rejected != 1 || s.attempts("more") != 0 {
					t.Errorf("%+v, %d attempts for one more", got, s.attempts("more"))
				}
				joined := ask(t.Context(), l, "0") // needs no flight of its own
				time.Sleep(3 * time.Minute)
				if w := <-joined; w.stay.Landing != service.TimedOut || l.Stats().Flights != 0 {
					t.Errorf("%+v, then %+v", w, l.Stats())
				}
			})
		})
	}
}

// Whatever happens in what the lot calls, the flight lands and its key is free again.
func TestNothingPoisonsAKey(t *testing.T) {
	calls := 0
	once := func(f func()) {
		if calls++; calls == 1 {
			f()
		}
	}
	for _, tc := range []struct {
		name  string
		wake  func()
		judge func()
		want  string
	}{
		{"wake panics", func() { panic("oops") }, nil, "oops"},
		{"wake ends its goroutine", runtime.Goexit, nil, "ended its goroutine"},
		{"the judge panics", nil, func() { panic("oops") }, "oops"},
		{"the judge ends its goroutine", nil, runtime.Goexit, "ended its goroutine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls = 0
			synctest.Test(t, func(t *testing.T) {
				l := service.NewLot(exact(), func(context.Context, string) (string, error) {
					if tc.wake != nil {
						once(tc.wake)
						return "up", nil
					}
					if calls == 0 {
						return "", errBusy
					}
					return "up", nil
				}, func(error) service.Retry {
					once(tc.judge)
					return service.RetryParked
				})
				defer l.Close()
				w := <-ask(t.Context(), l, "k")
				if w.err == nil || !strings.Contains(w.err.Error(), tc.want) || errors.Is(w.err, errBusy) || w.stay.Landing != service.Failed {
					t.Errorf("%+v", w)
				}
				(<-ask(t.Context(), l, "k")).check(t, "the next", landed{"up", service.Stay{}, nil, 0})
			})
		})
	}
}

// Who waits for quiet waits for the last flight, and is not fooled by one before it.
func TestQuiet(t *testing.T) {
	answer := func(_ context.Context, key string, _ int) (string, error) {
		if key == "b" {
			time.Sleep(2 * time.Second)
		} else {
			time.Sleep(time.Second)
		}
		return "up", nil
	}
	inBubble(t, exact(), answer, func(t *testing.T, l *service.Lot[string, string], _ *sleeper) {
		quiet := func() bool {
			select {
			case <-l.Quiet():
				return true
			default:
				return false
			}
		}
		if !quiet() {
			t.Error("a lot without flights")
		}
		abandon(t, l, "a", "b")
		begin, waiting := time.Now(), l.Quiet()
		if quiet() || l.Quiet() != waiting {
			t.Error("a lot with flights")
		}
		<-waiting
		if d := time.Since(begin); d != 2*time.Second || !quiet() || l.Stats().Flights != 0 {
			t.Errorf("quiet after %s", d)
		}
	})
}
