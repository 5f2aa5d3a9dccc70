package middleware

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Limits holds the buckets of rate limits, by router, name and definition, so that a reload that changes none of the
// three does not fill them up again. Lives as long as the process.
type Limits struct {
	mu      sync.Mutex // guards buckets and their refs
	buckets map[limitKey]*bucket
}

type limitKey struct {
	router, name string
	limit        config.RateLimit
}

// NewLimits returns an empty set.
func NewLimits() *Limits { return &Limits{buckets: make(map[limitKey]*bucket)} }

// Len is the number of buckets that some generation refers to.
func (l *Limits) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// Scope is the references of one generation to buckets.
type Scope struct {
	limits *Limits
	held   []limitKey // guarded by limits.mu
}

// Scope returns a new, empty scope. Its generation closes it when its last exchange has ended.
func (l *Limits) Scope() *Scope { return &Scope{limits: l} }

// Close gives the references back; buckets that no other generation refers to are dropped. Idempotent.
func (s *Scope) Close() {
	l := s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range s.held {
		b := l.buckets[k]
		if b.refs--; b.refs == 0 {
			delete(l.buckets, k)
		}
	}
	s.held = nil
}

// bucket returns the bucket of a router's middleware, with a reference that the scope holds.
func (s *Scope) bucket(router, name string, limit config.RateLimit) *bucket {
	l := s.limits
	k := limitKey{router, name, limit}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[k]
	if b == nil {
		b = newBucket(limit, time.Now())
		l.buckets[k] = b
	}
	b.refs++
	s.held = append(s.held, k)
	return b
}

// longest bounds how far a bucket counts: beyond it (146 years) sums of two would overflow.
const longest = int64(math.MaxInt64 / 2)

// bucket is a token bucket that starts full, without a lock. Instead of tokens it counts time: full is when the
// bucket would be full again, each token taken puts that off by the time that one takes to drip in, and it may lie at
// most as far ahead as the whole bucket takes (the generic cell rate algorithm).
type bucket struct {
	start time.Time
	drip  int64 // nanoseconds a token takes to drip in; 0 none drips in
	depth int64 // nanoseconds the whole bucket takes; tokens in it when none drips in
	full  atomic.Int64
	refs  int // guarded by Limits.mu
}

func newBucket(c config.RateLimit, now time.Time) *bucket {
	b := &bucket{start: now}
	if c.Rate == 0 {
		b.depth = int64(min(c.Burst, uint64(longest)))
		return b
	}
	b.drip = int64(max(1, (uint64(time.Second)+c.Rate/2)/c.Rate)) // more than one a nanosecond is not told apart
	b.depth = longest
	if c.Burst < uint64(longest/b.drip) {
		b.depth = int64(c.Burst) * b.drip
	}
	return b
}

// take takes one token. Without one it returns how long until there is one, or 0 if waiting does not help.
func (b *bucket) take(now time.Time) (wait time.Duration, ok bool) {
	if b.drip == 0 {
		return 0, b.takeLast()
	}
	t := int64(now.Sub(b.start))
	for {
		was := b.full.Load()
		full := max(was, t) + b.drip
		if over := full - t - b.depth; over > 0 {
			if b.depth == 0 {
				return 0, false
			}
			return time.Duration(over), false
		}
		if b.full.CompareAndSwap(was, full) {
			return 0, true
		}
	}
}

// takeLast takes one of the tokens that are never replaced; full counts those taken.
func (b *bucket) takeLast() bool {
	for {
		was := b.full.Load()
		if was >= b.depth {
			return false
		}
		if b.full.CompareAndSwap(was, was+1) {
			return true
		}
	}
}
