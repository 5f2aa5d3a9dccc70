package telemetry

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Metrics owns all counters of the process. Names come from configurations only, never from clients.
type Metrics struct {
	base    [shards]base
	reloads [2]atomic.Uint64 // failure, success
	sources atomic.Pointer[Sources]

	mu          sync.Mutex // guards the maps and the topology
	routers     map[string]*routerStats
	services    map[string]*serviceStats
	backends    map[string]*backendStats // by id
	middlewares map[string]*middlewareStats
	conns       map[string]*connStats // by entrypoint of protocol tcp
	sessions    map[string]*connStats // by entrypoint of protocol udp
	topology    Topology
}

// Topology is what a configuration names: the only label values that are ever rendered.
type Topology struct {
	Metrics     bool // observability.metrics_enabled
	Entrypoints []string
	TCP         []string // those of Entrypoints whose connections are counted by outcome
	UDP         []string // those whose sessions are
	Routers     []string
	Services    []ServiceTopology
	Middlewares []string
}

// ServiceTopology is one service with the ids (BackendID) of its backends in their order.
type ServiceTopology struct {
	Name     string
	Backends []string
}

// distinct returns a copy sorted and without repetition: a sample rendered twice would spoil the whole scrape.
func (t Topology) distinct() Topology {
	sorted := func(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }
	t.Entrypoints, t.TCP, t.UDP = sorted(t.Entrypoints), sorted(t.TCP), sorted(t.UDP)
	t.Routers, t.Middlewares = sorted(t.Routers), sorted(t.Middlewares)
	services := make([]ServiceTopology, len(t.Services))
	for i, s := range t.Services {
		services[i] = ServiceTopology{s.Name, sorted(s.Backends)}
	}
	slices.SortStableFunc(services, func(a, b ServiceTopology) int { return strings.Compare(a.Name, b.Name) })
	t.Services = slices.CompactFunc(services, func(a, b ServiceTopology) bool { return a.Name == b.Name })
	return t
}

// NewMetrics returns counters at zero for an empty topology.
func NewMetrics() *Metrics {
	return &Metrics{
		routers:     make(map[string]*routerStats),
		services:    make(map[string]*serviceStats),
		backends:    make(map[string]*backendStats),
		middlewares: make(map[string]*middlewareStats),
		conns:       make(map[string]*connStats),
		sessions:    make(map[string]*connStats),
	}
}

// entry returns the value of a name and makes it when it is new. m.mu is held.
func entry[T any](all map[string]*T, name string) *T {
	v := all[name]
	if v == nil {
		v = new(T)
		all[name] = v
	}
	return v
}

// retain drops what is not named and makes what is. m.mu is held.
func retain[T any](all map[string]*T, names []string) {
	keep := make(map[string]bool, len(names))
	for _, n := range names {
		keep[n] = true
		entry(all, n)
	}
	for n := range all {
		if !keep[n] {
			delete(all, n)
		}
	}
}

// Retain makes t the topology of the process: what it names keeps its numbers or begins at zero, the rest vanishes.
// Call it when a generation became the current one, and with the old topology when a prepared one was given up.
// Exchanges of older generations may still end; what they count of vanished names is lost.
func (m *Metrics) Retain(t Topology) {
	t = t.distinct()
	m.mu.Lock()
	defer m.mu.Unlock()
	var services, backends []string
	for _, s := range t.Services {
		services = append(services, s.Name)
		backends = append(backends, s.Backends...)
	}
	retain(m.routers, t.Routers)
	retain(m.services, services)
	retain(m.backends, backends)
	retain(m.middlewares, t.Middlewares)
	retain(m.conns, t.TCP)
	retain(m.sessions, t.UDP)
	m.topology = t
}

// Reloaded counts a configuration that was applied, or refused.
func (m *Metrics) Reloaded(ok bool) {
	if ok {
		m.reloads[1].Add(1)
	} else {
		m.reloads[0].Add(1)
	}
}

// Requests is the number of exchanges that have ended.
func (m *Metrics) Requests() uint64 {
	var n uint64
	for i := range m.base {
		for c := range m.base[i].classes {
			n += m.base[i].classes[c].Load()
		}
	}
	return n
}

// Path names what a router's exchanges pass.
type Path struct {
	Router      string          // "" for exchanges that no router took
	Service     ServiceTopology // zero: none
	Middlewares []string        // in their order
}

// Meter counts the exchanges of one router. All lookups were done when it was made. A nil Meter counts nothing:
// that is how metrics are switched off.
type Meter struct {
	m          *Metrics
	router     *routerStats
	service    *serviceStats
	chain      []invoked
	backends   []dispatched
	backendIdx map[string]*backendStats // instead of a scan when there are many
}

