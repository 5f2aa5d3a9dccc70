package peers_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a running gateway with one service, in clear text and over TLS.
type site struct {
	gw         *gateway.Gateway
	clear, tls string // addresses
	metrics    string // URL
	log        string // path of the access log
	certFile   string
}

// start starts a gateway with a configuration, and ends it with the test, which fails if something of it stays.
func start(t testing.TB, config string) *gateway.Gateway {
	t.Helper()
	gw, err := gateway.New(gateway.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if err := gw.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := gw.Shutdown(ctx); err != nil {
			t.Errorf("shutting down: %v", err)
		}
	})
	return gw
}

// serve starts a gateway before a backend. It ends with the test, which it fails if something of it stays.
func serve(t testing.TB, backend string) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{log: filepath.Join(dir, "access.log"), certFile: filepath.Join(dir, "cert.pem")}
	keyFile := filepath.Join(dir, "key.pem")
	certPEM, keyPEM := certificate()
	write(t, s.certFile, certPEM)
	write(t, keyFile, keyPEM)
	gw := start(t, fmt.Sprintf(`
entrypoints "clear" { address = "127.0.0.1:0" }
entrypoints "tls" {
  address = "127.0.0.1:0"
  tls {
    cert_file = %q
    key_file  = %q
  }
}
routers "all" {
  rule    = "PathPrefix(`+"`/`"+`) || Method(`+"`OPTIONS`"+`)"
  service = "backend"
}
services "backend" {
  load_balancer {
    servers { url = %q }
  }
}
observability {
  access_log { output = %q }
}
management {
  enabled        = true
  address        = "127.0.0.1:0"
  auth_token_env = ""
}
shutdown_timeout_secs = 5
`, s.certFile, keyFile, backend, s.log))
	s.gw, s.clear, s.tls = gw, gw.Addr("clear"), gw.Addr("tls")
	s.metrics = "http://" + gw.Addr("management") + "/api/gateway/metrics"
	return s
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificate is a pair for gateway.test and the loopback address, one for all tests.
var certificate = sync.OnceValues(func() (certPEM, keyPEM []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gateway.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"gateway.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
})

// clientTLS trusts the certificate.
func clientTLS(alpn ...string) *tls.Config {
	roots := x509.NewCertPool()
	certPEM, _ := certificate()
	roots.AppendCertsFromPEM(certPEM)
	return &tls.Config{RootCAs: roots, ServerName: "gateway.test", NextProtos: alpn}
}

// entry is what the tests look at of a line of the access log.
type entry struct {
	Method, Path, Outcome, Protocol string
	Status                          int
	RequestID                       string `json:"request_id"`
	BytesIn                         int64  `json:"bytes_in"`
	ErrorCode                       string `json:"error_code"`
}

// entries reads the access log as it is now.
func (s *site) entries(t testing.TB) []entry {
	t.Helper()
	b, err := os.ReadFile(s.log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []entry
	for line := range strings.Lines(string(b)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("access log: %v: %s", err, line)
		}
		all = append(all, e)
	}
	return all
}

// gauges sums the values of some metrics over their labels.
func (s *site) gauges(t testing.TB, names ...string) map[string]float64 {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := c.Get(s.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("metrics: %d, %v", res.StatusCode, err)
	}
	sums := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		for _, name := range names {
			full, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if base, _, _ := strings.Cut(full, "{"); base != name && full != name {
				continue
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("metrics: %q", line)
			}
			sums[name] += v
		}
	}
	for _, name := range names {
		if _, found := sums[name]; !found {
			t.Fatalf("metrics: no %s in\n%s", name, text)
		}
	}
	return sums
}

// patience bounds whatever a test waits for. It is not a duration that anything should take.
const patience = 20 * time.Second

// eventually waits for what another program brings about.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
