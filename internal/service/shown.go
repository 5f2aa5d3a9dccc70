package service

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// shown is the certificate that a pool shows to its https backends. The files are looked at when a connection is made: new
// content is shown from then on, and while they are broken what was last good. Each version has sessions of its own: one that
// began under an older certificate, whenever its ticket comes, would have the backend take us for who we were.
type shown struct {
	certFile, keyFile string
	base              *tls.Config // of the pool, without certificate; nil before fork

	mu      sync.Mutex // guards the fields below
	current *tls.Certificate
	seen    [2]stamp // of the files in force
	config  *tls.Config
}

// stamp tells versions of a file apart.
type stamp struct {
	changed time.Time
	size    int64
}

func newShown(certFile, keyFile string) (*shown, error) {
	s := &shown{certFile: certFile, keyFile: keyFile}
	if err := s.refresh(); err != nil {
		return nil, err
	}
	return s, nil
}

// fork is the same certificate for a pool, whose configuration is otherwise base.
func (s *shown) fork(base *tls.Config) *shown {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := &shown{certFile: s.certFile, keyFile: s.keyFile, base: base, current: s.current, seen: s.seen}
	own.configure()
	return own
}

// configure makes the configuration of the certificate in force. s.mu is held, or nobody else knows s.
func (s *shown) configure() {
	if s.base == nil {
		return
	}
	c := s.current
	s.config = s.base.Clone()
	s.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
	s.config.ClientSessionCache = tls.NewLRUClientSessionCache(resumable)
}

// refresh reads the files if they have changed. s.mu is held, or nobody else knows s.
func (s *shown) refresh() error {
	var now [2]stamp
	for i, file := range []string{s.certFile, s.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("reading the certificate for backends: %w", err)
		}
		now[i] = stamp{info.ModTime(), info.Size()}
	}
	if s.current != nil && now == s.seen {
		return nil
	}
	c, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
	if err != nil { // its text shows no byte of the files
		return fmt.Errorf("certificate %s with key %s for backends: %w", s.certFile, s.keyFile, err)
	}
	s.current, s.seen = &c, now
	s.configure()
	return nil
}

// tls is what a connection that is made now begins with.
func (s *shown) tls() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.refresh() // the last good one goes on; a reload or validate tells what is wrong
	return s.config
}
