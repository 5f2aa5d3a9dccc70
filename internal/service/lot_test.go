package service_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/service"
)

var (
	errBusy     = errors.New("no free workers available")
	errConflict = errors.New("another operation holds the lock")
	errFinal    = errors.New("not found")
)

func kindOf(err error) service.Retry {
	switch {
	case errors.Is(err, errBusy):
		return service.RetryParked
	case errors.Is(err, errConflict):
		return service.RetryConflict
	}
	return service.NoRetry
}

// exact is parking without chance.
func exact(change ...func(*service.Parking)) service.Parking {
	p := service.DefaultParking()
	p.Jitter = 0
	for _, c := range change {
		c(&p)
	}
	return p
}

func places(n int) func(*service.Parking) { return func(p *service.Parking) { p.Max = n } }

// sleeper is what is woken: it says when it was tried, and answers by the number of the attempt.
type sleeper struct {
	begin  time.Time
	answer func(ctx context.Context, key string, n int) (string, error)

	mu    sync.Mutex
	tries []time.Duration // since begin
	count map[string]int
}

func newSleeper(answer func(ctx context.Context, key string, n int) (string, error)) *sleeper {
	return &sleeper{begin: time.Now(), answer: answer, count: map[string]int{}}
}

func (s *sleeper) wake(ctx context.Context, key string) (string, error) {
	s.mu.Lock()
	n := s.count[key]
	s.count[key]++
	s.tries = append(s.tries, time.Since(s.begin))
	s.mu.Unlock()
	return s.answer(ctx, key, n)
}

func (s *sleeper) attempts(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[key]
}

// landed is one wait that has ended.
type landed struct {
	value string
	stay  service.Stay
	err   error
	at    time.Duration
}

// inBubble runs a test with a lot on a clock of its own, and checks that nothing is left in the lot.
func inBubble(t *testing.T, p service.Parking, answer func(ctx context.Context, key string, n int) (string, error), test func(t *testing.T, l *service.Lot[string, string], s *sleeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSleeper(answer)
		l := service.NewLot(p, s.wake, kindOf)
		test(t, l, s)
		l.Close()
		synctest.Wait()
		if got := l.Stats(); got.Parked != 0 || got.Flights != 0 {
			t.Errorf("left in the lot: %+v", got)
		}
	})
}

// ask begins a wait, and returns where its end will come.
func ask(ctx context.Context, l *service.Lot[string, string], key string) <-chan landed {
	end, begin := make(chan landed, 1), time.Now()
	go func() {
		value, stay, err := l.Wait(ctx, key)
		end <- landed{value, stay, err, time.Since(begin)}
	}()
	synctest.Wait()
	return end
}

func (w landed) check(t *testing.T, what string, want landed) {
	t.Helper()
	if w.value != want.value || w.stay != want.stay || !errors.Is(w.err, want.err) || w.at != want.at {
		t.Errorf("%s: %q %+v %v after %s, want %q %+v %v after %s", what, w.value, w.stay, w.err, w.at, want.value, want.stay, want.err, want.at)
	}
}

func always(err error) func(context.Context, string, int) (string, error) {
	return func(context.Context, string, int) (string, error) { return "", err }
}

func TestFiftyCallersOneAttempt(t *testing.T) {
	inBubble(t, exact(), func(context.Context, string, int) (string, error) {
		time.Sleep(2 * time.Second)
		return "10.0.0.5", nil
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		var ends []<-chan landed
		for range 50 {
			ends = append(ends, ask(t.Context(), l, "demo/a1"))
		}
		joined := 0
		for i, end := range ends {
			w := <-end
			w.check(t, fmt.Sprint("caller ", i), landed{"10.0.0.5", service.Stay{Joined: i > 0}, nil, 2 * time.Second})
			if w.stay.Joined {
				joined++
			}
		}
		if s.attempts("demo/a1") != 1 || joined != 49 {
			t.Errorf("%d attempts, %d joined", s.attempts("demo/a1"), joined)
		}
		// The flight is over: who comes now begins another one.
		(<-ask(t.Context(), l, "demo/a1")).check(t, "later", landed{"10.0.0.5", service.Stay{}, nil, 2 * time.Second})
		if s.attempts("demo/a1") != 2 {
			t.Errorf("%d attempts after a second flight", s.attempts("demo/a1"))
		}
	})
}

