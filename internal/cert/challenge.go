package cert

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// alpnChallenge is what an authority offers that looks at a tls-alpn-01 challenge, alone (RFC 8737).
const alpnChallenge = "acme-tls/1"

const (
	// challengeLife is how long a challenge in storage counts: what crashed left it behind.
	challengeLife = time.Hour
	// maxToken bounds the token of a challenge in bytes.
	maxToken = 128
)

// pending are the challenges of this process that an authority may look at now.
type pending struct {
	mu     sync.Mutex
	tokens map[string]string           // http-01: token to answer
	certs  map[string]*tls.Certificate // tls-alpn-01: by name
}

// solver answers http-01 and tls-alpn-01 challenges with what listens already. The challenges are stored too: the
// authority may come to another instance.
type solver struct {
	pending *pending
	storage certmagic.Storage
}

// storedChallenge is a challenge for other instances.
type storedChallenge struct {
	Challenge acme.Challenge `json:"challenge"`
	Expires   time.Time      `json:"expires"`
}

// challengeKey is the place of a challenge in storage.
func challengeKey(kind, what string) string { return "challenges/" + kind + "/" + what + ".json" }

func place(c acme.Challenge) string {
	if c.Type == acme.ChallengeTypeHTTP01 {
		return challengeKey(c.Type, c.Token)
	}
	return challengeKey(c.Type, c.Identifier.Value)
}

// Present makes a challenge known.
func (s solver) Present(ctx context.Context, c acme.Challenge) error {
	var answer *tls.Certificate
	if c.Type == acme.ChallengeTypeTLSALPN01 {
		var err error
		if answer, err = acmez.TLSALPN01ChallengeCert(c); err != nil {
			return err
		}
	}
	s.pending.mu.Lock()
	if answer != nil {
		s.pending.certs[c.Identifier.Value] = answer
	} else {
		s.pending.tokens[c.Token] = c.KeyAuthorization
	}
	s.pending.mu.Unlock()
	text, err := json.Marshal(storedChallenge{c, time.Now().Add(challengeLife)})
	if err != nil {
		return err
	}
	return s.storage.Store(ctx, place(c), text)
}

// CleanUp forgets a challenge.
func (s solver) CleanUp(ctx context.Context, c acme.Challenge) error {
	s.pending.mu.Lock()
	if c.Type == acme.ChallengeTypeTLSALPN01 {
		delete(s.pending.certs, c.Identifier.Value)
	} else {
		delete(s.pending.tokens, c.Token)
	}
	s.pending.mu.Unlock()
	return s.storage.Delete(context.WithoutCancel(ctx), place(c))
}

// guarded lets a solver see only challenges of one order: what an authority sends becomes the name of a file or of a record,
// and its content.
type guarded struct {
	solver     acmez.Solver
	names      []string // ordered, as they stand in an authorization: without the label of a wildcard
	thumbprint string   // of the account's key
}

// check refuses a challenge that does not follow from the order. Without a token of the alphabet it would leave its folder;
// with another name, or a key authorization (RFC 8555 section 8.1) that is not ours, it would prove what nobody ordered.
func (g guarded) check(c acme.Challenge) error {
	switch {
	case !isToken(c.Token):
		return errors.New("the authority sent a token that is none")
	case c.Identifier.Type != "dns" || !slices.Contains(g.names, c.Identifier.Value):
		return fmt.Errorf("the authority asks for %.20q %.256q, which was not ordered", c.Identifier.Type, c.Identifier.Value)
	case c.KeyAuthorization != c.Token+"."+g.thumbprint:
		return errors.New("the authority sent a key authorization that is not of this account")
	}
	return nil
}

// Present presents what is good.
func (g guarded) Present(ctx context.Context, c acme.Challenge) error {
	if err := g.check(c); err != nil {
		return err
	}
	return g.solver.Present(ctx, c)
}

// Wait waits as the solver does.
func (g guarded) Wait(ctx context.Context, c acme.Challenge) error {
	if w, ok := g.solver.(acmez.Waiter); ok {
		return w.Wait(ctx, c)
	}
	return nil
}

// CleanUp cleans up what may have been presented. It is called also for what was not.
func (g guarded) CleanUp(ctx context.Context, c acme.Challenge) error {
	if g.check(c) != nil {
		return nil
	}
	return g.solver.CleanUp(ctx, c)
}

// isToken reports whether a token has the alphabet that RFC 8555 section 8.3 gives it: it becomes the name of a file.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= maxToken
}

// Challenge returns the answer to an http-01 challenge (RFC 8555 section 8.3); false when no such challenge is pending,
// here or at an instance with the same storage.
func (s *Store) Challenge(token string) (string, bool) {
	if !isToken(token) {
		return "", false
	}
	s.pending.mu.Lock()
	answer, ok := s.pending.tokens[token]
	s.pending.mu.Unlock()
	if ok {
		return answer, true
	}
	for _, m := range s.managersNow() {
		if c, ok := m.issuer.stored(acme.ChallengeTypeHTTP01, token); ok && c.Token == token {
			return c.KeyAuthorization, true
		}
	}
	return "", false
}

// alpnAnswer returns the certificate that answers a tls-alpn-01 challenge for a name; nil when none is pending.
func (m *manager) alpnAnswer(name string) *tls.Certificate {
	name = strings.ToLower(name)
	if m.matching(name) == "" {
		return nil
	}
	m.store.pending.mu.Lock()
	answer := m.store.pending.certs[name]
	m.store.pending.mu.Unlock()
	if answer != nil {
		return answer
	}
	if c, ok := m.issuer.stored(acme.ChallengeTypeTLSALPN01, name); ok && c.Identifier.Value == name {
		answer, _ = acmez.TLSALPN01ChallengeCert(c)
	}
	return answer
}

// stored looks for a challenge of another instance.
func (i *issuer) stored(kind, what string) (acme.Challenge, bool) {
	text, err := i.storage.Load(i.m.ctx, challengeKey(kind, what))
	if err != nil {
		return acme.Challenge{}, false
	}
	var c storedChallenge
	if json.Unmarshal(text, &c) != nil || c.Challenge.Type != kind || time.Now().After(c.Expires) {
		return acme.Challenge{}, false
	}
	return c.Challenge, true
}
