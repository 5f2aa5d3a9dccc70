package proxy

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Keys of the limits that can end a relayed connection.
const (
	limitTCPIdle   = "tcp_idle_timeout"
	limitHalfClose = "tcp_half_close_timeout"
)

// TCP is the last handler of a route for connections: it connects to a backend and relays bytes both ways.
type TCP struct {
	backends *service.Balancer
	policy   *service.Policy
}

// NewTCP returns a forwarder to a service. The balancer's owner closes it.
func NewTCP(b *service.Balancer) *TCP { return &TCP{backends: b, policy: b.Policy()} }

// stream is one connection being forwarded.
type stream struct {
	attempts
	down conn.Conn
	up   *http1.ClientConn
	conn conn.Conn // up's bytes
}

// ServeConn connects, to another backend if one cannot be reached, and relays until both directions have ended. A
// backend is changed only while nothing has been sent to it.
func (p *TCP) ServeConn(c conn.Conn, x *exchange.Exchange) error {
	s := &stream{attempts: attempts{backends: p.backends, policy: p.policy, x: x}, down: c}
	defer s.lease.Done(service.Unused) // after a panic
	if err := s.connect(); err != nil {
		return err
	}
	return s.relay()
}

// connect makes attempts until a backend is connected to.
func (s *stream) connect() error {
	var last error
	for {
		lease, err := s.backends.Pick(s.x, &s.tried)
		if err != nil {
			return cmp.Or(last, err)
		}
		s.lease = lease
		s.begin()
		if err = s.open(); err == nil {
			s.note(0, "")
			return nil
		}
		v, e := s.failedDial(err)
		if last = e; v != elsewhere || s.remaining() <= 0 || s.x.Gone() {
			return e
		}
	}
}

// open connects to the backend of the lease, and tells it who the client is.
func (s *stream) open() error {
	up, err := s.lease.Backend.Pool.Connect(s)
	if err != nil {
		return err
	}
	s.up, s.conn = up, up.Takeover()
	if err = s.introduce(); err != nil {
		up.Release(false)
	}
	return err
}

// introduce sends the backend what must stand before the client's bytes: who the client is, and that it wants TLS.
func (s *stream) introduce() error {
	if v := s.policy.SendProxy; v > 0 {
		head, err := conn.ProxyHeader(v, s.x.Conn)
		if err == nil {
			_, err = s.conn.Write(head) // a new connection takes so little at once
		}
		if err != nil {
			return err
		}
	}
	if !s.x.TLSRequested || s.x.Conn.TLS != nil { // the latter: TLS has ended here
		return nil
	}
	s.x.Guard.Arm(ends{s.down, s.conn}, s.policy.ConnectTimeout)
	defer s.x.Guard.Disarm()
	return conn.RequestTLS(s.conn)
}

// Repeatable is for requests.
func (s *stream) Repeatable() bool { return false }

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

// relay moves bytes until both directions have ended.
func (s *stream) relay() error {
	x, up := s.x, s.conn
	defer s.up.Release(false)
	x.Connected()
	x.Guard.Arm(ends{s.down, up}, x.Pace.Idle)
	pace := x.Pace
	pace.Guard = x.Guard
	done := conn.Relay(s.down, up, pace)
	cause := x.Guard.Disarm()
	x.Record.BytesIn, x.Record.BytesOut = done.AtoB, done.BtoA
	result, err := s.ended(cause, done)
	s.lease.Done(result)
	switch {
	case done.Err == nil || cause == conn.CauseDeadline:
	case cause == conn.CauseDrain:
		abort(up)
		abort(s.down)
	case done.AFailed:
		s.survive(up, done.AEnded)
	default:
		s.survive(s.down, done.BEnded)
	}
	return err
}

// survive ends the side that has not failed. That the other one failed is passed on, since what has come must not be
// taken for the whole; but not when it was the whole. The rest of that may still be on its way, and closing with bytes
// unread would discard it: they are read until the side has ended too.
func (s *stream) survive(c conn.Conn, whole bool) {
	if !whole {
		abort(c)
		return
	}
	if c.SetDeadline(time.Time{}) != nil {
		return // closed
	}
	s.x.Guard.Arm(ends{c}, s.x.Pace.HalfClosed)
	_, _ = io.Copy(io.Discard, c)
	s.x.Guard.Disarm()
}

// ended judges how a relay has ended.
func (s *stream) ended(cause conn.Cause, done conn.Relayed) (service.Result, error) {
	switch {
	case done.Err == nil:
		return service.OK, nil
	case cause == conn.CauseDeadline:
		e := s.bad(exchange.CodeIdle, errors.New("no byte in either direction"))
		e.Limit, e.Outcome = limitTCPIdle, exchange.OutcomeTimeout
		if done.AEnded || done.BEnded {
			e.Limit = limitHalfClose
		}
		return service.OK, e
	case cause == conn.CauseDrain:
		return service.OK, drained(done.Err)
	case done.AFailed:
		return service.OK, departed(done.Err)
	}
	return service.Broken, s.bad(exchange.CodeBackendReset, done.Err)
}

// abort closes with a reset, where that is possible.
func abort(c conn.Conn) {
	if a, ok := c.(interface{ Abort() error }); ok {
		_ = a.Abort()
		return
	}
	_ = c.Close()
}
