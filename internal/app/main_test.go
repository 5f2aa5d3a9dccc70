package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The token of management is in the environment of all tests, and not of single ones, which could not run at once then.
//
// A test backend of net/http sleeps for half a second before it closes a connection whose body it did not like. What keeps
// a lock of the ACME storage fresh looks every five seconds whether the lock is still there.
func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "sluice-app-")
	if err == nil {
		err = os.Setenv("SLUICE_TEST_TOKEN", "token-canary")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	versions.folder = folder
	goleak.VerifyTestMain(m,
		goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(folder)
			os.Exit(code)
		}),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

// site is a configuration in the making; its zero fields get what most tests want.
type site struct {
	entrypoints string // default: web on a free port
	rule        string
	middlewares string // names, as in the list
	backends    []string
	service     string // more of the load_balancer
	extra       string
}

func (s site) String() string {
	if s.entrypoints == "" {
		s.entrypoints = `entrypoints "web" { address = "127.0.0.1:0" }`
	}
	if s.rule == "" {
		s.rule = "PathPrefix(`/`)"
	}
	var servers strings.Builder
	for _, b := range s.backends {
		fmt.Fprintf(&servers, "    servers { url = %q }\n", b)
	}
	return s.entrypoints + `
routers "r" {
  rule = "` + s.rule + `"
  service = "s"
  middlewares = [` + s.middlewares + `]
}
services "s" {
  load_balancer {
    strategy = "round-robin"
` + servers.String() + s.service + `
  }
}
` + s.extra
}

// certificate writes a new self-signed pair to dir.
func certificate(t testing.TB, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "gateway.test"}, DNSNames: []string{"gateway.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "site.pem"), filepath.Join(dir, "site.key")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// httpClient speaks the given protocols to whatever certificate.
func httpClient(t testing.TB, p func(*http.Protocols)) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: new(http.Protocols), DisableCompression: true}
	p(tr.Protocols)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
