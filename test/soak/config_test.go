//go:build linux

package soak_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serverName is the host of all requests and the name in the certificates.
const serverName = "soak.test"

// routes are paths whose routers change with every reload, while all of them always lead somewhere.
var routes = []string{"/a/", "/b/", "/c/d/", "/other/"}

// authority issues the gateway's certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	self := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "soak authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, self, self, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// issue writes a certificate with the given serial number, and its key, to two files.
func (a *authority) issue(certFile, keyFile string, serial int64) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{serverName}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := replace(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})); err != nil {
		return err
	}
	return replace(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// replace puts a file in place in one step.
func replace(name string, content []byte) error {
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// setup is what the configurations of a run have in common.
type setup struct {
	folder                  string
	web, tls, extra, manage string // addresses
	backends                []*backend
	ca                      *authority
}

func (s *setup) configFile() string { return filepath.Join(s.folder, "gateway.acl") }
func (s *setup) accessLog() string  { return filepath.Join(s.folder, "access.log") }

// hasExtra tells whether the configuration of this number has the second clear-text entrypoint.
func hasExtra(number int) bool { return number%2 == 1 }

// serial is the serial number of its certificate.
func serial(number int) int64 { return int64(1000 + number) }

// write issues a certificate and writes the configuration with the given number. Every number differs from the one
// before in routers, weights, backends, certificate and entrypoints.
func (s *setup) write(number int) error {
	// Two generations out of three renew the files in place, as renewal tools do; the third has other names.
	files := filepath.Join(s.folder, fmt.Sprintf("cert%d", number/3%2))
	if err := s.ca.issue(files+".pem", files+".key", serial(number)); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# configuration %d\n", number)
	fmt.Fprintf(&b, "shutdown_timeout_secs = 60\nupgrade_drain_secs = 120\n")
	fmt.Fprintf(&b, "entrypoints \"web\" { address = %q }\n", s.web)
	fmt.Fprintf(&b, "entrypoints \"tls\" {\n  address = %q\n  tls {\n    cert_file = %q\n    key_file = %q\n  }\n}\n", s.tls, files+".pem", files+".key")
	if hasExtra(number) {
		fmt.Fprintf(&b, "entrypoints \"extra\" { address = %q }\n", s.extra)
	}
	for i, prefix := range routes[:3] {
		// The names turn round, and each time one path is left to the router of the rest.
		if i != number%3 {
			fmt.Fprintf(&b, "routers \"r%d\" {\n  rule = \"PathPrefix(`%s`)\"\n  service = \"s%d\"\n}\n", (i+number)%5, prefix, (i+number)%2)
		}
	}
	fmt.Fprintf(&b, "routers \"rest\" {\n  rule = \"PathPrefix(`/`)\"\n  service = \"s%d\"\n}\n", number%2)
	for i := range 2 {
		fmt.Fprintf(&b, "services \"s%d\" {\n  load_balancer {\n    strategy = %q\n", i, []string{"weighted", "least-connections", "round-robin"}[(number+i)%3])
		for j, be := range s.backends {
			if j == 2 && (number+i)%4 == 3 {
				continue // now and then one backend is not there
			}
			fmt.Fprintf(&b, "    servers {\n      url = %q\n      weight = %d\n    }\n", be.url(), 1+(number+j)%5)
		}
		b.WriteString("    health_check {\n      path = \"/health\"\n      interval = \"1s\"\n    }\n  }\n")
		b.WriteString("  transport { idle_timeout = \"3s\" }\n}\n")
	}
	fmt.Fprintf(&b, "observability {\n  access_log { output = %q }\n}\n", s.accessLog())
	fmt.Fprintf(&b, "management {\n  enabled = true\n  address = %q\n  auth_token_env = \"\"\n}\n", s.manage)
	return replace(s.configFile(), []byte(b.String()))
}

// freeAddresses finds loopback addresses on which nothing listens, below the ports that the kernel gives to outgoing
// connections: a port that a configuration gives up must still be free when a later one wants it back.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var all []string
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15000+mathrand.IntN(15000)))
		if err != nil {
			continue
		}
		defer l.Close()
		if all = append(all, l.Addr().String()); len(all) == n {
			return all
		}
	}
	t.Fatal("no free ports")
	return nil
}