// A full pool: the delays grow by a tenth each, the last is cut to what is left of the budget, and the last error is told.
func TestBudget(t *testing.T) {
	inBubble(t, exact(), always(errBusy), func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		first := ask(t.Context(), l, "k")
		time.Sleep(time.Second)
		second := ask(t.Context(), l, "k") // shares the budget, and what is left of it
		(<-first).check(t, "first", landed{"", service.Stay{Parked: 5 * time.Second, Landing: service.Exhausted}, errBusy, 5 * time.Second})
		(<-second).check(t, "second", landed{"", service.Stay{Joined: true, Parked: 4 * time.Second, Landing: service.Exhausted}, errBusy, 4 * time.Second})
		if len(s.tries) != 20 || s.tries[1] != 100*time.Millisecond || s.tries[2] != 210*time.Millisecond || s.tries[19] != 5*time.Second {
			t.Errorf("%d attempts at %v", len(s.tries), s.tries)
		}
	})
}

func TestServedWhileParked(t *testing.T) {
	inBubble(t, exact(), func(_ context.Context, _ string, n int) (string, error) {
		if n < 3 {
			return "", errBusy
		}
		return "up", nil
	}, func(t *testing.T, l *service.Lot[string, string], _ *sleeper) {
		const wait = 331 * time.Millisecond // 100 + 110 + 121
		(<-ask(t.Context(), l, "k")).check(t, "it", landed{"up", service.Stay{Parked: wait}, nil, wait})
	})
}

func TestSlowAttempts(t *testing.T) {
	slow := func(first time.Duration, err error) func(context.Context, string, int) (string, error) {
		return func(ctx context.Context, _ string, n int) (string, error) {
			if n > 0 {
				return "late", nil
			}
			select {
			case <-time.After(first):
				return "first", err
			case <-ctx.Done():
				return "", errBusy // what a client makes of it must not matter
			}
		}
	}
	for _, tc := range []struct {
		name     string
		answer   func(context.Context, string, int) (string, error)
		want     landed
		attempts int
	}{
		{"a success after the budget", slow(5300*time.Millisecond, nil), landed{"first", service.Stay{}, nil, 5300 * time.Millisecond}, 1},
		{"a success after a slow probe", slow(25*time.Second, nil), landed{"first", service.Stay{}, nil, 25 * time.Second}, 1},
		{"a success just before the ceiling", slow(2*time.Minute-1, nil), landed{"first", service.Stay{}, nil, 2*time.Minute - 1}, 1},
		{"a failure just before the budget ends", slow(4950*time.Millisecond, errBusy), landed{"late", service.Stay{Parked: 50 * time.Millisecond}, nil, 5 * time.Second}, 2},
		{"a failure when the budget ends", slow(5*time.Second, errBusy), landed{"first", service.Stay{Landing: service.Exhausted}, errBusy, 5 * time.Second}, 1},
		{"a failure after the budget", slow(6*time.Second, errConflict), landed{"first", service.Stay{Landing: service.Exhausted}, errConflict, 6 * time.Second}, 1},
		{"no answer", slow(time.Hour, nil), landed{"", service.Stay{Landing: service.TimedOut}, errBusy, 2 * time.Minute}, 1},
		{"an answer that says so itself", slow(time.Second, context.DeadlineExceeded), landed{"first", service.Stay{Landing: service.TimedOut}, context.DeadlineExceeded, time.Second}, 1},
		{"an answer", slow(time.Second, errFinal), landed{"first", service.Stay{Landing: service.Failed}, errFinal, time.Second}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, exact(), tc.answer, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
				w := <-ask(t.Context(), l, "k")
				if w.err != nil {
					w.value, tc.want.value = "", "" // means nothing
				}
				w.check(t, "it", tc.want)
				if got := s.attempts("k"); got != tc.attempts {
					t.Errorf("%d attempts, want %d", got, tc.attempts)
				}
			})
		})
	}
}

