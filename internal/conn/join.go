package conn

import (
	"io"
	"time"
)

// Ends are connections that are interrupted together.
type Ends []Conn

// Interrupt ends what any of them waits for.
func (e Ends) Interrupt() {
	for _, c := range e {
		InterrupterOf(c).Interrupt()
	}
}

// Join relays between two connections under p.Guard, which must be there and off, and sees to it that each side learns how
// the other has ended: a failure is passed on as one, since what has come must not be taken for the whole. The cause is why the
// guard rang. gone tells that the exchange of the relay is over already. Closing both is the caller's.
func Join(a, b Conn, p Pace, gone bool) (Relayed, Cause) {
	p.Guard.Arm(Ends{a, b}, p.Idle)
	if gone {
		p.Guard.Ring(CauseDeparted)
	}
	done := Relay(a, b, p)
	cause := p.Guard.Disarm()
	switch {
	case done.Err == nil || cause == CauseDeadline:
	case cause == CauseDrain, cause == CauseDeparted:
		Abort(b)
		Abort(a)
	case done.AFailed:
		survive(b, done.AEnded, p)
	default:
		survive(a, done.BEnded, p)
	}
	return done, cause
}

// survive ends the side that has not failed, with a failure unless what the other one has sent was the whole. The rest of
// that may still be on its way, and closing with bytes unread would discard it: they are read until the side has ended
// too.
func survive(c Conn, whole bool, p Pace) {
	if !whole {
		Abort(c)
		return
	}
	if c.SetDeadline(time.Time{}) != nil {
		return // closed
	}
	p.Guard.Arm(Ends{c}, p.HalfClosed)
	_, _ = io.Copy(io.Discard, c)
	p.Guard.Disarm()
}

// Abort closes with a reset, where that is possible.
func Abort(c Conn) {
	if a, ok := c.(interface{ Abort() error }); ok {
		_ = a.Abort()
		return
	}
	_ = c.Close()
}
