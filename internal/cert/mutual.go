package cert

import (
	"crypto/x509"

	"github.com/sluice-proxy/sluice/internal/mutual"
)

// What processes prove to each other by certificates of this package is checked where nothing is issued; here it has the
// names that go with issuing.
type (
	// Mutual is mutual TLS by exact URI.
	Mutual = mutual.TLS
	// Holder is where an own certificate comes from.
	Holder = mutual.Holder
	// Credential is a key and its chain, in a file that a Hub writes.
	Credential = mutual.Credential
	// Trust is authorities, in a file that a Hub writes.
	Trust = mutual.Trust
)

// ErrPeer is a certificate that does not prove what its holder would have to.
var ErrPeer = mutual.ErrPeer

// URIOf returns the one URI among a certificate's names.
func URIOf(c *x509.Certificate) (string, error) { return mutual.URIOf(c) }

// VerifyURI verifies a chain, leaf first, and returns the leaf's URI.
func VerifyURI(chain []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage) (string, error) {
	return mutual.VerifyURI(chain, roots, use)
}

// OpenCredential reads the file, which must be good now.
func OpenCredential(name string) (*Credential, error) { return mutual.OpenCredential(name) }

// OpenTrust reads the file, which must be good now.
func OpenTrust(name string) (*Trust, error) { return mutual.OpenTrust(name) }
