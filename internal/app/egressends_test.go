package app_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// Tunnels as workers open them, many over one connection, each with a policy and a fate of its own.
func TestEgressOverHTTP2(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}},{"https":{"hostnames":["api.example.com"]}}`)
	clock := conn.NewClock()
	ctx, stop := context.WithCancel(context.Background())
	var ticking sync.WaitGroup
	ticking.Go(func() { _ = clock.Run(ctx) })
	defer ticking.Wait()
	defer stop()
	pool := tunnel.NewPool[string](tunnel.Limits{}, clock)
	to := tunnel.Peer{Addr: w.gateway.Addr("egress"), TLS: func() *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{p.cert}, NextProtos: []string{"h2"}}
	}}
	p.open = func(dialed string) (net.Conn, error) {
		return pool.Open(t.Context(), "egress", to, tunnel.Request{Authority: dialed})
	}
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			url, dialed, want := "http://web.example.org/", "93.184.216.34:80", 200
			switch i % 3 {
			case 1:
				url, dialed = "https://api.example.com/", "93.184.216.34:443"
			case 2:
				url, want = "http://other.example.com/", 403
			}
			if status, body, _ := fetched(t, p.httpClient(dialed, one), url); status != want {
				t.Errorf("%s: %d %s", url, status, body)
			}
		})
	}
	all.Wait()
	if _, err := p.open("example.com:443"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a name: %v", err)
	}
}

// A reload with the same settings changes nothing. With others, tunnels that are open go on by the old ones.
func TestEgressReload(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	p := w.run("a1")
	p.may(everythingAllowed)
	c, status := p.tunnel("93.184.216.34:80")
	if status != 200 {
		t.Fatal(status)
	}
	in := bufio.NewReader(c)
	ask := func() int {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := ask(); got != 200 {
		t.Errorf("before: %d", got)
	}
	minter := filepath.Join(w.dir, "minter.sock")
	w.gateway.Apply(w.config(minter, ""))
	w.gateway.Apply(w.config(minter, `deny_cidrs = ["93.184.216.34"]`))
	if got := ask(); got != 200 {
		t.Errorf("the tunnel that was open: %d", got)
	}
	if got, _, _ := fetched(t, p.httpClient("93.184.216.34:80", one), "http://web.example.org/"); got != 403 {
		t.Errorf("a new one: %d", got)
	}
	_ = c.Close()
	if err := w.gateway.ReloadText(t.Context(), w.config(minter, `identity_ca_file = "/none"`)); err == nil {
		t.Error("a configuration whose file is not there is in force")
	}
	if got, _, _ := fetched(t, p.httpClient("93.184.216.34:80", one), "http://web.example.org/"); got != 403 {
		t.Errorf("after a configuration that was refused: %d", got)
	}
}

// I15: what is passed through ends when its rule is taken away, and what another rule allows goes on.
func TestI15_EgressPassthroughRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts+"93.184.216.36 keep.example.org\n", "")
	w.origin("raw.example.org", "93.184.216.35:443", true)
	w.origin("keep.example.org", "93.184.216.36:443", true)
	p := w.run("a1")
	const keep = `{"tls_passthrough":{"hostnames":["keep.example.org"],"ports":{"all":{}}}}`
	p.may(`{"tls_passthrough":{"hostnames":["raw.example.org"],"ports":{"all":{}}}},` + keep)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.origins.Bundle())
	open := func(name string) *tls.Conn {
		c, status := p.tunnel("1.2.3.4:443")
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		t.Cleanup(func() { _ = c.Close() })
		s := tls.Client(c, &tls.Config{ServerName: name, RootCAs: roots})
		if err := s.Handshake(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	raw, kept := open("raw.example.org"), open("keep.example.org")
	began := time.Now()
	p.may(keep)
	if _, err := io.ReadAll(raw); err == nil && time.Since(began) > 5*time.Second {
		t.Errorf("it has gone on for %s", time.Since(began))
	}
	if r := w.audit(3)[2]; r.Leg != egress.LegPassthrough || r.SNI != "raw.example.org" || r.Code != string(egress.PolicyChanged) {
		t.Errorf("audit: %+v", r)
	}
	fmt.Fprintf(kept, "GET / HTTP/1.1\r\nHost: keep.example.org\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(kept); err != nil || !strings.Contains(string(answer), "200 OK") {
		t.Errorf("the other one: %q, %v", answer, err)
	}
}

// I24: everything that an actor has open ends at once, whatever it carries, and nothing of another one.
func TestI24_EgressCut(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("raw.example.org", "93.184.216.35:443", true)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.origins.Bundle())
	lines := 0
	begin := func(p *player) []net.Conn {
		p.may(`{"http":{"hostnames":["web.example.org"]}},{"tls_passthrough":{"hostnames":["raw.example.org"],"ports":{"all":{}}}}`)
		clear, _ := p.tunnel("93.184.216.34:80")
		fmt.Fprintf(clear, "GET / HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
		if resp, err := http.ReadResponse(bufio.NewReader(clear), nil); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		lines += 2
		w.audit(lines) // what is noted has ended
		passed, _ := p.tunnel("1.2.3.4:443")
		s := tls.Client(passed, &tls.Config{ServerName: "raw.example.org", RootCAs: roots})
		if err := s.Handshake(); err != nil {
			t.Fatal(err)
		}
		lines++
		t.Cleanup(func() { _, _ = clear.Close(), passed.Close() })
		return []net.Conn{clear, s}
	}
	a, b := w.run("a1"), w.run("a2")
	kept, cut := begin(b), begin(a)
	silent, _ := a.tunnel("93.184.216.34:80") // last: it has a second to say something
	defer func() { _ = silent.Close() }()
	cut = append(cut, silent)
	g := w.gateway.EgressGateway("egress")
	legs := map[egress.Leg]int{}
	g.Each(a.uid, func(t egress.Tunnel) { legs[t.Leg]++ })
	if legs[egress.LegCleartext] != 1 || legs[egress.LegPassthrough] != 1 || legs[egress.LegUnknown] != 1 {
		t.Errorf("open: %v", legs)
	}
	began := time.Now()
	if n := g.Cut(a.ref); n != 3 {
		t.Errorf("%d tunnels were open", n)
	}
	for _, c := range cut {
		if _, err := io.Copy(io.Discard, c); time.Since(began) > 5*time.Second {
			t.Errorf("a connection has gone on for %s: %v", time.Since(began), err)
		}
	}
	fmt.Fprintf(kept[1], "GET / HTTP/1.1\r\nHost: raw.example.org\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(kept[1]); err != nil || !strings.Contains(string(answer), "200 OK") {
		t.Errorf("another actor's: %q, %v", answer, err)
	}
	gatewaytest.Until(t, "it is noted", func() bool {
		n := 0
		for _, r := range w.audit(0) {
			if r.UID == a.uid && (r.Code == string(egress.Cut) || r.Reason == egress.Cut) {
				n++
			}
		}
		return n == 2
	})
}
