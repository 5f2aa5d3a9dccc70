package cert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"

	"github.com/sluice-proxy/sluice/internal/config"
)

const (
	// renewCheck is how often is looked whether a certificate is to be renewed, in the last third of its life or when the
	// authority suggests it (ARI, RFC 9773), and whether another instance has done so.
	renewCheck = 10 * time.Minute
	// atOnce is how many orders of one manager are under way.
	atOnce = 4
	// placeholderLife is that of a self-signed certificate. It is made anew with each manager.
	placeholderLife = 10 * 365 * 24 * time.Hour
)

// retry is how long is waited after a failure, doubling from first to last.
type retry struct{ first, last time.Duration }

var (
	// unreachable is for an authority that does not answer: asking again costs nothing.
	unreachable = retry{10 * time.Second, 10 * time.Minute}
	// refusal is for one that says no: authorities count failures, and lock out who has too many in an hour.
	refusal = retry{5 * time.Minute, 6 * time.Hour}
)

// manager has certificates issued and renewed for one acme part of the configuration. It lives from the first Load of that
// part until the last source is closed, and asks for nothing before Start: a configuration that is not put into force
// must not have certificates issued.
type manager struct {
	id     digest
	users  int // guarded by the store
	store  *Store
	acme   config.ACME
	log    *slog.Logger
	cache  *certmagic.Cache
	magic  *certmagic.Config
	issuer *issuer

	placeholder *tls.Certificate
	current     map[string]*atomic.Pointer[tls.Certificate] // by name; an entry for each, nil until there is one
	inherited   map[string]*tls.Certificate                 // by name: in force until the authority has issued one; does not change

	once    sync.Once
	ctx     context.Context
	cancel  context.CancelFunc
	working sync.WaitGroup
}

// acmeID tells acme parts apart, and contents of the file of the authority's roots.
func acmeID(a *config.ACME, roots digest) digest {
	text := fmt.Appendf(nil, "%q %q %q %q %x %q %q", a.Domains, a.Email, a.Directory, a.CAFile, roots, a.StoragePath, a.Challenge)
	if n := a.DNS; n != nil {
		text = fmt.Appendf(text, " dns %q %q %q %d %q %q %q %q", n.Provider, n.ZoneID, n.Token.Reveal(), n.Propagation, n.Server, n.KeyName, n.KeyAlg, n.Endpoint)
	}
	if e := a.EAB; e != nil {
		text = fmt.Appendf(text, " eab %q %q", e.KeyID, e.HMACKey.Reveal())
	}
	return sha256.Sum256(text)
}

// newManager takes up the certificates that are in storage already, so that they are served from the first connection on.
// For names without, what other managers have is served on: another authority or storage takes its time.
func newManager(s *Store, a *config.ACME, id digest, roots *x509.CertPool) (*manager, error) {
	m := &manager{
		id: id, store: s, acme: *a, log: s.log.With("directory", a.Directory),
		current: map[string]*atomic.Pointer[tls.Certificate]{}, inherited: map[string]*tls.Certificate{},
	}
	var err error
	if m.placeholder, err = selfSigned(); err != nil {
		return nil, fmt.Errorf("making a placeholder: %w", err)
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	storage := &certmagic.FileStorage{Path: a.StoragePath}
	if m.issuer, err = newIssuer(m, storage, roots); err != nil {
		m.cancel()
		return nil, err
	}
	logger := newZap(s.log)
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return m.magic, nil },
		RenewCheckInterval: s.renewCheck, Logger: logger, // it counts when is decided whether to renew
	})
	m.cache.Stop() // ends its own renewals, which attend makes, and nothing else
	m.magic = certmagic.New(m.cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{m.issuer}, Logger: logger, OnEvent: m.event,
		OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	for _, name := range a.Domains {
		m.current[name] = new(atomic.Pointer[tls.Certificate])
		_, _ = m.magic.CacheManagedCertificate(m.ctx, name) // what is not there, or not good, is asked for after Start
		m.take(name)
		if m.current[name].Load() == nil {
			m.inherit(name)
		}
	}
	return m, nil
}

// inherit takes up what another manager serves for a name, the newest if there are several.
func (m *manager) inherit(name string) {
	for _, other := range m.store.managersNow() {
		p := other.current[name]
		if p == nil || p.Load() == nil {
			continue
		}
		c, best := p.Load(), m.inherited[name]
		if best == nil || newer(c.Leaf, best.Leaf) {
			m.inherited[name] = c
			m.current[name].Store(c)
		}
	}
}

