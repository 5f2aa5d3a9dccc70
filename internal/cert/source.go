package cert

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
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
	// Protocols are offered by ALPN, the preferred one first; nil offers h2 and http/1.1.
	Protocols []string
	// ClientAuth needs ClientCAFile, PEM, unless it is NoClientAuth.
	ClientAuth   ClientAuth
	ClientCAFile string
}

var (
	errNothing     = errors.New("no certificate to serve")
	errAuthorities = errors.New("client authentication and client authorities go together")
)

func (o *Options) check() error {
	switch {
	case len(o.Files) == 0:
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

// id tells options apart.
func (o *Options) id() digest {
	return sha256.Sum256(fmt.Appendf(nil, "%q %t %d %q %d %q", o.Files, o.StrictSNI, o.MinVersion, o.Protocols, o.ClientAuth, o.ClientCAFile))
}

// set is what sources of equal options share.
type set struct {
	id      digest
	options Options
	pairs   []*pair
	trust   *trust // nil: no client authentication
	users   int    // guarded by the store
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Source{store: s, set: s.hold(o, pairs, roots)}, nil
}

// hold puts what was read into force and returns the set of the options, counting one more user. The store is locked.
func (s *Store) hold(o Options, pairs map[Files]pairContents, roots rootContents) *set {
	id := o.id()
	known := s.sets[id]
	if known == nil {
		known = &set{id: id, options: o}
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
}

// Config is what a new connection is to be served with. It is to be asked for anew for each: certificates and ticket
// keys change inside it, client authorities by another one.
func (s *Source) Config() *tls.Config { return s.set.config.Load() }

// Certificates are the leaves that clients may get now; for views.
func (s *Source) Certificates() []*x509.Certificate { return s.set.leaves() }

// Expires is when the first of the certificates ends.
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
	if x.options.StrictSNI {
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

// special refuses clients of a strict entrypoint that ask for an unknown server, resumed sessions included: those never
// come to certificate.
func (x *set) special(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if x.index.Load().lookup(hello.ServerName) == nil {
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
	return pick(hello, i.fallback), nil
}
