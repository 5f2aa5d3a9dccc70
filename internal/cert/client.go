package cert

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ClientAuth says whether clients have to show a certificate.
type ClientAuth uint8

// Policies. With Request and Require a certificate that is shown must be good.
const (
	NoClientAuth ClientAuth = iota
	RequestClientCert
	RequireClientCert
)

// mode is the policy as crypto/tls knows it. Modes that take unverified certificates are never used.
func (a ClientAuth) mode() tls.ClientAuthType {
	switch a {
	case RequestClientCert:
		return tls.VerifyClientCertIfGiven
	case RequireClientCert:
		return tls.RequireAndVerifyClientCert
	default:
		return tls.NoClientCert
	}
}

// trust is a file of authorities for client certificates.
type trust struct {
	file string
	// guarded by the store
	watched
	roots *x509.CertPool
	users int
}

var errNoClientCert = errors.New("the client shows no certificate")

// verifier checks the client of every connection, at the end of its handshake. crypto/tls has verified a certificate that
// it has just seen; a resumed session brings along what was verified when it began, and may have outlived the certificate.
func verifier(a ClientAuth, roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		switch {
		case len(s.PeerCertificates) == 0 && a == RequireClientCert:
			return errNoClientCert
		case len(s.PeerCertificates) == 0 || !s.DidResume && len(s.VerifiedChains) > 0:
			return nil
		}
		o := x509.VerifyOptions{
			Roots: roots, CurrentTime: time.Now(), Intermediates: x509.NewCertPool(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		for _, c := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(c)
		}
		if _, err := s.PeerCertificates[0].Verify(o); err != nil {
			return fmt.Errorf("client certificate: %w", err)
		}
		return nil
	}
}
