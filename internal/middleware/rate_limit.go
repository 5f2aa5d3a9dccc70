package middleware

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// RateLimit lets an exchange pass while its bucket holds a token, and refuses it with 429 otherwise. One bucket
// serves all clients of one router.
type RateLimit struct {
	name   string
	bucket *bucket
	next   exchange.Handler
}

func newRateLimit(cfg *config.Middleware, d Deps, next exchange.Handler) (exchange.Handler, error) {
	if cfg.RateLimit == nil {
		return nil, errNoBlock(cfg.Type)
	}
	return &RateLimit{name: cfg.Name, bucket: d.Limits.bucket(d.Router, cfg.Name, *cfg.RateLimit), next: next}, nil
}

// The refusals, made once: they come in floods. A token drips in within a second, whatever the rate, unless none does.
var (
	refusedSoon  = rateLimited(1)
	refusedNever = rateLimited(0)
)

// rateLimited makes a refusal. retryAfter is in seconds; 0 says nothing, since no wait would help.
func rateLimited(retryAfter int) *exchange.Error {
	e := exchange.Reject(429, exchange.CodeRateLimited, "Rate limit exceeded")
	e.RetryAfter = retryAfter
	return e
}

// Serve takes a token and goes on, or refuses.
func (l *RateLimit) Serve(x *exchange.Exchange) error {
	wait, ok := l.bucket.take(time.Now())
	if ok {
		return l.next.Serve(x)
	}
	x.Record.Middleware = l.name
	if wait == 0 {
		return refusedNever
	}
	return refusedSoon
}
