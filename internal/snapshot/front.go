package snapshot

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// Front is the handler of an entrypoint: it takes each exchange through the generation that is current when it begins.
// Once a configuration without the entrypoint is in force, its connections drain; what they still ask for is served by
// the generation that Keep was given. One Front lives as long as the connections of its entrypoint's name.
type Front struct {
	store      *Store
	entrypoint string
	challenge  func(token string) (string, bool)
	kept       atomic.Pointer[Generation] // holds a reference
}

// NewFront returns the handler of the named entrypoint. challenge answers the http-01 challenges that are pending at an
// ACME authority, by their token; nil answers none.
func NewFront(s *Store, entrypoint string, challenge func(token string) (string, bool)) *Front {
	return &Front{store: s, entrypoint: entrypoint, challenge: challenge}
}

// Keep holds g, which must be current, for exchanges that begin when the generation in force does not know the
// entrypoint any more. It replaces what was kept before, and holds until Let.
func (f *Front) Keep(g *Generation) {
	g.refs.Add(1)
	if old := f.kept.Swap(g); old != nil {
		old.release()
	}
}

// Let gives up what Keep holds, if that is g. Exchanges that have begun go on.
func (f *Front) Let(g *Generation) {
	if f.kept.CompareAndSwap(g, nil) {
		g.release()
	}
}

// Keeps reports whether g is what is kept; nil asks whether nothing is.
func (f *Front) Keeps(g *Generation) bool { return f.kept.Load() == g }

// acquire takes a reference to the generation that serves the next exchange; nil when there is none.
func (f *Front) acquire() *Generation {
	for {
		g := f.store.acquire()
		if g == nil || g.entries[f.entrypoint] != nil {
			return g
		}
		k := f.kept.Load()
		if k == nil {
			if f.store.Current() == g {
				return g
			}
			g.release() // a generation that knows the entrypoint has come, so what was kept has been let
			continue
		}
		k.refs.Add(1)
		g.release()
		if f.kept.Load() == k {
			return k
		}
		k.release()
	}
}

// Answers where no router takes a request.
var (
	noRoute   = exchange.Reject(404, exchange.CodeNoRoute, "No route matched")
	noConnect = exchange.Reject(403, exchange.CodeConnectDenied, "CONNECT not allowed")

	misdirected = exchange.Reject(421, exchange.CodeMisdirected, "Misdirected request")
)

// Serve is the walk of one exchange.
func (f *Front) Serve(x *exchange.Exchange) error {
	g := f.acquire()
	if g == nil {
		return exchange.Reject(503, exchange.CodeDraining, "Gateway not ready")
	}
	if e := g.entries[f.entrypoint]; e != nil && e.egress != nil {
		f.leave(g, e, x)
		return nil
	}
	defer g.release()
	f.identify(g, x)
	if f.prove(x) {
		g.end(x, g.unrouted, nil)
		return nil
	}
	p, err := f.route(g, x)
	meter := g.unrouted
	if err == nil {
		x.Record.Router = p.router
		meter = p.meter
		err = g.shielded(x, func() error { return p.handler.Serve(x) })
	}
	if err != nil {
		x.Fail(err)
	}
	g.end(x, meter, nil)
	return nil
}

// leave serves a tunnel of an actor. What decides about it belongs to the process, and the tunnel may be open for days: the
// generation is given back at once.
func (f *Front) leave(g *Generation, e *entry, x *exchange.Exchange) {
	f.identify(g, x)
	x.Pace = e.pace
	g.release()
	if err := g.shielded(x, func() error { return e.egress.Serve(x) }); err != nil {
		x.Fail(err)
	}
	g.end(x, g.unrouted, nil)
}

// challengePath is where an authority looks for proof of control over a host (RFC 8555 section 8.3).
const challengePath = "/.well-known/acme-challenge/"

// prove answers an authority, before any router could redirect it, ask it for a key or send it elsewhere. Requests for
// challenges that nobody waits for are like all others.
func (f *Front) prove(x *exchange.Exchange) bool {
	path := x.Request.Path
	if len(path) < len(challengePath) || string(path[:len(challengePath)]) != challengePath || f.challenge == nil || string(x.Request.Method) != "GET" {
		return false
	}
	answer, ok := f.challenge(string(path[len(challengePath):]))
	if !ok {
		return false
	}
	x.Response.Status, x.Response.ContentLength = 200, int64(len(answer))
	x.Response.Fields.Add("Content-Type", "application/octet-stream")
	if err := x.Send([]byte(answer), true); err != nil {
		x.Fail(err)
	}
	return true
}

// Refuse records a request that the engine does not let through.
func (f *Front) Refuse(x *exchange.Exchange, err *exchange.Error) {
	g := f.acquire()
	if g == nil {
		x.Fail(err)
		return
	}
	defer g.release()
	f.identify(g, x)
	x.Fail(err)
	g.end(x, g.unrouted, nil)
}

