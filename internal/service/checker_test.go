package service_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/service"
)

// What a backend of a farm does other than answer with a status.
const (
	hangs   = 0
	refuses = -1
)

// farm is a network of backends that answer health checks as they are told.
type farm struct {
	start time.Time

	mu     sync.Mutex
	answer map[string]func(n int) int // by address: what the check number n (from 0) gets
	asked  map[string][]time.Duration // by address: when checks came
}

func newFarm() *farm {
	return &farm{start: time.Now(), answer: make(map[string]func(int) int), asked: make(map[string][]time.Duration)}
}

// set makes the backend of a letter answer the same way from now on.
func (f *farm) set(host string, status int) { f.script(host, func(int) int { return status }) }

func (f *farm) script(host string, answer func(n int) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer[host+":80"] = answer
}

func (f *farm) times(host string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked[host+":80"])
}

func (f *farm) dial(_ context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	n := len(f.asked[addr])
	f.asked[addr] = append(f.asked[addr], time.Since(f.start))
	status := 200
	if a := f.answer[addr]; a != nil {
		status = a(n)
	}
	f.mu.Unlock()
	if status == refuses {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		r := bufio.NewReader(server)
		if _, err := http.ReadRequest(r); err == nil && status != hangs {
			_, _ = fmt.Fprintf(server, "HTTP/1.1 %d Status\r\nContent-Length: 0\r\n\r\n", status)
		}
		_, _ = io.Copy(io.Discard, r) // until the other side closes
	}()
	return client, nil
}

// journal keeps log lines.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(p))
	return len(p), nil
}

func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, l := range j.lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// rig is a registry and a checker over a farm.
type rig struct {
	*farm
	reg     *service.Registry
	checker *service.Checker
	log     *journal
}

func newRig(t *testing.T) *rig {
	r := &rig{farm: newFarm(), log: &journal{}}
	r.reg = service.NewRegistry(conn.NewClock(), r.dial, nil)
	r.checker = service.NewChecker(slog.New(slog.NewTextHandler(r.log, nil)))
	t.Cleanup(r.checker.Close)
	return r
}

// apply makes cfg the running generation.
func (r *rig) apply(t *testing.T, cfg *config.Service) *service.Balancer {
	b := balancer(t, cfg, r.reg)
	r.checker.Apply(b.Checks())
	return b
}

// checked is a service of n backends that is checked every 10 s.
func checked(n int) *config.Service {
	cfg := letters(config.RoundRobin, ones(n)...)
	cfg.LoadBalancer.HealthCheck = &config.HealthCheck{
		Path: "/health", Interval: 10 * time.Second, Timeout: 5 * time.Second, UnhealthyThreshold: 3, HealthyThreshold: 1,
	}
	return cfg
}

// states is one letter a backend: h, ? or u.
func states(b *service.Balancer) string {
	s := ""
	for _, e := range b.AppendStats(nil) {
		s += map[service.State]string{service.Healthy: "h", service.Unknown: "?", service.Unhealthy: "u"}[e.State]
	}
	return s
}

// TestThresholds: only evidence in a row changes the state (KF-LB-06).
func TestThresholds(t *testing.T) {
	for _, c := range []struct{ name, checks, want string }{
		{"the replay", "PffPfffPP", "hhhhhhuuh"},
		{"never passed", "fffPP", "??uuh"},
		{"first pass", "fPf", "?hh"},
		{"interrupted recovery", "PfffPfPP", "hhhuuuuh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.script("a", func(n int) int {
					if n < len(c.checks) && c.checks[n] == 'f' {
						return 500
					}
					return 204
				})
				cfg := checked(1)
				cfg.LoadBalancer.HealthCheck.HealthyThreshold = 2
				b := r.apply(t, cfg)
				got := ""
				for n := range c.checks {
					for synctest.Wait(); len(r.times("a")) <= n; synctest.Wait() {
						time.Sleep(time.Second)
					}
					got += states(b)
				}
				if got != c.want {
					t.Errorf("after %s the states are %s, want %s", c.checks, got, c.want)
				}
				unhealthy, again := r.log.count("backend is unhealthy"), r.log.count("backend is healthy again")
				if strings.Contains(c.want, "u") && (unhealthy != 1 || again != 1) || r.log.count("status 500") != unhealthy {
					t.Errorf("logged %q", r.log.lines)
				}
			})
		})
	}
}

