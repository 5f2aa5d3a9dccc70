package service_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/service"
)

// shownPair writes a certificate, told apart by its serial number, and its key.
func shownPair(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"x.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, b := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
		later := time.Now().Add(time.Duration(serial) * time.Second) // the clock of files is too coarse to tell two apart
		if err := os.Chtimes(name, later, later); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// A session of an older certificate is not resumed, also when its ticket is read after the files have changed.
func TestLateTicketOfAnOlderCertificate(t *testing.T) {
	server, err := tls.LoadX509KeyPair(shownPair(t, t.TempDir(), 99))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := shownPair(t, dir, 1)
	config, err := service.Shown(certFile, keyFile, &tls.Config{InsecureSkipVerify: true, ServerName: "x.test", MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAnyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	// connect shows a certificate and reads nothing yet.
	connect := func(serial int64, resumed bool) *tls.Conn {
		t.Helper()
		seen := make(chan tls.ConnectionState, 1)
		go func() {
			defer close(seen)
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := c.Write([]byte("x")); err == nil {
				seen <- c.(*tls.Conn).ConnectionState()
			}
			t.Cleanup(func() { _ = c.Close() })
		}()
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		c := tls.Client(nc, config())
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		s, ok := <-seen
		if !ok || s.PeerCertificates[0].SerialNumber.Int64() != serial || s.DidResume != resumed {
			t.Fatalf("the backend takes us for %v, resumed %v", s.PeerCertificates[0].SerialNumber, s.DidResume)
		}
		return c
	}
	read := func(c *tls.Conn) {
		t.Helper()
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	old := connect(1, false)
	shownPair(t, dir, 2)
	read(connect(2, false))
	read(old) // with its ticket
	connect(2, true)
}
