package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Bounds of one actor.
const (
	maxOrigins = 128 // destinations with connections
	dialRate   = 50  // connections opened a second
	dialBurst  = 200
)

var (
	errOrigins = errors.New("the actor has connections to too many destinations")
	errDials   = errors.New("the actor opens connections too fast")
)

// originKey is what connections to an origin are kept by, within one actor.
type originKey struct {
	leg  Leg
	host Host
	port uint16
}

// origin is one destination of one actor, with the connections to it that nobody else uses.
type origin struct {
	backends *service.Balancer
	handler  exchange.Handler
	last     atomic.Pointer[netip.AddrPort] // dialed last
	users    int                            // exchanges; guarded by origins.mu
}

// upstream is the address that was dialed last; "" none.
func (o *origin) upstream() string {
	if a := o.last.Load(); a != nil {
		return a.String()
	}
	return ""
}

// origins are the destinations of one actor. It lives as long as the actor has tunnels. Safe for concurrent use.
type origins struct {
	g     *Gateway
	dials *bucket

	mu   sync.Mutex // guards the rest
	kept map[originKey]*origin
}

// use returns the origin, which is the caller's until done.
func (os *origins) use(k originKey) (*origin, error) {
	os.mu.Lock()
	defer os.mu.Unlock()
	o := os.kept[k]
	if o == nil {
		if len(os.kept) >= maxOrigins && !os.evict() {
			return nil, errOrigins
		}
		var err error
		if o, err = os.open(k); err != nil {
			return nil, err
		}
		os.kept[k] = o
	}
	o.users++
	return o, nil
}

func (os *origins) done(o *origin) {
	os.mu.Lock()
	defer os.mu.Unlock()
	o.users--
}

// evict forgets an origin that nobody uses.
func (os *origins) evict() bool {
	for k, o := range os.kept {
		if o.users == 0 {
			delete(os.kept, k)
			o.backends.Close()
			return true
		}
	}
	return false
}

// close ends the connections that are idle, and the others when their exchanges end.
func (os *origins) close() {
	os.mu.Lock()
	defer os.mu.Unlock()
	for k, o := range os.kept {
		delete(os.kept, k)
		o.backends.Close()
	}
}

// Limits of forwarding to origins.
const (
	originRequest = time.Minute // until the response head
	originIdle    = 5 * time.Minute
	originTotal   = time.Hour
	originKeep    = 30 * time.Second // an unused connection
	originOpen    = 64               // connections to one
)

// open makes the pool of an origin, of which every connection is dialed by dial.
func (os *origins) open(k originKey) (*origin, error) {
	s := &os.g.o.Settings
	o := &origin{}
	reg := service.NewRegistry(os.g.o.Clock, func(ctx context.Context, _ string) (net.Conn, error) {
		return os.dial(ctx, k.host, k.port, &o.last)
	}, nil)
	authority := net.JoinHostPort(k.host.String(), strconv.Itoa(int(k.port)))
	scheme, protocols := "http", config.Protocols(0)
	if k.leg == LegIntercepted {
		scheme, protocols = "https", config.HTTP1|config.HTTP2
	}
	b, err := service.New(&config.Service{Name: config.OriginService, LoadBalancer: config.LoadBalancer{
		Strategy: config.RoundRobin, RequestTimeout: originRequest, StreamIdleTimeout: originIdle, StreamTotalTimeout: originTotal,
		UpstreamErrorStatus: 502, PassHost: true,
		Servers: []config.Server{{URL: scheme + "://" + authority, Scheme: scheme, Addr: authority, Host: authority, Weight: 1}},
		Transport: config.Transport{
			ConnectTimeout: s.ConnectTimeout, IdleTimeout: originKeep, MaxIdle: originOpen, MaxConnections: originOpen, ALPN: protocols,
			ServerName: k.host.String(), CAFile: s.OriginCAFile, SystemRoots: true, PingInterval: 30 * time.Second,
		},
	}}, reg)
	if err != nil {
		return nil, err
	}
	o.backends, o.handler = b, os.g.o.Forward(b)
	return o, nil
}

// dial connects to a destination by its name, once resolved, at an address that was judged and is that which is dialed.
func (os *origins) dial(ctx context.Context, h Host, port uint16, last *atomic.Pointer[netip.AddrPort]) (conn.Conn, error) {
	if !os.dials.take(time.Now()) {
		return nil, errDials
	}
	s := &os.g.o.Settings
	var found []netip.Addr
	resolve := func(ctx context.Context, _ string) ([]netip.Addr, error) {
		addrs, err := os.g.o.Resolver.Resolve(ctx, h.Name())
		found = addrs
		return addrs, err
	}
	d := service.NewDestinations("egress", &config.Connect{
		Ports: []int{int(port)}, Allow: s.AllowPrivate, Deny: s.DenyCIDRs, ConnectTimeout: s.ConnectTimeout,
	}, resolve, os.g.o.Network)
	c, err := d.Dial(ctx, exchange.Authority{Host: h.Name(), Addr: h.Addr(), Port: port})
	if err != nil {
		if errors.Is(err, service.ErrDenied) && len(found) > 0 {
			err = fmt.Errorf("%s is at %v: %w", h, found[:min(len(found), 8)], err)
		}
		return nil, err
	}
	if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		last.Store(&a)
	}
	return c, nil
}