// TestUnknownRanksBelow: a backend that has not passed gets traffic only when no other has (KF-LB-05).
func TestUnknownRanksBelow(t *testing.T) {
	for _, s := range strategies {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.set("a", hangs)
			r.set("b", 500)
			r.set("c", 500)
			cfg := checked(2)
			cfg.LoadBalancer.Strategy = s
			b := r.apply(t, cfg)
			if got := picks(t, b, 40); !strings.Contains(got, "a") || !strings.Contains(got, "b") {
				t.Errorf("%s: before any check picked %s", s, got)
			}
			synctest.Wait()
			if got := states(b); got != "??" {
				t.Fatalf("%s: after one failed check the states are %s", s, got)
			}
			r.set("a", 200)
			time.Sleep(12 * time.Second)
			synctest.Wait()
			if got := states(b); got != "h?" || strings.Contains(picks(t, b, 40), "b") {
				t.Errorf("%s: states are %s, and the one that never passed got traffic", s, got)
			}
			// A backend that a reload adds waits for its first pass.
			cfg = checked(3)
			cfg.LoadBalancer.Strategy = s
			b = r.apply(t, cfg)
			synctest.Wait()
			if got := picks(t, b, 40); strings.Trim(got, "a") != "" || states(b)[2] != '?' {
				t.Errorf("%s: after the reload picked %s, states %s", s, got, states(b))
			}
			r.set("c", 200)
			time.Sleep(12 * time.Second)
			synctest.Wait()
			if got := picks(t, b, 40); !strings.Contains(got, "c") {
				t.Errorf("%s: the added backend passed, and picked is %s", s, got)
			}
		})
	}
}

// TestAllUnhealthy: the answer is 503 with the time until something may have changed (KF-LB-08).
func TestAllUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, h := range "abc" {
			r.set(string(h), refuses)
		}
		b := r.apply(t, checked(3))
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if got := states(b); got != "uuu" {
			t.Fatalf("states are %s", got)
		}
		_, err := b.Pick(nil, nil)
		wantNoBackend(t, err, 10)
		if s := stats(b)["http://a"]; s.Healthy {
			t.Errorf("stats are %+v", s)
		}
		r.set("b", 200)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if got := picks(t, b, 3); got != "bbb" {
			t.Errorf("picked %s", got)
		}
	})
}

// TestPassEndsBackoff: a check that connects makes a backend that refused eligible at once.
func TestPassEndsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		b := r.apply(t, checked(2))
		synctest.Wait()
		time.Sleep(8900 * time.Millisecond)
		refuse(t, b, "a")
		for range 4 {
			l := pick(t, b, nil)
			if l.Backend.Host == "a" {
				t.Error("picked in the back-off")
			}
			l.Done(service.Unused)
		}
		synctest.Wait()
		for len(r.times("a")) < 2 {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		if s := stats(b)["http://a"]; s.Skipped {
			t.Errorf("after a pass: %+v", s)
		}
	})
}

// TestSchedule: the first check comes at once, the next ones an interval apart whatever the others do, a tenth
// early or late.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set("b", hangs)
		b := r.apply(t, checked(3))
		time.Sleep(1000 * time.Second)
		synctest.Wait()
		moved := 0
		for _, h := range []string{"a", "b", "c"} {
			at := r.times(h)
			if len(at) < 91 || len(at) > 112 {
				t.Errorf("%s was checked %d times in 1000 s", h, len(at))
			}
			if at[0] != 0 {
				t.Errorf("%s was first checked after %s", h, at[0])
			}
			for i := 1; i < len(at); i++ {
				d := at[i] - at[i-1]
				if d < 9*time.Second || d > 11*time.Second {
					t.Errorf("%s was checked after %s", h, d)
				}
				if d != 10*time.Second {
					moved++
				}
			}
		}
		if moved == 0 {
			t.Error("there is no jitter")
		}
		if got := states(b); got != "huh" {
			t.Errorf("states are %s", got)
		}
	})
}

// TestSlowerThanInterval: a check that takes longer than the interval is followed at once by the next, never by two.
func TestSlowerThanInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set("a", hangs)
		cfg := checked(1)
		cfg.LoadBalancer.HealthCheck.Interval = time.Second
		r.apply(t, cfg)
		time.Sleep(51 * time.Second)
		if got := len(r.times("a")); got != 11 {
			t.Errorf("%d checks of 5 s in 51 s", got)
		}
	})
}

