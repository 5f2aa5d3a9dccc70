package proxy

import (
	"errors"

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

// run moves bytes until both directions have ended.
func (p *pipe) run() (service.Result, error) {
	x := p.x
	pace := x.Pace
	pace.Guard = x.Guard
	done, cause := conn.Join(p.down, p.up, pace, x.Gone())
	x.Record.BytesIn, x.Record.BytesOut = done.AtoB, done.BtoA
	return p.ended(cause, done)
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
