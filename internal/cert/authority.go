package cert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// MinSigningAge is how long a new certificate authority is trusted before it signs, unless options say otherwise:
	// long enough for every process to have read the bundle that it is in.
	MinSigningAge = 20 * time.Minute
	// MaxRequest bounds a certificate signing request, in bytes of DER.
	MaxRequest = 16384

	authorityLife = 10 * 365 * 24 * time.Hour
	// authorityBackdate is more than any leaf's, which never begins before its authority.
	authorityBackdate = 24 * time.Hour
	// ahead is how much later than the last certificate's end the time is that is kept of it: what is issued within an
	// hour needs no other write of the file.
	ahead = time.Hour
)

// Errors of rotation.
var (
	// ErrRotation is a step that is not the next one.
	ErrRotation = errors.New("not the next step of a rotation")
	// ErrTooYoung is a certificate authority that not everybody may trust yet.
	ErrTooYoung = errors.New("the new certificate authority has not been trusted for long enough to sign")
	// ErrInUse is a certificate authority whose certificates have not all ended.
	ErrInUse = errors.New("certificates that the old certificate authority has signed are still valid")
	// ErrRequest is a certificate signing request that is too large, malformed, or not signed by its own key.
	ErrRequest = errors.New("not a valid certificate signing request")
)

// AuthorityOptions describe an Authority.
type AuthorityOptions struct {
	// Name stands in the subjects of its certificates, which are told apart by their serial numbers.
	Name string
	// Ed25519 makes keys of that kind instead of ECDSA P-256.
	Ed25519 bool
	// MinSigningAge is how long a new certificate is trusted before it signs. 0 is the constant of that name.
	MinSigningAge time.Duration
	// File keeps keys and certificates, mode 0600. Empty keeps nothing.
	File string
}

// Authority issues certificates, and changes the certificate authority (CA) that it does so with in three steps, none of
// which makes a certificate invalid that somebody still uses: Add makes a new CA that everybody is to trust, Activate
// makes it the one that signs, Retire ends the trust in its predecessor. Its keys never leave it. It lives as long as the
// process, which must be the only one with its file, and its methods are safe for concurrent use.
type Authority struct {
	options AuthorityOptions

	mu   sync.Mutex // guards the rest, and is held while the file is written
	cas  []*ca      // the one that signs and one more at most, in the order of their making
	pool *x509.CertPool
}

// ca is one CA of an authority. It is immutable.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
	// since is when it was first trusted.
	since time.Time
	// until is when the last of its leaves has ended, or up to an hour later.
	until time.Time
	// cross is the CA certified by its predecessor, for those who do not trust it yet; nil without one.
	cross []byte
	// active is whether it signs.
	active bool
}

// OpenAuthority reads an authority from its file, or makes one, with one CA.
func OpenAuthority(o AuthorityOptions) (*Authority, error) {
	if o.MinSigningAge == 0 {
		o.MinSigningAge = MinSigningAge
	}
	a := &Authority{options: o}
	cas, err := a.read()
	if err != nil {
		return nil, fmt.Errorf("opening the authority %s: %w", o.Name, err)
	}
	if cas == nil {
		first, err := a.newCA(time.Now())
		if err != nil {
			return nil, fmt.Errorf("making the authority %s: %w", o.Name, err)
		}
		first.active = true
		return a, a.replace(first)
	}
	a.install(cas)
	return a, nil
}

// String is the name. An authority is never printed with what is in it.
func (a *Authority) String() string { return "authority " + a.options.Name }

func (a *Authority) newCA(now time.Time) (*ca, error) {
	key, err := a.newKey()
	if err != nil {
		return nil, err
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, err
	}
	number := newSerial()
	t := &x509.Certificate{
		SerialNumber:          number,
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s %x", a.options.Name, number.Bytes()[:4])},
		NotBefore:             now.Add(-authorityBackdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLen:            1, // its successor
		SubjectKeyId:          id,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &ca{cert: parsed, key: key, since: now, until: now}, nil
}

func (a *Authority) newKey() (crypto.Signer, error) {
	if a.options.Ed25519 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// Add makes a new CA, which is trusted from now on and signs after Activate.
func (a *Authority) Add() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cas) != 1 {
		return fmt.Errorf("adding to %s, which has %d certificate authorities: %w", a, len(a.cas), ErrRotation)
	}
	next, err := a.newCA(time.Now())
	if err != nil {
		return err
	}
	return a.replace(a.cas[0], next)
}

// Activate makes the CA that was added sign. Certificates come with it certified by its predecessor from now on, until
// that is retired, so that also those can verify them who have not heard of it.
func (a *Authority) Activate() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cas) != 2 || !a.cas[0].active {
		return fmt.Errorf("activating a certificate authority of %s, which has no new one: %w", a, ErrRotation)
	}
	old, next := *a.cas[0], *a.cas[1]
	if age := time.Since(next.since); age < a.options.MinSigningAge {
		return fmt.Errorf("activating a certificate authority of %s after %s of %s: %w", a, age.Round(time.Second), a.options.MinSigningAge, ErrTooYoung)
	}
	cross, err := crossCertificate(&old, &next)
	if err != nil {
		return err
	}
	old.active, next.active, next.cross = false, true, cross
	return a.replace(&old, &next)
}

