package proxy

import (
	"errors"
	"io"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Keys of the limits that can end a relayed connection.
const (
	limitTCPIdle   = "tcp_idle_timeout"
	limitHalfClose = "tcp_half_close_timeout"
)

// pipe is a client and a destination whose bytes are relayed, within the pace of the exchange. Closing up is the caller's, and
// that of down too.
type pipe struct {
	x        *exchange.Exchange
	down, up conn.Conn
	bad      func(exchange.Code, error) *exchange.Error // the error of a destination that fails
}

// ends are connections that are interrupted together.
type ends []conn.Conn

// Interrupt ends what any of them waits for.
func (e ends) Interrupt() {
	for _, c := range e {
		if i, ok := c.(conn.Interrupter); ok {
			i.Interrupt()
		} else {
			_ = c.Close()
		}
	}
}

// run moves bytes until both directions have ended.
func (p *pipe) run() (service.Result, error) {
	x := p.x
	x.Guard.Arm(ends{p.down, p.up}, x.Pace.Idle)
	if x.Gone() {
		x.Guard.Ring(conn.CauseDeparted)
	}
	pace := x.Pace
	pace.Guard = x.Guard
	done := conn.Relay(p.down, p.up, pace)
	cause := x.Guard.Disarm()
	x.Record.BytesIn, x.Record.BytesOut = done.AtoB, done.BtoA
	result, err := p.ended(cause, done)
	switch {
	case done.Err == nil || cause == conn.CauseDeadline:
	case cause == conn.CauseDrain, cause == conn.CauseDeparted:
		abort(p.up)
		abort(p.down)
	case done.AFailed:
		p.survive(p.up, done.AEnded)
	default:
		p.survive(p.down, done.BEnded)
	}
	return result, err
}

// survive ends the side that has not failed. That the other one failed is passed on, since what has come must not be
// taken for the whole; but not when it was the whole. The rest of that may still be on its way, and closing with bytes
// unread would discard it: they are read until the side has ended too.
func (p *pipe) survive(c conn.Conn, whole bool) {
	if !whole {
		abort(c)
		return
	}
	if c.SetDeadline(time.Time{}) != nil {
		return // closed
	}
	p.x.Guard.Arm(ends{c}, p.x.Pace.HalfClosed)
	_, _ = io.Copy(io.Discard, c)
	p.x.Guard.Disarm()
}

// ended judges how a relay has ended.
func (p *pipe) ended(cause conn.Cause, done conn.Relayed) (service.Result, error) {
	switch {
	case done.Err == nil:
		return service.OK, nil
	case cause == conn.CauseDeadline:
		e := p.bad(exchange.CodeIdle, errors.New("no byte in either direction"))
		e.Limit, e.Outcome = limitTCPIdle, exchange.OutcomeTimeout
		if done.AEnded || done.BEnded {
			e.Limit = limitHalfClose
		}
		return service.OK, e
	case cause == conn.CauseDrain:
		return service.OK, drained(done.Err)
	case cause == conn.CauseDeparted, done.AFailed:
		return service.OK, departed(done.Err)
	}
	return service.Broken, p.bad(exchange.CodeBackendReset, done.Err)
}

// abort closes with a reset, where that is possible.
func abort(c conn.Conn) {
	if a, ok := c.(interface{ Abort() error }); ok {
		_ = a.Abort()
		return
	}
	_ = c.Close()
}
