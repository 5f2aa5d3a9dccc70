package service

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Balancer chooses among the backends of one service in one generation. Its generation closes it when its last
// exchange has ended. Safe for concurrent use.
type Balancer struct {
	name     string
	policy   Policy
	strategy config.Strategy
	check    *config.HealthCheck // nil: not probed
	reg      *Registry
	all      []Backend       // in the order of the configuration
	pools    []*pooled       // of all
	live     []*Backend      // those with a weight
	even     bool            // all of live weigh the same
	none     *exchange.Error // answer when no backend can take an exchange

	_       [cacheLine]byte
	counter atomic.Uint64 // round-robin
	_       [cacheLine]byte

	mu      sync.Mutex // guards the fields below
	current []int64    // smooth weighted round-robin: credit of each of live
	closed  bool
}

// New makes the balancer of a service. It takes references to the registry's state; Close returns them. It fails when
// the files for https backends cannot be used.
func New(cfg *config.Service, reg *Registry) (*Balancer, error) {
	lb := &cfg.LoadBalancer
	from, err := loadTrust(lb.Transport)
	if err != nil {
		return nil, fmt.Errorf("service %q: %w", cfg.Name, err)
	}
	b := &Balancer{
		name: cfg.Name, strategy: lb.Strategy, reg: reg, even: true,
		policy: Policy{
			RequestTimeout: lb.RequestTimeout, StreamIdleTimeout: lb.StreamIdleTimeout, StreamTotalTimeout: lb.StreamTotalTimeout,
			UpstreamErrorStatus: lb.UpstreamErrorStatus, PassHost: lb.PassHost,
			ConnectTimeout: lb.Transport.ConnectTimeout, SendProxy: lb.Transport.SendProxy, WebSocket: cfg.WebSocket,
			WebSocketOnly: cfg.WebSocket.Multiplex && len(lb.Servers) == 0 || slices.ContainsFunc(lb.Servers, func(s config.Server) bool { return s.WebSocket }),
		},
		all: make([]Backend, len(lb.Servers)), pools: make([]*pooled, len(lb.Servers)),
	}
	if lb.HealthCheck != nil {
		check := *lb.HealthCheck
		b.check = &check
	}
	for i := range lb.Servers {
		b.add(i, &lb.Servers[i], newPooled(&lb.Servers[i], lb.Transport, from))
	}
	b.current = make([]int64, len(b.live))
	b.none = &exchange.Error{
		Status: 503, Code: exchange.CodeNoBackend, Public: "No healthy backends", Outcome: exchange.OutcomeFailed,
	}
	if b.check != nil && len(b.live) > 0 {
		b.none.RetryAfter = max(1, int((b.check.Interval+time.Second-1)/time.Second))
	}
	return b, nil
}

// add takes server number i in.
func (b *Balancer) add(i int, s *config.Server, p *pooled) {
	v, known := b.reg.acquire(b.name, s, p, b.check != nil)
	b.pools[i] = known
	b.all[i] = Backend{
		ID: BackendID(b.name, i), URL: publicURL(s.URL), Scheme: s.Scheme, Addr: s.Addr, Host: s.Host, Base: s.Base,
		Weight: s.Weight, Pool: known.pool, names: &known.names, index: len(b.live), vitals: v,
	}
	if s.Weight > 0 {
		b.live = append(b.live, &b.all[i])
		b.even = b.even && s.Weight == b.live[0].Weight
	}
}

// Close gives the references to shared state back. Leases stay valid. Idempotent.
func (b *Balancer) Close() {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return
	}
	for i := range b.all {
		b.reg.release(b.all[i].vitals, b.pools[i])
	}
}

// Name is the service's.
func (b *Balancer) Name() string { return b.name }

// Policy says how exchanges with the service are conducted. It must not be changed.
func (b *Balancer) Policy() *Policy { return &b.policy }

// Pick chooses a backend for an attempt of x and counts it as active there until the lease is done. Backends in
// tried are left out, and the chosen one is added; nil is for the only attempt. The error is an *exchange.Error:
// nothing (more) can be chosen. A backend that is unhealthy or has weight 0 is never chosen. One that has not passed
// its first check, or refused a connection a moment ago, is chosen only when there is no better one.
// x may be nil; otherwise the service is noted in its record.
func (b *Balancer) Pick(x *exchange.Exchange, tried *Tried) (Lease, error) {
	if x != nil {
		x.Record.Service = b.name
	}
	chosen := b.choose(tried)
	if chosen == nil {
		return Lease{}, b.none
	}
	v := chosen.vitals
	v.active.Add(1)
	if tried != nil {
		tried.add(chosen.index)
	}
	return Lease{Backend: chosen, reg: b.reg, refusals: v.refusals.Load(), open: true}, nil
}

// Again is Pick for the backend that is shown as url, if it may get traffic here.
func (b *Balancer) Again(url string) (Lease, bool) {
	for _, e := range b.live {
		if e.URL == url && e.State() != Unhealthy {
			e.vitals.active.Add(1)
			return Lease{Backend: e, reg: b.reg, refusals: e.vitals.refusals.Load(), open: true}, true
		}
	}
	return Lease{}, false
}

// Exhausted reports whether Pick would find nothing more than tried.
func (b *Balancer) Exhausted(tried *Tried) bool {
	for _, e := range b.live {
		if !tried.has(e.index) && e.State() != Unhealthy {
			return false
		}
	}
	return true
}

// AppendStats appends one entry for each backend, in the order of the configuration.
func (b *Balancer) AppendStats(dst []BackendStats) []BackendStats {
	now := b.reg.now()
	for i := range b.all {
		e := &b.all[i]
		s, conns := e.State(), e.Pool.Stats()
		dst = append(dst, BackendStats{
			Service: b.name, ID: e.ID, URL: e.URL, Weight: e.Weight, State: s, Healthy: s != Unhealthy,
			Active: e.Active(), Open: conns.Open, Idle: conns.Idle, Refused: e.vitals.refused.Load(), Skipped: e.vitals.refusedUntil.Load() > now,
		})
	}
	return dst
}
