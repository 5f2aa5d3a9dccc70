package snapshot_test

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/middleware"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/snapshot"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parts are what generations borrow.
type parts struct {
	registry *service.Registry
	limits   *middleware.Limits
	deps     snapshot.Deps
}

func newParts() *parts {
	p := &parts{registry: service.NewRegistry(conn.NewClock(), nil, nil), limits: middleware.NewLimits()}
	p.deps = snapshot.Deps{Services: p.registry, Limits: p.limits, Metrics: telemetry.NewMetrics(), Log: slog.New(slog.DiscardHandler)}
	return p
}

// compile makes a generation whose entrypoints answer 429 to everything, without any backend being asked.
func (p *parts) compile(t testing.TB, entrypoints string) *snapshot.Generation {
	t.Helper()
	text := entrypoints + `
routers "r" {
  rule = "PathPrefix(` + "`/`" + `)"
  service = "s"
  middlewares = ["never"]
}
middlewares "never" { type = "rate-limit", rate = 1, burst = 0 }
services "s" { load_balancer { servers { url = "http://127.0.0.1:1" } } }
`
	cfg, ds := config.Load([]config.Source{{File: "test", Text: []byte(text)}})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	g, err := snapshot.Compile(cfg, p.deps)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

const (
	web  = `entrypoints "web" { address = "127.0.0.1:1" }`
	more = `entrypoints "more" { address = "127.0.0.1:2" }`
)

// nowhere is a client that takes every answer.
type nowhere struct{ exchange.Downstream }

// SendHead takes the answer.
func (nowhere) SendHead(*exchange.Exchange, []byte, bool) error { return nil }

// serve sends a request through a front and returns the code that it was answered with.
func serve(f *snapshot.Front) exchange.Code {
	x := new(exchange.Exchange)
	x.Begin(nowhere{}, nil, new(conn.Info), time.Now())
	x.Request.Method, x.Request.Host = []byte("GET"), []byte("x")
	x.Request.Target, x.Request.Path = []byte("/"), []byte("/")
	if err := f.Serve(x); err != nil {
		x.Fail(err) // as the engines do
	}
	return x.Record.Code
}

func (p *parts) empty(t *testing.T, s *snapshot.Store) {
	t.Helper()
	if b, n := p.registry.Len(); s.Alive() != 0 || b != 0 || n != 0 || p.limits.Len() != 0 {
		t.Errorf("left: %d generations, %d backends, %d pools, %d buckets", s.Alive(), b, n, p.limits.Len())
	}
}

// TestFrontKeeps: an entrypoint that is gone from the configuration is served by what is kept for it, until that is let.
func TestFrontKeeps(t *testing.T) {
	p := newParts()
	var s snapshot.Store
	f := snapshot.NewFront(&s, "more", nil)
	if c := serve(f); c != exchange.CodeDraining {
		t.Errorf("before the first generation: %s", c)
	}
	both := p.compile(t, web+"\n"+more)
	s.Swap(both)
	if c := serve(f); c != exchange.CodeRateLimited {
		t.Errorf("known: %s", c)
	}
	f.Keep(both)
	s.Retire(s.Swap(p.compile(t, web)))
	if c := serve(f); c != exchange.CodeRateLimited || s.Alive() != 2 {
		t.Errorf("kept: %s, %d generations", c, s.Alive())
	}
	next := p.compile(t, web+"\n"+more)
	s.Retire(s.Swap(next))
	f.Keep(next) // replaces the first one
	if s.Alive() != 1 {
		t.Errorf("%d generations", s.Alive())
	}
	s.Retire(s.Swap(p.compile(t, web)))
	f.Let(both) // not the one that is kept
	if !f.Keeps(next) {
		t.Error("let the wrong one")
	}
	f.Let(next)
	f.Let(next)
	if c := serve(f); c != exchange.CodeNoRoute || s.Alive() != 1 {
		t.Errorf("let: %s, %d generations", c, s.Alive())
	}
	s.Clear()
	if c := serve(f); c != exchange.CodeDraining {
		t.Errorf("after the end: %s", c)
	}
	p.empty(t, &s)
}

// TestSwapsUnderExchanges: generations are swapped, kept, let and retired while exchanges come; none meets one that is
// freed, and none is left.
func TestSwapsUnderExchanges(t *testing.T) {
	p := newParts()
	var s snapshot.Store
	f := snapshot.NewFront(&s, "more", nil)
	s.Swap(p.compile(t, web+"\n"+more))
	var stop atomic.Bool
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for !stop.Load() {
				if c := serve(f); c != exchange.CodeRateLimited {
					t.Errorf("answered %s", c)
					return
				}
			}
		})
	}
	for range 300 {
		old := s.Current()
		f.Keep(old)
		s.Retire(s.Swap(p.compile(t, web)))
		s.Retire(s.Swap(p.compile(t, web+"\n"+more)))
		f.Let(old)
	}
	stop.Store(true)
	load.Wait()
	s.Clear()
	p.empty(t, &s)
}

// TestUncommitted: a generation that was never current gives everything back.
func TestUncommitted(t *testing.T) {
	p := newParts()
	var s snapshot.Store
	g := p.compile(t, web)
	if b, n := p.registry.Len(); b != 1 || n != 1 || p.limits.Len() != 1 {
		t.Fatalf("%d %d %d", b, n, p.limits.Len())
	}
	g.Close()
	g.Close()
	p.empty(t, &s)
}
