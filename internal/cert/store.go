// Package cert is where certificates come from. A Store reads certificate and key files, keeps the last good pair of
// each while the files are broken, follows changes of their content, and owns the session ticket keys; it lives as
// long as the process. A Source is one configuration's hold on a pair and lives as long as a generation; what the
// listening side gets from it is a *tls.Config, never a key. The package knows no entrypoint and no router.
package cert

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// CheckInterval is how often Run looks at the files.
	CheckInterval = 60 * time.Second
	// maxFile bounds a certificate or key file.
	maxFile = 1 << 20
)

// Files name a certificate and how it is served. Sources of equal Files share one pair, one configuration and one
// set of session tickets.
type Files struct {
	CertFile string // PEM, leaf first
	KeyFile  string // PEM: PKCS#8, PKCS#1 or SEC 1
	// MinVersion is tls.VersionTLS12, which 0 is too, or tls.VersionTLS13.
	MinVersion uint16
	// HTTP1Only leaves h2 out of what is offered.
	HTTP1Only bool
	// NoALPN offers no protocol: what is spoken inside is between the client and a backend.
	NoALPN bool
}

func (f Files) protocols() []string {
	if f.NoALPN {
		return nil
	}
	if f.HTTP1Only {
		return []string{"http/1.1"}
	}
	return []string{"h2", "http/1.1"}
}

// pair is the certificate that the files held when they were last good.
type pair struct {
	files   Files
	config  *tls.Config
	current atomic.Pointer[tls.Certificate]
	// guarded by the store
	users  int
	digest [sha256.Size]byte // of the contents in force
	failed [sha256.Size]byte // of the contents last complained of
	err    error             // why the files are not in force; nil they are
}

// Store holds the pairs in use. Its methods are safe for concurrent use.
type Store struct {
	log     *slog.Logger
	reading sync.Mutex // held over a look at files, so that an older one never overwrites a newer

	mu      sync.Mutex // guards the rest
	pairs   map[Files]*pair
	tickets tickets
}

// NewStore makes an empty store. A nil logger discards. It starts nothing: Run does the periodic work.
func NewStore(log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{log: log, pairs: map[Files]*pair{}, tickets: newTickets(time.Now())}
}

// Source is a hold on a pair. Its configuration stays usable after Close, by connections that have it, but is then no
// longer kept up to date.
type Source struct {
	store *Store
	pair  *pair
	once  sync.Once
}

// Load reads a pair and holds it until the source is closed. The files must be good, also when the store has an older
// content of theirs that was: an operator who asks for a certificate should hear that it is broken.
func (s *Store) Load(f Files) (*Source, error) {
	if f.MinVersion == 0 {
		f.MinVersion = tls.VersionTLS12
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	c, err := read(f, [sha256.Size]byte{})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pairs[f]
	if p == nil {
		p = s.newPair(f)
		s.pairs[f] = p
	}
	s.install(p, c)
	p.users++
	return &Source{store: s, pair: p}, nil
}

func (s *Store) newPair(f Files) *pair {
	p := &pair{files: f}
	p.config = &tls.Config{
		MinVersion: f.MinVersion,
		NextProtos: f.protocols(),
		// Large records from the first byte on: a proxy passes on what it has, and cannot know that little follows.
		DynamicRecordSizingDisabled: true,
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current.Load(), nil },
	}
	p.config.SetSessionTicketKeys(s.tickets.of(f))
	return p
}

// install puts contents into force. The store is locked.
func (s *Store) install(p *pair, c *contents) {
	old := p.current.Load()
	changed := old == nil || p.digest != c.digest
	p.err, p.failed = nil, [sha256.Size]byte{}
	if !changed {
		return
	}
	p.digest = c.digest
	p.current.Store(&c.cert)
	if old != nil {
		s.log.Info("certificate replaced", "cert_file", p.files.CertFile, "expires", c.cert.Leaf.NotAfter)
	}
}

// Config is what connections are to be served with. It is the same for the life of the source: certificates and
// ticket keys change inside.
func (s *Source) Config() *tls.Config { return s.pair.config }

// Certificate returns the certificate that a client gets now; for tests and views. Its private key must not be used.
func (s *Source) Certificate() *x509.Certificate { return s.pair.current.Load().Leaf }

// Close gives the hold up. Closing again does nothing.
func (s *Source) Close() error {
	s.once.Do(func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		if s.pair.users--; s.pair.users == 0 {
			delete(s.store.pairs, s.pair.files)
		}
	})
	return nil
}

// Reload looks at the files of every pair in use and puts changed contents into force. A pair whose files are broken
// stays as it is; the errors of all are returned, and each is logged once for the same contents.
func (s *Store) Reload(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	pairs := slices.Collect(maps.Values(s.pairs))
	s.mu.Unlock()
	var errs []error
	for _, p := range pairs {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		if err := s.refresh(p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *Store) refresh(p *pair) error {
	s.mu.Lock()
	known := p.digest
	s.mu.Unlock()
	c, err := read(p.files, known)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.install(p, c)
		return nil
	}
	what := sha256.Sum256([]byte(err.Error()))
	if c != nil {
		what = c.digest
	}
	if p.err == nil || p.failed != what {
		s.log.Error("certificate files are broken; the last good pair stays", "cert_file", p.files.CertFile, "key_file", p.files.KeyFile, "error", err)
	}
	p.err, p.failed = err, what
	return err
}

// Run looks at the files each CheckInterval and rotates the ticket keys, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	t := time.NewTicker(CheckInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			_ = s.Reload(ctx) // logged there
			s.rotate(now)
		}
	}
}

// rotate replaces the ticket keys when they are due.
func (s *Store) rotate(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tickets.rotate(now) {
		return
	}
	for f, p := range s.pairs {
		p.config.SetSessionTicketKeys(s.tickets.of(f))
	}
}

// Status is what can be told of a pair.
type Status struct {
	Files
	Subject  string // of the leaf
	DNSNames []string
	NotAfter time.Time // of the leaf
	// Err is why the files' present content is not in force; nil it is.
	Err error
}

// Statuses lists the pairs in use, sorted by file.
func (s *Store) Statuses() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.pairs))
	for f, p := range s.pairs {
		leaf := p.current.Load().Leaf
		all = append(all, Status{Files: f, Subject: leaf.Subject.String(), DNSNames: leaf.DNSNames, NotAfter: leaf.NotAfter, Err: p.err})
	}
	slices.SortFunc(all, func(a, b Status) int {
		if c := strings.Compare(a.CertFile, b.CertFile); c != 0 {
			return c
		}
		return strings.Compare(a.KeyFile, b.KeyFile)
	})
	return all
}

// contents is one reading of a pair of files.
type contents struct {
	cert   tls.Certificate
	digest [sha256.Size]byte
}

// read reads the files and checks them, unless they hold what is known to be good. With an error, contents has the
// digest if there was something to read.
func read(f Files, known [sha256.Size]byte) (*contents, error) {
	certPEM, err := readFile(f.CertFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	keyPEM, err := readFile(f.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d ", len(certPEM))
	_, _ = h.Write(certPEM)
	_, _ = h.Write(keyPEM)
	c := &contents{}
	h.Sum(c.digest[:0])
	if c.digest == known {
		clear(keyPEM)
		return c, nil
	}
	c.cert, err = tls.X509KeyPair(certPEM, keyPEM)
	clear(keyPEM)
	if err != nil { // its text names the fault and shows no byte of either file
		return c, fmt.Errorf("certificate %s with key %s: %w", f.CertFile, f.KeyFile, err)
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
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return b, nil
}
