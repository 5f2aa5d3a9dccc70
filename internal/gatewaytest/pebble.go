package gatewaytest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Pebble is Let's Encrypt's certification authority for tests, on loopback. Like a real one it comes to the names that it
// certifies; HTTPPort and TLSPort are where, at 127.0.0.1 whatever the name.
type Pebble struct {
	// Directory is the URL that clients begin with, CAFile the roots for its own TLS.
	Directory, CAFile string
	HTTPPort, TLSPort int

	t          testing.TB
	dir        string
	dns        string
	management string
	process    *Process
}

// PebbleOptions change what NewPebble makes.
type PebbleOptions struct {
	// Validity is how long certificates are good; 0 is 90 days.
	Validity time.Duration
	// DNS is the server that it asks, host:port; "" is one that has every name at 127.0.0.1.
	DNS string
	// EAB are the keys of accounts that may register, by id, in base64url; nil lets everybody.
	EAB map[string]string
}

// NewPebble prepares an authority; Start runs it.
func NewPebble(t testing.TB, o PebbleOptions) *Pebble {
	t.Helper()
	Peer(t, PeerPebble)
	ports := FreePorts(t, 6)
	local := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	p := &Pebble{
		t: t, dir: t.TempDir(), dns: o.DNS, management: "https://" + local(ports[1]), HTTPPort: ports[2], TLSPort: ports[3],
		Directory: "https://" + local(ports[0]) + "/dir",
	}
	p.CAFile = filepath.Join(p.dir, "own.pem")
	p.certify()
	if p.dns == "" {
		p.dns = local(ports[4])
		Run(t, Peer(t, PeerChallengeServer), "-dnsserver", p.dns, "-defaultIPv6", "", "-management", local(ports[5]), "-doh", "", "-http01", "", "-https01", "", "-tlsalpn01", "")
	}
	if o.Validity == 0 {
		o.Validity = 90 * 24 * time.Hour
	}
	settings := map[string]any{
		"listenAddress": local(ports[0]), "managementListenAddress": local(ports[1]), "httpPort": p.HTTPPort, "tlsPort": p.TLSPort,
		"certificate": p.CAFile, "privateKey": filepath.Join(p.dir, "own.key"), "keyAlgorithm": "ecdsa",
		"externalAccountBindingRequired": o.EAB != nil, "externalAccountMACKeys": o.EAB,
		"retryAfter": map[string]int{"authz": 1, "order": 1},
		"profiles":   map[string]any{"default": map[string]any{"description": "tests", "validityPeriod": int(o.Validity / time.Second)}},
	}
	text, err := json.Marshal(map[string]any{"pebble": settings})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "pebble.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// certify makes the certificate of the authority's own servers.
func (p *Pebble) certify() {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		p.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{"own.pem": {Type: "CERTIFICATE", Bytes: der}, "own.key": {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(p.dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
}

// Start runs the authority. It knows nothing of what it did before an earlier Stop, and has another root.
func (p *Pebble) Start() *Pebble {
	p.t.Helper()
	p.process = Run(p.t, "/usr/bin/env", "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0", Peer(p.t, PeerPebble),
		"-config", filepath.Join(p.dir, "pebble.json"), "-dnsserver", p.dns)
	p.process.Await(p.t, `(ACME directory available)`)
	Until(p.t, "pebble answers", func() bool {
		_, err := p.ask(http.MethodGet, p.Directory, nil)
		return err == nil
	})
	return p
}

// Stop ends the authority.
func (p *Pebble) Stop() {
	p.t.Helper()
	_ = p.process.cmd.Process.Kill()
	<-p.process.done
}

// Output is what the authority has logged.
func (p *Pebble) Output() string { return p.process.Output() }

// Orders is how many orders it has taken.
func (p *Pebble) Orders() int { return strings.Count(p.Output(), "Added order ") }

// Root is what its certificates are verified against.
func (p *Pebble) Root() *x509.CertPool {
	p.t.Helper()
	text, err := p.ask(http.MethodGet, p.management+"/roots/0", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		p.t.Fatalf("no root: %s", text)
	}
	return pool
}

// RenewNow has the authority suggest that a certificate be renewed at once (RFC 9773).
func (p *Pebble) RenewNow(chainPEM []byte) {
	p.t.Helper()
	window := fmt.Sprintf(`{"suggestedWindow":{"start":%q,"end":%q}}`,
		time.Now().Add(-2*time.Hour).UTC().Format(time.RFC3339), time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	block, _ := pem.Decode(chainPEM)
	body, err := json.Marshal(map[string]string{"certificate": string(pem.EncodeToMemory(block)), "ariResponse": window})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.ask(http.MethodPost, p.management+"/set-renewal-info/", body); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Pebble) ask(method, url string, body []byte) ([]byte, error) {
	text, err := os.ReadFile(p.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(p.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: tr, Timeout: Patience}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return answer, err
}
