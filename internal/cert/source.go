package cert

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Options say what one entrypoint serves. Sources of equal options share one configuration and one set of session
// tickets.
type Options struct {
	// Files are the certificates. The first one is for clients that name no server, or one that none is for.
	Files []Files
	// StrictSNI refuses those clients.
	StrictSNI bool
	// MinVersion is tls.VersionTLS12, which 0 is too, or tls.VersionTLS13.
	MinVersion uint16
	// Protocols are offered by ALPN, the preferred one first; nil offers h2 and http/1.1, an empty list nothing.
	Protocols []string
	// ClientAuth needs ClientCAFile, PEM, unless it is NoClientAuth.
	ClientAuth   ClientAuth
	ClientCAFile string
	// ACME adds certificates that an authority issues, for names that no file is for; nil adds none. With it Files may be
	// empty: other clients then get the certificate of its first name.
	ACME *config.ACME
}

var (
	errNothing     = errors.New("no certificate to serve")
	errAuthorities = errors.New("client authentication and client authorities go together")
)

func (o *Options) check() error {
	switch {
	case len(o.Files) == 0 && (o.ACME == nil || len(o.ACME.Domains) == 0):
		return errNothing
	case (o.ClientAuth == NoClientAuth) != (o.ClientCAFile == ""):
		return errAuthorities
	}
	return nil
}

// withDefaults fills in what zero stands for.
func (o Options) withDefaults() Options {
	if o.MinVersion == 0 {
		o.MinVersion = tls.VersionTLS12
	}
	if o.Protocols == nil {
		o.Protocols = []string{"h2", "http/1.1"}
	}
	o.Files, o.Protocols = slices.Clone(o.Files), slices.Clone(o.Protocols)
	return o
}

// id tells options apart, with the manager for their ACME, nil for none.
func (o *Options) id(m *manager) digest {
	text := fmt.Appendf(nil, "%q %t %d %q %d %q", o.Files, o.StrictSNI, o.MinVersion, o.Protocols, o.ClientAuth, o.ClientCAFile)
	if m != nil {
		text = fmt.Appendf(text, " %x", m.id)
	}
	return sha256.Sum256(text)
}

// set is what sources of equal options share.
type set struct {
	id      digest
	options Options
	pairs   []*pair
	trust   *trust   // nil: no client authentication
	manager *manager // nil: files only
	users   int      // guarded by the store
	config  atomic.Pointer[tls.Config]
	index   atomic.Pointer[index]
}

// Source is a hold on what an entrypoint serves. Its configuration stays usable after Close, by connections that have
// it, but is then no longer kept up to date.
type Source struct {
	store *Store
	set   *set
	once  sync.Once
}

// Load reads the files and holds what is in them until the source is closed. They must be good, also when the store has
// an older content of theirs that was: an operator who asks for a certificate should hear that it is broken.
func (s *Store) Load(o Options) (*Source, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s.reading.Lock()
	defer s.reading.Unlock()
	pairs := make(map[Files]pairContents, len(o.Files))
	for _, f := range o.Files {
		c, err := readPair(f, digest{})
		if err != nil {
			return nil, err
		}
		pairs[f] = c
	}
	var roots rootContents
	if o.ClientCAFile != "" {
		var err error
		if roots, err = readRoots(o.ClientCAFile, digest{}); err != nil {
			return nil, err
		}
	}
	m, err := s.holdManager(o.ACME)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Source{store: s, set: s.hold(o, pairs, roots, m)}, nil
}

// holdManager returns the manager of an acme part, counting one more user; nil for none. It reads storage, so the store is
// not locked; only one Load runs at a time.
func (s *Store) holdManager(a *config.ACME) (*manager, error) {
	if a == nil {
		return nil, nil
	}
	var roots rootContents
	if a.CAFile != "" {
		var err error
		if roots, err = readRoots(a.CAFile, digest{}); err != nil {
			return nil, fmt.Errorf("acme_ca_file: %w", err)
		}
	}
	id := acmeID(a, roots.digest)
	s.mu.Lock()
	m := s.managers[id]
	if m != nil {
		m.users++
	}
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	m, err := newManager(s, a, id, roots.roots)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.users++
	s.managers[id] = m
	return m, nil
}

// letManager undoes holdManager. The last one to let go has what the manager does ended, which may take a moment: Wait
// waits for it. The store is locked.
func (s *Store) letManager(m *manager) {
	if m.users--; m.users == 0 {
		delete(s.managers, m.id)
		m.cancel()
		s.ending.Go(m.close)
	}
}

// Wait waits until what closed sources have left behind has ended, at most for a little longer than taking a record out of
// the DNS may take: storage that hangs does not hold up the end of the process.
func (s *Store) Wait() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.ending.Wait()
	}()
	t := time.NewTimer(waitTime)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		s.log.Error("orders of certificates do not end", "after", waitTime)
	}
}

// waitTime bounds Wait.
const waitTime = cleanupTime + 5*time.Second

// managersNow lists the managers in use.
func (s *Store) managersNow() []*manager {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.managers))
}

// hold puts what was read into force and returns the set of the options, counting one more user. The store is locked.
func (s *Store) hold(o Options, pairs map[Files]pairContents, roots rootContents, m *manager) *set {
	id := o.id(m)
	known := s.sets[id]
	if known == nil {
		known = &set{id: id, options: o, manager: m}
		for _, f := range o.Files {
			known.pairs = append(known.pairs, s.pairOf(f))
		}
		if o.ClientCAFile != "" {
			known.trust = s.trustOf(o.ClientCAFile)
		}
	}
	for f, c := range pairs {
		s.installPair(s.pairs[f], c)
	}
	if known.trust != nil {
		s.installTrust(known.trust, roots)
	}
	if s.sets[id] == nil {
		known.arrange()
		known.configure(&s.tickets)
		s.sets[id] = known
	} else if m != nil {
		s.letManager(m) // the set has its hold already
	}
	known.users++
	return known
}

