package cert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// The authorities of an installation. Their names are also those of the files that keep their keys.
const (
	// ServiceAuthority signs for services that are reached by DNS names.
	ServiceAuthority = "servicedns"
	// WorkloadAuthority signs the identities of pods.
	WorkloadAuthority = "podidentity"
	// ActorAuthority signs the identities of workers on behalf of actors, with Ed25519.
	ActorAuthority = "actor-identity"
	// InterceptionAuthority signs what actors are shown in the place of origins.
	InterceptionAuthority = "egress-mitm"
	// OriginAuthority signs for origins of a development network, in the place of the world's authorities.
	OriginAuthority = "origins"
)

var authorityNames = [...]string{ServiceAuthority, WorkloadAuthority, ActorAuthority, InterceptionAuthority, OriginAuthority}

// Names of files in a Mount.
const (
	CredentialFile = "credential-bundle.pem"
	TrustFile      = "trust-bundle.pem"
)

const (
	// retryAfter is how long Run waits after a renewal that failed.
	retryAfter = 5 * time.Second
	// lookEvery is how often Run looks at the clock. Timers stand still while the machine sleeps, and know nothing of a clock that is set.
	lookEvery = time.Minute
)

// ErrLocked is a directory that another hub has.
var ErrLocked = errors.New("another process has it")

// HubOptions describe a Hub.
type HubOptions struct {
	// Dir is where authorities keep their keys (in ca, which only the owner may enter) and where mounts are.
	Dir string
	// MinSigningAge is AuthorityOptions.MinSigningAge of all authorities.
	MinSigningAge time.Duration
	// Log is told of renewals and of what goes wrong with them. nil discards.
	Log *slog.Logger
}

// Hub is the certificate side of a development network: it keeps the five authorities of an installation and writes, for
// each process, the files that it would be given by a real one, in the same layout and replaced in the same way. It lives
// as long as the process, or until Close, and its methods are safe for concurrent use.
type Hub struct {
	dir         string
	log         *slog.Logger
	authorities map[string]*Authority
	unlock      func() error

	mu      sync.Mutex // guards the rest, and is held while files are written
	mounts  map[string]*mounted
	changed chan struct{} // wakes Run; holds one
}

// Mount is a directory of files by which one process knows of one authority.
type Mount struct {
	// Dir is below the hub's, such as "router/podidentity.podcert.ate.dev".
	Dir string
	// Authority is one of the names above.
	Authority string
	// Leaf is what CredentialFile is issued for; nil makes no such file. Its Life may be shorter than a profile's: it is
	// renewed at its half.
	Leaf *Leaf
	// Trust is the name of the file with the authority's certificates; empty is TrustFile.
	Trust string
}

type mounted struct {
	Mount
	credential *tls.Certificate // nil without a leaf
	renew      time.Time        // by the wall clock, as certificates end
}

// due reports whether the certificate is to be renewed. One that has not begun was made when the clock was wrong.
func (m *mounted) due(now time.Time) bool {
	if m.credential != nil && now.Before(m.credential.Leaf.NotBefore) {
		return true
	}
	return !m.renew.IsZero() && !m.renew.After(now)
}

// OpenHub reads the authorities from the hub's directory, or makes them. A directory has one hub at a time, over all
// processes: else two would make two authorities of one name. Another's is ErrLocked.
func OpenHub(o HubOptions) (*Hub, error) {
	h := &Hub{dir: o.Dir, log: o.Log, authorities: map[string]*Authority{}, mounts: map[string]*mounted{}, changed: make(chan struct{}, 1)}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	keys := filepath.Join(o.Dir, "ca")
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lockFile(filepath.Join(keys, "lock"))
	if err != nil {
		return nil, err
	}
	h.unlock = unlock
	for _, name := range authorityNames {
		a, err := OpenAuthority(AuthorityOptions{
			Name: name, Ed25519: name == ActorAuthority, MinSigningAge: o.MinSigningAge, File: filepath.Join(keys, name+".pem"),
		})
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		h.authorities[name] = a
	}
	return h, nil
}

// Close lets others have the directory. The hub must not be used after it.
func (h *Hub) Close() error { return h.unlock() }

// Authority returns one of the hub's authorities, nil for another name. It is for issuing: rotation goes through the hub,
// since the files must follow.
func (h *Hub) Authority(name string) *Authority { return h.authorities[name] }

