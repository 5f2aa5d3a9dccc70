// Package snapshot compiles a configuration to an immutable generation and walks exchanges through it: identify, route,
// handle, forward, record. A Generation lives from its compilation to the end of its last exchange; the Store, which
// holds the current one behind an atomic pointer, as long as the process. It binds no socket and watches no file.
package snapshot

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/middleware"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/telemetry"
	"github.com/sluice-proxy/sluice/internal/websocket"
)

// Deps is what a generation borrows from the process.
type Deps struct {
	Services *service.Registry
	Limits   *middleware.Limits
	Channels *websocket.Hub
	Metrics  *telemetry.Metrics
	// Access gets each exchange that has ended, when the configuration wants an access log.
	Access *telemetry.AccessLog
	Log    *slog.Logger
	Actors *actor.Ways
	// Dial connects to the destinations of CONNECTs; nil is the kernel's network.
	Dial service.Dialer
	// Reenter has an entrypoint serve a connection that came out of a tunnel.
	Reenter func(entrypoint string, c conn.Conn) error
	// Egress is what serves the tunnels of actors that come to an entrypoint.
	Egress map[string]exchange.Handler
}

// plan is one router, ready to serve.
type plan struct {
	router  string
	handler exchange.Handler     // of requests; nil in a router of something else
	conn    exchange.ConnHandler // of connections
	udp     *proxy.UDP           // of datagrams
	meter   *telemetry.Meter
	own     bool // of requests inside tunnels of actors: to a service of the operator, not to their origin
}

// entry is one entrypoint's view of the routers.
type entry struct {
	table   *route.Table // nil: an entrypoint for actors that no router names
	shared  *route.Table // of connections, on an entrypoint of requests; nil: none is taken there
	trusted trusted
	slash   bool             // encoded slashes are allowed in paths
	connect bool             // only CONNECT is served
	pace    conn.Pace        // of its tunnels
	egress  exchange.Handler // decides about everything that comes, and asks routers about what is allowed inside; nil: routers do

	// of a tcp or udp entrypoint
	conns *telemetry.ConnMeter
	hello time.Duration // how long to wait for a ClientHello; 0: no router looks at it
}

// Generation is a compiled configuration.
type Generation struct {
	ID     uint64
	Config *config.Config
	Since  time.Time

	deps     Deps
	entries  map[string]*entry
	plans    []plan // by index in the route entries
	unrouted *telemetry.Meter
	services map[string]*service.Balancer
	actors   map[string]*actor.Ingress
	limits   *middleware.Scope
	record   bool
	tracing  bool

	refs    atomic.Int64
	retired atomic.Bool
	free    sync.Once
	onFree  func(*Generation)
}

