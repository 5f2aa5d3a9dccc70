package mutual

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxFile bounds a file.
const maxFile = 1 << 20

// Credential is a private key and its certificate in one PEM file (PKCS #8, then the chain, leaf first), which another
// process replaces from time to time. The last good content stays in force while the file is broken.
type Credential struct{ file[*tls.Certificate] }

// OpenCredential reads the file, which must be good now.
func OpenCredential(name string) (*Credential, error) {
	c := &Credential{file[*tls.Certificate]{name: name, parse: parseCredential}}
	return c, c.open()
}

// Certificate is the certificate in force, with its chain. It must not be changed.
func (c *Credential) Certificate() *tls.Certificate { return c.current() }

// Leaf is the certificate in force; for tests and views.
func (c *Credential) Leaf() *x509.Certificate { return c.current().Leaf }

// Err is why the present content of the file is not in force; nil it is.
func (c *Credential) Err() error { return c.trouble() }

// Trust is a PEM file of certificate authorities, which another process replaces from time to time. The last good content
// stays in force while the file is broken.
type Trust struct{ file[*x509.CertPool] }

// OpenTrust reads the file, which must be good now.
func OpenTrust(name string) (*Trust, error) {
	t := &Trust{file[*x509.CertPool]{name: name, parse: parseTrust}}
	return t, t.open()
}

// Roots is the trust in force. It must not be changed.
func (t *Trust) Roots() *x509.CertPool { return t.current() }

// Err is why the present content of the file is not in force; nil it is.
func (t *Trust) Err() error { return t.trouble() }

// file is the parsed content of a file, read again when the file is another one. It costs one stat to ask.
type file[T any] struct {
	name  string
	parse func([]byte) (T, error)

	mu    sync.Mutex  // guards the rest, and is held over reading, so that a change is read once
	seen  os.FileInfo // the file that was read last, good or bad
	bad   error       // what was wrong with it
	err   error       // bad, or why there was nothing to read
	value T           // of the last good one
}

func (f *file[T]) open() error {
	f.current()
	return f.err
}

func (f *file[T]) current() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := os.Stat(f.name)
	if err != nil {
		f.err = err
		return f.value
	}
	if f.seen != nil && same(f.seen, now) {
		f.err = f.bad
		return f.value
	}
	value, seen, err := f.read()
	if f.err = err; err == nil {
		f.value = value
	}
	if seen != nil {
		f.seen, f.bad = seen, err
	}
	return f.value
}

func (f *file[T]) trouble() error {
	f.current()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// same compares what changes when a file is replaced, be it by a symbolic link, by renaming or in place.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// read returns the content together with what identifies the very file that it was read from; that also when the content
// is bad.
func (f *file[T]) read() (value T, seen os.FileInfo, err error) {
	opened, err := os.Open(f.name)
	if err != nil {
		return value, nil, err
	}
	defer func() { _ = opened.Close() }()
	if seen, err = opened.Stat(); err != nil {
		return value, nil, err
	}
	content, err := io.ReadAll(io.LimitReader(opened, maxFile+1))
	if err != nil {
		return value, nil, err
	}
	if len(content) > maxFile {
		return value, nil, fmt.Errorf("%s is larger than %d bytes", f.name, maxFile)
	}
	value, err = f.parse(content)
	clear(content)
	if err != nil {
		return value, seen, fmt.Errorf("%s: %w", f.name, err)
	}
	return value, seen, nil
}

func parseCredential(content []byte) (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(content, content)
	if err != nil { // its text names the fault and shows no byte of the file
		return nil, err
	}
	if err := whole(content, 1+len(c.Certificate)); err != nil {
		return nil, err
	}
	return &c, nil
}

// whole insists that all blocks of a PEM file have been read: decoding passes over those that are cut or broken, and what is
// left of a file would be taken for all of it.
func whole(content []byte, blocks int) error {
	if n := bytes.Count(content, []byte("-----BEGIN")); n != blocks {
		return fmt.Errorf("%d PEM blocks begin, and %d can be read", n, blocks)
	}
	return nil
}

// parseTrust reads certificates and nothing else: what is not understood might have been meant to be trusted.
func parseTrust(content []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), 0
	for rest := content; ; found++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("an unexpected PEM block %.40q", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", found+1, err)
		}
		pool.AddCert(c)
	}
	if found == 0 {
		return nil, errors.New("no certificate")
	}
	return pool, whole(content, found)
}
