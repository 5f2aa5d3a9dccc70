package proxy_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mode is a kind of client connection.
type mode struct {
	name string
	tls  bool
	wrap func(net.Conn) conn.Conn // nil: refused
}

func kernelConn(c net.Conn) conn.Conn {
	if r, ok := rawOf(c); ok {
		return r
	}
	return conn.NewPlain(c, conn.Info{})
}

func plainConn(c net.Conn) conn.Conn { return conn.NewPlain(c, conn.Info{}) }

func tlsConn(c net.Conn) conn.Conn {
	t := tls.Server(kernelConn(c), serverTLS)
	if t.Handshake() != nil {
		_ = c.Close()
		return nil
	}
	state := t.ConnectionState()
	local, remote := addrOf(c.LocalAddr()), addrOf(c.RemoteAddr())
	return conn.NewPlain(t, conn.Info{TLS: &state, Local: local, Remote: remote})
}

var (
	kernelMode = mode{name: "kernel", wrap: kernelConn}
	plainMode  = mode{name: "plain", wrap: plainConn}
	tlsMode    = mode{name: "tls", tls: true, wrap: tlsConn}
	allModes   = []mode{kernelMode, plainMode, tlsMode}
)

// inModes runs a test on every kind of client connection.
func inModes(t *testing.T, f func(t *testing.T, m mode)) {
	for _, m := range allModes {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

// options change what a gateway does by default.
type options struct {
	service func(*config.LoadBalancer)
	whole   func(*config.Service)
	server  func(*http1.Settings)
	before  func(x *exchange.Exchange) // a handler in front of the forwarder
}

// gateway is an HTTP/1.1 server whose only handler forwards to backends.
type gateway struct {
	t    testing.TB
	mode mode
	addr string
	lb   *service.Balancer
	next exchange.Handler
	live *drain.Tracker
	opts options

	mu      sync.Mutex // guards the fields below
	records []exchange.Record
	quiet   bool // benchmark: keeps no records
}

// newGateway starts a gateway in front of backends, given by address or URL. At the end of the test nothing of it may
// be left: no connection, no lease, no goroutine.
func newGateway(t testing.TB, m mode, o options, backends ...string) *gateway {
	t.Helper()
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { _ = clock.Run(ctx); close(stopped) }()
	reg := service.NewRegistry(clock, nil, nil)
	lb, err := service.New(serviceOf(o, backends), reg)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, mode: m, lb: lb, next: proxy.New(lb), live: new(drain.Tracker), opts: o}
	set := &http1.Settings{
		Limits: http1.Limits{MaxHeaderBytes: 64 << 10, MaxHeaders: 256}, Handler: g,
		HeaderTimeout: 10 * time.Second, BodyIdleTimeout: 10 * time.Second, WriteIdleTimeout: 10 * time.Second, KeepAliveTimeout: 10 * time.Second,
	}
	if o.server != nil {
		o.server(set)
	}
	two := http2.NewServer(&http2.Settings{Handler: g, WriteIdleTimeout: 10 * time.Second, BodyIdleTimeout: 10 * time.Second, MaxStreams: 250}, clock)
	srv := http1.NewServer(set, clock, two.ServeConnWith)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = l.Addr().String()
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				if w := m.wrap(c); w != nil {
					srv.ServeConn(w, g.live)
				}
			})
		}
	})
	t.Cleanup(func() {
		g.settled()
		l.Close()
		g.live.Drain(drain.Prompt)
		eventually(t, patience, "client connections end", func() bool { return g.live.Len() == 0 })
		conns.Wait()
		lb.Close()
		cancel()
		<-stopped
	})
	return g
}

