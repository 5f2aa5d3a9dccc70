package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
)

// settings are the management block with everything read that it points to. They do not change.
type settings struct {
	prefix    string // without trailing slash; "" is the root
	token     *[sha256.Size]byte
	allowed   []netip.Prefix // empty: everybody
	tls       *tls.Config    // nil: clear text
	probeOnly bool
}

func newSettings(cfg config.Management, lookup func(string) (string, bool)) (*settings, error) {
	s := &settings{prefix: strings.TrimRight(cfg.PathPrefix, "/")}
	if cfg.TokenEnv != "" {
		token, ok := lookup(cfg.TokenEnv)
		if !ok || token == "" {
			return nil, fmt.Errorf("auth_token_env: the environment variable %s is not set", cfg.TokenEnv)
		}
		sum := sha256.Sum256([]byte(token))
		s.token = &sum
	}
	for _, p := range cfg.AllowedIPs {
		s.allowed = append(s.allowed, unmap(p))
	}
	if cfg.TLS != nil {
		t, err := newTLS(cfg.TLS)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		s.tls = t
	}
	return s, nil
}

// unmap turns a prefix of IPv4-mapped IPv6 addresses into the IPv4 prefix that it means.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// probe returns the settings of the probe socket: clear text, for everybody, livez and readyz only.
func (s *settings) probe() *settings { return &settings{prefix: s.prefix, probeOnly: true} }

// same reports whether a server with these settings can go on with others. With TLS it never can: the files may have
// new content.
func (s *settings) same(o *settings) bool {
	if s.tls != nil || o.tls != nil || s.prefix != o.prefix || s.probeOnly != o.probeOnly || !slices.Equal(s.allowed, o.allowed) {
		return false
	}
	if s.token == nil || o.token == nil {
		return s.token == o.token
	}
	return *s.token == *o.token
}

// suffice reports whether a connection that was let in by these settings would be let in by others, too: whether it is
// private enough, and its client known by the same authorities.
func (s *settings) suffice(o *settings) bool {
	switch {
	case o.tls == nil:
		return true
	case s.tls == nil || s.tls.MinVersion < o.tls.MinVersion:
		return false
	case o.tls.ClientAuth == tls.NoClientCert:
		return true
	}
	return s.tls.ClientAuth >= o.tls.ClientAuth && s.tls.ClientCAs.Equal(o.tls.ClientCAs)
}

// newTLS reads the certificate and the client authorities.
func newTLS(cfg *config.ManagementTLS) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("loading the certificate: %w", err)
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   max(cfg.MinVersion, tls.VersionTLS12),
		NextProtos:   []string{"h2", "http/1.1"},
		// A resumed session would carry a client certificate over a change of the authorities.
		SessionTicketsDisabled: true,
	}
	if cfg.ClientCAFile == "" {
		if cfg.RequireClientCert {
			return nil, errors.New("require_client_cert needs client_ca_file")
		}
		return c, nil
	}
	pem, err := os.ReadFile(cfg.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("reading client_ca_file: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("client_ca_file holds no certificate")
	}
	c.ClientAuth = tls.VerifyClientCertIfGiven
	if cfg.RequireClientCert {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// admits reports whether the socket's other end may ask.
func (s *settings) admits(remote string) bool {
	if len(s.allowed) == 0 {
		return true
	}
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	return config.Among(s.allowed, peer.Addr())
}

// knows reports whether the Authorization fields carry the token. The time it takes tells nothing about it.
func (s *settings) knows(fields []string) bool {
	if s.token == nil {
		return true
	}
	if len(fields) != 1 {
		return false
	}
	token, ok := strings.CutPrefix(fields[0], "Bearer ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1 && ok
}
