package middleware_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/middleware"
)

func limit(rate, burst uint64) *config.Middleware {
	return &config.Middleware{Name: "rl", Type: "rate-limit", RateLimit: &config.RateLimit{Rate: rate, Burst: burst}}
}

// try sends n requests at once and returns what became of each: "." passed, "x" refused.
func try(h exchange.Handler, n int) string {
	s := ""
	for range n {
		x, c := request("/", "")
		x.Fail(h.Serve(x))
		if c.status == 429 {
			s += "x"
		} else {
			s += "."
		}
	}
	return s
}

func TestRateLimit(t *testing.T) {
	type move struct {
		wait time.Duration
		want string
	}
	for _, c := range []struct {
		rate, burst uint64
		moves       []move
	}{
		{10, 2, []move{{0, "..x"}, {99 * time.Millisecond, "x"}, {time.Millisecond, ".x"}, {time.Hour, "..x"}}},
		{1, 1, []move{{0, ".x"}, {999 * time.Millisecond, "x"}, {time.Millisecond, ".x"}}},
		{3, 3, []move{{0, "...x"}, {time.Second, "...x"}, {334 * time.Millisecond, ".x"}}},
		{0, 2, []move{{0, "..x"}, {1000 * time.Hour, "x"}}},
		{0, 0, []move{{0, "x"}, {1000 * time.Hour, "x"}}},
		{5, 0, []move{{0, "x"}, {1000 * time.Hour, "x"}}},
		{math.MaxUint64, math.MaxUint64, []move{{0, "....."}}},
		{1, math.MaxUint64, []move{{0, "....."}}},
		{0, math.MaxUint64, []move{{0, "....."}}},
	} {
		t.Run(fmt.Sprintf("rate %d burst %d", c.rate, c.burst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := build(t, limit(c.rate, c.burst), nothing)
				for i, m := range c.moves {
					time.Sleep(m.wait)
					if got := try(h, len(m.want)); got != m.want {
						t.Errorf("move %d: %s, want %s", i, got, m.want)
					}
				}
			})
		})
	}
}

func TestRateLimitAnswer(t *testing.T) {
	for _, c := range []struct {
		rate, burst uint64
		pass        int
		wait        time.Duration
		retryAfter  string
	}{
		{10, 1, 1, 0, "1"},
		{1, 1, 1, 0, "1"},
		{1, 1, 1, 1, "1"},   // 999.999999 ms are left
		{1, 60, 60, 0, "1"}, // the next token, not the whole bucket
		{0, 1, 1, 0, ""},    // waiting does not help
		{5, 0, 0, 0, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := build(t, limit(c.rate, c.burst), nothing)
			try(h, c.pass)
			time.Sleep(c.wait)
			x, cl := request("/", "")
			x.Request.Path = []byte(`/"</script>`)
			x.Record.RequestID = "id-1"
			x.Fail(h.Serve(x))
			if want := `{"error":"Rate limit exceeded","code":"rate_limited","request_id":"id-1"}`; string(cl.body) != want {
				t.Errorf("body is %s, want %s", cl.body, want)
			}
			if got, _ := cl.fields.First("retry-after"); cl.status != 429 || string(got) != c.retryAfter {
				t.Errorf("%+v: status %d, Retry-After %q", c, cl.status, got)
			}
			if x.Record.Middleware != "rl" || x.Record.Outcome != exchange.OutcomeRejected {
				t.Errorf("the record names %q with outcome %s", x.Record.Middleware, x.Record.Outcome)
			}
		})
	}
}

// TestRateLimitTwin compares with a bucket that counts tokens, in whole drips of time.
func TestRateLimitTwin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]uint64{1, 2, 4, 5, 8, 10, 100, 1000}).Draw(rt, "rate")
		burst := rapid.Uint64Range(0, 20).Draw(rt, "burst")
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 200).Draw(rt, "drips between requests")
		synctest.Test(t, func(t *testing.T) {
			h := build(t, limit(rate, burst), nothing)
			tokens := burst
			for i, n := range steps {
				time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
				tokens = min(burst, tokens+uint64(n))
				want := "x"
				if tokens > 0 {
					tokens--
					want = "."
				}
				if got := try(h, 1); got != want {
					rt.Fatalf("request %d: %s, want %s", i, got, want)
				}
			}
		})
	})
}

// TestRateLimitConcurrent: a burst from many sides gets exactly the tokens that are there.
func TestRateLimitConcurrent(t *testing.T) {
	for _, rate := range []uint64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			var passed atomic.Int64
			h := build(t, limit(rate, 100), func(*exchange.Exchange) error { passed.Add(1); return nil })
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() { try(h, 50) })
			}
			wg.Wait()
			if got := passed.Load(); got != 100 {
				t.Errorf("rate %d: %d passed, want 100", rate, got)
			}
		})
	}
}

// TestRateLimitReload: a bucket survives a reload that leaves router, name and definition alone, and nothing else.
func TestRateLimitReload(t *testing.T) {
	limits := middleware.NewLimits()
	var scopes []*middleware.Scope
	generation := func(router, name string, rate uint64) exchange.Handler {
		s := limits.Scope()
		scopes = append(scopes, s)
		cfg := limit(rate, 1)
		cfg.Name = name
		h, err := middleware.Build(cfg, middleware.Deps{Router: router, Limits: s}, exchange.HandlerFunc(nothing))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if got := try(generation("a", "rl", 0), 2); got != ".x" {
		t.Fatalf("at first: %s", got)
	}
	for _, c := range []struct {
		what, router, name string
		rate               uint64
		want               string
	}{
		{"the same", "a", "rl", 0, "x"},
		{"another router", "b", "rl", 0, "."},
		{"another name", "a", "rl2", 0, "."},
		{"another definition", "a", "rl", 1, "."},
	} {
		if got := try(generation(c.router, c.name, c.rate), 1); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	if got := limits.Len(); got != 4 {
		t.Errorf("%d buckets, want 4", got)
	}
	scopes[0].Close()
	scopes[0].Close()
	if got := limits.Len(); got != 4 {
		t.Errorf("%d buckets while the second generation holds the first's", got)
	}
	for _, s := range scopes {
		s.Close()
	}
	if got := limits.Len(); got != 0 {
		t.Errorf("%d buckets are left", got)
	}
	if got := try(generation("a", "rl", 0), 1); got != "." {
		t.Errorf("after all generations are gone: %s", got)
	}
}

func TestServeDoesNotAllocate(t *testing.T) {
	for _, cfg := range []*config.Middleware{
		limit(1e9, 1e9), limitEach(1e9, 1e9), headers, strip("/api"), strip("/web", "/apps/*"),
	} {
		h := build(t, cfg, nothing)
		x, c := request("/api/x", "")
		n := testing.AllocsPerRun(100, func() {
			x.Begin(c, x.Guard, x.Conn, x.Record.Start)
			x.Request.Fields.Reset(nil)
			x.Request.Normal = x.Request.Target
			_ = h.Serve(x)
		})
		if n != 0 {
			t.Errorf("%s allocates %v times", cfg.Type, n)
		}
	}
}

func BenchmarkServe(b *testing.B) {
	for _, cfg := range []*config.Middleware{limit(1e9, 1e9), headers, strip("/api")} {
		b.Run(cfg.Type, func(b *testing.B) {
			h := build(b, cfg, nothing)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				x, c := request("/api/x", "")
				for pb.Next() {
					x.Begin(c, x.Guard, x.Conn, x.Record.Start)
					x.Request.Fields.Reset(nil)
					x.Request.Normal = x.Request.Target
					_ = h.Serve(x)
				}
			})
		})
	}
}
