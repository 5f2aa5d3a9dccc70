package service_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

func TestBackendID(t *testing.T) {
	for _, c := range []struct {
		scope string
		index int
		want  string
	}{
		{"api", 0, "b_40fb19b9290288c783fca4b21107d95583c5332dbaaeac6f590bc2c4064eeb8c"},
		{"api/v1", 0, "b_f4d12e692cb5366c200babc5837a4db3d6b448a9b4630416a78875c6017e07b5"},
	} {
		if got := service.BackendID(c.scope, c.index); got != c.want {
			t.Errorf("BackendID(%q, %d) = %s, want %s", c.scope, c.index, got, c.want)
		}
	}
	if service.BackendID("api", 0) == service.BackendID("api", 1) {
		t.Error("two positions have one id")
	}
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name     string
		strategy config.Strategy
		weights  []int
		want     string
	}{
		{"round robin", config.RoundRobin, []int{1, 1, 1}, "abcabc"},
		{"round robin takes no notice of weights", config.RoundRobin, []int{5, 1, 2}, "abcabc"},
		{"round robin without zeros", config.RoundRobin, []int{1, 0, 1}, "acacac"},
		{"one", config.RoundRobin, []int{1}, "aaa"},
		{"weighted is interleaved", config.Weighted, []int{3, 1}, "aabaaaba"},
		{"weighted 5 1 1", config.Weighted, []int{5, 1, 1}, "aabacaa" + "aabacaa"},
		{"weighted without zeros", config.Weighted, []int{0, 1, 1}, "bcbc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := balancer(t, letters(c.strategy, c.weights...), registry())
			if got := picks(t, b, len(c.want)); got != c.want {
				t.Errorf("picked %s, want %s", got, c.want)
			}
		})
	}
}

// TestShares counts many idle picks: each strategy must give each backend its share.
func TestShares(t *testing.T) {
	const n = 20000
	for _, c := range []struct {
		strategy config.Strategy
		weights  []int
		want     []float64
	}{
		{config.RoundRobin, []int{4, 1}, []float64{.5, .5}},
		{config.Weighted, []int{4, 1, 0, 5}, []float64{.4, .1, 0, .5}},
		{config.LeastConnections, []int{1, 1, 1, 1}, []float64{.25, .25, .25, .25}},
		{config.LeastConnections, []int{3, 1}, []float64{.75, .25}},
		{config.LeastConnections, []int{1, 3}, []float64{.25, .75}},
		{config.Random, []int{1, 1, 1, 1}, []float64{.25, .25, .25, .25}},
		{config.Random, []int{3, 1}, []float64{.75, .25}},
		{config.Random, []int{0, 1, 1}, []float64{0, .5, .5}},
	} {
		t.Run(fmt.Sprint(c.strategy, c.weights), func(t *testing.T) {
			got := make(map[string]int)
			for _, r := range picks(t, balancer(t, letters(c.strategy, c.weights...), registry()), n) {
				got[string(r)]++
			}
			for i, want := range c.want {
				share := float64(got[string(rune('a'+i))]) / n
				// Five standard deviations of a fair draw.
				if math.Abs(share-want) > 5*math.Sqrt(want*(1-want)/n) {
					t.Errorf("backend %d got %.3f of the picks, want %.3f", i, share, want)
				}
			}
		})
	}
}

// TestLoad keeps leases open: least-connections evens the load out by weight, two choices avoid the busiest.
func TestLoad(t *testing.T) {
	t.Run("least connections", func(t *testing.T) {
		b := balancer(t, letters(config.LeastConnections, 1, 2, 3), registry())
		for range 600 {
			pick(t, b, nil)
		}
		for i, s := range b.AppendStats(nil) {
			if want := int64(100 * (i + 1)); s.Active != want {
				t.Errorf("backend %d has %d active, want %d", i, s.Active, want)
			}
		}
	})
	t.Run("random", func(t *testing.T) {
		b := balancer(t, letters(config.Random, ones(10)...), registry())
		for range 1000 {
			pick(t, b, nil)
		}
		for i, s := range b.AppendStats(nil) {
			if s.Active < 90 || s.Active > 110 { // one choice would be spread about three times as far
				t.Errorf("backend %d has %d active of 1000", i, s.Active)
			}
		}
	})
}

