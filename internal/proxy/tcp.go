package proxy

import (
	"cmp"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/service"
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
	if v := s.policy.SendProxy; v > 0 {
		var head []byte
		if head, err = conn.ProxyHeader(v, s.x.Conn); err == nil {
			_, err = s.conn.Write(head) // a new connection takes so little at once
		}
	}
	if err != nil {
		up.Release(false)
	}
	return err
}

// Repeatable is for requests.
func (s *stream) Repeatable() bool { return false }

// relay moves bytes until both directions have ended.
func (s *stream) relay() error {
	defer s.up.Release(false)
	s.x.Connected()
	return s.pipe(s.down)
}

// pipe is relay for what down has become.
func (s *stream) pipe(down conn.Conn) error {
	p := pipe{x: s.x, down: down, up: s.conn, bad: s.bad}
	result, err := p.run()
	s.lease.Done(result)
	return err
}
