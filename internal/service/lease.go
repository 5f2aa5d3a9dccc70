package service

import "math/bits"

// Result is how an attempt ended, as far as the backend is concerned.
type Result uint8

// Results.
const (
	// Unused: nothing was sent, for a reason that says nothing about the backend (client gone, pool full, draining).
	Unused Result = iota
	// Refused: nothing was sent because no connection could be opened (resolution, connect, TLS).
	Refused
	// Unanswered: something was sent, and no answer byte came.
	Unanswered
	// Broken: the answer had begun and did not reach its end.
	Broken
	// OK: the answer was complete, whatever its status.
	OK
)

// String is the word of logs.
func (r Result) String() string {
	return [...]string{"unused", "refused", "unanswered", "broken", "ok"}[r]
}

// Lease is the right to one attempt at a backend, counted as active there until Done. The zero Lease is done.
// A lease is not copied once it is in use.
type Lease struct {
	Backend *Backend
	// Reach is how this one attempt gets at the backend, where it has none of the connections of Backend.Pool; nil else.
	Reach Reach

	reg      *Registry
	refusals uint32 // of the backend at the time of the pick
	open     bool
}

// Done gives the lease back and tells how the attempt ended. Only the first call has an effect, so that it can be
// deferred with Unused as a net under a panic.
func (l *Lease) Done(r Result) {
	if !l.open {
		return
	}
	l.open = false
	v := l.Backend.vitals
	v.active.Add(-1)
	switch r {
	case Refused:
		v.refuse(l.refusals, l.reg.now())
	case Broken, OK:
		v.accepted(l.refusals)
	case Unused, Unanswered:
	}
}

// Answered tells, while the lease goes on, that the backend has answered.
func (l *Lease) Answered() {
	if l.open {
		l.Backend.vitals.accepted(l.refusals)
	}
}

// Tried is the set of backends that an exchange has attempted at one service. The zero value is empty. It allocates
// only in services with more than 64 backends.
type Tried struct {
	low  uint64
	more []uint64
}

// Len is the number of backends in the set.
func (t *Tried) Len() int {
	n := bits.OnesCount64(t.low)
	for _, w := range t.more {
		n += bits.OnesCount64(w)
	}
	return n
}

// Reset empties the set, for another service or another round.
func (t *Tried) Reset() {
	t.low = 0
	clear(t.more)
}

func (t *Tried) has(i int) bool {
	if i < 64 {
		return t.low>>i&1 != 0
	}
	w := i/64 - 1
	return w < len(t.more) && t.more[w]>>(i%64)&1 != 0
}

func (t *Tried) add(i int) {
	if i < 64 {
		t.low |= 1 << i
		return
	}
	for i/64 > len(t.more) {
		t.more = append(t.more, 0)
	}
	t.more[i/64-1] |= 1 << (i % 64)
}
