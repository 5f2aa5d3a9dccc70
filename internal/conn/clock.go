package conn

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Tick is the resolution of the clock: a deadline fires between 0 and 2 ticks late, later on a machine that keeps the clock
// waiting, and never early.
const Tick = 100 * time.Millisecond

// Cause says why an alarm interrupted a wait.
type Cause uint32

// Causes.
const (
	CauseNone     Cause = iota
	CauseDeadline       // the deadline passed
	CauseDeparted       // the client went away
	CauseDrain          // the drain deadline passed
	CauseUpload         // the request body failed
)

// Alarm interrupts what one goroutine waits on, when a coarse deadline passes or when it is rung. It costs an owner
// two atomic operations a wait. The owner arms, extends and disarms; anybody may ring. The zero value is disarmed.
type Alarm struct {
	state    atomic.Uint32 // alarmOff … alarmFired
	cause    atomic.Uint32
	deadline atomic.Int64 // nanoseconds on the clock's scale; 0 never
	limit    atomic.Int64 // what Extend does not go beyond; 0 none
	target   Interrupter  // written while off
	clock    *Clock       // whose time it goes by, that of the clock which expires it; nil: the system's
}

// Bind makes the alarm read the time that the clock knew at its last visit instead of asking the system, which spares a
// busy connection several reads of the clock a request. Before the alarm is first armed.
func (a *Alarm) Bind(c *Clock) { a.clock = c }

const (
	alarmOff = iota
	alarmArmed
	alarmFiring
	alarmFired
)

// Arm sets what is to be interrupted and until when it may wait; d ≤ 0 is no deadline. The alarm must be off.
func (a *Alarm) Arm(t Interrupter, d time.Duration) {
	a.ArmWithin(t, d, 0)
}

// Extend moves the deadline of an armed alarm to d from now, but not beyond its limit; d ≤ 0 removes it, down to the
// limit.
func (a *Alarm) Extend(d time.Duration) {
	limit := a.limit.Load()
	if d <= 0 {
		a.deadline.Store(limit)
		return
	}
	t := a.clock.coarse() + int64(d)
	if limit != 0 && t > limit {
		t = limit
	}
	a.deadline.Store(t)
}

// ArmWithin is Arm with a limit, total from now, that later extensions do not go beyond.
func (a *Alarm) ArmWithin(t Interrupter, d, total time.Duration) {
	a.target = t
	a.cause.Store(0)
	a.Limit(total)
	a.Extend(d)
	a.state.Store(alarmArmed)
}

// Limit sets, d from now, what later extensions do not go beyond, until the alarm is armed again; d ≤ 0 lifts it.
func (a *Alarm) Limit(d time.Duration) {
	if d <= 0 {
		a.limit.Store(0)
		return
	}
	a.limit.Store(a.clock.coarse() + int64(d))
}

// Disarm turns the alarm off and tells whether it has interrupted its target. On return nothing touches the target
// any more.
func (a *Alarm) Disarm() Cause {
	for {
		switch a.state.Load() {
		case alarmOff:
			return CauseNone
		case alarmArmed:
			if a.state.CompareAndSwap(alarmArmed, alarmOff) {
				return CauseNone
			}
		case alarmFiring: // another goroutine is inside Interrupt, which does not block
			yield()
		case alarmFired:
			a.state.Store(alarmOff)
			return Cause(a.cause.Load())
		}
	}
}

// Cause tells why the alarm has fired; CauseNone when it has not.
func (a *Alarm) Cause() Cause {
	if s := a.state.Load(); s == alarmFired || s == alarmFiring {
		return Cause(a.cause.Load())
	}
	return CauseNone
}

// Ring interrupts the target now, if the alarm is armed.
func (a *Alarm) Ring(c Cause) { a.fire(c, func() bool { return true }) }

// expire rings the alarm if its deadline lies before t.
func (a *Alarm) expire(t int64) {
	if d := a.deadline.Load(); d == 0 || d > t || a.state.Load() != alarmArmed {
		return
	}
	a.fire(CauseDeadline, func() bool { d := a.deadline.Load(); return d != 0 && d <= t })
}

// fire takes the alarm out of its owner's hands, checks still with nobody able to change it, and interrupts.
func (a *Alarm) fire(c Cause, still func() bool) {
	if !a.state.CompareAndSwap(alarmArmed, alarmFiring) {
		return
	}
	if !still() {
		a.state.Store(alarmArmed)
		return
	}
	a.cause.Store(uint32(c))
	a.target.Interrupt()
	a.state.Store(alarmFired)
}

// Timed is something that the clock visits each tick. OnTick must not block. It returns a descriptor to be probed
// for the departure of its peer, or -1.
type Timed interface {
	OnTick(c *Clock) (probe int)
	// OnDeparted tells that the peer of the probed descriptor is gone.
	OnDeparted()
	// place is where the clock keeps its index of the entry.
	Slot() *ClockSlot
}

// ClockSlot is the clock's own state in an entry.
type ClockSlot struct{ index int } // 1-based; 0 not registered

// Clock is the process's one coarse timer. It visits every registered entry each tick, which replaces a runtime timer
// a request, and probes descriptors for departed peers in one system call.
type Clock struct {
	known   atomic.Int64 // the clock's own time, as of the last visit; 0 while it does not run
	visited int64        // the system's time of that visit; Run's goroutine only

	mu      sync.Mutex // guards entries and the probe lists
	entries []Timed
	probes  probeSet
}

// NewClock returns a clock that does nothing until Run.
func NewClock() *Clock { return &Clock{} }

// Run visits the entries each tick until ctx ends.
func (c *Clock) Run(ctx context.Context) error {
	t := time.NewTicker(Tick)
	defer t.Stop()
	c.visited = now()
	c.known.Store(c.visited)
	defer c.known.Store(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			c.visit()
		}
	}
}

// coarse is the clock's time at its next visit, which is at most one tick ahead.
func (c *Clock) coarse() int64 {
	if c != nil {
		if t := c.known.Load(); t != 0 {
			return t + int64(Tick)
		}
	}
	return now()
}

// visit lets the clock's time go on by no more than a tick, however late it comes: whatever was set since the last visit was set
// with that much, so that no deadline fires early.
func (c *Clock) visit() {
	t := now()
	c.known.Add(min(t-c.visited, int64(Tick)))
	c.visited = t
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probes.reset()
	for _, e := range c.entries {
		if fd := e.OnTick(c); fd >= 0 {
			c.probes.add(fd, e)
		}
	}
	c.probes.poll()
}

// Expire fires a if its deadline has passed; for OnTick.
func (c *Clock) Expire(a *Alarm) { a.expire(c.known.Load()) }

// Add registers an entry. It is visited until Remove returns.
func (c *Clock) Add(e Timed) {
	c.mu.Lock()
	c.entries = append(c.entries, e)
	e.Slot().index = len(c.entries)
	c.mu.Unlock()
}

// Remove ends the visits; on return none is under way.
func (c *Clock) Remove(e Timed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := e.Slot().index - 1
	if i < 0 {
		return
	}
	last := len(c.entries) - 1
	c.entries[i] = c.entries[last]
	c.entries[i].Slot().index = i + 1
	c.entries[last] = nil
	c.entries = c.entries[:last]
	e.Slot().index = 0
}

// Len is the number of entries.
func (c *Clock) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

var epoch = time.Now()

// now is nanoseconds on the monotonic clock since the process began; never 0.
func now() int64 { return int64(time.Since(epoch)) + 1 }
