package conn_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// target counts its interruptions.
type target struct{ n atomic.Int32 }

func (t *target) Interrupt() { t.n.Add(1) }

// entry is a Timed with one alarm.
type entry struct {
	alarm    conn.Alarm
	slot     conn.ClockSlot
	visits   atomic.Int32
	probe    func() int
	departed atomic.Int32
}

func (e *entry) OnTick(c *conn.Clock) int {
	e.visits.Add(1)
	c.Expire(&e.alarm)
	if e.probe != nil {
		return e.probe()
	}
	return -1
}
func (e *entry) OnDeparted()           { e.departed.Add(1) }
func (e *entry) Slot() *conn.ClockSlot { return &e.slot }

// running starts a clock and returns it with its end.
func running() (*conn.Clock, func()) {
	c := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	return c, func() { cancel(); <-done }
}

func TestAlarm(t *testing.T) {
	var a conn.Alarm
	var tg target
	if a.Disarm() != conn.CauseNone || a.Cause() != conn.CauseNone {
		t.Fatal("the zero value is not off")
	}
	a.Ring(conn.CauseDrain) // off: nothing happens
	a.Arm(&tg, 0)
	if a.Disarm() != conn.CauseNone || tg.n.Load() != 0 {
		t.Fatal("an alarm that was not rung has fired")
	}
	a.Arm(&tg, 0)
	a.Ring(conn.CauseDeparted)
	a.Ring(conn.CauseDrain)
	if a.Cause() != conn.CauseDeparted || tg.n.Load() != 1 {
		t.Fatalf("cause %d, %d interruptions: the first ring counts", a.Cause(), tg.n.Load())
	}
	if a.Disarm() != conn.CauseDeparted || a.Disarm() != conn.CauseNone {
		t.Fatal("the cause is told once")
	}
	a.Arm(&tg, 0)
	if a.Cause() != conn.CauseNone {
		t.Fatal("an old cause survives arming")
	}
	a.Disarm()
}

func TestAlarmDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, stop := running()
		defer stop()
		e := new(entry)
		clock.Add(e)
		var tg target
		for _, tc := range []struct {
			name   string
			arm    time.Duration
			extend func(*conn.Alarm)
			wait   time.Duration
			want   conn.Cause
		}{
			{"before", time.Second, nil, 900 * time.Millisecond, conn.CauseNone},
			{"after", time.Second, nil, time.Second + 2*conn.Tick, conn.CauseDeadline},
			{"never", 0, nil, time.Hour, conn.CauseNone},
			{"negative is never", -1, nil, time.Minute, conn.CauseNone},
			{"extended", time.Second, func(a *conn.Alarm) { a.Extend(time.Minute) }, 30 * time.Second, conn.CauseNone},
			{"shortened", time.Minute, func(a *conn.Alarm) { a.Extend(time.Second) }, 2 * time.Second, conn.CauseDeadline},
			{"removed", time.Second, func(a *conn.Alarm) { a.Extend(0) }, time.Minute, conn.CauseNone},
		} {
			tg.n.Store(0)
			e.alarm.Arm(&tg, tc.arm)
			if tc.extend != nil {
				tc.extend(&e.alarm)
			}
			time.Sleep(tc.wait)
			if got := e.alarm.Disarm(); got != tc.want || (tg.n.Load() > 0) != (tc.want != conn.CauseNone) {
				t.Errorf("%s: cause %d, %d interruptions", tc.name, got, tg.n.Load())
			}
		}
		clock.Remove(e)
	})
}

// TestLateClock has the clock held up, as by a busy machine: what is armed meanwhile fires late, not early.
func TestLateClock(t *testing.T) {
	for _, held := range []time.Duration{conn.Tick * 3 / 2, conn.Tick * 5 / 2, time.Second, time.Minute} {
		t.Run(held.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, stop := running()
				defer stop()
				const wait = 3 * conn.Tick
				e, fired := new(entry), make(chan time.Time, 1)
				e.alarm.Bind(clock)
				clock.Add(e)
				h := &holder{held: held}
				clock.Add(h)
				time.Sleep(conn.Tick + held - time.Millisecond) // the next visit is about to come
				began := time.Now()
				e.alarm.Arm(interruption(func() { fired <- time.Now() }), wait)
				if took := (<-fired).Sub(began); took < wait || took > wait+3*conn.Tick {
					t.Errorf("fired after %v", took)
				}
				e.alarm.Disarm()
				clock.Remove(e)
				clock.Remove(h)
			})
		})
	}
}

// holder holds the clock up in its first visit.
type holder struct {
	held time.Duration
	slot conn.ClockSlot
}

func (h *holder) OnTick(*conn.Clock) int {
	time.Sleep(h.held)
	h.held = 0
	return -1
}
func (h *holder) OnDeparted()           {}
func (h *holder) Slot() *conn.ClockSlot { return &h.slot }

type interruption func()

func (f interruption) Interrupt() { f() }

// TestAlarmRace arms and disarms while others ring: after Disarm has said none, the target stays untouched until the
// next Arm.
func TestAlarmRace(t *testing.T) {
	var a conn.Alarm
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					a.Ring(conn.CauseDrain)
				}
			}
		})
	}
	fired := 0
	for range 20000 {
		tg := new(target)
		a.Arm(tg, time.Hour)
		cause := a.Disarm()
		n := tg.n.Load()
		if (cause == conn.CauseDrain) != (n == 1) || n > 1 {
			t.Errorf("cause %d with %d interruptions", cause, n)
			break
		}
		if n == 1 {
			fired++
		}
	}
	close(stop)
	wg.Wait()
	if fired == 0 {
		t.Log("no ring met an armed alarm")
	}
}

func TestClockEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, stop := running()
		defer stop()
		var all [5]entry
		for i := range all {
			clock.Add(&all[i])
		}
		clock.Remove(&all[0])
		clock.Remove(&all[0]) // twice does nothing
		clock.Remove(&all[3])
		time.Sleep(10*conn.Tick + conn.Tick/2)
		for i := range all {
			want := int32(10)
			if i == 0 || i == 3 {
				want = 0
			}
			if n := all[i].visits.Load(); n != want {
				t.Errorf("entry %d had %d visits, want %d", i, n, want)
			}
		}
		if clock.Len() != 3 {
			t.Errorf("%d entries", clock.Len())
		}
		for _, i := range []int{1, 2, 4} {
			clock.Remove(&all[i])
		}
		if clock.Len() != 0 {
			t.Errorf("%d entries at the end", clock.Len())
		}
	})
}
