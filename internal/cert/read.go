package cert

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile bounds a certificate, key or authority file.
const maxFile = 1 << 20

var errNoRoots = errors.New("the file holds no certificate")

// pairContents is one reading of a pair of files.
type pairContents struct {
	cert   tls.Certificate
	digest digest // zero: there was nothing to read
}

// readPair reads the files and checks them, unless they hold what is known to be good.
func readPair(f Files, known digest) (c pairContents, err error) {
	certPEM, err := readFile(f.CertFile)
	if err != nil {
		return c, fmt.Errorf("reading the certificate: %w", err)
	}
	keyPEM, err := readFile(f.KeyFile)
	if err != nil {
		return c, fmt.Errorf("reading the key: %w", err)
	}
	defer clear(keyPEM)
	h := sha256.New()
	fmt.Fprintf(h, "%d ", len(certPEM))
	_, _ = h.Write(certPEM)
	_, _ = h.Write(keyPEM)
	h.Sum(c.digest[:0])
	if c.digest == known {
		return c, nil
	}
	c.cert, err = tls.X509KeyPair(certPEM, keyPEM)
	if err != nil { // its text names the fault and shows no byte of either file
		return c, fmt.Errorf("certificate %s with key %s: %w", f.CertFile, f.KeyFile, err)
	}
	return c, nil
}

// rootContents is one reading of a file of authorities.
type rootContents struct {
	roots  *x509.CertPool
	digest digest // zero: there was nothing to read
}

// readRoots reads a file of authorities, unless it holds what is known. Every certificate in it must be good: leaving one
// out would lock the clients of that authority out.
func readRoots(file string, known digest) (c rootContents, err error) {
	data, err := readFile(file)
	if err != nil {
		return c, fmt.Errorf("reading authorities: %w", err)
	}
	if c.digest = sha256.Sum256(data); c.digest == known {
		return c, nil
	}
	c.roots = x509.NewCertPool()
	n := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return c, fmt.Errorf("authorities in %s, certificate %d: %w", file, n, err)
		}
		c.roots.AddCert(ca)
	}
	if n == 0 {
		return c, fmt.Errorf("authorities in %s: %w", file, errNoRoots)
	}
	return c, nil
}

// readFile reads a file of bounded size.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return readAll(file)
}

// readAll reads an open file of bounded size.
func readAll(file *os.File) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", file.Name(), maxFile)
	}
	return b, nil
}
