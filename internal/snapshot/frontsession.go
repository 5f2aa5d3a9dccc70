package snapshot

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

var udpMethod = []byte("UDP")

// sessionInput is what of a client the rules look at.
func sessionInput(x *exchange.Exchange) route.Input {
	return route.Input{Path: rootPath, Method: udpMethod, ClientIP: x.Record.ClientIP}
}

// session is one client's datagrams on their way to a backend. It belongs to the generation that it was judged by last.
type session struct {
	front *Front
	gen   *Generation // holds a reference
	to    *proxy.Session
	x     *exchange.Exchange
	meter *telemetry.Meter // of the generation that it has begun in
}

// OpenSession finds where the datagrams of a new client go. Clients that nothing is found for leave no record: who sends
// datagrams can name any address as his own, and one line for each would be his to write.
func (f *Front) OpenSession(x *exchange.Exchange, again exchange.Place, wake exchange.Waker) (exchange.Session, error) {
	g := f.acquire()
	if g == nil {
		return nil, exchange.Reject(0, exchange.CodeDraining, "Gateway not ready")
	}
	p := f.routeSession(g, x)
	if p == nil {
		g.release()
		return nil, noRouteConn
	}
	x.Record.Entrypoint, x.Record.Router = f.entrypoint, p.router
	to, err := p.udp.Open(x, again, wake)
	if err != nil {
		g.release()
		return nil, err
	}
	p.meter.Enter(x)
	return &session{front: f, gen: g, to: to, x: x, meter: p.meter}, nil
}

// routeSession finds the router of a client; nil when there is none.
func (f *Front) routeSession(g *Generation, x *exchange.Exchange) *plan {
	e := g.entries[f.entrypoint]
	if e == nil {
		return nil
	}
	in := sessionInput(x)
	i := e.table.Match(&in)
	if i < 0 || g.plans[i].udp == nil { // nil: the entrypoint had another protocol a moment ago
		return nil
	}
	return &g.plans[i]
}

// Address is the backend's.
func (s *session) Address() (netip.AddrPort, error) { return s.to.Address() }

// Place names the backend.
func (s *session) Place() exchange.Place { return s.to.Place() }

// Next is the backend whose turn it is.
func (s *session) Next() exchange.Place { return s.to.Next() }

// Answered tells of the first answer.
func (s *session) Answered() { s.to.Answered() }

// Stays reports whether the client's datagrams go on to the same backend: it is healthy, and another configuration that has
// come meanwhile would send them to a service that has it, too.
func (s *session) Stays() error {
	if s.front.store.Current() != s.gen {
		if err := s.judge(); err != nil {
			return err
		}
	}
	return s.to.Suits()
}

// judge has the session go on in the generation in force.
func (s *session) judge() error {
	g := s.front.acquire()
	if g == s.gen || g == nil {
		if g != nil {
			g.release() // the entrypoint is about to go
		}
		return nil
	}
	p := s.front.routeSession(g, s.x)
	if p == nil || !s.to.Move(p.udp) {
		g.release()
		return exchange.ErrForced
	}
	s.gen.release()
	s.gen = g
	return nil
}

// Close ends the session and its record.
func (s *session) Close(err error) {
	s.x.Fail(s.to.Close(err))
	if s.x.Record.HeadAt == 0 && err == nil {
		s.x.Record.HeadAt = time.Since(s.x.Record.Start)
	}
	s.gen.end(s.x, s.meter, s.gen.conns(s.front.entrypoint))
	s.gen.release()
}