// shielded runs the handlers. A panic ends this exchange only.
func (g *Generation) shielded(x *exchange.Exchange, serve func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			g.deps.Log.Error("handler panicked", "router", x.Record.Router, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	return serve()
}

// end closes the record and hands it to whoever counts and writes.
func (g *Generation) end(x *exchange.Exchange, m *telemetry.Meter, conns *telemetry.ConnMeter) {
	if !x.End(exchange.OutcomeOK) {
		return
	}
	m.End(x)
	conns.End(x)
	if g.record {
		g.deps.Access.Log(x)
	}
}

// identify finds out who asks, and gives the request its id. Its frame shall be gone while the handlers run, so that
// the whole of a walk fits into the stack that a connection has.
//
//go:noinline
func (f *Front) identify(g *Generation, x *exchange.Exchange) {
	x.Record.Entrypoint = f.entrypoint
	if e := g.entries[f.entrypoint]; e != nil && len(e.trusted.prefixes) > 0 {
		e.trusted.judge(x)
	}
	telemetry.Identify(x)
	x.OnHead(idHook{})
}

// idHook puts the request id on every answer.
type idHook struct{}

// ResponseHead sets the field.
func (idHook) ResponseHead(x *exchange.Exchange) {
	if id := x.Record.RequestID; id != "" {
		x.Response.Fields.DelKnown(exchange.FieldXRequestID)
		x.Response.Fields.Add("X-Request-Id", id)
	}
}

// route finds the router, by the normal form of the path. Not inlined for the reason that identify has.
//
//go:noinline
func (f *Front) route(g *Generation, x *exchange.Exchange) (*plan, error) {
	e := g.entries[f.entrypoint]
	if e == nil { // the entrypoint was removed longer ago than its connections may take to drain
		return nil, noRoute
	}
	if e.connect {
		return g.routeConnect(e, x)
	}
	in, err := input(x, e.slash)
	if err != nil {
		return nil, err
	}
	if x.Request.TLS && e.passes(x.Record.Peer.Addr(), x.Request.Host) {
		return nil, misdirected
	}
	i := e.table.Match(&in)
	if i < 0 || g.plans[i].handler == nil { // nil: the entrypoint is one for connections now
		return nil, noRoute
	}
	return &g.plans[i], nil
}

// routeConnect finds the router of a CONNECT. Without one it is not allowed.
func (g *Generation) routeConnect(e *entry, x *exchange.Exchange) (*plan, error) {
	x.Pace = e.pace
	in := connectInput(x)
	i := e.table.Match(&in)
	if i < 0 || g.plans[i].handler == nil {
		return nil, noConnect
	}
	return &g.plans[i], nil
}

// connectInput is what of a CONNECT the rules look at: it has no path, which stands as /.
func connectInput(x *exchange.Exchange) route.Input {
	r := &x.Request
	r.Normal = rootPath
	return route.Input{Host: r.Host, Path: rootPath, Method: r.Method, ClientIP: x.Record.ClientIP, Fields: &r.Fields}
}

// input is what of an exchange the rules look at.
func input(x *exchange.Exchange, slash bool) (route.Input, error) {
	r := &x.Request
	norm, _, err := route.NormalPath(nil, r.Path, slash)
	if err != nil {
		e := exchange.Reject(400, exchange.CodeBadRequest, "Malformed request path")
		e.Err = exchange.Fault(err.Error())
		return route.Input{}, e
	}
	r.Normal = norm
	method := r.Method
	if r.Protocol == exchange.HTTP2 && r.Upgrade != nil { // what would be a GET over HTTP/1.1 (RFC 8441 section 5)
		method = methodGet
	}
	return route.Input{
		Host: r.Host, Path: norm, RawQuery: r.Query, Method: method, ClientIP: x.Record.ClientIP, Fields: &r.Fields,
	}, nil
}

var methodGet = []byte("GET")

// trusted are the proxies whose forwarding fields are believed.
type trusted struct{ prefixes []netip.Prefix }

func newTrusted(p []netip.Prefix) trusted { return trusted{prefixes: p} }

// judge believes a trusted peer's chain, walked from the right: the client is the first address that is no trusted
// proxy. An unreadable element ends the walk.
func (t trusted) judge(x *exchange.Exchange) {
	peer := x.Record.ClientIP
	if !config.Among(t.prefixes, peer) {
		return
	}
	x.Trusted = true
	client := peer
	for _, v := range chain(x) {
		ip, ok := parseHop(v)
		if !ok {
			break
		}
		client = ip
		if !config.Among(t.prefixes, ip) {
			break
		}
	}
	x.SetClient(client)
}

// maxHops bounds the walk.
const maxHops = 64

// chain lists the elements of the forwarding chain, the nearest first.
func chain(x *exchange.Exchange) [][]byte {
	var hops [][]byte
	for v := range x.Request.Fields.Values("x-forwarded-for") {
		for tok := range exchange.Tokens(v) {
			hops = append(hops, tok)
		}
	}
	if len(hops) > maxHops {
		hops = hops[len(hops)-maxHops:]
	}
	for i, j := 0, len(hops)-1; i < j; i, j = i+1, j-1 {
		hops[i], hops[j] = hops[j], hops[i]
	}
	return hops
}

// parseHop reads an address, with or without a port.
func parseHop(v []byte) (netip.Addr, bool) {
	s := string(v)
	if ip, err := netip.ParseAddr(s); err == nil {
		return ip.Unmap().WithZone(""), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		if ip, err := netip.ParseAddr(s[1 : len(s)-1]); err == nil {
			return ip.Unmap().WithZone(""), true
		}
	}
	return netip.Addr{}, false
}
