package proxy_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// An https backend chooses among what is offered. Requests that come together while that is unknown wait for one connection.
func TestALPN(t *testing.T) {
	t.Parallel()
	const both = config.HTTP1 | config.HTTP2
	for name, tc := range map[string]struct {
		offer, speaks config.Protocols
		want          string
		code          exchange.Code
	}{
		"both, HTTP/2":          {offer: both, speaks: both, want: "HTTP/2.0"},
		"both, HTTP/1.1":        {offer: both, speaks: config.HTTP1, want: "HTTP/1.1"},
		"HTTP/2 alone":          {offer: config.HTTP2, speaks: both, want: "HTTP/2.0"},
		"HTTP/2 alone, refused": {offer: config.HTTP2, speaks: config.HTTP1, code: exchange.CodeTLSFailed},
		"HTTP/1.1 alone":        {offer: config.HTTP1, speaks: both, want: "HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
			s.EnableHTTP2 = tc.speaks.Has(config.HTTP2)
			s.StartTLS()
			t.Cleanup(s.Close)
			ca := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
				t.Fatal(err)
			}
			g := newGateway(t, kernelMode, options{service: func(lb *config.LoadBalancer) {
				lb.Transport.CAFile, lb.Transport.ALPN, lb.Transport.ServerName = ca, tc.offer, "example.com"
			}}, s.URL)
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					c := g.dial(t)
					c.send(get)
					m := c.message(false)
					if tc.code != "" && (m.status() != "502" || !strings.Contains(m.body, string(tc.code))) || tc.code == "" && m.body != tc.want {
						t.Errorf("%+v", m)
					}
				})
			}
			all.Wait()
			if st := g.backends()[0].Pool.Stats(); tc.want == "HTTP/2.0" && st.Open != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A request for another protocol goes over HTTP/1.1, if the backend speaks it.
func TestUpgradeBesideHTTP2(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto+" "+r.Header.Get("Upgrade"))
		w.WriteHeader(http.StatusUpgradeRequired)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, kernelMode, options{service: func(lb *config.LoadBalancer) {
		lb.Transport.CAFile, lb.Transport.ALPN, lb.Transport.ServerName = ca, config.HTTP1|config.HTTP2, "example.com"
	}}, s.URL)
	c := g.dial(t)
	for _, tc := range []struct{ head, want string }{
		{"", "HTTP/2.0"},
		{"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", "HTTP/1.1 websocket"},
	} {
		c.send("GET / HTTP/1.1\r\nHost: a\r\n" + tc.head + "\r\n")
		if m := c.message(false); m.header.Get("X-Proto") != tc.want {
			t.Errorf("%+v", m)
		}
	}
}

// A connection that has served as many requests, or is as old, as it may be serves no more; the next request finds another.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*config.Transport){
		"max_requests": func(tr *config.Transport) { tr.MaxRequests = 2 },
		"max_age":      func(tr *config.Transport) { tr.MaxAge = time.Nanosecond },
		"idle_timeout": func(tr *config.Transport) { tr.IdleTimeout = time.Millisecond },
	} {
		for _, two := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP2=%v", name, two), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				seen := map[string]bool{}
				h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					seen[r.RemoteAddr] = true
				})
				var url string
				if two {
					url = foreignH2C(t, h)
				} else {
					s := httptest.NewServer(h)
					t.Cleanup(s.Close)
					url = s.URL
				}
				g := newGateway(t, kernelMode, options{service: func(lb *config.LoadBalancer) {
					if set(&lb.Transport); two && lb.Transport.MaxAge > 0 {
						lb.Transport.MaxAge = time.Second // so that no new connection is too old for the request that it is for
					}
				}}, url)
				c := g.dial(t)
				for range 4 {
					c.send(get)
					if m := c.message(false); m.status() != "200" {
						t.Errorf("%+v", m)
					}
					if name != "max_requests" {
						eventually(t, patience, "the connection ends", func() bool { return g.backends()[0].Pool.Stats().Open == 0 || !two && name == "max_age" })
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if want := map[string]int{"max_requests": 2, "max_age": 4, "idle_timeout": 4}[name]; len(seen) != want {
					t.Errorf("%d connections", len(seen))
				}
			})
		}
	}
}
