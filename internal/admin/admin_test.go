package admin_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// environment is what the servers of these tests find in it.
var environment = map[string]string{"TOKEN": "s3cret", "OTHER": "another", "EMPTY": ""}

func lookup(key string) (string, bool) {
	v, ok := environment[key]
	return v, ok
}

// block is a management block on a free port.
func block(change func(*config.Management)) config.Management {
	cfg := config.Management{Enabled: true, Address: "127.0.0.1:0", PathPrefix: "/api/gateway"}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// views shows a small topology.
func views() admin.Views {
	return admin.Views{
		Product: "sluice", Version: "1.2.3",
		Health: func() admin.Health {
			return admin.Health{
				State: "Running", Mode: "standalone", UptimeSecs: 7, ActiveConnections: 3, TotalRequests: 11,
				Generation: 2, ConfigDigest: "sha256:00",
			}
		},
		Unready: func() []string { return nil },
		Config:  func() any { return map[string]any{"mode": "standalone", "secret": "[redacted]"} },
		Routes: func() []admin.Route {
			return []admin.Route{
				{Name: "z", Rule: "PathPrefix(`/z`)", Service: "b", Priority: 16},
				{Name: "a/b", Rule: "Host(`<a>`)", Service: "a", Entrypoints: []string{"web"}, Middlewares: []string{"m"}, Priority: 9},
			}
		},
		Services: func() []admin.Service {
			return []admin.Service{
				{Name: "b", Strategy: config.LeastConnections, Backends: []admin.Backend{
					{URL: "http://user:canary@127.0.0.1:2", Weight: 2, Healthy: true, ActiveConnections: 5},
					{URL: "http://127.0.0.1:1", Weight: 1},
				}},
				{Name: "a", Strategy: config.RoundRobin},
			}
		},
	}
}

// open starts a server with the block.
func open(t *testing.T, cfg config.Management, change func(*admin.Deps)) *admin.Server {
	t.Helper()
	d := admin.Deps{
		Views: views(), Log: slog.New(slog.DiscardHandler), LookupEnv: lookup,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = io.WriteString(w, "gateway_requests_total 11\n")
		}),
	}
	if change != nil {
		change(&d)
	}
	s := admin.New(d)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	apply(t, s, cfg)
	return s
}

func apply(t *testing.T, s *admin.Server, cfg config.Management) {
	t.Helper()
	p, err := s.Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
}

// call makes one request on a connection of its own.
type call struct {
	method, url string // method "" is GET
	header      http.Header
	tls         *tls.Config
	h2          bool // over clear text: with prior knowledge
}

type reply struct {
	status int
	proto  string
	header http.Header
	body   string
}

func (c call) do(t *testing.T) reply {
	t.Helper()
	r, err := c.try()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (c call) try() (reply, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!c.h2)
	protocols.SetHTTP2(c.h2)
	protocols.SetUnencryptedHTTP2(c.h2)
	transport := &http.Transport{TLSClientConfig: c.tls, Protocols: protocols, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	if c.method == "" {
		c.method = http.MethodGet
	}
	req, err := http.NewRequest(c.method, c.url, nil)
	if err != nil {
		return reply{}, err
	}
	if c.header != nil {
		req.Header = c.header
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Proto, resp.Header, string(body)}, err
}

func base(s *admin.Server) string { return "http://" + s.Addr(admin.SocketMain).String() }

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func prefixes(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

// authority signs certificates for these tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	a.write("ca.pem", "CERTIFICATE", a.cert.Raw)
	return a
}

func (a *authority) sign(c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// server writes a server certificate and returns its files.
func (a *authority) server(name string) (cert, key string) {
	a.t.Helper()
	k, c := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", "CERTIFICATE", c.Raw), a.write(name+".key", "EC PRIVATE KEY", der)
}

// client returns the TLS configuration of a client that trusts a; with a certificate signed by signer, if any.
func (a *authority) client(signer *authority) *tls.Config {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(a.cert)
	if signer != nil {
		k, cert := signer.sign(&x509.Certificate{
			Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		// Sent even when the server asks for other authorities.
		own := &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: k}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	}
	return c
}