// TestWeightZero: a drained backend gets nothing, also when it is the only one left (KF-LB-03, KF-LB-08, KF-CFG-04).
func TestWeightZero(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			if got := picks(t, balancer(t, letters(s, 0, 1), registry()), 1000); strings.Contains(got, "a") {
				t.Error("a backend of weight 0 got traffic")
			}
			for _, weights := range [][]int{{0}, {0, 0}, {}} {
				x := &exchange.Exchange{}
				_, err := balancer(t, letters(s, weights...), registry()).Pick(x, nil)
				wantNoBackend(t, err, 0)
				if x.Record.Service != "api" {
					t.Errorf("the record names service %q", x.Record.Service)
				}
			}
		})
	}
}

func wantNoBackend(t *testing.T, err error, retryAfter int) {
	t.Helper()
	var e *exchange.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want an *exchange.Error", err)
	}
	if e.Status != 503 || e.Code != exchange.CodeNoBackend || e.Public != "No healthy backends" || e.RetryAfter != retryAfter {
		t.Errorf("error is %+v, want 503 no_backend with Retry-After %d", e, retryAfter)
	}
}

func TestTried(t *testing.T) {
	for _, s := range strategies {
		for _, n := range []int{1, 3, 64, 65, 200} {
			t.Run(fmt.Sprint(s, n), func(t *testing.T) {
				b := balancer(t, letters(s, ones(n)...), registry())
				var tried service.Tried
				seen := make(map[string]bool)
				for i := range n {
					l := pick(t, b, &tried)
					if seen[l.Backend.URL] {
						t.Fatalf("attempt %d went to %s again", i, l.Backend.URL)
					}
					seen[l.Backend.URL] = true
					l.Done(service.Unanswered)
					if tried.Len() != i+1 {
						t.Fatalf("%d tried after %d attempts", tried.Len(), i+1)
					}
				}
				_, err := b.Pick(nil, &tried)
				wantNoBackend(t, err, 0)
				tried.Reset()
				l := pick(t, b, &tried)
				l.Done(service.OK)
			})
		}
	}
}

func TestLeaseDoneOnce(t *testing.T) {
	b := balancer(t, letters(config.RoundRobin, 1), registry())
	l := pick(t, b, nil)
	if got := l.Backend.Active(); got != 1 {
		t.Fatalf("%d active, want 1", got)
	}
	l.Done(service.OK)
	l.Done(service.Refused)
	var zero service.Lease
	zero.Done(service.OK)
	s := b.AppendStats(nil)[0]
	if s.Active != 0 || s.Refused != 0 || s.Skipped {
		t.Errorf("after two Done: %+v", s)
	}
}

// TestCountersReturnToZero lets many goroutines end attempts in every way (KF-LB-04).
func TestCountersReturnToZero(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			b := balancer(t, letters(s, 1, 2, 3, 1), registry())
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 1))
					for range 500 {
						var tried service.Tried
						for range 3 {
							l, err := b.Pick(nil, &tried)
							if err != nil {
								t.Error(err)
								return
							}
							l.Done(service.Result(r.IntN(int(service.OK) + 1)))
							l.Done(service.OK)
						}
					}
				})
			}
			wg.Wait()
			for _, e := range b.AppendStats(nil) {
				if e.Active != 0 {
					t.Errorf("%s has %d active", e.URL, e.Active)
				}
			}
		})
	}
}

// TestRefused walks through the back-off: 1 s, doubled to at most 30 s, ended by a success.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer(t, letters(config.RoundRobin, 1, 1), registry())
		for _, want := range []int{1, 2, 4, 8, 16, 30, 30} {
			refuse(t, b, "a")
			time.Sleep(time.Duration(want)*time.Second - time.Millisecond)
			if got := picks(t, b, 4); got != "bbbb" {
				t.Fatalf("picked %s just before %d s are over", got, want)
			}
			if s := stats(b)["http://a"]; !s.Skipped || !s.Healthy {
				t.Fatalf("in back-off the stats are %+v", s)
			}
			time.Sleep(2 * time.Millisecond)
			if s := stats(b)["http://a"]; s.Skipped {
				t.Fatalf("still skipped after %d s", want)
			}
		}
		if got := picks(t, b, 4); strings.Count(got, "a") != 2 {
			t.Fatalf("picked %s after the back-off", got)
		}
		refuse(t, b, "a") // after a success it begins anew
		time.Sleep(1001 * time.Millisecond)
		if s := stats(b)["http://a"]; s.Skipped || s.Refused != 8 {
			t.Errorf("after a success and another refusal: %+v", s)
		}
	})
}

// TestRefusedBurst: many attempts that began together are one piece of news.
func TestRefusedBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer(t, letters(config.RoundRobin, 1, 1), registry())
		var burst []service.Lease
		for range 40 {
			burst = append(burst, pick(t, b, nil))
		}
		for i := range burst {
			time.Sleep(10 * time.Millisecond)
			if burst[i].Backend.Host == "a" {
				burst[i].Done(service.Refused)
			} else {
				burst[i].Done(service.OK)
			}
		}
		time.Sleep(time.Second)
		if s := stats(b)["http://a"]; s.Skipped || s.Refused != 20 {
			t.Errorf("a burst of refusals: %+v", s)
		}
	})
}