func serviceOf(o options, backends []string) *config.Service {
	cfg := &config.Service{Name: "api", LoadBalancer: config.LoadBalancer{
		RequestTimeout: 10 * time.Second, StreamIdleTimeout: 10 * time.Second, StreamTotalTimeout: time.Minute,
		UpstreamErrorStatus: 502, PassHost: true,
		Transport: config.Transport{ConnectTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxIdle: 256, MaxConnections: 1024},
	}}
	for _, b := range backends {
		cfg.LoadBalancer.Servers = append(cfg.LoadBalancer.Servers, serverOf(b))
	}
	if o.service != nil {
		o.service(&cfg.LoadBalancer)
	}
	if o.whole != nil {
		o.whole(cfg)
	}
	return cfg
}

// serverOf describes a backend: host:port, or a URL with a base path.
func serverOf(url string) config.Server {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		scheme, rest = "http", url
	}
	host, base := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		host, base = rest[:i], strings.TrimSuffix(rest[i:], "/")
	}
	return config.Server{URL: scheme + "://" + rest, Scheme: scheme, Addr: host, Host: host, Base: base, Weight: 1}
}

// settled checks that no lease and no connection to a backend is in use, and that no request was recorded twice.
func (g *gateway) settled() {
	g.t.Helper()
	eventually(g.t, patience, "leases and connections come back", func() bool {
		for _, s := range g.lb.AppendStats(nil) {
			if s.Active != 0 {
				return false
			}
		}
		for _, b := range g.backends() {
			if s := b.Pool.Stats(); s.Open != s.Idle {
				return false
			}
		}
		return true
	})
	for _, b := range g.backends() {
		if s := b.Pool.Stats(); s.Open < 0 || s.Idle < 0 {
			g.t.Errorf("pool of %s: %+v", b.URL, s)
		}
	}
}

// backends are those that can be picked.
func (g *gateway) backends() (all []*service.Backend) {
	var tried service.Tried
	for {
		l, err := g.lb.Pick(nil, &tried)
		if err != nil {
			return all
		}
		all = append(all, l.Backend)
		l.Done(service.Unused)
	}
}

// Serve stands for everything in front of the forwarder.
func (g *gateway) Serve(x *exchange.Exchange) error {
	x.Request.Normal = x.Request.Path
	if id, ok := x.Request.Fields.Known(exchange.FieldXRequestID); ok && len(id) <= 128 {
		x.SetRequestID(id)
	} else {
		x.SetRequestID([]byte("made"))
	}
	x.OnHead(requestID{})
	if g.opts.before != nil {
		g.opts.before(x)
	}
	x.Fail(g.guarded(x))
	x.End(exchange.OutcomeOK)
	if g.quiet {
		return nil
	}
	r := x.Record
	r.RequestID = strings.Clone(r.RequestID)
	r.Attempts = slices.Clone(r.Attempts)
	g.mu.Lock()
	g.records = append(g.records, r)
	g.mu.Unlock()
	return nil
}

// guarded is the recovering that the data plane does around its handlers.
func (g *gateway) guarded(x *exchange.Exchange) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return g.next.Serve(x)
}

// requestID names the request to the client.
type requestID struct{}

func (requestID) ResponseHead(x *exchange.Exchange) {
	if x.Response.Status != 101 {
		x.Response.Fields.Set("X-Request-Id", x.Record.RequestID)
	}
}

// record waits for the n-th record, from 0.
func (g *gateway) record(n int) exchange.Record {
	g.t.Helper()
	var r exchange.Record
	eventually(g.t, patience, fmt.Sprintf("record %d", n), func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.records) <= n {
			return false
		}
		r = g.records[n]
		return true
	})
	return r
}

// recorded is how many requests have ended.
func (g *gateway) recorded() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.records)
}

// ended checks how the n-th request was recorded.
func (g *gateway) ended(n int, o exchange.Outcome, code exchange.Code, limit string) exchange.Record {
	g.t.Helper()
	r := g.record(n)
	if r.Outcome != o || r.Code != code || r.Limit != limit {
		g.t.Errorf("record %d: outcome %v code %q limit %q err %v; want %v %q %q", n, r.Outcome, r.Code, r.Limit, r.Err, o, code, limit)
	}
	return r
}

// eventually waits until ok reports true.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
