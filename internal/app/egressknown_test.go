package app_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// tlsOrigin is a web server of the public Internet at an address, for every name that it has a certificate for. change makes it choosy.
func (w *world) tlsOrigin(address string, change func(c *tls.Config), names ...string) *origin {
	w.t.Helper()
	o := &origin{name: names[0]}
	c, err := w.origins.Certificate(cert.ServiceLeaf(names...))
	w.must(err)
	config := &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if !slices.Contains(names, h.ServerName) {
			return nil, fmt.Errorf("asked for %q", h.ServerName)
		}
		return c, nil
	}}
	change(config)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.routes.route(address, l.Addr().String())
	s := &http.Server{
		Handler: o, TLSConfig: config, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: gatewaytest.Patience,
		Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(slices.Contains(config.NextProtos, "http/1.1"))
	s.Protocols.SetHTTP2(slices.Contains(config.NextProtos, "h2"))
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.ServeTLS(l, "", "") })
	w.t.Cleanup(func() { _ = s.Close(); serving.Wait() })
	return o
}

// Whatever an origin insists on, and whatever the actor's client speaks, the two get together: a protocol, the newest TLS alone, the
// name in the handshake.
func TestKF_MITM_06_KF_EGR_12_Origins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `93.184.216.1 h1.example.com
93.184.216.2 h2.example.com
93.184.216.3 both.example.com
93.184.216.4 new.example.com
93.184.216.5 old.example.com
`, "")
	only := func(p ...string) func(c *tls.Config) { return func(c *tls.Config) { c.NextProtos = p } }
	w.tlsOrigin("93.184.216.1:443", only("http/1.1"), "h1.example.com")
	w.tlsOrigin("93.184.216.2:443", only("h2"), "h2.example.com")
	w.tlsOrigin("93.184.216.3:443", func(*tls.Config) {}, "both.example.com")
	w.tlsOrigin("93.184.216.4:443", func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }, "new.example.com")
	w.tlsOrigin("93.184.216.5:443", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, "old.example.com")
	p := w.run("a1")
	p.may(`{"https":{"hostnames":["*.example.com"]}}`)
	for name, want := range map[string]string{"h1": "HTTP/1.1", "h2": "HTTP/2.0", "both": "HTTP/2.0", "new": "HTTP/2.0", "old": "HTTP/2.0"} {
		for client, protocols := range map[string]func(*http.Protocols){"HTTP/1.1": one, "HTTP/2": two} {
			status, body, _ := fetched(t, p.httpClient("93.184.216.34:443", protocols), "https://"+name+".example.com/")
			if status != 200 || body != name+".example.com "+want+" 0" {
				t.Errorf("%s from a client of %s: %d %q", name, client, status, body)
			}
		}
	}
}

// Names at one address are decided each by itself, in whatever order and on however many connections; the more specific rule is
// the one, wherever it stands.
func TestKF_MITM_04_07_EachNameByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "93.184.216.34 open.example.com pinned.example.com other.example.org\n", "")
	o := w.tlsOrigin("93.184.216.34:443", func(*tls.Config) {}, "open.example.com", "pinned.example.com", "other.example.org")
	p := w.run("a1")
	p.may(`{"https":{"hostnames":["*.example.com"]}},{"tls_passthrough":{"hostnames":["pinned.example.com"],"ports":{"numbers":[443]}}}`)
	text, err := os.ReadFile(w.projectedCA())
	w.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	roots.AppendCertsFromPEM(w.origins.Bundle())
	shown := func(name string) (issuer string, err error) {
		c, status := p.tunnel("93.184.216.34:443")
		defer func() { _ = c.Close() }()
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		s := tls.Client(c, &tls.Config{ServerName: name, RootCAs: roots})
		if err := s.Handshake(); err != nil {
			return "", err
		}
		issuer, _, _ = strings.Cut(s.ConnectionState().PeerCertificates[0].Issuer.CommonName, " ")
		return issuer, nil
	}
	for range 3 {
		for name, want := range map[string]string{"open.example.com": cert.InterceptionAuthority, "pinned.example.com": "origins", "other.example.org": ""} {
			if got, err := shown(name); got != want || (err == nil) != (want != "") {
				t.Errorf("%s is shown a certificate of %q (%v), want %q", name, got, err, want)
			}
		}
	}
	// On one connection that was opened for one name, another one is refused each time, and the first goes on.
	c := p.httpClient("93.184.216.34:443", two)
	for range 3 {
		for host, want := range map[string]int{"open.example.com": 200, "pinned.example.com": 403, "other.example.org": 403} {
			req, err := http.NewRequest("GET", "https://open.example.com/", nil)
			w.must(err)
			req.Host = host
			resp, err := c.Do(req)
			w.must(err)
			_ = resp.Body.Close()
			if resp.StatusCode != want || resp.ProtoMajor != 2 {
				t.Errorf("%s on a connection for another name: %s %s", host, resp.Proto, resp.Status)
			}
		}
	}
	if got := o.seen.Load(); got != 3 {
		t.Errorf("the origin has seen %d requests", got)
	}
}