// Compile makes a generation out of a validated configuration. It has no effect on traffic; Close or the Store gives
// back what it holds.
func Compile(cfg *config.Config, d Deps) (*Generation, error) {
	g := &Generation{
		Config: cfg, Since: time.Now(), deps: d,
		entries: make(map[string]*entry, len(cfg.Entrypoints)), services: make(map[string]*service.Balancer, len(cfg.Services)),
		actors: make(map[string]*actor.Ingress),
		limits: d.Limits.Scope(), record: cfg.Observability.AccessLog && d.Access != nil, tracing: cfg.Observability.Tracing,
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		b, err := service.New(cfg.Services[name], d.Services)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		g.services[name] = b
		errs = append(errs, g.ingress(cfg.Services[name]))
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		errs = append(errs, g.compileRouters())
	}
	if err := errors.Join(errs...); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// ingress makes the way to actors of a service that has one.
func (g *Generation) ingress(s *config.Service) error {
	if s.Actor == nil {
		return nil
	}
	i, err := actor.NewIngress(s, g.deps.Actors, func(v *actor.Visit) exchange.Handler { return proxy.New(v) })
	if err != nil {
		return fmt.Errorf("service %q: %w", s.Name, err)
	}
	g.actors[s.Name] = i
	return nil
}

func (g *Generation) compileRouters() error {
	entries := RouteEntries(g.Config)
	g.plans = make([]plan, len(entries))
	for i := range entries {
		p, err := g.plan(g.Config.Routers[entries[i].Name])
		if err != nil {
			return err
		}
		g.plans[i] = p
	}
	for name, ep := range g.Config.Entrypoints {
		e := &entry{
			trusted: newTrusted(ep.Forwarded.TrustedIPs), slash: ep.AllowEncodedSlash, connect: ep.Protocol == config.CONNECT,
			pace: conn.Pace{Idle: ep.TCPIdleTimeout, HalfClosed: ep.TCPHalfCloseTimeout}, egress: g.deps.Egress[name],
		}
		if ep.Egress != nil && e.egress == nil {
			return fmt.Errorf("entrypoint %q: nothing decides about the tunnels of actors", name)
		}
		if e.table = tableOf(g.Config, entries, ep); ep.Protocol == config.TCP || ep.Protocol == config.UDP {
			g.compileConns(e, ep)
		}
		if ep.Shared {
			e.shared = sharedTable(entries, ep)
		}
		g.entries[name] = e
	}
	g.unrouted = g.meter(telemetry.Path{})
	return nil
}

// compileConns completes the entry of an entrypoint of something else than requests.
func (g *Generation) compileConns(e *entry, ep *config.Entrypoint) {
	if g.Config.Observability.Metrics {
		e.conns = g.deps.Metrics.ConnMeter(ep.Name, ep.Protocol == config.UDP)
	}
	if ep.Protocol == config.TCP && needsHello(g.Config, ep) {
		e.hello = ep.TCPHelloTimeout
	}
}

// needsHello reports whether a connection must be heard before it can be routed. Where one router is like the other, a
// server may speak first.
func needsHello(cfg *config.Config, ep *config.Entrypoint) bool {
	for _, r := range cfg.Routers {
		bound := len(r.Entrypoints) == 0 && !ep.OnlyByName() || slices.Contains(r.Entrypoints, ep.Name)
		if r.Protocol == config.TCP && bound && r.Rule != nil && r.Rule.NeedsSNI() {
			return true
		}
	}
	return false
}

// kinds are the protocols as route tables tell them apart.
var kinds = map[config.Protocol]route.Kind{config.HTTP: route.Requests, config.TCP: route.Connections, config.UDP: route.Datagrams}

// tableOf makes the table of an entrypoint.
func tableOf(cfg *config.Config, entries []route.Entry, ep *config.Entrypoint) *route.Table {
	if ep.Egress != nil {
		return insideTable(cfg, entries, ep)
	}
	if ep.OnlyByName() {
		entries = onlyByName(entries)
	}
	return route.BuildFor(kinds[ep.Protocol], entries, ep.Name)
}

// sharedTable is the table of the connections that an entrypoint of requests passes on.
func sharedTable(entries []route.Entry, ep *config.Entrypoint) *route.Table {
	return route.BuildFor(route.Connections, onlyByName(entries), ep.Name)
}

// onlyByName takes away the routers that would lead from every entrypoint.
func onlyByName(entries []route.Entry) []route.Entry {
	entries = slices.Clone(entries)
	for i := range entries {
		if len(entries[i].Entrypoints) == 0 {
			entries[i].Entrypoints = nowhere
		}
	}
	return entries
}

// nowhere are the entrypoints of a router that names none, where it would have to: no entrypoint has this name.
var nowhere = []string{""}

// RouteEntries lists the routers of a configuration as a route table takes them, sorted by name.
func RouteEntries(cfg *config.Config) []route.Entry {
	entries := make([]route.Entry, 0, len(cfg.Routers))
	for _, name := range slices.Sorted(maps.Keys(cfg.Routers)) {
		r := cfg.Routers[name]
		entries = append(entries, route.Entry{Name: name, Rule: r.Rule, Priority: r.Priority, Entrypoints: r.Entrypoints, Kind: kinds[r.Protocol]})
	}
	return entries
}

// plan builds the handlers of one router, from the last to the first.
func (g *Generation) plan(r *config.Router) (plan, error) {
	b := g.services[r.Service]
	to := originTopology
	switch {
	case b != nil:
		to = topology(b)
	case !r.Inside || r.Service != config.OriginService:
		return plan{}, fmt.Errorf("router %q: no service %q", r.Name, r.Service)
	}
	m := g.meter(telemetry.Path{Router: r.Name, Service: to, Middlewares: r.Middlewares})
	switch r.Protocol {
	case config.TCP:
		h, err := g.connPlan(r, b, m)
		return plan{router: r.Name, conn: h, meter: m}, err
	case config.UDP:
		return plan{router: r.Name, udp: proxy.NewUDP(b), meter: m}, nil
	}
	var h exchange.Handler = &accepted{next: g.last(r, b), meter: m}
	for _, name := range slices.Backward(r.Middlewares) {
		cfg := g.Config.Middlewares[name]
		if cfg == nil {
			return plan{}, fmt.Errorf("router %q: no middleware %q", r.Name, name)
		}
		var err error
		if h, err = middleware.Build(cfg, middleware.Deps{Router: r.Name, Limits: g.limits}, h); err != nil {
			return plan{}, fmt.Errorf("router %q: %w", r.Name, err)
		}
	}
	return plan{router: r.Name, handler: h, meter: m, own: r.Inside && b != nil}, nil
}

// last is the handler that a router leads to.
func (g *Generation) last(r *config.Router, b *service.Balancer) exchange.Handler {
	if r.Inside {
		return lastInside(b, g.requests)
	}
	c := g.Config.Services[r.Service].Connect
	switch {
	case r.Protocol != config.CONNECT:
		return g.requests(b)
	case g.actors[r.Service] != nil:
		return g.actors[r.Service].Tunnels(proxy.NewReentry(r.Service, g.Config.Services[r.Service].Actor.Entrypoint, g.deps.Reenter).WithPurpose(actor.Purpose))
	case c == nil:
		return proxy.NewTunnelBackends(b)
	case c.Entrypoint != "":
		return proxy.NewReentry(r.Service, c.Entrypoint, g.deps.Reenter)
	}
	return proxy.NewTunnelDestinations(service.NewDestinations(r.Service, c, nil, g.deps.Dial))
}

// requests is the handler of ordinary requests to a service, and of sessions with it.
func (g *Generation) requests(b *service.Balancer) exchange.Handler {
	if i := g.actors[b.Name()]; i != nil {
		return i
	}
	h := proxy.New(b)
	ws := &b.Policy().WebSocket
	if !ws.Multiplex {
		return h
	}
	return websocket.NewMultiplexer(g.deps.Channels, b.Name(), websocket.Bounds{Idle: ws.IdleTimeout, Lifetime: ws.Lifetime}, h)
}

// connPlan builds the handlers of a router of connections, from the last to the first.
func (g *Generation) connPlan(r *config.Router, b *service.Balancer, m *telemetry.Meter) (exchange.ConnHandler, error) {
	var h exchange.ConnHandler = &acceptedConn{next: proxy.NewTCP(b), meter: m}
	if r.TLS != config.Passthrough {
		h = &terminated{next: h}
	}
	for _, name := range slices.Backward(r.Middlewares) {
		cfg := g.Config.Middlewares[name]
		if cfg == nil {
			return nil, fmt.Errorf("router %q: no middleware %q", r.Name, name)
		}
		var err error
		if h, err = middleware.BuildConn(cfg, middleware.Deps{Router: r.Name, Limits: g.limits}, h); err != nil {
			return nil, fmt.Errorf("router %q: %w", r.Name, err)
		}
	}
	return h, nil
}

// meter resolves counters; nil, which counts nothing, when metrics are off.
func (g *Generation) meter(p telemetry.Path) *telemetry.Meter {
	if !g.Config.Observability.Metrics {
		return nil
	}
	return g.deps.Metrics.Meter(p)
}

// originTopology is the service that leads where actors are allowed to go: its backends are nobody's to count.
var originTopology = telemetry.ServiceTopology{Name: config.OriginService}

func topology(b *service.Balancer) telemetry.ServiceTopology {
	t := telemetry.ServiceTopology{Name: b.Name()}
	for _, s := range b.AppendStats(nil) {
		t.Backends = append(t.Backends, s.ID)
	}
	return t
}

// Topology is what the configuration names, for the metrics.
func (g *Generation) Topology() telemetry.Topology {
	t := telemetry.Topology{
		Metrics: g.Config.Observability.Metrics, Entrypoints: slices.Sorted(maps.Keys(g.Config.Entrypoints)),
		Routers: slices.Sorted(maps.Keys(g.Config.Routers)), Middlewares: slices.Sorted(maps.Keys(g.Config.Middlewares)),
	}
	for _, name := range t.Entrypoints {
		switch g.Config.Entrypoints[name].Protocol {
		case config.TCP:
			t.TCP = append(t.TCP, name)
		case config.UDP:
			t.UDP = append(t.UDP, name)
		}
	}
	for _, b := range g.Balancers() {
		t.Services = append(t.Services, topology(b))
	}
	for _, r := range g.Config.Routers {
		if r.Service == config.OriginService {
			t.Services = append(t.Services, originTopology)
			break
		}
	}
	return t
}

// accepted tells the meter that the service has taken an exchange on.
type accepted struct {
	next  exchange.Handler
	meter *telemetry.Meter
}

// Serve passes the exchange on.
func (a *accepted) Serve(x *exchange.Exchange) error {
	a.meter.Enter(x)
	return a.next.Serve(x)
}

// acceptedConn is accepted for connections.
type acceptedConn struct {
	next  exchange.ConnHandler
	meter *telemetry.Meter
}

// ServeConn passes the connection on.
func (a *acceptedConn) ServeConn(c conn.Conn, x *exchange.Exchange) error {
	a.meter.Enter(x)
	return a.next.ServeConn(c, x)
}

// Services are the balancers by name. The map must not be changed.
func (g *Generation) Services() map[string]*service.Balancer { return g.services }

// Balancers lists the balancers, sorted by name.
func (g *Generation) Balancers() []*service.Balancer {
	all := make([]*service.Balancer, 0, len(g.services))
	for _, name := range slices.Sorted(maps.Keys(g.services)) {
		all = append(all, g.services[name])
	}
	return all
}

// Close gives back what the generation holds. For one that was never current.
func (g *Generation) Close() {
	g.free.Do(func() {
		for _, b := range g.services {
			b.Close()
		}
		for _, i := range g.actors {
			i.Close()
		}
		g.limits.Close()
		if g.onFree != nil {
			g.onFree(g)
		}
	})
}

// release drops one reference; the last one of a retired generation frees it.
func (g *Generation) release() {
	if g.refs.Add(-1) == 0 && g.retired.Load() {
		g.Close()
	}
}

// Store holds the current generation.
type Store struct {
	cur   atomic.Pointer[Generation]
	alive atomic.Int64
	next  atomic.Uint64
}

// Swap makes g current and returns the one before, which keeps serving its exchanges. It must be given to Retire, or
// swapped back.
func (s *Store) Swap(g *Generation) *Generation {
	if g.ID == 0 {
		g.ID = s.next.Add(1)
		s.alive.Add(1)
		g.onFree = func(*Generation) { s.alive.Add(-1) }
	}
	return s.cur.Swap(g)
}

// Retire frees a generation that is no longer current once its last exchange has ended. nil does nothing.
func (s *Store) Retire(g *Generation) {
	if g == nil {
		return
	}
	g.retired.Store(true)
	if g.refs.Load() == 0 {
		g.Close()
	}
}

// Clear leaves no generation in force, for the end of the process.
func (s *Store) Clear() { s.Retire(s.cur.Swap(nil)) }

// Current is the generation in force; nil before the first.
func (s *Store) Current() *Generation { return s.cur.Load() }

// Alive is the number of generations that are current or still have exchanges.
func (s *Store) Alive() int64 { return s.alive.Load() }

// acquire takes a reference to the current generation.
func (s *Store) acquire() *Generation {
	for {
		g := s.cur.Load()
		if g == nil {
			return nil
		}
		g.refs.Add(1)
		if s.cur.Load() == g {
			return g
		}
		g.release()
	}
}
