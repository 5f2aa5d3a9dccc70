package cert

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"time"
)

// Leaf says what a certificate that an Authority issues is for. Its key usage is always that of signatures.
type Leaf struct {
	URI    string // the one URI among the subject's names, such as a SPIFFE ID; empty for none
	Names  []string
	Addr   netip.Addr // the zero Addr for none
	Client bool       // may open connections
	Server bool       // may accept them
	// Life is from now; the authority's own end cuts it short.
	Life time.Duration
	// Backdate lets clocks be late. It does not reach before the authority's own beginning.
	Backdate time.Duration
}

// ServiceLeaf is for a service that is reached by DNS names.
func ServiceLeaf(names ...string) Leaf {
	return Leaf{Names: names, Client: true, Server: true, Life: 24 * time.Hour, Backdate: 2 * time.Minute}
}

// WorkloadLeaf is a pod's identity. Few of them accept connections with it.
func WorkloadLeaf(uri string, serves bool) Leaf {
	return Leaf{URI: uri, Client: true, Server: serves, Life: 24 * time.Hour, Backdate: 2 * time.Minute}
}

// TunnelLeaf is a worker's identity on behalf of an actor.
func TunnelLeaf(uri string) Leaf {
	return Leaf{URI: uri, Client: true, Server: true, Life: time.Hour, Backdate: 5 * time.Minute}
}

// InterceptionLeaf is shown to an actor in the place of an origin, which is a name or an address; the other is zero. It begins long
// ago: the clock of an actor that was suspended may be hours behind, and that is no reason for it to be refused everything.
func InterceptionLeaf(name string, addr netip.Addr) Leaf {
	l := Leaf{Addr: addr, Server: true, Life: 15 * time.Minute, Backdate: 12 * time.Hour}
	if name != "" {
		l.Names = []string{name}
	}
	return l
}

// template is the certificate to be signed, within the life of its issuer.
func (l Leaf) template(public crypto.PublicKey, issuer *x509.Certificate, now time.Time) (*x509.Certificate, error) {
	id, err := keyID(public)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          newSerial(),
		NotBefore:             later(now.Add(-l.Backdate), issuer.NotBefore),
		NotAfter:              sooner(now.Add(l.Life), issuer.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		SubjectKeyId:          id,
		DNSNames:              l.Names,
	}
	if !now.Before(t.NotAfter) {
		return nil, fmt.Errorf("a certificate that would end at %s", t.NotAfter.UTC().Format(time.RFC3339))
	}
	if l.Client {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if l.Server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if l.Addr.IsValid() {
		t.IPAddresses = []net.IP{l.Addr.AsSlice()}
	}
	if l.URI != "" {
		u, err := url.Parse(l.URI)
		if err != nil || u.String() != l.URI {
			return nil, fmt.Errorf("%q is no URI that a certificate can hold unchanged", l.URI)
		}
		t.URIs = []*url.URL{u}
	}
	if l.URI == "" && len(l.Names) == 0 && !l.Addr.IsValid() || len(t.ExtKeyUsage) == 0 {
		return nil, errors.New("a certificate for nobody or for no use")
	}
	return t, nil
}

// keyID is the subject key identifier, after method 1 of RFC 7093 section 2.
func keyID(public crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	return sum[:20], nil
}

// newSerial makes a serial number with 126 random bits: positive, and unpredictable, RFC 5280 section 4.1.2.2.
func newSerial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func sooner(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