// What is passed through arrives byte for byte, in pieces or at once, and the two ends know each other by their own certificates.
func TestKF_MITM_05_PassedAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	clients, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "clients"})
	w.must(err)
	w.tlsOrigin("93.184.216.35:443", func(c *tls.Config) {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, clients.Roots()
	}, "raw.example.org")
	own, err := clients.Certificate(cert.WorkloadLeaf("spiffe://example.org/client", false))
	w.must(err)
	p := w.run("a1")
	p.may(`{"tls_passthrough":{"hostnames":["raw.example.org"],"ports":{"numbers":[443]}}}`)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, pieces := range []int{0, 1, 5, 6, 43, 100} {
			c, status := p.tunnel("93.184.216.35:443")
			if status != 200 {
				t.Fatalf("CONNECT: %d", status)
			}
			s := tls.Client(&inPieces{Conn: c, first: pieces}, &tls.Config{
				ServerName: "raw.example.org", RootCAs: w.origins.Roots(), Certificates: []tls.Certificate{*own}, MinVersion: version, MaxVersion: version,
			})
			_, err := io.WriteString(s, "GET / HTTP/1.1\r\nHost: raw.example.org\r\nConnection: close\r\n\r\n")
			answer, rerr := io.ReadAll(s)
			if err := errors.Join(err, rerr); err != nil || !strings.HasSuffix(string(answer), "raw.example.org HTTP/1.1 0") {
				t.Errorf("%s, the first %d bytes apart: %q, %v", tls.VersionName(version), pieces, answer, err)
			}
			_ = c.Close()
		}
	}
}

// inPieces sends the first bytes apart.
type inPieces struct {
	net.Conn
	first int
}

func (c *inPieces) Write(b []byte) (int, error) {
	n := min(c.first, len(b))
	c.first = 0
	if n > 0 {
		if _, err := c.Conn.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	m, err := c.Conn.Write(b[n:])
	return n + m, err
}

// The address that an actor dials gets nothing, whoever listens there: neither a request with a name that is allowed, nor one byte.
func TestKF_EGR_06_TheAddressDialedGetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("api.example.com", "93.184.216.34:443", true)
	attacker, secure := w.origin("attacker", "1.1.1.1:80", false), w.origin("api.example.com", "1.1.1.1:443", true)
	p := w.run("a1")
	p.may(everythingAllowed)
	for url, dialed := range map[string]string{"http://web.example.org/": "1.1.1.1:80", "https://api.example.com/": "1.1.1.1:443"} {
		if status, body, _ := fetched(t, p.httpClient(dialed, one), url); status != 200 || strings.Contains(body, "attacker") {
			t.Errorf("%s: %d %q", url, status, body)
		}
	}
	if d := w.routes.dialed(); slices.ContainsFunc(d, func(a string) bool { return strings.HasPrefix(a, "1.1.1.1") }) || len(d) != 2 {
		t.Errorf("dialed %v", d)
	}
	if n := attacker.seen.Load() + secure.seen.Load(); n > 0 {
		t.Errorf("the address dialed has seen %d requests", n)
	}
}
