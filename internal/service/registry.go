package service

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// Dialer opens a connection to host:port or unix:/path.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// Via opens a tunnel to host:port through an HTTP proxy, which is http:// (HTTP/1.1) or h2c:// (HTTP/2) with its host:port.
type Via func(ctx context.Context, proxy, addr string) (net.Conn, error)

// Registry holds what outlives a generation: the health and the counts of each backend, by service and URL, and the
// connection pools, by where they lead and how. Generations hold references; what nobody refers to any more is
// dropped. One lives as long as the process.
type Registry struct {
	clock *conn.Clock
	dial  Dialer // nil: the kernel's network
	via   Via    // nil: no proxy is known
	start time.Time

	mu     sync.Mutex // guards the fields below
	vitals map[backendKey]*vitals
	pools  map[poolKey]*pooled
}

// backendKey tells backends apart: service name and URL in its parts.
type backendKey struct{ service, scheme, addr, host, base string }

// poolKey tells pools apart. Two services share a pool when they reach the same place in the same way.
type poolKey struct {
	scheme, addr, serverName string
	transport                config.Transport
	roots                    [32]byte // digest of the file of roots: a file with new content makes a new pool
}

// pooled is a pool with the generations' references to it.
type pooled struct {
	pool *Pool
	tls  func(offer ...string) func() *tls.Config // what connections begin with that offer these protocols; nil: clear text
	key  poolKey
	refs int

	names names // for datagrams, which cannot wait for a lookup
}

// NewRegistry returns an empty registry. The clock visits its pools. A nil dial is the kernel's network; via is for backends
// behind proxies.
func NewRegistry(clock *conn.Clock, dial Dialer, via Via) *Registry {
	return &Registry{
		clock: clock, dial: dial, via: via, start: time.Now(),
		vitals: make(map[backendKey]*vitals), pools: make(map[poolKey]*pooled),
	}
}

// Len is the number of backends and of pools that some generation refers to.
func (r *Registry) Len() (backends, pools int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.vitals), len(r.pools)
}

// now is nanoseconds on the monotonic clock since the registry began; never 0.
func (r *Registry) now() int64 { return int64(time.Since(r.start)) + 1 }

// acquire returns the vitals and the pool of a backend, with a reference to each. A backend that was not known
// begins as Unknown if it will be checked.
func (r *Registry) acquire(service string, s *config.Server, p *pooled, checked bool) (*vitals, *pooled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := backendKey{service, s.Scheme, s.Addr, s.Host, s.Base}
	v := r.vitals[k]
	if v == nil {
		v = &vitals{key: k}
		if checked {
			v.state.Store(uint32(Unknown))
		}
		r.vitals[k] = v
	}
	v.refs++
	known := r.pools[p.key]
	if known == nil {
		known = p
		known.pool = r.newPool(p)
		known.names.begin(p.key.addr)
		r.pools[p.key] = known
	}
	known.refs++
	return v, known
}

// newPool makes the pool that p describes.
func (r *Registry) newPool(p *pooled) *Pool {
	t := &p.key.transport
	one := http1.PoolConfig{
		Addr: p.key.addr, TLS: p.offering("http/1.1"), ConnectTimeout: t.ConnectTimeout, IdleTimeout: t.IdleTimeout,
		MaxIdle: t.MaxIdle, MaxConnections: t.MaxConnections, MaxRequests: t.MaxRequests, MaxAge: t.MaxAge, Dial: r.dialing(&p.key),
	}
	two := func(choice bool, offer ...string) *http2.Pool {
		return http2.NewPool(http2.PoolConfig{
			Dialer:      &conn.Dialer{Addr: p.key.addr, TLS: p.offering(offer...), Timeout: t.ConnectTimeout, Dial: one.Dial},
			Client:      http2.ClientSettings{PingInterval: t.PingInterval, MaxRequests: t.MaxRequests, MaxAge: t.MaxAge},
			IdleTimeout: t.IdleTimeout, MaxConnections: t.MaxConnections, Choice: choice,
		}, r.clock)
	}
	pool := &Pool{start: time.Now(), newCalls: func() *http2.Pool { return two(false, "h2") }}
	if p.key.scheme == "tls" { // which may have to wait for what stands before it
		one.TLS, pool.tls = nil, p.offering()
	}
	pool.http1 = http1.NewPool(one, r.clock)
	if p.key.scheme == "h2c" || t.ALPN.Has(config.HTTP2) {
		pool.alone = p.key.scheme == "h2c" || t.ALPN == config.HTTP2
		pool.http2 = two(!pool.alone, t.ALPN.Names()...)
	}
	return pool
}

// offering is what connections begin with that offer these protocols; nil: clear text.
func (p *pooled) offering(protocols ...string) func() *tls.Config {
	if p.tls == nil {
		return nil
	}
	return p.tls(protocols...)
}

// dialing is how a place is reached; nil for the kernel's network.
func (r *Registry) dialing(k *poolKey) func(context.Context) (net.Conn, error) {
	dial := r.dialer(k.transport.Proxy)
	if dial == nil {
		return nil
	}
	addr := k.addr
	return func(ctx context.Context) (net.Conn, error) {
		nc, err := dial(ctx, addr)
		return nc, connectError(err)
	}
}

// dialer opens connections, through the proxy if there is one; nil is the kernel's network.
func (r *Registry) dialer(proxy string) Dialer {
	if proxy == "" {
		return r.dial
	}
	return func(ctx context.Context, addr string) (net.Conn, error) { return r.via(ctx, proxy, addr) }
}

// release gives one reference to each back.
func (r *Registry) release(v *vitals, p *pooled) {
	r.mu.Lock()
	if v.refs--; v.refs == 0 {
		delete(r.vitals, v.key)
	}
	var unused *Pool
	if p.refs--; p.refs == 0 {
		delete(r.pools, p.key)
		unused = p.pool
	}
	r.mu.Unlock()
	if unused != nil {
		p.names.close()
		unused.close() // closes what is idle; connections in use end with their exchange
	}
}