func TestLotFull(t *testing.T) {
	var open atomic.Bool
	inBubble(t, exact(places(2)), func(_ context.Context, key string, n int) (string, error) {
		if strings.HasPrefix(key, "hot") || open.Load() {
			return "up", nil
		}
		if n == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		return "", errBusy
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		a, b, c := ask(t.Context(), l, "cold"), ask(t.Context(), l, "cold"), ask(t.Context(), l, "cold")
		if got := l.Stats(); got.Parked != 0 || got.Flights != 1 {
			t.Errorf("before the first failure nobody has a place: %+v", got)
		}
		(<-c).check(t, "the last that came", landed{"", service.Stay{Joined: true, Landing: service.Rejected}, service.ErrLotFull, 50 * time.Millisecond})
		if got := l.Stats(); got.Parked != 2 || got.Rejected != 1 {
			t.Errorf("with a full lot: %+v", got)
		}
		// Who joins a parked flight needs a place at once.
		(<-ask(t.Context(), l, "cold")).check(t, "a joiner", landed{"", service.Stay{Joined: true, Landing: service.Rejected}, service.ErrLotFull, 0})
		// What is awake is served whatever the lot.
		for i := range 100 {
			(<-ask(t.Context(), l, fmt.Sprint("hot", i%3))).check(t, "hot", landed{"up", service.Stay{}, nil, 0})
		}
		// What is not is tried once, and not again for nobody.
		(<-ask(t.Context(), l, "other")).check(t, "another", landed{"", service.Stay{Landing: service.Rejected}, service.ErrLotFull, 50 * time.Millisecond})
		time.Sleep(time.Second)
		if s.attempts("other") != 1 {
			t.Errorf("%d attempts for nobody", s.attempts("other"))
		}
		open.Store(true)
		for _, end := range []<-chan landed{a, b} {
			if w := <-end; w.value != "up" || w.err != nil || w.stay.Parked != w.at-50*time.Millisecond {
				t.Errorf("parked, then %+v", w)
			}
		}
		if got := l.Stats(); got != (service.LotStats{Rejected: 3}) {
			t.Errorf("at the end: %+v", got)
		}
		// There is room again.
		open.Store(false)
		if d := ask(t.Context(), l, "cold"); l.Stats().Rejected != 3 {
			t.Errorf("%+v", <-d)
		}
	})
}

func TestCallerLeaves(t *testing.T) {
	gone := errors.New("client gone")
	inBubble(t, exact(places(1)), func(_ context.Context, _ string, n int) (string, error) {
		if n < 10 {
			return "", errBusy
		}
		return "up", nil
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		ctx, leave := context.WithCancelCause(t.Context())
		a := ask(ctx, l, "k")
		time.Sleep(50 * time.Millisecond)
		leave(gone)
		(<-a).check(t, "who left", landed{"", service.Stay{Parked: 50 * time.Millisecond, Landing: service.Left}, gone, 50 * time.Millisecond})
		if got := l.Stats(); got.Parked != 0 || got.Flights != 1 {
			t.Errorf("the place is not free, or the flight has ended: %+v", got)
		}
		// The flight goes on: who takes the place finds it where it is.
		b := ask(t.Context(), l, "k")
		w := <-b
		if w.value != "up" || !w.stay.Joined || w.err != nil || s.attempts("k") != 11 {
			t.Errorf("who came after: %+v, %d attempts", w, s.attempts("k"))
		}
		// Who has left already wakes nobody.
		w = <-ask(ctx, l, "k")
		w.check(t, "who had left", landed{"", service.Stay{Landing: service.Left}, gone, 0})
		if s.attempts("k") != 11 {
			t.Errorf("%d attempts for who had left", s.attempts("k"))
		}
	})
}

