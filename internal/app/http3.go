package app

import (
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http3"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

// openQUIC has HTTP/3 served on a UDP socket.
func (s *servers) openQUIC(udp *net.UDPConn, pred *net.UnixConn, d *entrypoint.Door) (entrypoint.QUIC, error) {
	return http3.Listen(udp, pred, door{d, s})
}

// door finds the server of whoever the entrypoint admits.
type door struct {
	*entrypoint.Door
	servers *servers
}

// Admit is what the listener asks.
func (d door) Admit(client netip.AddrPort) *http3.Guest {
	g := d.Door.Admit(client)
	if g == nil {
		return nil
	}
	srv := d.servers.http3(g.Entrypoint())
	if srv == nil { // the name is gone meanwhile
		g.Leave()
		return nil
	}
	return &http3.Guest{Server: srv, Entrypoint: g.Entrypoint(), TLS: g.TLS, Live: g.Live(), Failed: g.Failed, Leave: g.Leave}
}

// http3 is the server of an entrypoint that has or had HTTP/3; nil there is none.
func (s *servers) http3(name string) *http3.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if srv := s.all[name]; srv != nil {
		return srv.h3
	}
	return nil
}

// openHTTP3 makes the server with its first settings, and returns what puts later ones into force.
func (s *servers) openHTTP3(srv *server, ep *config.Entrypoint) func() {
	set := &http3.Settings{
		Handler: srv.front, HeaderTimeout: ep.HeaderTimeout, BodyIdleTimeout: ep.BodyIdleTimeout, WriteIdleTimeout: ep.WriteIdleTimeout,
		KeepAliveTimeout: ep.KeepAliveTimeout, MaxHeaderBytes: ep.MaxHeaderBytes, MaxHeaders: ep.MaxHeaders,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if srv.h3 == nil {
		srv.h3 = http3.NewServer(set, s.app.clock)
	}
	h3 := srv.h3
	return func() { h3.Update(set) }
}

// advertiser is the handler of clients that might come by HTTP/3 the next time: answers tell where (RFC 7838).
type advertiser struct {
	*snapshot.Front
	field atomic.Pointer[string] // Alt-Svc; nil: HTTP/3 is not listening yet, or not any more
}

// Serve is the front's, with a hook.
func (a *advertiser) Serve(x *exchange.Exchange) error {
	x.OnHead(a)
	return a.Front.Serve(x)
}

// Refuse is the front's, with a hook.
func (a *advertiser) Refuse(x *exchange.Exchange, err *exchange.Error) {
	x.OnHead(a)
	a.Front.Refuse(x, err)
}

const altSvc = "Alt-Svc"

// ResponseHead adds the field, unless the answer has one: who writes it knows of a port that is mapped, say.
func (a *advertiser) ResponseHead(x *exchange.Exchange) {
	if field := a.field.Load(); field != nil {
		if _, has := x.Response.Fields.First(altSvc); !has {
			x.Response.Fields.Add(altSvc, *field)
		}
	}
}

// advertise tells clients of the others that HTTP/3 is at addr; nil stops that.
func (a *advertiser) advertise(addr net.Addr) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		a.field.Store(nil)
		return
	}
	field := `h3=":` + strconv.Itoa(tcp.Port) + `"; ma=86400`
	a.field.Store(&field)
}

// hide stops telling of HTTP/3, when no new connection of it is taken any more.
func (s *servers) hide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range s.all {
		srv.advertiser.advertise(nil)
	}
}
