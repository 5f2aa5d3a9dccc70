package service

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Back-off of a backend that refused a connection.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
)

// cacheLine keeps what every pick writes away from what every pick reads.
const cacheLine = 64

// vitals are the health and the counts of one backend, shared by all generations.
type vitals struct {
	key backendKey

	// Read by every pick; written under mu.
	state        atomic.Uint32
	refusals     atomic.Uint32 // in a row; 0 after a success
	refusedUntil atomic.Int64  // on the registry's clock; 0 not refused
	_            [cacheLine]byte

	active atomic.Int64
	_      [cacheLine]byte

	refused atomic.Uint64 // in all

	mu     sync.Mutex // guards the fields below and changes of the first group
	passes int        // consecutive checks passed while unhealthy
	fails  int        // consecutive checks failed while not unhealthy

	refs int // guarded by Registry.mu
}

// refuse notes that a connection could not be opened. seen is the number of refusals at the time of the pick: an
// attempt that began before the last refusal tells nothing new, or a burst would reach the longest back-off at once.
func (v *vitals) refuse(seen uint32, now int64) {
	v.refused.Add(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.refusals.Load()
	if n != seen {
		return
	}
	wait := maxBackoff
	if n < 5 {
		wait = min(firstBackoff<<n, maxBackoff)
	}
	v.refusals.Store(n + 1)
	v.refusedUntil.Store(now + int64(wait))
}

// accepted ends the back-off, if the attempt began after the last refusal.
func (v *vitals) accepted(seen uint32) {
	if seen == 0 || v.refusals.Load() != seen {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refusals.Load() == seen {
		v.forgive()
	}
}

// forgive ends the back-off. mu is held.
func (v *vitals) forgive() {
	v.refusals.Store(0)
	v.refusedUntil.Store(0)
}

// observe takes the result of one check and returns the state before and after it. Only consecutive evidence
// counts; the first pass ever is enough.
func (v *vitals) observe(pass bool, c *config.HealthCheck) (before, after State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before = State(v.state.Load())
	after = before
	switch {
	case pass:
		v.fails = 0
		v.passes++
		v.forgive()
		if before == Unknown || v.passes >= c.HealthyThreshold {
			after, v.passes = Healthy, 0
		}
	default:
		v.passes = 0
		if v.fails++; before == Unhealthy || v.fails >= c.UnhealthyThreshold {
			after, v.fails = Unhealthy, 0
		}
	}
	v.state.Store(uint32(after))
	return before, after
}

// restart drops half-collected evidence, which another kind of check gave.
func (v *vitals) restart() {
	v.mu.Lock()
	v.passes, v.fails = 0, 0
	v.mu.Unlock()
}

// unchecked is for a backend that no check looks at any more: old evidence would hold for ever.
func (v *vitals) unchecked() {
	v.mu.Lock()
	v.passes, v.fails = 0, 0
	v.state.Store(uint32(Healthy))
	v.mu.Unlock()
}

// grade orders backends by how well they suit: the lowest grade that any has is chosen from.
type grade uint8

const (
	gradeGood           grade = iota
	gradeUnknown              // not yet passed its check
	gradeRefused              // refused a connection a moment ago
	gradeUnknownRefused       // both
	gradeOut                  // gets nothing
)

// grade judges the backend. now caches the clock, which is read only when something is in back-off.
func (v *vitals) grade(r *Registry, now *int64) grade {
	g := gradeGood
	switch State(v.state.Load()) {
	case Unhealthy:
		return gradeOut
	case Unknown:
		g = gradeUnknown
	case Healthy:
	}
	if until := v.refusedUntil.Load(); until != 0 {
		if *now == 0 {
			*now = r.now()
		}
		if *now < until {
			g += gradeRefused
		}
	}
	return g
}
