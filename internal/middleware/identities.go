package middleware

import (
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// identities are the buckets of one rate limit, one for each identity that a client has proven; those without one share a
// bucket. A bucket that is full again is like a new one, and forgotten when room is needed. Lives as long as some generation refers to
// it. Safe for concurrent use.
type identities struct {
	limit config.RateLimit

	mu    sync.Mutex // guards the rest
	kept  map[string]*bucket
	swept time.Time
}

const (
	maxIdentities = 16_384      // buckets of one limit
	sweepEvery    = time.Second // looks for room, at most
)

func newIdentities(c config.RateLimit) *identities {
	return &identities{limit: c, kept: map[string]*bucket{}}
}

// takeFor takes a token of the client's identity. When there is no room for another bucket there is none for a token.
func (s *identities) takeFor(x *exchange.Exchange, now time.Time) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.of(x.Record.ClientIdentity, now)
	if b == nil {
		return sweepEvery, false
	}
	return b.take(now)
}

// of returns the bucket of an identity; nil: there is no room. mu is held.
func (s *identities) of(id string, now time.Time) *bucket {
	b := s.kept[id]
	if b != nil {
		return b
	}
	if len(s.kept) >= maxIdentities && !s.sweep(now) {
		return nil
	}
	b = newBucket(s.limit, now)
	s.kept[id] = b
	return b
}

// sweep forgets the buckets that are full, and reports whether there is room. mu is held.
func (s *identities) sweep(now time.Time) bool {
	if now.Sub(s.swept) < sweepEvery {
		return false
	}
	s.swept = now
	for id, b := range s.kept {
		if b.isFull(now) {
			delete(s.kept, id)
		}
	}
	return len(s.kept) < maxIdentities
}
