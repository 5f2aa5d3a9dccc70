package worker

import (
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

// link is a captured connection and its way out, relayed to each other, and a member of what ends with the actor.
type link struct {
	tracker *drain.Tracker
	clock   *conn.Clock
	bounds  Bounds

	drain.Ticket
	a, b conn.Conn
}

// relay moves bytes until both ends have ended, one fails, or the tracker forces. It closes both: with resets, unless
// they had both ended properly.
func (l link) relay(a, b conn.Conn) conn.Relayed {
	l.a, l.b = a, b
	var guard guarded
	guard.alarm.Bind(l.clock)
	l.clock.Add(&guard)
	defer l.clock.Remove(&guard)
	guard.alarm.Arm(&l, l.bounds.Idle)
	l.tracker.Enter(&l.Ticket, &l)
	done := conn.Relay(a, b, conn.Pace{Guard: &guard.alarm, Idle: l.bounds.Idle, HalfClosed: l.bounds.HalfClosed})
	l.Leave()
	guard.alarm.Disarm()
	for _, c := range []conn.Conn{a, b} {
		if abort, ok := c.(interface{ Abort() error }); ok && done.Err != nil {
			_ = abort.Abort()
		}
		_ = c.Close()
	}
	return done
}

// Interrupt ends the relay.
func (l *link) Interrupt() {
	conn.InterrupterOf(l.a).Interrupt()
	conn.InterrupterOf(l.b).Interrupt()
}

// Drain lets the relay go on: only its ends know when they have finished.
func (l *link) Drain(drain.Mode) {}

// Force ends the relay.
func (l *link) Force() { l.Interrupt() }

// guarded is an alarm that a clock visits.
type guarded struct {
	alarm conn.Alarm
	slot  conn.ClockSlot
}

func (g *guarded) OnTick(c *conn.Clock) int { c.Expire(&g.alarm); return -1 }

func (g *guarded) OnDeparted() {}

func (g *guarded) Slot() *conn.ClockSlot { return &g.slot }
