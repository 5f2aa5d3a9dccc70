package gatewaytest

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
)

// Served is the certificate that a client gets for a name; verified tells whether one that trusts the roots accepts it.
func Served(t testing.TB, address, name string, roots *x509.CertPool) (leaf *x509.Certificate, verified bool) {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: Patience}, "tcp", address, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer func() { _ = c.Close() }()
	chain := c.ConnectionState().PeerCertificates
	o := x509.VerifyOptions{Roots: roots, DNSName: name, Intermediates: x509.NewCertPool()}
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	_, err = chain[0].Verify(o)
	return chain[0], err == nil
}
