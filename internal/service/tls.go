package service

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
)

// resumable is how many TLS sessions a pool keeps to resume.
const resumable = 32

// errNoRoots is a file of roots without any certificate.
var errNoRoots = errors.New("holds no certificate")

// trust is whom the https backends of a service are verified against, and who they are shown.
type trust struct {
	roots  *x509.CertPool // nil: the system's
	digest [32]byte
	shown  *shown // nil: no certificate
}

// loadTrust reads the files of a transport.
func loadTrust(t config.Transport) (from trust, err error) {
	if t.CertFile != "" {
		if from.shown, err = newShown(t.CertFile, t.KeyFile); err != nil {
			return trust{}, err
		}
	}
	if t.CAFile == "" {
		return from, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return trust{}, fmt.Errorf("reading ca_file: %w", err)
	}
	from.roots, from.digest = x509.NewCertPool(), sha256.Sum256(pem)
	if t.SystemRoots {
		if from.roots, err = x509.SystemCertPool(); err != nil {
			return trust{}, fmt.Errorf("reading the system's roots: %w", err)
		}
	}
	if !from.roots.AppendCertsFromPEM(pem) {
		return trust{}, fmt.Errorf("reading ca_file %s: %w", t.CAFile, errNoRoots)
	}
	return from, nil
}

// newPooled describes how a server is reached; the pool itself is made by the registry when it knows none.
func newPooled(s *config.Server, t config.Transport, from trust) *pooled {
	p := &pooled{key: poolKey{scheme: s.Scheme, addr: s.Addr, transport: t}}
	if s.Scheme != "https" && s.Scheme != "tls" {
		t := &p.key.transport
		t.CAFile, t.ServerName, t.CertFile, t.KeyFile, t.ALPN = "", "", "", "", 0
		return p
	}
	p.key.roots = from.digest
	if p.key.serverName = t.ServerName; p.key.serverName == "" {
		p.key.serverName = hostOf(s.Host)
	}
	base := &tls.Config{RootCAs: from.roots, ServerName: p.key.serverName, MinVersion: tls.VersionTLS12}
	p.tls = func(offer ...string) func() *tls.Config {
		c := base.Clone()
		c.NextProtos, c.ClientSessionCache = offer, tls.NewLRUClientSessionCache(resumable)
		if from.shown != nil {
			return from.shown.fork(c).tls
		}
		return func() *tls.Config { return c }
	}
	return p
}

// hostOf is an authority without its port and brackets.
func hostOf(authority string) string {
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return host
}

// connectError marks a failed dial like one of the pool's own.
func connectError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", conn.ErrConnect, err)
}