func TestAllLeaveDuringTheFirstAttempt(t *testing.T) {
	inBubble(t, exact(places(1)), func(_ context.Context, _ string, n int) (string, error) {
		if n == 0 {
			time.Sleep(time.Second)
			return "", errBusy
		}
		return "up", nil
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		(<-ask(ctx, l, "k")).check(t, "it", landed{"", service.Stay{Landing: service.Left}, context.DeadlineExceeded, time.Millisecond})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s.attempts("k") != 2 || l.Stats().Flights != 0 {
			t.Errorf("%d attempts, %+v: the flight did not go on to its end", s.attempts("k"), l.Stats())
		}
	})
}

// Callers who leave at once keep no more flights in the air than there are places.
func TestAbandonedFlightsAreBounded(t *testing.T) {
	inBubble(t, exact(places(3)), always(errBusy), func(t *testing.T, l *service.Lot[string, string], _ *sleeper) {
		for i := range 50 {
			ctx, leave := context.WithCancel(t.Context())
			end := ask(ctx, l, fmt.Sprint("k", i))
			leave()
			<-end
			synctest.Wait()
			if got := l.Stats(); got.Flights > 3 || got.Parked != 0 {
				t.Fatalf("after %d callers: %+v", i+1, got)
			}
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if got := l.Stats(); got.Flights != 0 {
			t.Errorf("after their budget: %+v", got)
		}
	})
}

func TestWithoutParking(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want landed
		min  int // attempts
	}{
		{"what may pass is final", errBusy, landed{"", service.Stay{Landing: service.Failed}, errBusy, 0}, 1},
		{"what is final", errFinal, landed{"", service.Stay{Landing: service.Failed}, errFinal, 0}, 1},
		{"a conflict", errConflict, landed{"", service.Stay{Landing: service.Exhausted}, errConflict, 0}, 25},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, exact(places(0)), always(tc.err), func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
				end := ask(t.Context(), l, "k")
				if got := l.Stats(); got.Parked != 0 {
					t.Errorf("parked: %+v", got)
				}
				w := <-end
				if tc.err == errConflict {
					if w.at > 15*time.Second || w.at < 13*time.Second {
						t.Errorf("it ends after %s", w.at)
					}
					w.at = 0
				}
				w.check(t, "it", tc.want)
				if s.attempts("k") < tc.min || l.Stats().Rejected != 0 {
					t.Errorf("%d attempts, %+v", s.attempts("k"), l.Stats())
				}
			})
		})
	}
	t.Run("no answer", func(t *testing.T) {
		inBubble(t, exact(places(0)), func(ctx context.Context, _ string, _ int) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}, func(t *testing.T, l *service.Lot[string, string], _ *sleeper) {
			(<-ask(t.Context(), l, "k")).check(t, "it", landed{"", service.Stay{Landing: service.TimedOut}, context.DeadlineExceeded, 15 * time.Second})
		})
	})
}

type traceKey struct{}

// A flight has the values of who began it, and not its deadline.
func TestFlightContext(t *testing.T) {
	inBubble(t, exact(), func(ctx context.Context, _ string, _ int) (string, error) {
		time.Sleep(time.Second)
		if err := ctx.Err(); err != nil {
			return "", err
		}
		return fmt.Sprint(ctx.Value(traceKey{})), nil
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		ctx, leave := context.WithTimeout(context.WithValue(t.Context(), traceKey{}, "span"), time.Millisecond)
		defer leave()
		a, b := ask(ctx, l, "k"), ask(t.Context(), l, "k")
		(<-a).check(t, "first", landed{"", service.Stay{Landing: service.Left}, context.DeadlineExceeded, time.Millisecond})
		(<-b).check(t, "second", landed{"span", service.Stay{Joined: true}, nil, time.Second})
	})
}

