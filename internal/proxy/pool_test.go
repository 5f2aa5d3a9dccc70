package proxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

const post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"

// caFile writes the test's certificate for a transport to trust.
func caFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, pemOf(serverPEM), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// KF-H1-09: connections that the backend closes while they are idle cost no request.
func TestKF_H1_09(t *testing.T) {
	t.Parallel()
	leaves := map[string]func(p *peer){"closing": func(p *peer) { _ = p.Close() }, "resetting": (*peer).reset}
	for how, leave := range leaves {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tls=%v", how, secure), func(t *testing.T) {
				var cfg *tls.Config
				o, scheme := options{}, ""
				if secure {
					ca := caFile(t)
					cfg, scheme = serverTLS, "https://"
					o.service = func(l *config.LoadBalancer) { l.Transport.CAFile = ca }
				}
				var left atomic.Int64
				b := backendOn(t, cfg, func(p *peer) { // one answer a connection, unannounced
					p.message(false)
					p.send(ok)
					p.quietly(time.Duration(p.n%4) * 500 * time.Microsecond)
					leave(p)
					left.Add(1)
				})
				g := newGateway(t, kernelMode, o, scheme+b.addr)
				c := g.dial(t)
				for i := range 100 {
					c.send(get)
					if a := c.message(false); a.status() != "200" {
						t.Fatalf("GET %d: %+v", i, a)
					}
				}
				for i := range 50 {
					eventually(t, patience, "the backend has left", func() bool { return left.Load() == int64(b.opened()) })
					c.send(post)
					if a := c.message(false); a.status() != "200" {
						t.Fatalf("POST %d: %+v", i, a)
					}
				}
			})
		}
	}
}

// A request that a backend may have seen is not sent twice unless it may be.
func TestNoRepetitionOfUnsafeRequests(t *testing.T) {
	for _, tt := range []struct {
		request string
		status  string
		conns   int
	}{{get, "200", 2}, {post, "502", 1}, {strings.Replace(post, "POST", "PUT", 1), "200", 2}, {strings.Replace(post, "POST", "PATCH", 1), "502", 1}} {
		t.Run(tt.request[:4], func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.message(false)
				p.send(ok)
				if p.n == 0 { // the second request is read, and then nothing
					p.message(false)
					return
				}
				p.gone(patience)
			})
			inModes(t, func(t *testing.T, m mode) {
				before := b.opened()
				if before > 0 {
					b = newBackend(t, func(p *peer) {
						p.message(false)
						p.send(ok)
						if p.n == 0 {
							p.message(false)
							return
						}
						p.gone(patience)
					})
				}
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(get)
				c.message(false)
				c.send(tt.request)
				if a := c.message(false); a.status() != tt.status {
					t.Errorf("%+v", a)
				}
				if n := b.opened(); n != tt.conns {
					t.Errorf("%d connections, want %d", n, tt.conns)
				}
				r := g.record(1)
				if len(r.Attempts) != tt.conns || r.Attempts[0].Code != exchange.CodeBackendReset {
					t.Errorf("attempts %+v", r.Attempts)
				}
			})
		})
	}
}

// A body that has begun to be sent cannot be sent again, whatever the method: nothing is left for a second attempt.
func TestNoRepetitionOfBegunBodies(t *testing.T) {
	const head = "PUT / HTTP/1.1\r\nHost: a\r\n"
	for name, framing := range map[string][2]string{
		"length": {"Content-Length: 4\r\n\r\nab", "ab"},
		"chunks": {"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "2\r\nab\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			inModes(t, func(t *testing.T, m mode) {
				b := newBackend(t, func(p *peer) {
					if p.n > 0 {
						p.fail("another attempt: %q", p.head())
						return
					}
					p.message(false)
					p.send(ok)
					p.head()
					p.expect(framing[1])
				})
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(get)
				c.message(false)
				c.send(head + framing[0])
				if a := c.message(false); a.status() != "502" {
					t.Errorf("%+v", a)
				}
				if r := g.record(1); len(r.Attempts) != 1 {
					t.Errorf("attempts %+v", r.Attempts)
				}
			})
		})
	}
}

