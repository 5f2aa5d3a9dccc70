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
)

// Dialer opens a connection to host:port or unix:/path.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// Registry holds what outlives a generation: the health and the counts of each backend, by service and URL, and the
// connection pools, by where they lead and how. Generations hold references; what nobody refers to any more is
// dropped. One lives as long as the process.
type Registry struct {
	clock *conn.Clock
	dial  Dialer // nil: the kernel's network
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
	pool *http1.Pool
	tls  func() *tls.Config // for each connection; nil: clear text
	key  poolKey
	refs int

	names names // for datagrams, which cannot wait for a lookup
}

// NewRegistry returns an empty registry. The clock visits its pools. A nil dial is the kernel's network.
func NewRegistry(clock *conn.Clock, dial Dialer) *Registry {
	return &Registry{
		clock: clock, dial: dial, start: time.Now(),
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
		known.pool = http1.NewPool(r.poolConfig(p), r.clock)
		known.names.begin(known.pool)
		r.pools[p.key] = known
	}
	known.refs++
	return v, known
}

func (r *Registry) poolConfig(p *pooled) http1.PoolConfig {
	t := &p.key.transport
	c := http1.PoolConfig{
		Addr: p.key.addr, TLS: p.tls, ConnectTimeout: t.ConnectTimeout, IdleTimeout: t.IdleTimeout,
		MaxIdle: t.MaxIdle, MaxConnections: t.MaxConnections,
	}
	if r.dial != nil {
		c.Dial = func(ctx context.Context) (net.Conn, error) {
			nc, err := r.dial(ctx, p.key.addr)
			return nc, connectError(err)
		}
	}
	return c
}

// release gives one reference to each back.
func (r *Registry) release(v *vitals, p *pooled) {
	r.mu.Lock()
	if v.refs--; v.refs == 0 {
		delete(r.vitals, v.key)
	}
	var unused *http1.Pool
	if p.refs--; p.refs == 0 {
		delete(r.pools, p.key)
		unused = p.pool
	}
	r.mu.Unlock()
	if unused != nil {
		p.names.close()
		unused.Close() // closes what is idle; connections in use end with their exchange
	}
}