func TestWakePanics(t *testing.T) {
	inBubble(t, exact(), func(context.Context, string, int) (string, error) { panic("oops") },
		func(t *testing.T, l *service.Lot[string, string], _ *sleeper) {
			w := <-ask(t.Context(), l, "k")
			if w.err == nil || !strings.Contains(w.err.Error(), "oops") || w.stay.Landing != service.Failed {
				t.Errorf("%+v", w)
			}
		})
}

func TestLotClose(t *testing.T) {
	inBubble(t, exact(), func(ctx context.Context, key string, _ int) (string, error) {
		if key == "between" {
			return "", errBusy
		}
		<-ctx.Done()
		return "", ctx.Err()
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		a, b := ask(t.Context(), l, "under way"), ask(t.Context(), l, "between")
		time.Sleep(10 * time.Millisecond)
		l.Close()
		(<-a).check(t, "under way", landed{"", service.Stay{Landing: service.Failed}, context.Canceled, 10 * time.Millisecond})
		(<-b).check(t, "between two attempts", landed{"", service.Stay{Parked: 10 * time.Millisecond, Landing: service.Failed}, errBusy, 10 * time.Millisecond})
		(<-ask(t.Context(), l, "k")).check(t, "after it", landed{"", service.Stay{Landing: service.Rejected}, service.ErrLotClosed, 0})
		if s.attempts("k") != 0 {
			t.Error("a closed lot wakes")
		}
		l.Close() // again
	})
}

// TestLotUnderLoad has many callers come, wait and leave by chance, in real time, and counts: whoever asks gets one answer
// that fits, places never exceed their number, and nothing is left.
func TestLotUnderLoad(t *testing.T) {
	p := service.Parking{Max: 8, Budget: 20 * time.Millisecond, Interval: time.Millisecond, Factor: 1.2, Jitter: 0.3}
	wake := func(_ context.Context, key int) (int, error) {
		switch rand.IntN(4) {
		case 0:
			return key, nil
		case 1:
			return 0, errFinal
		}
		return 0, errBusy
	}
	l := service.NewLot(p, wake, kindOf)
	var counts [6]atomic.Int64
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for range 50 {
				key := rand.IntN(10)
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(rand.IntN(15))*time.Millisecond)
				value, stay, err := l.Wait(ctx, key)
				leave()
				counts[stay.Landing].Add(1)
				fits := map[service.Landing]error{service.Failed: errFinal, service.Exhausted: errBusy, service.Left: context.DeadlineExceeded, service.Rejected: service.ErrLotFull}
				if (stay.Landing == service.Served) != (err == nil) || err == nil && value != key || err != nil && !errors.Is(err, fits[stay.Landing]) {
					t.Errorf("%d: %d, %+v, %v", key, value, stay, err)
				}
				if got := l.Stats(); got.Parked > p.Max {
					t.Errorf("%+v with %d places", got, p.Max)
				}
			}
		})
	}
	callers.Wait()
	if got := l.Stats(); got.Parked != 0 || got.Rejected != uint64(counts[service.Rejected].Load()) {
		t.Errorf("at the end %+v, of %d who were rejected", got, counts[service.Rejected].Load())
	}
	l.Close()
	if got := l.Stats(); got.Flights != 0 {
		t.Errorf("after the end %+v", got)
	}
	for landing := service.Served; landing <= service.Rejected; landing++ {
		t.Logf("%s: %d", landing, counts[landing].Load())
	}
	if counts[service.Served].Load() == 0 || counts[service.Left].Load() == 0 || counts[service.Rejected].Load() == 0 {
		t.Error("the load did not reach every way to land")
	}
}
