package service

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// shown is the certificate that a pool shows to its https backends. The files are looked at when a backend asks for it: new
// content is shown from then on, and while they are broken what was last good. Sessions of an older certificate are not
// resumed: the backend would take us for who we were.
type shown struct {
	certFile, keyFile string

	mu       sync.Mutex // guards the fields below
	current  *tls.Certificate
	seen     [2]stamp // of the files in force
	sessions tls.ClientSessionCache
}

// stamp tells versions of a file apart.
type stamp struct {
	changed time.Time
	size    int64
}

func newShown(certFile, keyFile string) (*shown, error) {
	s := &shown{certFile: certFile, keyFile: keyFile, sessions: tls.NewLRUClientSessionCache(resumable)}
	if err := s.refresh(); err != nil {
		return nil, err
	}
	return s, nil
}

// fork is the same certificate for another pool, with sessions of its own.
func (s *shown) fork() *shown {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &shown{
		certFile: s.certFile, keyFile: s.keyFile, current: s.current, seen: s.seen, sessions: tls.NewLRUClientSessionCache(resumable),
	}
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
	if s.current != nil {
		s.sessions = tls.NewLRUClientSessionCache(resumable)
	}
	s.current, s.seen = &c, now
	return nil
}

// certificate answers a backend that asks.
func (s *shown) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.refresh() // the last good one goes on; a reload or validate tells what is wrong
	return s.current, nil
}

// Get returns a session to resume. The files are looked at first: resuming asks for no certificate.
func (s *shown) Get(key string) (*tls.ClientSessionState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.refresh()
	return s.sessions.Get(key)
}

// Put keeps a session.
func (s *shown) Put(key string, c *tls.ClientSessionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.Put(key, c)
}
