package middleware

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Limits holds the buckets of rate limits, by router, name and definition, so that a reload that changes none of the
// three does not fill them up again, and the numbers of open connections, by router and name, so that a changed limit
// knows what is open. Lives as long as the process.
type Limits struct {
	mu      sync.Mutex // guards the rest
	buckets referred[limitKey, *bucket]
	apart   referred[limitKey, *identities]
	counts  referred[countKey, *count]
}

type limitKey struct {
	router, name string
	limit        config.RateLimit
}

type countKey struct{ router, name string }

// count is how many connections are open.
type count struct{ atomic.Int64 }

// referred are values that are kept for as long as somebody refers to them.
type referred[K comparable, V any] map[K]*reference[V]

type reference[V any] struct {
	value V
	n     int
}

// take returns the value of k, which make makes if nobody refers to it yet, with a reference.
func (r referred[K, V]) take(k K, make func() V) V {
	have := r[k]
	if have == nil {
		have = &reference[V]{value: make()}
		r[k] = have
	}
	have.n++
	return have.value
}

// drop gives a reference back.
func (r referred[K, V]) drop(k K) {
	if have := r[k]; have.n > 1 {
		have.n--
		return
	}
	delete(r, k)
}

// NewLimits returns an empty set.
func NewLimits() *Limits {
	return &Limits{buckets: referred[limitKey, *bucket]{}, apart: referred[limitKey, *identities]{}, counts: referred[countKey, *count]{}}
}

// Len is the number of limits and counts that some generation refers to.
func (l *Limits) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets) + len(l.apart) + len(l.counts)
}

// Scope is the references of one generation to buckets and counts.
type Scope struct {
	limits *Limits
	held   []func() // each gives one back; guarded by limits.mu
}

// Scope returns a new, empty scope. Its generation closes it when its last exchange has ended.
func (l *Limits) Scope() *Scope { return &Scope{limits: l} }

// Close gives the references back; what no other generation refers to is dropped. Idempotent.
func (s *Scope) Close() {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	for _, drop := range s.held {
		drop()
	}
	s.held = nil
}

// hold takes a reference that the scope gives back.
func hold[K comparable, V any](s *Scope, of referred[K, V], k K, make func() V) V {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	s.held = append(s.held, func() { of.drop(k) })
	return of.take(k, make)
}

// count returns the number of open connections of a router's middleware.
func (s *Scope) count(router, name string) *count {
	return hold(s, s.limits.counts, countKey{router, name}, func() *count { return &count{} })
}

// bucket returns the bucket of a router's middleware.
func (s *Scope) bucket(router, name string, limit config.RateLimit) *bucket {
	return hold(s, s.limits.buckets, limitKey{router, name, limit}, func() *bucket { return newBucket(limit, time.Now()) })
}

// identities returns the buckets of a router's middleware, one for each client.
func (s *Scope) identities(router, name string, limit config.RateLimit) *identities {
	return hold(s, s.limits.apart, limitKey{router, name, limit}, func() *identities { return newIdentities(limit) })
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

// takeFor takes one token for whoever asks.
func (b *bucket) takeFor(_ *exchange.Exchange, now time.Time) (wait time.Duration, ok bool) {
	return b.take(now)
}

// isFull reports whether the bucket is like a new one.
func (b *bucket) isFull(now time.Time) bool {
	return b.drip > 0 && b.full.Load() <= int64(now.Sub(b.start))
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
