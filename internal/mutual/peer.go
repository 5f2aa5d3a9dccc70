// Package mutual is how two processes of an installation prove to each other who they are: mutual TLS, by the exact URI of a
// certificate, with certificate and trust in files that others replace. Its values live as long as their holder, mostly the
// process. It is apart from issuing certificates, since processes that run beside untrusted programs must prove who they
// are and must not be able to do more. It knows no actor and decides about no URI.
package mutual

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrPeer is a certificate that does not prove what its holder would have to. Errors wrap it with the reason.
var ErrPeer = errors.New("not an acceptable peer")

var (
	subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
	// oldActor said in an earlier generation what the URI says now. Who still has it is refused, whatever else it says.
	oldActor = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 12, 2}
)

// tagURI is the choice uniformResourceIdentifier of GeneralName, RFC 5280 section 4.2.1.6.
const tagURI = 6

// URIOf returns the one URI among a certificate's names, byte for byte as it stands there: a parsed URL would have lost the
// case of its scheme and an empty fragment. None, or more than one, is ErrPeer.
func URIOf(c *x509.Certificate) (string, error) {
	var found []string
	for _, e := range c.Extensions {
		if !e.Id.Equal(subjectAltName) {
			continue
		}
		var names []asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &names); err != nil || len(rest) > 0 {
			return "", fmt.Errorf("names that cannot be read: %w", ErrPeer)
		}
		for _, n := range names {
			if n.Class == asn1.ClassContextSpecific && n.Tag == tagURI {
				if n.IsCompound { // an IA5String has no parts in DER, and not everybody would read the same out of them
					return "", fmt.Errorf("a URI in parts: %w", ErrPeer)
				}
				found = append(found, string(n.Bytes))
			}
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d URIs: %w", len(found), ErrPeer)
	}
	return found[0], nil
}

// VerifyURI verifies a chain, leaf first, and returns the leaf's URI. The leaf must be valid now, must not be a CA, must say
// that it is for the use (a certificate that says nothing of uses is refused), must chain to the roots and have exactly
// one URI. Whether that URI is welcome is for the caller to say. Everything else is ErrPeer.
func VerifyURI(chain []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage) (string, error) {
	if err := verify(chain, roots, use, ""); err != nil {
		return "", err
	}
	return URIOf(chain[0])
}

func verify(chain []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage, name string) error {
	if len(chain) == 0 {
		return fmt.Errorf("no certificate: %w", ErrPeer)
	}
	leaf := chain[0]
	old := slices.ContainsFunc(leaf.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oldActor) })
	if leaf.IsCA || old || !slices.Contains(leaf.ExtKeyUsage, use) {
		return fmt.Errorf("a certificate of another kind: %w", ErrPeer)
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		DNSName: name, Roots: roots, Intermediates: between, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{use},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	return nil
}

// Holder is where an own certificate comes from: the one in force, at any moment. A *Credential is one.
type Holder interface{ Certificate() *tls.Certificate }

// TLS is how one process proves who it is, and whom it believes. The configurations that it makes stay
// usable for the life of the process: own certificate and trust are read again, for each handshake, from files that others
// replace. Sessions are never resumed, since a ticket would carry an identity past its end.
type TLS struct {
	// Own is the certificate to show.
	Own Holder
	// Peers is who signs the other side's certificates.
	Peers *Trust
	// Check says whether the other side's URI is welcome. It is required where URIs are checked.
	Check func(uri string) error
	// Protocols is what is offered by ALPN, in order of preference.
	Protocols []string
	// Optional lets a client in that shows no certificate: whoever serves it has to refuse it. One that shows a certificate
	// which is not acceptable is turned away all the same.
	Optional bool
}

// Server requires a client certificate with a welcome URI, unless it is optional.
func (m TLS) Server() *tls.Config {
	base := m.base()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := m.base()
		roots := m.Peers.Roots()
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, roots
		if m.Optional {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if m.Optional && len(s.PeerCertificates) == 0 {
				return nil
			}
			return m.checkURI(s, roots, x509.ExtKeyUsageClientAuth)
		}
		return c, nil
	}
	return base
}

// Client requires a server certificate with a welcome URI. Names of hosts play no part.
func (m TLS) Client() *tls.Config {
	c := m.base()
	c.InsecureSkipVerify = true // replaced by VerifyConnection, which knows the trust of this very moment
	c.VerifyConnection = func(s tls.ConnectionState) error {
		return m.checkURI(s, m.Peers.Roots(), x509.ExtKeyUsageServerAuth)
	}
	return c
}

// ClientOf requires a server certificate for a DNS name, as services of an installation have them. Check is not asked.
func (m TLS) ClientOf(name string) *tls.Config {
	c := m.base()
	c.ServerName = name
	c.InsecureSkipVerify = true // replaced by VerifyConnection, which knows the trust of this very moment
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if name == "" {
			return fmt.Errorf("no name to verify: %w", ErrPeer)
		}
		return verify(s.PeerCertificates, m.Peers.Roots(), x509.ExtKeyUsageServerAuth, name)
	}
	return c
}

func (m TLS) base() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             m.Protocols,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return m.Own.Certificate(), nil },
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.Own.Certificate(), nil },
	}
}

func (m TLS) checkURI(s tls.ConnectionState, roots *x509.CertPool, use x509.ExtKeyUsage) error {
	uri, err := VerifyURI(s.PeerCertificates, roots, use)
	if err != nil {
		return err
	}
	if m.Check == nil {
		return fmt.Errorf("nobody is welcome: %w", ErrPeer)
	}
	return m.Check(uri)
}
