package service

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Check is one backend to be probed, and how.
type Check struct {
	spec    checkSpec
	pool    *pooled
	service string
	id, url string
	vitals  *vitals
	dial    Dialer
}

// checkSpec is what makes two checks of a backend the same check.
type checkSpec struct {
	config.HealthCheck
	host, base string
	pool       poolKey
}

// Checks returns what the generation wants probed: every backend of a service with a health check, also those of
// weight 0, whose state is shown too. The same backend listed twice is one check.
func (b *Balancer) Checks() []Check {
	if b.check == nil {
		return nil
	}
	var checks []Check
	seen := make(map[*vitals]bool)
	for i := range b.all {
		e := &b.all[i]
		if seen[e.vitals] {
			continue
		}
		seen[e.vitals] = true
		checks = append(checks, Check{
			spec: checkSpec{HealthCheck: *b.check, host: e.Host, base: e.Base, pool: b.pools[i].key},
			pool: b.pools[i], service: b.name, id: e.ID, url: e.URL, vitals: e.vitals, dial: b.reg.dialer(b.pools[i].key.transport.Proxy),
		})
	}
	return checks
}

// Checker probes backends. It lives as long as the process; each committed generation gives it the set to probe.
type Checker struct {
	log *slog.Logger

	mu      sync.Mutex // serialises Apply and Close; held while probes that were told to stop end
	running map[*vitals]*prober
	closed  bool
}

// NewChecker returns a checker that probes nothing until Apply.
func NewChecker(log *slog.Logger) *Checker {
	return &Checker{log: log, running: make(map[*vitals]*prober)}
}

// Apply makes checks the set that is probed. A check that was there before keeps its schedule and its evidence.
// Others stop and have ended before new ones begin; a new one probes at once. A backend that is not in the set any
// more counts as healthy again. After Close it does nothing.
func (c *Checker) Apply(checks []Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	want := make(map[*vitals]*Check, len(checks))
	for i := range checks {
		want[checks[i].vitals] = &checks[i]
	}
	var ended []*prober
	for v, p := range c.running {
		if w := want[v]; w == nil || w.spec != p.check.spec {
			p.cancel()
			ended = append(ended, p)
			delete(c.running, v)
		}
	}
	for _, p := range ended {
		<-p.done
		if want[p.check.vitals] == nil {
			p.check.vitals.unchecked()
		} else {
			p.check.vitals.restart()
		}
	}
	for v, w := range want {
		if c.running[v] == nil {
			c.running[v] = c.start(*w)
		}
	}
}

// Close stops all probes and waits for them. Idempotent.
func (c *Checker) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, p := range c.running {
		p.cancel()
	}
	for v, p := range c.running {
		<-p.done
		delete(c.running, v)
	}
}

// Len is the number of backends that are probed.
func (c *Checker) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running)
}

func (c *Checker) start(check Check) *prober {
	ctx, cancel := context.WithCancel(context.Background())
	p := &prober{check: check, log: c.log, cancel: cancel, done: make(chan struct{})}
	go p.run(ctx)
	return p
}

// prober probes one backend until it is cancelled. Each has its own goroutine, so that a backend that hangs delays
// no other's checks.
type prober struct {
	check  Check
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *prober) run(ctx context.Context) {
	defer close(p.done)
	probe := newProbe(&p.check)
	defer probe.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begun := time.Now()
		err := probe.once(ctx)
		if ctx.Err() != nil {
			return // stopped on the way: no evidence
		}
		p.report(err)
		timer.Reset(jitter(p.check.spec.Interval) - time.Since(begun))
	}
}

// jitter spreads an interval by a tenth to both sides, so that the checks of many gateways drift apart.
func jitter(d time.Duration) time.Duration {
	tenth := int64(d / 10)
	return d + time.Duration(rand.Int64N(2*tenth+1)-tenth)
}

// report takes the result of one probe in, and logs a change of state.
func (p *prober) report(err error) {
	c := &p.check
	before, after := c.vitals.observe(err == nil, &c.spec.HealthCheck)
	if before == after {
		return
	}
	attrs := []any{"service", c.service, "backend", c.url, "backend_id", c.id}
	switch {
	case after == Unhealthy:
		p.log.Warn("backend is unhealthy", append(attrs, "reason", err)...)
	case before == Unknown:
		p.log.Debug("backend passed its first health check", attrs...)
	default:
		p.log.Info("backend is healthy again", attrs...)
	}
}