// TestReloadKeeps: what is unchanged keeps its schedule and its half-collected evidence.
func TestReloadKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set("a", 500)
		old := r.apply(t, checked(1))
		time.Sleep(15 * time.Second)
		synctest.Wait() // two failures
		b := r.apply(t, checked(2))
		old.Close()
		synctest.Wait()
		if got := len(r.times("a")); got != 2 {
			t.Errorf("%d checks right after the reload, want the 2 of before", got)
		}
		if got := len(r.times("b")); got != 1 {
			t.Errorf("the new backend was checked %d times at once", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := states(b); got != "uh" {
			t.Errorf("states are %s: the third failure in a row is missing", got)
		}

		// Another definition begins anew, with the state as it is.
		cfg := checked(2)
		cfg.LoadBalancer.HealthCheck.Path = "/other"
		before := len(r.times("a"))
		b = r.apply(t, cfg)
		synctest.Wait()
		if got := len(r.times("a")); got != before+1 || states(b) != "uh" {
			t.Errorf("%d checks more and states %s after the definition changed", got-before, states(b))
		}

		// Without a check everything counts as healthy.
		cfg.LoadBalancer.HealthCheck = nil
		b = r.apply(t, cfg)
		if got := states(b); got != "hh" || r.checker.Len() != 0 {
			t.Errorf("states are %s with %d probes after the check is gone", got, r.checker.Len())
		}
		n := len(r.times("a"))
		time.Sleep(time.Minute)
		if got := len(r.times("a")); got != n {
			t.Errorf("%d checks after the check is gone", got-n)
		}
	})
}

// TestOtherCheckBeginsAnew: what one kind of check has seen in a row is no evidence for another kind.
func TestOtherCheckBeginsAnew(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{"failures", "Pff", "fff", "hhu"},
		{"passes", "PfffP", "PP", "uh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.script("a", func(n int) int {
					if all := c.before + c.after; n < len(all) && all[n] == 'f' {
						return 500
					}
					return 204
				})
				cfg := checked(1)
				cfg.LoadBalancer.HealthCheck.HealthyThreshold = 2
				old := r.apply(t, cfg)
				for synctest.Wait(); len(r.times("a")) < len(c.before); synctest.Wait() {
					time.Sleep(time.Second)
				}
				cfg = checked(1)
				cfg.LoadBalancer.HealthCheck.HealthyThreshold = 2
				cfg.LoadBalancer.HealthCheck.Path = "/other"
				b := r.apply(t, cfg)
				old.Close()
				got := ""
				for n := range c.after {
					for synctest.Wait(); len(r.times("a")) <= len(c.before)+n; synctest.Wait() {
						time.Sleep(time.Second)
					}
					got += states(b)
				}
				if got != c.want {
					t.Errorf("after %s and %s of another check the states are %s, want %s", c.before, c.after, got, c.want)
				}
			})
		})
	}
}

// TestClose: probes under way end, and no result of theirs counts.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set("a", hangs)
		cfg := checked(1)
		cfg.LoadBalancer.HealthCheck.UnhealthyThreshold = 1
		b := r.apply(t, cfg)
		time.Sleep(time.Second)
		begun := time.Now()
		r.checker.Close()
		r.checker.Close()
		if d := time.Since(begun); d != 0 {
			t.Errorf("Close took %s", d)
		}
		if got := states(b); got != "?" {
			t.Errorf("state is %s after an interrupted check", got)
		}
		r.checker.Apply(b.Checks())
		time.Sleep(time.Minute)
		if got := len(r.times("a")); got != 1 {
			t.Errorf("%d checks, want none after Close", got-1)
		}
	})
}

// TestUncommitted: a generation that is only prepared probes nothing.
func TestUncommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		b := balancer(t, checked(2), r.reg)
		if got := len(b.Checks()); got != 2 {
			t.Errorf("%d checks are prepared", got)
		}
		b.Close()
		time.Sleep(time.Minute)
		if got := len(r.times("a")); got != 0 {
			t.Errorf("%d checks of a generation that was not committed", got)
		}
	})
}

// TestCheckedOnce: the same backend twice in a list is one backend to check.
func TestCheckedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		cfg := checked(1)
		cfg.LoadBalancer.Servers = append(cfg.LoadBalancer.Servers, cfg.LoadBalancer.Servers[0])
		b := r.apply(t, cfg)
		synctest.Wait()
		if got := len(r.times("a")); got != 1 || states(b) != "hh" {
			t.Errorf("%d checks, states %s", got, states(b))
		}
	})
}
