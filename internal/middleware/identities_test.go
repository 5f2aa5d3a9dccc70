package middleware_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/middleware"
)

func limitEach(rate, burst uint64) *config.Middleware {
	m := limit(rate, burst)
	m.RateLimit.Per = config.PerIdentity
	return m
}

// tryAs is try for one identity.
func tryAs(h exchange.Handler, id string, n int) string {
	s := ""
	for range n {
		x, c := request("/", "")
		x.Record.ClientIdentity = id
		x.Fail(h.Serve(x))
		switch {
		case c.status != 429:
			s += "."
		default:
			s += "x"
		}
	}
	return s
}

func TestRateLimitOfEachIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := build(t, limitEach(1, 2), nothing)
		for _, m := range []struct {
			wait time.Duration
			id   string
			want string
		}{
			{0, "spiffe://d/a", "..x"},
			{0, "spiffe://d/b", "..x"},
			{0, "", "..x"}, // who proves nothing shares with all others who do not
			{time.Second, "spiffe://d/a", ".x"},
			{0, "", ".x"},
			{time.Second, "spiffe://d/b", "..x"},
		} {
			time.Sleep(m.wait)
			if got := tryAs(h, m.id, len(m.want)); got != m.want {
				t.Errorf("%q: %s, want %s", m.id, got, m.want)
			}
		}
	})
}

// The number of buckets is bounded. At the bound nobody new passes, and nobody who is known is worse off, until there is room: what is
// full again has been forgotten then.
func TestRateLimitIdentitiesBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := build(t, limitEach(1, 2), nothing)
		for i := range middleware.MaxIdentities {
			if got := tryAs(h, fmt.Sprint(i), 1); got != "." {
				t.Fatalf("identity %d: %s", i, got)
			}
		}
		x, c := request("/", "")
		x.Record.ClientIdentity = "one more"
		x.Fail(h.Serve(x))
		if retry, _ := c.fields.First("retry-after"); c.status != 429 || string(retry) != "1" {
			t.Errorf("one more: %d, Retry-After %q", c.status, retry)
		}
		if got := tryAs(h, "0", 2); got != ".x" {
			t.Errorf("one that is known: %s", got)
		}
		time.Sleep(time.Second) // all but "0" are full again
		if got := tryAs(h, "one more", 3); got != "..x" {
			t.Errorf("one more, later: %s", got)
		}
		if got := tryAs(h, "0", 2); got != ".x" {
			t.Errorf("one that had used all: %s", got)
		}
	})
}

func TestRateLimitOfEachIdentityReload(t *testing.T) {
	limits := middleware.NewLimits()
	generation := func(cfg *config.Middleware) (exchange.Handler, *middleware.Scope) {
		s := limits.Scope()
		h, err := middleware.Build(cfg, middleware.Deps{Router: "r", Limits: s}, exchange.HandlerFunc(nothing))
		if err != nil {
			t.Fatal(err)
		}
		return h, s
	}
	synctest.Test(t, func(t *testing.T) {
		h, first := generation(limitEach(1, 1))
		if got := tryAs(h, "a", 2); got != ".x" {
			t.Fatal(got)
		}
		h, second := generation(limitEach(1, 1))
		first.Close()
		if got := tryAs(h, "a", 1); got != "x" {
			t.Errorf("after a reload: %s", got)
		}
		h, third := generation(limit(1, 1))
		if got := try(h, 1); got != "." {
			t.Errorf("for all of a router: %s", got)
		}
		if got := limits.Len(); got != 2 {
			t.Errorf("%d limits are kept", got)
		}
		second.Close()
		third.Close()
		if got := limits.Len(); got != 0 {
			t.Errorf("%d limits are left", got)
		}
	})
}