// TestOldSuccess: a stream that began before a backend refused says nothing about it now.
func TestOldSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer(t, letters(config.RoundRobin, 1, 1), registry())
		old := pick(t, b, nil)
		if old.Backend.Host != "a" {
			t.Fatalf("the first pick is %s", old.Backend.Host)
		}
		refuse(t, b, "a")
		old.Done(service.OK)
		if got := picks(t, b, 2); got != "bb" {
			t.Errorf("picked %s in the back-off", got)
		}
	})
}

// TestLastIsNeverSkipped: with nothing better, a backend that refused is tried.
func TestLastIsNeverSkipped(t *testing.T) {
	for _, s := range strategies {
		synctest.Test(t, func(t *testing.T) {
			b := balancer(t, letters(s, 1, 1), registry())
			refuse(t, b, "ab")
			got := ""
			for range 40 {
				l := pick(t, b, nil)
				got += l.Backend.Host
				l.Done(service.Unused)
			}
			if !strings.Contains(got, "a") || !strings.Contains(got, "b") {
				t.Errorf("%s picked %s when all had refused", s, got)
			}
			time.Sleep(time.Minute)
			refuse(t, b, "a")
			var tried service.Tried
			one, two := pick(t, b, &tried), pick(t, b, &tried)
			if one.Backend.Host != "b" || two.Backend.Host != "a" {
				t.Errorf("%s picked %s then %s, want b then a", s, one.Backend.Host, two.Backend.Host)
			}
			one.Done(service.OK)
			two.Done(service.OK)

			single := balancer(t, letters(s, 1), registry())
			refuse(t, single, "a")
			if got := picks(t, single, 2); got != "aa" {
				t.Errorf("%s picked %s of a single backend", s, got)
			}
		})
	}
}

func TestPolicyAndBackend(t *testing.T) {
	cfg := letters(config.RoundRobin, 1)
	lb := &cfg.LoadBalancer
	lb.RequestTimeout, lb.StreamIdleTimeout, lb.StreamTotalTimeout = 1, 2, 3
	lb.UpstreamErrorStatus, lb.PassHost = 503, true
	cfg.WebSocket.Lifetime = 4
	lb.Servers[0] = config.Server{
		URL: "https://user:secret@h.test:8443/base", Scheme: "https", Addr: "h.test:8443", Host: "h.test:8443", Base: "/base", Weight: 1,
	}
	b := balancer(t, cfg, registry())
	if got, want := *b.Policy(), (service.Policy{1, 2, 3, 503, true, 5 * time.Second, config.WebSocket{Lifetime: 4}, false, 0, nil}); got != want {
		t.Errorf("policy is %+v, want %+v", got, want)
	}
	l := pick(t, b, nil)
	defer l.Done(service.OK)
	e := l.Backend
	if e.URL != "https://h.test:8443/base" || e.Base != "/base" || e.Host != "h.test:8443" || e.Scheme != "https" || e.Pool == nil {
		t.Errorf("backend is %+v", e)
	}
	if e.ID != service.BackendID("api", 0) || b.Name() != "api" {
		t.Errorf("id %s, name %s", e.ID, b.Name())
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, s := range strategies {
		b := balancer(t, letters(s, 1, 2, 3), registry())
		x := &exchange.Exchange{}
		n := testing.AllocsPerRun(200, func() {
			var tried service.Tried
			l, _ := b.Pick(x, &tried)
			l.Done(service.OK)
		})
		if n != 0 {
			t.Errorf("%s allocates %v times a pick", s, n)
		}
	}
	none := balancer(t, letters(config.RoundRobin), registry())
	if n := testing.AllocsPerRun(200, func() { _, _ = none.Pick(nil, nil) }); n != 0 {
		t.Errorf("a failed pick allocates %v times", n)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, s := range strategies {
		for _, n := range []int{1, 3, 50} {
			b.Run(fmt.Sprintf("%s/%d", s, n), func(b *testing.B) {
				bal, err := service.New(letters(s, ones(n)...), service.NewRegistry(conn.NewClock(), nil, nil))
				if err != nil {
					b.Fatal(err)
				}
				defer bal.Close()
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						var tried service.Tried
						l, _ := bal.Pick(nil, &tried)
						l.Done(service.OK)
					}
				})
			})
		}
	}
}