// Mount writes the files of a mount and keeps them up to date. A mount of the same directory is replaced.
func (h *Hub) Mount(m Mount) error {
	if h.authorities[m.Authority] == nil {
		return fmt.Errorf("mounting %s: no authority is called %q", m.Dir, m.Authority)
	}
	if !filepath.IsLocal(m.Dir) {
		return fmt.Errorf("mounting %q, which is not below the hub's directory", m.Dir)
	}
	if m.Trust == "" {
		m.Trust = TrustFile
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	added := &mounted{Mount: m}
	if err := h.renew(added); err != nil {
		return err
	}
	h.mounts[m.Dir] = added
	h.wake()
	return nil
}

// Path is where a file of a mount is.
func (h *Hub) Path(dir, file string) string { return filepath.Join(h.dir, dir, file) }

// renew issues a new certificate, if the mount has one, and writes the files. The hub is locked.
func (h *Hub) renew(m *mounted) error {
	m.renew = time.Time{}
	if m.Leaf != nil {
		c, err := h.authorities[m.Authority].Certificate(*m.Leaf)
		if err != nil {
			return fmt.Errorf("mounting %s: %w", m.Dir, err)
		}
		m.credential = c
		m.renew = c.Leaf.NotAfter.Add(-time.Until(c.Leaf.NotAfter) / 2)
	}
	return h.write(m)
}

func (h *Hub) write(m *mounted) error {
	files := []published{{name: m.Trust, content: h.authorities[m.Authority].Bundle()}}
	if m.credential != nil {
		content, err := encodeCredential(m.credential)
		if err != nil {
			return fmt.Errorf("mounting %s: %w", m.Dir, err)
		}
		defer clear(content)
		files = append(files, published{name: CredentialFile, content: content, secret: true})
	}
	if err := publish(filepath.Join(h.dir, m.Dir), files); err != nil {
		return fmt.Errorf("mounting %s: %w", m.Dir, err)
	}
	return nil
}

// encodeCredential is what OpenCredential reads.
func encodeCredential(c *tls.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, err
	}
	out := encode(keyBlock, der, nil)
	for _, der := range c.Certificate {
		out = append(out, encode(certificateBlock, der, nil)...)
	}
	return out, nil
}

// Add begins the rotation of an authority: a new CA is made, and every mount is told to trust it. See Authority.Add.
func (h *Hub) Add(authority string) error {
	return h.rotate(authority, (*Authority).Add, h.write)
}

// Activate lets the new CA sign, and renews every certificate of the authority by it. See Authority.Activate.
func (h *Hub) Activate(authority string) error {
	return h.rotate(authority, (*Authority).Activate, h.renew)
}

// Retire ends the trust in the old CA, once all that it has signed has ended. See Authority.Retire.
func (h *Hub) Retire(authority string) error {
	return h.rotate(authority, (*Authority).Retire, h.renew)
}

// Distrust ends the trust in the old CA at once. Who has not read what Activate wrote is not believed any more. See
// Authority.Distrust.
func (h *Hub) Distrust(authority string) error {
	return h.rotate(authority, (*Authority).Distrust, h.renew)
}

// rotate makes a step and lets the mounts follow. A mount that could not is retried by Run.
func (h *Hub) rotate(name string, step func(*Authority) error, follow func(*mounted) error) error {
	a := h.authorities[name]
	if a == nil {
		return fmt.Errorf("rotating: no authority is called %q", name)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.wake()
	if err := step(a); err != nil {
		return err
	}
	var errs []error
	for _, m := range h.mounts {
		if m.Authority != name {
			continue
		}
		if err := follow(m); err != nil {
			m.renew = time.Now().Add(retryAfter)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Run renews every certificate at half its life, until ctx ends. One that cannot be renewed is logged, keeps its files and
// is tried again.
func (h *Hub) Run(ctx context.Context) error {
	for {
		t := time.NewTimer(h.renewDue())
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-h.changed:
		case <-t.C:
		}
		t.Stop()
	}
}

// wake makes Run look again.
func (h *Hub) wake() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// renewDue renews what is due, and returns how long there is nothing more to do.
func (h *Hub) renewDue() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, next := time.Now(), lookEvery
	for _, m := range h.mounts {
		if m.due(now) {
			if err := h.renew(m); err != nil {
				m.renew = now.Add(retryAfter)
				h.log.Error("a mount could not be renewed; its files stay", "mount", m.Dir, "error", err)
			} else {
				h.log.Info("mount renewed", "mount", m.Dir, "next", m.renew)
			}
		}
		if !m.renew.IsZero() {
			next = min(next, m.renew.Sub(now))
		}
	}
	return max(next, 0)
}