type invoked struct {
	name  string
	stats *middlewareStats
}

type dispatched struct {
	id    string
	stats *backendStats
}

// scanLimit is the number of backends up to which a scan beats a map.
const scanLimit = 8

// Meter resolves the counters of a path. Resolving changes nothing that is rendered; see Retain.
func (m *Metrics) Meter(p Path) *Meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &Meter{m: m}
	if p.Router != "" {
		t.router = entry(m.routers, p.Router)
	}
	if p.Service.Name != "" {
		t.service = entry(m.services, p.Service.Name)
	}
	for _, name := range p.Middlewares {
		t.chain = append(t.chain, invoked{name, entry(m.middlewares, name)})
	}
	for _, id := range p.Service.Backends {
		t.backends = append(t.backends, dispatched{id, entry(m.backends, id)})
	}
	if len(t.backends) > scanLimit {
		t.backendIdx = make(map[string]*backendStats, len(t.backends))
		for _, b := range t.backends {
			t.backendIdx[b.id] = b.stats
		}
	}
	return t
}

// Enter tells that the service has accepted the exchange: from here to End it is one of the active ones, and its
// first response body byte is observed. At most once an exchange.
func (t *Meter) Enter(x *exchange.Exchange) {
	if t == nil || t.service == nil {
		return
	}
	x.Watch = t
	t.service.shards[shardOf(x)].active.Add(1)
}

// FirstByte observes the time to the first response body byte.
func (t *Meter) FirstByte(x *exchange.Exchange) {
	t.service.shards[shardOf(x)].ttft.observe(x.Record.FirstByteAt)
	t.service.lastTTFT.set(x.Record.Start.Add(x.Record.FirstByteAt))
}

// Upgraded counts a session that has begun.
func (t *Meter) Upgraded(*exchange.Exchange) { t.service.sessions.open.Add(1) }

// End counts a finished exchange: its record is closed. Exactly once an exchange, and after Enter if that was called.
func (t *Meter) End(x *exchange.Exchange) {
	if t == nil {
		return
	}
	r := &x.Record
	status := statusOf(x)
	b := &t.m.base[shardOf(x)]
	class := status / 100
	if class < 0 || class >= len(b.classes) {
		class = 0
	}
	b.classes[class].Add(1)
	if r.BytesOut > 0 {
		b.bytes.Add(uint64(r.BytesOut))
	}
	if t.router != nil {
		t.router.observe(x)
	}
	for i := range t.chain {
		t.chain[i].stats.invocations.Add(1)
		if t.chain[i].name == r.Middleware {
			break // it answered; those behind it never ran
		}
	}
	for i := range r.Attempts {
		t.attempt(r.Attempts[i].ID)
	}
	if x.Watch == exchange.Watcher(t) {
		x.Watch = nil
		t.leave(x)
	}
}

// leave ends what Enter began.
func (t *Meter) leave(x *exchange.Exchange) {
	s := &t.service.shards[shardOf(x)]
	s.active.Add(-1)
	if x.Record.Upgraded {
		t.service.sessions.end(&x.Record)
	}
	s.duration.observe(x.Record.Duration)
	if failed(x) {
		s.errors.Add(1)
	}
	t.service.lastDuration.set(x.Record.Start.Add(x.Record.Duration))
}

func (t *Meter) attempt(id string) {
	if t.backendIdx != nil {
		if b := t.backendIdx[id]; b != nil {
			b.requests.Add(1)
		}
		return
	}
	for i := range t.backends {
		if t.backends[i].id == id {
			t.backends[i].stats.requests.Add(1)
			return
		}
	}
}

// ConnMeter counts the connections of one tcp entrypoint, or the sessions of a udp one. A nil ConnMeter counts nothing.
type ConnMeter struct{ stats *connStats }

// ConnMeter resolves the counters of an entrypoint, of protocol udp or else tcp.
func (m *Metrics) ConnMeter(entrypoint string, udp bool) *ConnMeter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if udp {
		return &ConnMeter{entry(m.sessions, entrypoint)}
	}
	return &ConnMeter{entry(m.conns, entrypoint)}
}

// End counts a connection that has ended: its record is closed.
func (t *ConnMeter) End(x *exchange.Exchange) {
	if t == nil {
		return
	}
	t.stats.outcomes[x.Record.Outcome].Add(1)
	t.stats.in.Add(uint64(x.Record.BytesIn))
	t.stats.out.Add(uint64(x.Record.BytesOut))
}