// pairOf returns the pair of the files, counting one more user. A new one is empty. The store is locked.
func (s *Store) pairOf(f Files) *pair {
	p := s.pairs[f]
	if p == nil {
		p = &pair{files: f}
		s.pairs[f] = p
	}
	p.users++
	return p
}

// trustOf is pairOf for a file of authorities.
func (s *Store) trustOf(file string) *trust {
	t := s.trusts[file]
	if t == nil {
		t = &trust{file: file}
		s.trusts[file] = t
	}
	t.users++
	return t
}

// Close gives the hold up. Closing again does nothing.
func (s *Source) Close() error {
	s.once.Do(func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		s.store.letGo(s.set)
	})
	return nil
}

// letGo undoes hold. The store is locked.
func (s *Store) letGo(x *set) {
	if x.users--; x.users > 0 {
		return
	}
	delete(s.sets, x.id)
	for _, p := range x.pairs {
		if p.users--; p.users == 0 {
			delete(s.pairs, p.files)
		}
	}
	if t := x.trust; t != nil {
		if t.users--; t.users == 0 {
			delete(s.trusts, t.file)
		}
	}
	if x.manager != nil {
		s.letManager(x.manager)
	}
}

// Start has what is missing asked for, once the configuration is in force and challenges can be answered. Calling it
// again does nothing.
func (s *Source) Start() {
	if m := s.set.manager; m != nil {
		m.start()
	}
}

// Config is what a new connection is to be served with. It is to be asked for anew for each: certificates and ticket
// keys change inside it, client authorities by another one.
func (s *Source) Config() *tls.Config { return s.set.config.Load() }

// Certificates are the leaves that clients may get now; for views.
func (s *Source) Certificates() []*x509.Certificate { return s.set.leaves() }

// Expires is when the first of the certificates ends; zero before any is issued.
func (s *Source) Expires() time.Time {
	var first time.Time
	for _, leaf := range s.set.leaves() {
		if first.IsZero() || leaf.NotAfter.Before(first) {
			first = leaf.NotAfter
		}
	}
	return first
}

func (x *set) leaves() []*x509.Certificate {
	all := make([]*x509.Certificate, 0, len(x.pairs))
	for _, p := range x.pairs {
		all = append(all, p.current.Load().Leaf)
	}
	if x.manager != nil {
		all = append(all, x.manager.leaves()...)
	}
	return all
}

// arrange makes the index anew after a certificate has changed. The store is locked.
func (x *set) arrange() {
	certs := make([]*tls.Certificate, 0, len(x.pairs))
	for _, p := range x.pairs {
		if c := p.current.Load(); c != nil { // nil: still to be installed, which arranges again
			certs = append(certs, c)
		}
	}
	x.index.Store(newIndex(certs))
}

// context tells what session tickets depend on, so that none ever resumes a session under other certificates, another
// policy or other authorities than it was made under.
func (x *set) context() string {
	info := fmt.Sprintf("session tickets %x", x.id)
	if x.trust != nil {
		info += fmt.Sprintf(" %x", x.trust.digest)
	}
	return info
}

// configure makes the configuration anew. The store is locked.
func (x *set) configure(t *tickets) {
	c := &tls.Config{
		MinVersion: x.options.MinVersion, NextProtos: x.options.Protocols,
		// Large records from the first byte on: a proxy passes on what it has, and cannot know that little follows.
		DynamicRecordSizingDisabled: true,
		GetCertificate:              x.certificate,
	}
	if x.options.StrictSNI || x.manager != nil {
		c.GetConfigForClient = x.special
	}
	if x.trust != nil {
		c.ClientAuth, c.ClientCAs = x.options.ClientAuth.mode(), x.trust.roots
		c.VerifyConnection = verifier(x.options.ClientAuth, x.trust.roots)
	}
	c.SetSessionTicketKeys(t.of(x.context()))
	x.config.Store(c)
}

// nobody has no certificate, which crypto/tls answers with the alert unrecognized_name. It resumes no session either.
var nobody = &tls.Config{SessionTicketsDisabled: true}

// special is for clients that are not served like others: an authority that looks at a challenge, and those of a strict
// entrypoint that ask for an unknown server, resumed sessions included, which never come to certificate.
func (x *set) special(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if x.manager != nil && slices.Equal(hello.SupportedProtos, []string{alpnChallenge}) {
		answer := x.manager.alpnAnswer(hello.ServerName)
		if answer == nil {
			return nobody, nil
		}
		return &tls.Config{
			Certificates: []tls.Certificate{*answer}, NextProtos: []string{alpnChallenge}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true,
		}, nil
	}
	if x.options.StrictSNI && x.index.Load().lookup(hello.ServerName) == nil && (x.manager == nil || x.manager.matching(hello.ServerName) == "") {
		return nobody, nil
	}
	return nil, nil
}

// certificate chooses for a client.
func (x *set) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	i := x.index.Load()
	if found := i.lookup(hello.ServerName); found != nil {
		return pick(hello, found), nil
	}
	if x.manager != nil {
		if name := x.manager.matching(hello.ServerName); name != "" {
			return x.manager.certificate(name), nil
		}
		if len(i.fallback) == 0 {
			return x.manager.certificate(x.manager.acme.Domains[0]), nil
		}
	}
	return pick(hello, i.fallback), nil
}