// A connection that has never been used before and ends is no stale one.
func TestFreshConnectionWithoutAnswer(t *testing.T) {
	b := newBackend(t, func(p *peer) { p.message(false) })
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		before := b.opened()
		if a := g.ask(t, get); a.status() != "502" || !strings.Contains(a.body, `"backend_reset"`) {
			t.Errorf("%+v", a)
		}
		if n := b.opened() - before; n != 1 {
			t.Errorf("%d connections", n)
		}
		g.ended(0, exchange.OutcomeFailed, exchange.CodeBackendReset, "")
	})
}

// All connections taken: 503 at once, and another backend if there is one.
func TestBackendBusy(t *testing.T) {
	var hold sync.WaitGroup
	hold.Add(1)
	release := sync.OnceFunc(hold.Done)
	defer release()
	b := newBackend(t, func(p *peer) {
		for p.next() {
			p.message(false)
			hold.Wait()
			p.send(ok)
		}
	})
	free := newBackend(t, replies(ok))
	one := func(l *config.LoadBalancer) { l.Transport.MaxConnections = 1 }
	g := newGateway(t, kernelMode, options{service: one}, b.addr)
	first := g.dial(t)
	first.send(get)
	eventually(t, patience, "the first request is under way", func() bool { return b.opened() == 1 })
	a := g.ask(t, get)
	if a.status() != "503" || a.body != `{"error":"Backend connections exhausted","code":"backend_busy","request_id":"made"}` || a.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", a)
	}
	g.ended(0, exchange.OutcomeFailed, exchange.CodeBackendBusy, "")
	both := newGateway(t, kernelMode, options{service: one}, b.addr, free.addr)
	second := both.dial(t)
	second.send(get) // round robin: b
	eventually(t, patience, "the second request is under way", func() bool { return b.opened() == 2 })
	for range 4 {
		if a := both.ask(t, get); a.status() != "200" {
			t.Errorf("%+v", a)
		}
		eventually(t, patience, "only the second request has a connection", func() bool {
			used := 0
			for _, b := range both.backends() {
				s := b.Pool.Stats()
				used += s.Open - s.Idle
			}
			return used == 1
		})
	}
	release()
	first.message(false)
	second.message(false)
	// A stale connection that must be replaced does not count twice.
	for range 3 {
		g.settled() // the answer is out a moment before its connection is free
		if a := g.ask(t, get); a.status() != "200" {
			t.Errorf("%+v", a)
		}
	}
}

// KF-LB-08: a service without a backend that may be used.
func TestKF_LB_08(t *testing.T) {
	b := newBackend(t, replies(ok))
	g := newGateway(t, kernelMode, options{service: func(l *config.LoadBalancer) { l.Servers[0].Weight = 0 }}, b.addr)
	if a := g.ask(t, get); a.status() != "503" || a.body != `{"error":"No healthy backends","code":"no_backend","request_id":"made"}` {
		t.Errorf("%+v", a)
	}
	r := g.ended(0, exchange.OutcomeFailed, exchange.CodeNoBackend, "")
	if r.Service != "api" || len(r.Attempts) != 0 {
		t.Errorf("%+v", r)
	}
	if n := b.opened(); n != 0 { // KF-LB-03
		t.Errorf("%d connections to a backend of weight 0", n)
	}
}

// KF-LB-12: each backend is tried once, in the time that there is.
func TestKF_LB_12(t *testing.T) {
	t.Parallel()
	b := newBackend(t, replies(ok))
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, refusing(t), refusing(t), b.addr)
		for i := range 5 {
			for _, r := range []string{get, post, upload + lastChunk} {
				if a := g.ask(t, r); a.status() != "200" {
					t.Fatalf("%d: %+v", i, a)
				}
			}
		}
		// The only backend starts while it is asked: the client sees a delay.
		late, listen := reserved(t)
		g = newGateway(t, m, options{}, late)
		up := make(chan struct{})
		go func() {
			defer close(up)
			<-time.After(300 * time.Millisecond) // how long it refuses
			l, err := listen()
			if err != nil {
				t.Error(err)
				return
			}
			backendAt(t, l, nil, replies(ok))
		}()
		if a := g.ask(t, post); a.status() != "200" {
			t.Errorf("starting: %+v", a)
		}
		<-up
		none := newGateway(t, m, options{}, refusing(t), refusing(t), refusing(t))
		if a := none.ask(t, get); a.status() != "502" || !strings.Contains(a.body, "connect_failed") {
			t.Errorf("%+v", a)
		}
		if r := none.ended(0, exchange.OutcomeFailed, exchange.CodeConnectFailed, ""); len(r.Attempts) != 3 {
			t.Errorf("attempts %+v", r.Attempts)
		}
	})
}

