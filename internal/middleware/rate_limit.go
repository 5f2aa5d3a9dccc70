package middleware

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// RateLimit lets an exchange pass while its bucket holds a token, and refuses it with 429 otherwise. One bucket
// serves all clients of one router, or those of one identity.
type RateLimit struct {
	name   string
	bucket taker
	next   exchange.Handler
}

// taker takes a token for an exchange. Without one it returns how long until there is one, or 0 if waiting does not help.
type taker interface {
	takeFor(x *exchange.Exchange, now time.Time) (wait time.Duration, ok bool)
}

func newRateLimit(cfg *config.Middleware, d Deps, next exchange.Handler) (exchange.Handler, error) {
	if cfg.RateLimit == nil {
		return nil, errNoBlock(cfg.Type)
	}
	l := &RateLimit{name: cfg.Name, next: next}
	if cfg.RateLimit.Per == config.PerIdentity {
		l.bucket = d.Limits.identities(d.Router, cfg.Name, *cfg.RateLimit)
	} else {
		l.bucket = d.Limits.bucket(d.Router, cfg.Name, *cfg.RateLimit)
	}
	return l, nil
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
	wait, ok := l.bucket.takeFor(x, time.Now())
	if ok {
		return l.next.Serve(x)
	}
	x.Record.Middleware = l.name
	if wait == 0 {
		return refusedNever
	}
	return refusedSoon
}
