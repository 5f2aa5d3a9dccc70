// Package cert is where certificates come from. A Store reads certificate and key files, keeps the last good content of
// each while the files are broken, follows changes of their content, has an ACME certification authority issue and renew
// others, and owns the session ticket keys; it lives as long as the process. A Source is one configuration's hold on
// what an entrypoint serves and lives as long as a generation; what the listening side gets from it is a *tls.Config,
// never a key. The package knows no entrypoint and no router.
package cert

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// CheckInterval is how often Run looks at the files.
const CheckInterval = 10 * time.Second

// Files name a certificate and its key.
type Files struct {
	CertFile string // PEM, leaf first
	KeyFile  string // PEM: PKCS#8, PKCS#1 or SEC 1
}

// pair is the certificate that the files held when they were last good.
type pair struct {
	files   Files
	current atomic.Pointer[tls.Certificate]
	watched // guarded by the store
	users   int
}

// watched is what the store remembers of the content of files.
type watched struct {
	digest digest // of the contents in force
	failed digest // of the contents last complained of
	err    error  // why the files are not in force; nil they are
}

type digest = [sha256.Size]byte

// Store holds what is in use. Its methods are safe for concurrent use.
type Store struct {
	log     *slog.Logger
	reading sync.Mutex // held over a look at files, so that an older one never overwrites a newer
	counts  counts
	pending pending
	ending  sync.WaitGroup // managers that are being closed
	// renewCheck is the constant of that name, shorter in tests.
	renewCheck time.Duration

	mu       sync.Mutex // guards the rest
	pairs    map[Files]*pair
	trusts   map[string]*trust
	sets     map[digest]*set
	managers map[digest]*manager
	tickets  tickets
}

// counts are the live form of Stats.
type counts struct{ reloaded, broken, issued, refused atomic.Uint64 }

// Stats are counters since the start of the process.
type Stats struct {
	Reloaded, Broken uint64 // changed files taken up, and those that could not be
	Issued, Refused  uint64 // certificates that a certification authority issued, and attempts without one
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	return Stats{s.counts.reloaded.Load(), s.counts.broken.Load(), s.counts.issued.Load(), s.counts.refused.Load()}
}

// NewStore makes an empty store. A nil logger discards. It starts nothing: Run does the periodic work.
func NewStore(log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{
		log: log, pairs: map[Files]*pair{}, trusts: map[string]*trust{}, sets: map[digest]*set{}, tickets: newTickets(time.Now()),
		managers: map[digest]*manager{}, renewCheck: renewCheck,
		pending: pending{tokens: map[string]string{}, certs: map[string]*tls.Certificate{}},
	}
}

// Reload looks at the files of everything in use and puts changed contents into force. What is broken stays as it was;
// the errors of all are returned, and each is logged once for the same contents.
func (s *Store) Reload(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	pairs, trusts := slices.Collect(maps.Values(s.pairs)), slices.Collect(maps.Values(s.trusts))
	s.mu.Unlock()
	var errs []error
	for _, p := range pairs {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		errs = append(errs, s.refreshPair(p))
	}
	for _, t := range trusts {
		errs = append(errs, s.refreshTrust(t))
	}
	return errors.Join(errs...)
}

func (s *Store) refreshPair(p *pair) error {
	s.mu.Lock()
	known := p.digest
	s.mu.Unlock()
	c, err := readPair(p.files, known)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.installPair(p, c)
		return nil
	}
	return s.complain(&p.watched, c.digest, err, "cert_file", p.files.CertFile, "key_file", p.files.KeyFile)
}

func (s *Store) refreshTrust(t *trust) error {
	s.mu.Lock()
	known := t.digest
	s.mu.Unlock()
	c, err := readRoots(t.file, known)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.installTrust(t, c)
		return nil
	}
	return s.complain(&t.watched, c.digest, err, "client_ca_file", t.file)
}

// complain notes that files cannot be used, and logs it unless it has been for the same contents. The store is locked.
func (s *Store) complain(w *watched, contents digest, err error, files ...any) error {
	what := contents
	if what == (digest{}) {
		what = sha256.Sum256([]byte(err.Error()))
	}
	if w.err == nil || w.failed != what {
		s.counts.broken.Add(1)
		s.log.Error("files are broken; what was last good stays in force", append(files, "error", err)...)
	}
	w.err, w.failed = err, what
	return err
}

// installPair puts contents into force. The store is locked.
func (s *Store) installPair(p *pair, c pairContents) {
	old := p.current.Load()
	changed := old == nil || p.digest != c.digest
	p.err, p.failed = nil, digest{}
	if !changed {
		return
	}
	p.digest = c.digest
	p.current.Store(&c.cert)
	for _, set := range s.sets {
		if slices.Contains(set.pairs, p) {
			set.arrange()
		}
	}
	if old != nil {
		s.counts.reloaded.Add(1)
		s.log.Info("certificate replaced", "cert_file", p.files.CertFile, "expires", c.cert.Leaf.NotAfter)
	}
}

// installTrust puts client authorities into force: sessions of before do not resume any more. The store is locked.
func (s *Store) installTrust(t *trust, c rootContents) {
	old := t.roots
	changed := old == nil || t.digest != c.digest
	t.err, t.failed = nil, digest{}
	if !changed {
		return
	}
	t.digest, t.roots = c.digest, c.roots
	for _, set := range s.sets {
		if set.trust == t {
			set.configure(&s.tickets)
		}
	}
	if old != nil {
		s.counts.reloaded.Add(1)
		s.log.Info("client authorities replaced", "client_ca_file", t.file)
	}
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
	for _, set := range s.sets {
		set.config.Load().SetSessionTicketKeys(s.tickets.of(set.context()))
	}
}

// Status is what can be told of a pair of files.
type Status struct {
	Files
	Subject  string // of the leaf
	DNSNames []string
	NotAfter time.Time // of the leaf
	// Err is why the files' present content is not in force; nil it is.
	Err error
}

// Statuses lists the pairs of files in use, sorted by name.
func (s *Store) Statuses() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.pairs))
	for f, p := range s.pairs {
		leaf := p.current.Load().Leaf
		all = append(all, Status{Files: f, Subject: leaf.Subject.String(), DNSNames: leaf.DNSNames, NotAfter: leaf.NotAfter, Err: p.err})
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.CertFile, b.CertFile), cmp.Compare(a.KeyFile, b.KeyFile))
	})
	return all
}
