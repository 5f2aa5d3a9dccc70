package service_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// strategies are all that there are.
var strategies = []config.Strategy{config.RoundRobin, config.Weighted, config.LeastConnections, config.Random}

// letters is a service whose backends are a, b, c, … with the given weights.
func letters(s config.Strategy, weights ...int) *config.Service {
	cfg := &config.Service{Name: "api", LoadBalancer: config.LoadBalancer{Strategy: s, Transport: transport()}}
	for i, w := range weights {
		host := fmt.Sprintf("b%d.test", i)
		if i < 26 {
			host = string(rune('a' + i))
		}
		cfg.LoadBalancer.Servers = append(cfg.LoadBalancer.Servers, config.Server{
			URL: "http://" + host, Scheme: "http", Addr: host + ":80", Host: host, Weight: w,
		})
	}
	return cfg
}

func transport() config.Transport {
	return config.Transport{ConnectTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxIdle: 8, MaxConnections: 16}
}

// ones is n weights of 1.
func ones(n int) []int {
	w := make([]int, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

func registry() *service.Registry { return service.NewRegistry(conn.NewClock(), nil, nil) }

func balancer(t testing.TB, cfg *config.Service, reg *service.Registry) *service.Balancer {
	t.Helper()
	b, err := service.New(cfg, reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// pick returns a lease that must be there.
func pick(t testing.TB, b *service.Balancer, tried *service.Tried) service.Lease {
	t.Helper()
	l, err := b.Pick(nil, tried)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// picks makes n attempts that end well one after the other, and returns the backends' hosts.
func picks(t testing.TB, b *service.Balancer, n int) string {
	t.Helper()
	s := ""
	for range n {
		l := pick(t, b, nil)
		s += l.Backend.Host
		l.Done(service.OK)
	}
	return s
}

// refuse makes every backend in hosts refuse one attempt.
func refuse(t testing.TB, b *service.Balancer, hosts string) {
	t.Helper()
	for _, h := range hosts {
		var tried service.Tried
		for {
			l := pick(t, b, &tried)
			if l.Backend.Host == string(h) {
				l.Done(service.Refused)
				break
			}
			l.Done(service.Unused)
		}
	}
}

func stats(b *service.Balancer) map[string]service.BackendStats {
	m := make(map[string]service.BackendStats)
	for _, s := range b.AppendStats(nil) {
		m[s.URL] = s
	}
	return m
}