// blackhole returns an address that takes connections into a full queue: they are never established.
func blackhole(t *testing.T) string {
	t.Helper()
	addr, full, err := fullListener()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(full)
	return addr
}

// Each way of not connecting has its code.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	untrusted := backendOn(t, serverTLS, func(p *peer) { _, _ = p.closed(patience) })
	clear := newBackend(t, func(p *peer) { p.bytes(5); p.send("HTTP/1.1 400 Bad Request\r\n\r\n") })
	mute := newBackend(t, func(p *peer) { _, _ = p.closed(patience) })
	for _, tt := range []struct {
		name, url string
		tweak     func(*config.LoadBalancer)
		status    string
		code      exchange.Code
		limit     string
	}{
		{"refused", refusing(t), nil, "502", exchange.CodeConnectFailed, ""},
		{"no such name", "http://name.invalid:80", nil, "502", exchange.CodeDNSFailed, ""},
		{"untrusted", "https://" + untrusted.addr, nil, "502", exchange.CodeTLSFailed, ""},
		{"not TLS", "https://" + clear.addr, nil, "502", exchange.CodeTLSFailed, ""},
		{"handshake that hangs", "https://" + mute.addr, func(l *config.LoadBalancer) { l.Transport.ConnectTimeout = 200 * time.Millisecond }, "504", exchange.CodeConnectTimeout, "transport.connect_timeout"},
		{"connect that hangs", blackhole(t), func(l *config.LoadBalancer) { l.Transport.ConnectTimeout = 200 * time.Millisecond }, "504", exchange.CodeConnectTimeout, "transport.connect_timeout"},
		{"connect longer than the request may take", blackhole(t), func(l *config.LoadBalancer) { l.RequestTimeout = 200 * time.Millisecond }, "504", exchange.CodeConnectTimeout, "request_timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, kernelMode, options{service: tt.tweak}, tt.url)
			a := g.ask(t, get)
			if a.status() != tt.status || !strings.Contains(a.body, `"code":"`+string(tt.code)+`"`) || strings.Contains(a.body, "127.0.0.1") {
				t.Errorf("%+v", a)
			}
			r := g.ended(0, exchange.OutcomeFailed, tt.code, tt.limit)
			if len(r.Attempts) != 1 || r.Attempts[0].Code != tt.code || r.Attempts[0].Backend == "" || r.Attempts[0].ID == "" {
				t.Errorf("attempts %+v", r.Attempts)
			}
			if s := g.lb.AppendStats(nil)[0]; s.Refused != 1 || !s.Skipped {
				t.Errorf("the backend is not blamed: %+v", s)
			}
		})
	}
}

// Once the time of a request is up nobody else is tried, and so nobody is taken for a backend that refuses.
func TestNoBlameWhenTheTimeIsUp(t *testing.T) {
	t.Parallel()
	good := newBackend(t, func(p *peer) { p.message(false); p.send(ok) })
	g := newGateway(t, kernelMode, options{service: func(l *config.LoadBalancer) { l.RequestTimeout = 200 * time.Millisecond }}, blackhole(t), good.addr)
	if a := g.ask(t, get); a.status() != "504" {
		t.Errorf("%+v", a)
	}
	if r := g.record(0); len(r.Attempts) != 1 {
		t.Errorf("attempts %+v", r.Attempts)
	}
	if s := g.lb.AppendStats(nil)[1]; s.Refused != 0 || s.Skipped {
		t.Errorf("the other backend is blamed: %+v", s)
	}
}

// Connections to backends serve one request after another, whatever the framing.
func TestConnectionsAreReused(t *testing.T) {
	b := newBackend(t, replies(ok))
	inModes(t, func(t *testing.T, m mode) {
		before := b.opened()
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for i := range 50 {
			c.send([]string{get, post, upload + chunk("ab") + lastChunk, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"}[i%3])
			if a := c.message(false); a.body != "ok" {
				t.Fatalf("%+v", a)
			}
		}
		if n := b.opened() - before; n > 3 {
			t.Errorf("%d connections for one client", n)
		}
	})
}
