package snapshot

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

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
	c, p, err := f.routeConn(g, c, x)
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

// routeConn finds the router of a connection. What had to be read for that can be read again from the one returned.
func (f *Front) routeConn(g *Generation, c conn.Conn, x *exchange.Exchange) (conn.Conn, *plan, error) {
	e := g.entries[f.entrypoint]
	if e == nil {
		return c, nil, noRouteConn
	}
	table, wait := e.table, e.hello
	if e.shared != nil { // the ClientHello has come: by it the connection has been told from those of requests
		table, wait = e.shared, sharedWait
	}
	if wait > 0 {
		var err error
		if c, err = hear(c, x, wait); err != nil {
			return c, nil, err
		}
	}
	in := connInput(x)
	i := table.Match(&in)
	if i < 0 || g.plans[i].conn == nil { // nil: the entrypoint was one for requests a moment ago
		return c, nil, noRouteConn
	}
	return c, &g.plans[i], nil
}

// sharedWait is never waited for, since what is read has come already.
const sharedWait = time.Second

// Passes reports whether a connection on an entrypoint of requests goes to a router of connections, by the name that its
// client asks for.
func (f *Front) Passes(client netip.Addr, serverName string) bool {
	g := f.acquire()
	if g == nil {
		return false
	}
	defer g.release()
	e := g.entries[f.entrypoint]
	return e != nil && e.passes(client, []byte(serverName))
}

// passes reports whether a name leads to a router of connections. A request for it then does not belong on a connection
// whose TLS has ended here, since that router would have taken it as it is, with whatever else the backend asks of its clients
// (RFC 9110 section 15.5.20).
func (e *entry) passes(client netip.Addr, name []byte) bool {
	if e.shared == nil {
		return false
	}
	in := route.Input{TCP: true, Host: name, Path: rootPath, Method: tcpMethod, ClientIP: client.Unmap()}
	return e.shared.Match(&in) >= 0
}

// hear finds out which server name the client asks for. One that sends no ClientHello in time, or something else, asks
// for none, and so does one whose ClientHello cannot be read. A PostgreSQL client first asks whether it may.
func hear(c conn.Conn, x *exchange.Exchange, timeout time.Duration) (conn.Conn, error) {
	x.Guard.Arm(conn.InterrupterOf(c), 0)
	until := time.Now().Add(timeout)
	again, asked, err := conn.AnswerTLSRequest(c, timeout)
	var h conn.Hello
	if x.TLSRequested = asked; err == nil {
		h, again, err = conn.PeekHello(again, conn.MaxHello, time.Until(until))
	}
	if x.Guard.Disarm() != conn.CauseNone {
		return again, exchange.ErrForced
	}
	switch {
	case err == nil:
		x.Request.Host = []byte(h.ServerName)
	case errors.Is(err, conn.ErrStuffed):
		return again, noHandshake(err)
	case errors.Is(err, conn.ErrNotTLS), errors.Is(err, conn.ErrBadHello), errors.Is(err, conn.ErrHelloTooLarge),
		errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF):
	default:
		return again, fmt.Errorf("%w: %w", exchange.ErrDeparted, err)
	}
	return again, nil
}

// noHandshake is the end of a connection whose client does not get as far as TLS.
func noHandshake(err error) error {
	return &exchange.Error{Code: exchange.CodeHandshakeFailed, Public: "TLS handshake failed", Outcome: exchange.OutcomeRejected, Err: err}
}

// terminated ends TLS where the entrypoint can. It stands behind the steps that refuse by address, since a handshake is
// dear.
type terminated struct{ next exchange.ConnHandler }

// ServeConn passes on what is inside TLS.
func (t *terminated) ServeConn(c conn.Conn, x *exchange.Exchange) error {
	if x.Terminate == nil {
		return t.next.ServeConn(c, x)
	}
	var err error
	if !x.TLSRequested { // else that was answered when the server name was read
		x.Guard.Arm(conn.InterrupterOf(c), 0)
		c, x.TLSRequested, err = conn.AnswerTLSRequest(c, tlsRequestTime)
		if x.Guard.Disarm() != conn.CauseNone {
			return exchange.ErrForced
		}
	}
	var inner conn.Conn
	if err == nil {
		inner, err = x.Terminate(c)
	}
	if err != nil {
		return noHandshake(err)
	}
	if inner == nil {
		return nil
	}
	return t.next.ServeConn(inner, x)
}

// tlsRequestTime is how long a client may take to say anything before TLS ends here: as long as the handshake itself.
const tlsRequestTime = 10 * time.Second

// connInput is what of a connection the rules look at.
func connInput(x *exchange.Exchange) route.Input {
	return route.Input{TCP: true, Host: x.Request.Host, Path: rootPath, Method: tcpMethod, ClientIP: x.Record.ClientIP}
}

// What a connection has in place of a path and a method, so that rules of older configurations can name it.
var rootPath, tcpMethod = []byte("/"), []byte("TCP")