// crossCertificate certifies the key and the subject of one CA by another.
func crossCertificate(by, of *ca) ([]byte, error) {
	t := *of.cert
	t.SerialNumber = newSerial()
	t.NotBefore = later(by.cert.NotBefore, of.cert.NotBefore)
	t.NotAfter = sooner(by.cert.NotAfter, of.cert.NotAfter)
	t.MaxPathLen, t.MaxPathLenZero = 0, true
	t.AuthorityKeyId = nil // the issuer's own is taken
	return x509.CreateCertificate(rand.Reader, &t, by.cert, of.key.Public(), by.key)
}

// Retire ends the trust in the predecessor of the CA that signs, when all that it has signed has ended: before, it is ErrInUse
// and says when that will be.
func (a *Authority) Retire() error { return a.retire(false) }

// Distrust is Retire at once. Certificates that the predecessor has signed become invalid, whoever still uses them: it is for
// a key that others may have.
func (a *Authority) Distrust() error { return a.retire(true) }

func (a *Authority) retire(used bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cas) != 2 || !a.cas[1].active {
		return fmt.Errorf("retiring a certificate authority of %s, which has no old one: %w", a, ErrRotation)
	}
	if until := a.cas[0].until; !used && time.Now().Before(until) {
		return fmt.Errorf("retiring a certificate authority of %s before %s: %w", a, until.UTC().Format(time.RFC3339), ErrInUse)
	}
	kept := *a.cas[1]
	kept.cross = nil
	return a.replace(&kept)
}

// replace writes other CAs to the file and puts them into force. The authority is locked, or not yet shared.
func (a *Authority) replace(cas ...*ca) error {
	if err := a.write(cas); err != nil {
		return fmt.Errorf("writing the keys of %s: %w", a, err)
	}
	a.install(cas)
	return nil
}

func (a *Authority) install(cas []*ca) {
	pool := x509.NewCertPool()
	for _, c := range cas {
		pool.AddCert(c.cert)
	}
	a.cas, a.pool = cas, pool
}

// Roots is what to trust now. It must not be changed.
func (a *Authority) Roots() *x509.CertPool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pool
}

// Bundle is what to trust now, as PEM.
func (a *Authority) Bundle() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []byte
	for _, c := range a.cas {
		out = append(out, encode(certificateBlock, c.cert.Raw, nil)...)
	}
	return out
}

// signer is the CA that signs, for a certificate that ends then at the latest: Retire knows of it before it is signed.
func (a *Authority) signer(end time.Time) (*ca, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.cas, func(c *ca) bool { return c.active }) // there is one, always: read insists on it too
	by := *a.cas[i]
	if end = sooner(end, by.cert.NotAfter); !end.After(by.until) {
		return a.cas[i], nil
	}
	by.until = end.Add(ahead)
	cas := slices.Clone(a.cas)
	cas[i] = &by
	return &by, a.replace(cas...)
}

// Issue certifies a key. The chain is DER, the leaf first, then what leads from it to what everybody trusts.
func (a *Authority) Issue(public crypto.PublicKey, l Leaf) ([][]byte, error) {
	now := time.Now()
	by, err := a.signer(now.Add(l.Life))
	if err != nil {
		return nil, fmt.Errorf("issuing by %s: %w", a, err)
	}
	t, err := l.template(public, by.cert, now)
	if err != nil {
		return nil, fmt.Errorf("issuing by %s: %w", a, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.cert, public, by.key)
	if err != nil {
		return nil, fmt.Errorf("issuing by %s: %w", a, err)
	}
	if by.cross == nil {
		return [][]byte{der}, nil
	}
	return [][]byte{der, by.cross}, nil
}

// IssueFor certifies the key of a certificate signing request (DER). Nothing else of the request is looked at but its size
// and its signature, which proves that whoever asks has the key. What is wrong with a request is ErrRequest.
func (a *Authority) IssueFor(request []byte, l Leaf) ([][]byte, error) {
	if len(request) > MaxRequest {
		return nil, fmt.Errorf("%d bytes: %w", len(request), ErrRequest)
	}
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return a.Issue(r.PublicKey, l)
}

// Certificate makes a key, ECDSA P-256, and certifies it.
func (a *Authority) Certificate(l Leaf) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	chain, err := a.Issue(key.Public(), l)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
}

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

func encode(kind string, der []byte, headers map[string]string) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: der})
}
