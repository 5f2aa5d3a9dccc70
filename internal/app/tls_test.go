package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// secureSite is a site with an entrypoint tls that has the given tls block.
func secureSite(t *testing.T, block, extra string) site {
	b := gatewaytest.NewBackend(t, "one")
	return site{
		entrypoints: `entrypoints "tls" { address = "127.0.0.1:0", tls { ` + block + ` } }`, backends: []string{b.URL}, extra: extra,
	}
}

// TestCertificateRotation: fifty new certificates while clients of both protocols connect, by reload and by the files
// alone, and not one handshake fails.
func TestCertificateRotation(t *testing.T) {
	const rotations = 50
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	g := gatewaytest.Start(t, secureSite(t, fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile), management).String())
	var stop atomic.Bool
	var round atomic.Int64
	var served, reached [2]atomic.Int64 // handshakes; the last round that one was begun and ended in
	var serials sync.Map
	var wg sync.WaitGroup
	for i, proto := range []string{"http/1.1", "h2"} {
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					began := round.Load()
					// A transport for each request: each is a handshake.
					p := new(http.Protocols)
					p.SetHTTP1(i == 0)
					p.SetHTTP2(i == 1)
					tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "gateway.test"}, Protocols: p}
					resp, err := (&http.Client{Transport: tr}).Get("https://" + g.Addr("tls") + "/")
					if err != nil {
						t.Errorf("%s: %v", proto, err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK || resp.ProtoMajor != i+1 {
						t.Errorf("%s: %s %s", proto, resp.Proto, resp.Status)
					}
					serials.Store(resp.TLS.PeerCertificates[0].SerialNumber.String(), true)
					served[i].Add(1)
					reached[i].Store(began)
					tr.CloseIdleConnections()
				}
			})
		}
	}
	for n := range int64(rotations) {
		certificate(t, dir)
		if err := g.Reload(t.Context()); err != nil {
			t.Error(err)
		}
		round.Store(n + 1)
		gatewaytest.Until(t, "served by both protocols", func() bool {
			return t.Failed() || reached[0].Load() > n && reached[1].Load() > n
		})
	}
	stop.Store(true)
	wg.Wait()
	n := 0
	serials.Range(func(any, any) bool { n++; return true })
	t.Logf("%d and %d handshakes, %d certificates seen", served[0].Load(), served[1].Load(), n)
	if n < rotations {
		t.Errorf("%d certificates were seen", n)
	}
	_, text := ask(t, g.Addr("management"), "/api/gateway/metrics")
	if got := gatewaytest.Metric(text, `gateway_tls_certificate_reloads_total{result="success"}`); got != rotations {
		t.Errorf("%v certificates taken up", got)
	}
	if got := gatewaytest.Metric(text, `gateway_tls_certificate_expiry_timestamp_seconds{entrypoint="tls"}`); got < float64(time.Now().Unix()) {
		t.Errorf("expiry %v", got)
	}
}

// TestClientIdentity: who a client is by its certificate stands in the access log, on new and on resumed sessions, and
// only if it was verified.
func TestClientIdentity(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	caFile := filepath.Join(dir, "clients.pem")
	mine := clientCertificate(t, caFile, "agent.test")
	block := fmt.Sprintf("cert_file = %q, key_file = %q, client_ca_file = %q, client_auth = ", certFile, keyFile, caFile)
	s := secureSite(t, block+`"request"`, "")
	g := gatewaytest.Start(t, s.String())
	client := func(certs ...tls.Certificate) *http.Client {
		c := httpClient(t, func(p *http.Protocols) { p.SetHTTP1(true) })
		tr := c.Transport.(*http.Transport)
		tr.DisableKeepAlives = true
		tr.TLSClientConfig.Certificates, tr.TLSClientConfig.ClientSessionCache = certs, tls.NewLRUClientSessionCache(1)
		tr.TLSClientConfig.ServerName = "gateway.test"
		return c
	}
	get := func(c *http.Client, resumed bool) error {
		resp, err := c.Get("https://" + g.Addr("tls") + "/")
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.TLS.DidResume != resumed {
			t.Errorf("resumed = %v", resp.TLS.DidResume)
		}
		return resp.Body.Close()
	}
	known, unknown := client(mine), client()
	for i, step := range []struct {
		client  *http.Client
		resumed bool
		want    string
	}{{known, false, "agent.test"}, {known, true, "agent.test"}, {unknown, false, ""}, {unknown, true, ""}} {
		if err := get(step.client, step.resumed); err != nil {
			t.Fatal(i, err)
		}
		if line := g.Lines.Next(t); line.Text("client_identity") != step.want {
			t.Errorf("step %d: %v", i, line)
		}
	}
	g.Apply(strings.Replace(s.String(), `"request"`, `"require"`, 1))
	if err := get(unknown, false); err == nil {
		t.Error("served without a certificate")
	}
	if err := get(known, false); err != nil { // under the new policy no session of the old one is resumed
		t.Error(err)
	}
	g.Apply(s.String())
	if err := get(unknown, true); err != nil { // the keys of the old one are still there
		t.Error(err)
	}
}

// clientCertificate makes a certificate for clients and writes its authority.
func clientCertificate(t *testing.T, caFile, name string) tls.Certificate {
	t.Helper()
	var parent *x509.Certificate
	var signer *ecdsa.PrivateKey
	var chain tls.Certificate
	for _, c := range []*x509.Certificate{
		{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, IsCA: true, BasicConstraintsValid: true},
		{SerialNumber: big.NewInt(2), DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if parent == nil {
			parent, signer = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		if c.IsCA {
			if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		chain = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	return chain
}

// TestCertificateForBackends: a backend that asks gets the service's certificate; a new one is shown without a reload, on
// sessions of before too, and a broken one is not.
func TestCertificateForBackends(t *testing.T) {
	dir := t.TempDir()
	seen := make(chan string, 1)
	resumed := make(chan bool, 1)
	b := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.TLS.PeerCertificates[0].SerialNumber.String()
		resumed <- r.TLS.DidResume
		w.Header().Set("Connection", "close")
	}))
	b.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, VerifyConnection: func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("a client without certificate")
		}
		return nil
	}}
	b.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	b.StartTLS()
	defer b.Close()
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := certificate(t, dir)
	serialOf := func() string {
		c, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String()
	}
	s := site{backends: []string{b.URL}}
	with := fmt.Sprintf("transport { ca_file = %q, cert_file = %q, key_file = %q }\n  load_balancer {", roots, certFile, keyFile)
	g := gatewaytest.Start(t, strings.Replace(s.String(), "load_balancer {", with, 1))
	client := gatewaytest.Dial(t, g.Addr("web"))
	expect := func(serial string, again bool) {
		t.Helper()
		if resp, body := client.Get("/"); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", resp.Status, body)
		}
		if got, was := <-seen, <-resumed; got != serial || was != again {
			t.Errorf("certificate %s, want %s; resumed %v, want %v", got, serial, was, again)
		}
	}
	first := serialOf()
	expect(first, false)
	expect(first, true)
	certificate(t, dir)
	second := serialOf()
	expect(second, false)
	expect(second, true)
	if err := os.WriteFile(keyFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(second, true)
	if err := g.Reload(t.Context()); err == nil {
		t.Error("broken files are accepted")
	}
	g.Apply(s.String() + "\n# without, so the backend cannot be verified")
	if resp, _ := client.Get("/"); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("without the transport: %s", resp.Status)
	}
}