// own is what the manager's authority has issued for a name, as far as is known; nil nothing.
func (m *manager) own(name string) *x509.Certificate {
	p := m.current[name]
	if p == nil {
		return nil
	}
	if c := p.Load(); c != nil && c != m.inherited[name] {
		return c.Leaf
	}
	return nil
}

// start begins to ask for what is missing, and to renew. Calling it again does nothing.
func (m *manager) start() {
	m.once.Do(func() {
		slots := make(chan struct{}, atOnce)
		for name := range m.current {
			m.working.Go(func() { m.attend(name, slots) })
		}
	})
}

// attend sees to one name. The library would renew by itself, but its pauses after failures outlive a configuration that
// puts right what was wrong.
func (m *manager) attend(name string, slots chan struct{}) {
	for failures := 0; ; {
		select {
		case slots <- struct{}{}:
		case <-m.ctx.Done():
			return
		}
		err := m.clean(m.ctx, name)
		if err == nil {
			err = m.magic.ManageSync(m.ctx, []string{name})
		}
		m.take(name)
		<-slots
		wait := m.store.renewCheck*9/10 + mathrand.N(m.store.renewCheck/5)
		switch {
		case m.ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
		default:
			m.store.counts.refused.Add(1)
			wait = backoff(err, failures)
			failures++
			m.log.Error("no new certificate", "name", name, "error", err, "retry_in", wait.Round(time.Second), "expires", m.expires(name))
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-m.ctx.Done():
			t.Stop()
			return
		}
	}
}

// take puts what the library has for a name into force, if that is newer, and has the library forget it: so it looks at the
// storage again next time, where another instance may have put a newer one. A newer one may end sooner: authorities shorten
// the life of certificates, and some have been replaced because they were bad.
func (m *manager) take(name string) {
	for _, c := range m.cache.AllMatchingCertificates(name) {
		if certifies(c.Leaf, name) && newer(c.Leaf, m.own(name)) {
			m.current[name].Store(&c.Certificate)
		}
	}
	m.cache.RemoveManaged([]certmagic.SubjectIssuer{{Subject: name}})
}

// newer reports whether a certificate is to replace another one, which may be nil.
func newer(c, than *x509.Certificate) bool {
	return than == nil || c.SerialNumber.Cmp(than.SerialNumber) != 0 && !c.NotBefore.Before(than.NotBefore)
}

// expires says when the certificate of a name ends, for the log.
func (m *manager) expires(name string) string {
	if c := m.current[name].Load(); c != nil {
		return c.Leaf.NotAfter.Format(time.RFC3339)
	}
	return "none was issued yet"
}

// backoff is how long to wait after a number of failures in a row before. A fifth is up to chance, so that many instances
// do not come together.
func backoff(err error, failures int) time.Duration {
	r := unreachable
	var problem acme.Problem
	if errors.As(err, &problem) && problem.Status < 500 {
		r = refusal
	}
	d := r.last
	if failures < 20 {
		d = min(d, r.first<<failures)
	}
	return d*4/5 + mathrand.N(d/5)
}

// close ends what start began, and waits for it.
func (m *manager) close() {
	m.cancel()
	m.working.Wait()
	m.issuer.http.CloseIdleConnections()
}

// event counts what is issued.
func (m *manager) event(_ context.Context, event string, data map[string]any) error {
	if event == "cert_obtained" {
		m.store.counts.issued.Add(1)
		m.log.Info("certificate issued", "name", data["identifier"], "renewal", data["renewal"])
	}
	return nil
}

// matching returns which of the manager's names a server name falls under; "" none.
func (m *manager) matching(name string) string {
	name = strings.ToLower(name)
	if m.current[name] != nil {
		return name
	}
	if _, rest, ok := strings.Cut(name, "."); ok && m.current["*."+rest] != nil {
		return "*." + rest
	}
	return ""
}

// certificate returns the certificate for one of the names, or the placeholder as long as there is none.
func (m *manager) certificate(name string) *tls.Certificate {
	if c := m.current[name].Load(); c != nil {
		return c
	}
	return m.placeholder
}

// leaves are the certificates that have been issued.
func (m *manager) leaves() []*x509.Certificate {
	var all []*x509.Certificate
	for _, name := range m.acme.Domains {
		if c := m.current[name].Load(); c != nil {
			all = append(all, c.Leaf)
		}
	}
	return all
}

// selfSigned makes a certificate that no client trusts: it ends a handshake with an error that operators recognize, and
// lets those through that come to look at the challenge and verify nothing. It tells nobody which names are served.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "not issued yet"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(placeholderLife),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
