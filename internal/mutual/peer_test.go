package mutual_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/mutual"
)

// maker signs whatever it is told to, well-formed or not.
type maker struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newMaker(t *testing.T) maker {
	t.Helper()
	key := anyKey(t)
	c := (&maker{key: key}).sign(t, key, x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "maker"}})
	return maker{cert: c, key: key}
}

func (m *maker) sign(t *testing.T, key *ecdsa.PrivateKey, template x509.Certificate) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.BasicConstraintsValid = true
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent := m.cert
	if parent == nil {
		parent = &template
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), m.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// altNames is the extension with raw names: their tag and content.
func altNames(t *testing.T, names ...asn1.RawValue) pkix.Extension {
	t.Helper()
	for i := range names {
		names[i].Class = asn1.ClassContextSpecific
	}
	value, err := asn1.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: value}
}

func uriName(s string) asn1.RawValue { return asn1.RawValue{Tag: 6, Bytes: []byte(s)} }
func dnsName(s string) asn1.RawValue { return asn1.RawValue{Tag: 2, Bytes: []byte(s)} }

// The URI is what the certificate holds, also where a parsed URL would look like the expected one.
func TestURIOf(t *testing.T) {
	m := newMaker(t)
	for _, uri := range []string{
		tunnelURI, "SPIFFE://substrate-actor.local/worker-for-actor/demo/a1", tunnelURI + "#", tunnelURI + "?", tunnelURI + "/",
		"spiffe://substrate-actor.local/worker-for-actor/demo/%611", "spiffe://u@substrate-actor.local/worker-for-actor/demo/a1",
	} {
		c := m.sign(t, anyKey(t), x509.Certificate{ExtraExtensions: []pkix.Extension{altNames(t, dnsName("a.test"), uriName(uri))}})
		if got, err := mutual.URIOf(c); got != uri || err != nil {
			t.Errorf("URIOf = %q, %v; the certificate holds %q", got, err, uri)
		}
	}
	inParts := uriName(tunnelURI)
	inParts.IsCompound = true
	for name, c := range map[string]x509.Certificate{
		"in parts":    {ExtraExtensions: []pkix.Extension{altNames(t, inParts)}},
		"also one":    {ExtraExtensions: []pkix.Extension{altNames(t, uriName(tunnelURI), inParts)}},
		"no names":    {},
		"a DNS name":  {DNSNames: []string{"a.test"}},
		"two URIs":    {ExtraExtensions: []pkix.Extension{altNames(t, uriName(tunnelURI), uriName(tunnelURI+"2"))}},
		"a URI twice": {ExtraExtensions: []pkix.Extension{altNames(t, uriName(tunnelURI), uriName(tunnelURI))}},
	} {
		if uri, err := mutual.URIOf(m.sign(t, anyKey(t), c)); !errors.Is(err, mutual.ErrPeer) {
			t.Errorf("%s: %q, %v; want ErrPeer", name, uri, err)
		}
	}
}

func TestVerifyURI(t *testing.T) {
	m, stranger := newMaker(t), newMaker(t)
	roots := x509.NewCertPool()
	roots.AddCert(m.cert)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	u, err := url.Parse(tunnelURI)
	if err != nil {
		t.Fatal(err)
	}
	good := x509.Certificate{URIs: []*url.URL{u}, ExtKeyUsage: client, KeyUsage: x509.KeyUsageDigitalSignature}
	with := func(change func(*x509.Certificate)) x509.Certificate {
		c := good
		change(&c)
		return c
	}
	key := anyKey(t)
	between := m.sign(t, key, x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "between"}})
	for _, tc := range []struct {
		name  string
		chain []*x509.Certificate
		ok    bool
	}{
		{"good", []*x509.Certificate{m.sign(t, anyKey(t), good)}, true},
		{"with something between", []*x509.Certificate{(&maker{between, key}).sign(t, anyKey(t), good), between}, true},
		{"without what is between", []*x509.Certificate{(&maker{between, key}).sign(t, anyKey(t), good)}, false},
		{"nothing", nil, false},
		{"of another authority", []*x509.Certificate{stranger.sign(t, anyKey(t), good)}, false},
		{"of another authority that comes along", []*x509.Certificate{stranger.sign(t, anyKey(t), good), stranger.cert}, false},
		{"signed by itself", []*x509.Certificate{(&maker{key: key}).sign(t, key, good)}, false},
		{"for servers only", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }))}, false},
		{"for no stated use", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) { c.ExtKeyUsage = nil }))}, false},
		{"for any use", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }))}, false},
		{"a CA", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) { c.IsCA = true }))}, false},
		{"the authority itself", []*x509.Certificate{m.cert}, false},
		{"expired", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Second)
		}))}, false},
		{"of the future", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Minute), time.Now().Add(time.Hour)
		}))}, false},
		{"two URIs", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) { c.URIs = []*url.URL{u, u} }))}, false},
		{"a DNS name only", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"a.test"} }))}, false},
		{"the extension of an earlier generation", []*x509.Certificate{m.sign(t, anyKey(t), with(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 12, 2}, Value: []byte(`{"Purpose":"atunnel"}`)}}
		}))}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			uri, err := mutual.VerifyURI(tc.chain, roots, x509.ExtKeyUsageClientAuth)
			if (err == nil) != tc.ok || tc.ok && uri != tunnelURI || !tc.ok && (!errors.Is(err, mutual.ErrPeer) || uri != "") {
				t.Errorf("VerifyURI = %q, %v; want ok %v", uri, err, tc.ok)
			}
		})
	}
}
