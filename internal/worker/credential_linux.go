package worker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Mint has a key certified as a worker's that acts for an actor. The request is a PKCS #10 one in DER and proves that the key
// is there; the chain is DER, leaf first. ErrNoLonger ends renewal for good.
type Mint func(ctx context.Context, a Actor, request []byte) (chain [][]byte, err error)

// Errors of credentials.
var (
	// ErrNoLonger is what minting fails with when the actor is not this worker's, or not the one it was, any more.
	ErrNoLonger = errors.New("the actor is not this worker's any more")
	errExpired  = errors.New("the certificate has expired")
	errAnswer   = errors.New("not a certificate for the key")
)

// credential is the key of one stay, made for it and kept in memory alone, and its certificate, which is renewed.
type credential struct {
	actor Actor
	mint  Mint
	key   *ecdsa.PrivateKey
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	current *tls.Certificate
	due     time.Time // of renewal, by the wall clock, as certificates end
	dead    bool      // renewal was refused for good
}

// newCredential makes a key and has it certified.
func newCredential(ctx context.Context, a Actor, mint Mint, log *slog.Logger) (*credential, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &credential{actor: a, mint: mint, key: key, log: log}
	return c, c.renew(ctx)
}

// renew gets a certificate, which must be for our key, valid now, and good for a client.
func (c *credential) renew(ctx context.Context) error {
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, c.key)
	if err != nil {
		return err
	}
	chain, err := c.mint(ctx, c.actor, request)
	if err != nil {
		return fmt.Errorf("getting a certificate: %w", err)
	}
	if len(chain) == 0 {
		return fmt.Errorf("%w: the chain is empty", errAnswer)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return fmt.Errorf("%w: %w", errAnswer, err)
	}
	now := time.Now()
	switch {
	case !c.key.PublicKey.Equal(leaf.PublicKey):
		return fmt.Errorf("%w: it is for another key", errAnswer)
	case now.Before(leaf.NotBefore) || now.After(leaf.NotAfter):
		return fmt.Errorf("%w: it is valid from %s to %s", errAnswer, leaf.NotBefore, leaf.NotAfter)
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return fmt.Errorf("%w: it is not for clients", errAnswer)
	}
	c.mu.Lock()
	c.current = &tls.Certificate{Certificate: chain, PrivateKey: c.key, Leaf: leaf}
	c.due = leaf.NotAfter.Add(-time.Until(leaf.NotAfter) / 10)
	c.mu.Unlock()
	return nil
}

// Certificate implements mutual.Holder.
func (c *credential) Certificate() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// usable is nil as long as tunnels may be opened with the credential.
func (c *credential) usable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return ErrNoLonger
	}
	if time.Now().After(c.current.Leaf.NotAfter) {
		return errExpired
	}
	return nil
}

// run renews until ctx ends or renewal is refused for good; renewed is called after each.
func (c *credential) run(ctx context.Context, renewed func()) {
	for pause := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(pause, min(c.rest(), lookEvery))):
		}
		if pause = 0; c.rest() > 0 {
			continue
		}
		err := c.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			renewed()
		case errors.Is(err, ErrNoLonger):
			c.mu.Lock()
			c.dead = true
			c.mu.Unlock()
			c.log.Warn("the certificate is not renewed any more", "error", err)
			return
		default:
			pause = retryAfter(time.Until(c.Certificate().Leaf.NotAfter))
			c.log.Warn("the certificate was not renewed", "error", err, "again_in", pause)
		}
	}
}

// rest is how long the certificate will do. One that has not begun was made when the clock was wrong, and does not do.
func (c *credential) rest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.current.Leaf.NotBefore) {
		return 0
	}
	return max(time.Until(c.due), 0)
}

// lookEvery is how often it is looked at the clock. Timers stand still while the machine sleeps, and know nothing of a clock that
// is set.
const lookEvery = 30 * time.Second

// Pauses between attempts to renew.
const (
	leastRetry   = time.Second
	mostRetry    = 30 * time.Second
	expiredRetry = 30 * time.Second
)

// retryAfter is a tenth of the time left, within bounds.
func retryAfter(left time.Duration) time.Duration {
	if left <= 0 {
		return expiredRetry
	}
	return min(mostRetry, max(leastRetry, left/10), left)
}
