package proxy

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// UDP is the end of a route for datagrams: it chooses the backend of each client. Moving them is left to who has the
// sockets.
type UDP struct{ backends *service.Balancer }

// NewUDP returns the forwarder to a service. The balancer's owner closes it.
func NewUDP(b *service.Balancer) *UDP { return &UDP{backends: b} }

// Session is one client's backend. It holds a lease, until Close.
type Session struct {
	attempts
	balancer *service.Balancer // the attempts' backends
	wake     exchange.Waker
}

// Open chooses a backend, that of again if it suits. It does not wait.
func (p *UDP) Open(x *exchange.Exchange, again exchange.Place, wake exchange.Waker) (*Session, error) {
	s := &Session{attempts: attempts{backends: p.backends, policy: p.backends.Policy(), x: x}, balancer: p.backends, wake: wake}
	s.begin()
	if again.Service == p.backends.Name() {
		lease, ok := p.backends.Again(again.Backend)
		if ok {
			x.Record.Service = again.Service
			s.lease = lease
			return s, nil
		}
	}
	var err error
	s.lease, err = p.backends.Pick(x, nil)
	return s, err
}

// Address is the backend's, invalid without an error while it is being looked up.
func (s *Session) Address() (netip.AddrPort, error) { return s.lease.Backend.Address(s.wake) }

// Place names the backend.
func (s *Session) Place() exchange.Place { return s.place(s.lease.Backend) }

func (s *Session) place(b *service.Backend) exchange.Place {
	return exchange.Place{Service: s.balancer.Name(), Backend: b.URL}
}

// Next chooses a backend without taking it; zero when there is none.
func (s *Session) Next() exchange.Place {
	lease, err := s.backends.Pick(nil, nil)
	if err != nil {
		return exchange.Place{}
	}
	lease.Done(service.Unused)
	return s.place(lease.Backend)
}

var errUnhealthy = errors.New("the backend has become unhealthy")

// Suits is nil as long as the backend may get more.
func (s *Session) Suits() error {
	if s.lease.Backend.State() == service.Unhealthy {
		return errUnhealthy
	}
	return nil
}

// Move has the session go on under another generation's forwarder, with the same backend. False: that does not have it.
func (s *Session) Move(to *UDP) bool {
	if to.backends.Name() != s.balancer.Name() {
		return false
	}
	lease, ok := to.backends.Again(s.lease.Backend.URL)
	if !ok {
		return false
	}
	s.lease.Done(service.Unused)
	s.backends, s.balancer, s.policy, s.lease = to.backends, to.backends, to.backends.Policy(), lease
	return true
}

// Answered tells that the backend answers.
func (s *Session) Answered() {
	s.x.Connected()
	s.lease.Answered()
}

// Close gives the lease back, and returns what the end means for the record: nil is a good one.
func (s *Session) Close(err error) error {
	result, end := service.OK, error(nil)
	var e *exchange.Error
	if !s.x.HeadSent() {
		result = service.Unanswered
	}
	switch {
	case err == nil:
	case errors.Is(err, exchange.ErrForced):
		e = drained(err)
	case errors.Is(err, errUnhealthy):
		e = s.bad(exchange.CodeNoBackend, err)
	case errors.Is(err, conn.ErrResolve):
		result, e = service.Refused, s.bad(exchange.CodeDNSFailed, err)
	case !errors.As(err, new(syscall.Errno)):
		result, e = service.Unused, sideError(err)
	default:
		result, e = service.Refused, s.bad(exchange.CodeConnectFailed, err)
		if s.x.HeadSent() {
			e.Code = exchange.CodeBackendReset
		}
	}
	a := exchange.Attempt{Backend: s.lease.Backend.URL, ID: s.lease.Backend.ID, Duration: s.x.Record.HeadAt}
	if e != nil {
		if end, a.Code = e, e.Code; a.Duration == 0 {
			a.Duration = time.Since(s.attempt)
		}
	}
	s.x.Record.AddAttempt(a)
	s.lease.Done(result)
	return end
}
