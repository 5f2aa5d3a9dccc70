package app

import (
	"net"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
	"github.com/sluice-proxy/sluice/internal/http3"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

// servers are the protocol servers of each entrypoint name; they outlive configurations.
type servers struct {
	app *App

	mu      sync.Mutex // guards all below
	all     map[string]*server
	keeping map[*snapshot.Generation]*time.Timer // ends keep; nil until its time has begun
}

type server struct {
	front *snapshot.Front
	h1    *http1.Server
	h2    *http2.Server
	h3    *http3.Server // nil until the entrypoint has it

	advertiser advertiser // the handler of the others while it has
}

// maxTunnels is how many streams an HTTP/2 connection to an entrypoint of protocol connect may have.
const maxTunnels = 1024

// options makes what the entrypoint room wants for one entrypoint. apply puts the settings into force, of an entrypoint that
// is bound to the given address.
func (s *servers) options(ep *config.Entrypoint) (o *entrypoint.Options, apply func(net.Addr)) {
	srv := s.get(ep.Name)
	if ep.Protocol == config.TCP {
		return &entrypoint.Options{
			Address: ep.Address, MaxConnections: ep.MaxConnections, MaxPerClient: ep.MaxPerClient, AllowedIPs: ep.TCPAllowedIPs, ProxyTrusted: ep.ProxyProtocol,
			Streams: &entrypoint.Streams{
				Handler: srv.front, Clock: s.app.clock, Pace: conn.Pace{Idle: ep.TCPIdleTimeout, HalfClosed: ep.TCPHalfCloseTimeout},
			},
		}, func(net.Addr) {}
	}
	if ep.Protocol == config.UDP {
		return &entrypoint.Options{Address: ep.Address, Datagrams: &entrypoint.Datagrams{
			Handler: srv.front, Timeout: ep.UDPSessionTimeout, MaxSessions: int64(ep.UDPMaxSessions),
			Spread: ep.UDPBalance == config.ByDatagram,
		}}, func(net.Addr) {}
	}
	var handler exchange.Handler = srv.front
	three := func() {}
	if ep.TLS.HTTP3() {
		handler, three = &srv.advertiser, s.openHTTP3(srv, ep)
	}
	one := &http1.Settings{
		Limits: http1.Limits{MaxHeaderBytes: ep.MaxHeaderBytes, MaxHeaders: ep.MaxHeaders}, Handler: handler,
		HeaderTimeout: ep.HeaderTimeout, BodyIdleTimeout: ep.BodyIdleTimeout, WriteIdleTimeout: ep.WriteIdleTimeout,
		KeepAliveTimeout: ep.KeepAliveTimeout,
	}
	two := &http2.Settings{
		Handler: handler, HeaderTimeout: ep.HeaderTimeout, BodyIdleTimeout: ep.BodyIdleTimeout, WriteIdleTimeout: ep.WriteIdleTimeout,
		KeepAliveTimeout: ep.KeepAliveTimeout, MaxHeaderBytes: ep.MaxHeaderBytes, MaxHeaders: ep.MaxHeaders,
	}
	o = &entrypoint.Options{}
	if ep.Shared {
		o.Passes = srv.front.Passes
		o.Streams = &entrypoint.Streams{Handler: srv.front, Clock: s.app.clock, Pace: conn.Pace{HalfClosed: ep.TCPHalfCloseTimeout}}
	}
	if ep.Protocol == config.CONNECT {
		one.Connect, two.Connect, two.MaxStreams = true, true, maxTunnels
		o.AllowedIPs = ep.TCPAllowedIPs
	}
	srv.open(one, two, s.app.clock)
	o.Address, o.HTTP, o.H2 = ep.Address, srv.h1.ServeConn, srv.h2.ServeConn
	o.MaxConnections, o.MaxPerClient, o.HandshakeTimeout, o.ProxyTrusted = ep.MaxConnections, ep.MaxPerClient, ep.HeaderTimeout, ep.ProxyProtocol
	o.HTTP3 = ep.TLS.HTTP3()
	return o, func(addr net.Addr) {
		three()
		if !o.HTTP3 {
			addr = nil
		}
		srv.advertiser.advertise(addr)
		srv.h1.Update(one)
		srv.h2.Update(two)
	}
}

// get returns the server of a name. It is ready only once open was called.
func (s *servers) get(name string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	srv := s.all[name]
	if srv == nil {
		srv = &server{front: snapshot.NewFront(&s.app.store, name, s.app.certs.Challenge)}
		srv.advertiser.Front = srv.front
		s.all[name] = srv
	}
	return srv
}

// open makes the protocol servers with their first settings.
func (s *server) open(one *http1.Settings, two *http2.Settings, clock *conn.Clock) {
	if s.h1 == nil {
		s.h2 = http2.NewServer(two, clock)
		s.h1 = http1.NewServer(one, clock, s.h2.ServeConnWith)
	}
}

// keep has the entrypoints that next does not name any more served by gen, until let: their connections still drain.
func (s *servers) keep(gen, next *snapshot.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range gen.Config.Entrypoints {
		if srv := s.all[name]; srv != nil && next.Config.Entrypoints[name] == nil {
			srv.front.Keep(gen)
			srv.advertiser.advertise(nil)
			s.keeping[gen] = nil
		}
	}
}

// afterBound is what the connections of a removed entrypoint may take to end once they are forced.
const afterBound = 5 * time.Second

// letCheck is how often is looked whether the connections have ended earlier.
const letCheck = 500 * time.Millisecond

// letAfter ends keep when the connections that need it have ended, or have been forced: they drain for bound.
func (s *servers) letAfter(gen *snapshot.Generation, bound time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, kept := s.keeping[gen]; !kept {
		return
	}
	deadline := time.Now().Add(bound + afterBound)
	s.keeping[gen] = time.AfterFunc(letCheck, func() {
		needed := s.needed(gen) && time.Now().Before(deadline)
		s.mu.Lock()
		defer s.mu.Unlock()
		t := s.keeping[gen]
		switch {
		case t == nil: // ended meanwhile
		case needed:
			t.Reset(letCheck)
		default:
			s.drop(gen)
		}
	})
}

// needed reports whether an entrypoint that gen is kept for may still have connections of then. One that has come back
// hides the old connections behind new ones.
func (s *servers) needed(gen *snapshot.Generation) bool {
	for _, st := range s.app.sockets.Stats() {
		if srv := s.find(st.Name); srv != nil && srv.front.Keeps(gen) {
			return true
		}
	}
	return false
}

func (s *servers) find(name string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name]
}

// let ends keep now.
func (s *servers) let(gen *snapshot.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(gen)
}

func (s *servers) drop(gen *snapshot.Generation) {
	if t := s.keeping[gen]; t != nil {
		t.Stop()
	}
	delete(s.keeping, gen)
	for _, srv := range s.all {
		srv.front.Let(gen)
	}
}

// close ends every keep, when no connection is left.
func (s *servers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for gen := range s.keeping {
		s.drop(gen)
	}
}

// prune drops the servers of names that neither the configuration nor connections use any more.
func (s *servers) prune(cfg *config.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, srv := range s.all {
		if cfg.Entrypoints[name] == nil && srv.front.Keeps(nil) {
			delete(s.all, name)
		}
	}
}
