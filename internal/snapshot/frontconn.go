package snapshot

import (
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// noRouteConn is the end of a connection that no router takes.
var noRouteConn = exchange.Reject(0, exchange.CodeNoRoute, "No route matched")

// ServeConn is the walk of one connection. It keeps its generation until it has ended.
func (f *Front) ServeConn(c conn.Conn, x *exchange.Exchange) error {
	g := f.acquire()
	if g == nil {
		return exchange.Reject(0, exchange.CodeDraining, "Gateway not ready")
	}
	defer g.release()
	x.Record.Entrypoint = f.entrypoint
	meter := g.unrouted
	p, err := f.routeConn(g, x)
	if err == nil {
		x.Record.Router = p.router
		meter = p.meter
		err = g.shielded(x, func() error { return p.conn.ServeConn(c, x) })
	}
	x.Fail(err)
	g.end(x, meter, g.conns(f.entrypoint))
	return nil
}

// conns are the counters of an entrypoint's connections; nil counts nothing.
func (g *Generation) conns(entrypoint string) *telemetry.ConnMeter {
	if e := g.entries[entrypoint]; e != nil {
		return e.conns
	}
	return nil
}

// routeConn finds the router of a connection.
func (f *Front) routeConn(g *Generation, x *exchange.Exchange) (*plan, error) {
	e := g.entries[f.entrypoint]
	if e == nil {
		return nil, noRouteConn
	}
	in := connInput(x)
	i := e.table.Match(&in)
	if i < 0 || g.plans[i].conn == nil { // nil: the entrypoint was one for requests a moment ago
		return nil, noRouteConn
	}
	return &g.plans[i], nil
}

// connInput is what of a connection the rules look at.
func connInput(x *exchange.Exchange) route.Input {
	return route.Input{TCP: true, Host: x.Request.Host, Path: rootPath, Method: tcpMethod, ClientIP: x.Record.ClientIP}
}

// What a connection has in place of a path and a method, so that rules of older configurations can name it.
var rootPath, tcpMethod = []byte("/"), []byte("TCP")
