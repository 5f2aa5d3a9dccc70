package service_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/service"
)

// TestGenerationsShare: what a reload keeps is the same thing before and after, and goes with its last user.
func TestGenerationsShare(t *testing.T) {
	clock := conn.NewClock()
	reg := service.NewRegistry(clock, nil, nil)
	one := balancer(t, letters(config.RoundRobin, 1, 1), reg)
	held := pick(t, one, nil)

	next := letters(config.RoundRobin, 1, 1, 1)
	next.LoadBalancer.Servers = next.LoadBalancer.Servers[:1:1]
	next.LoadBalancer.Servers[0].Weight = 7
	two := balancer(t, next, reg)
	if got := two.AppendStats(nil)[0].Active; got != 1 {
		t.Errorf("the new generation sees %d active, want the lease of the old one", got)
	}
	l := pick(t, two, nil)
	if l.Backend.Pool != held.Backend.Pool {
		t.Error("the pool was not kept")
	}
	l.Done(service.OK)

	one.Close()
	one.Close()
	if b, p := reg.Len(); b != 1 || p != 1 {
		t.Errorf("%d backends and %d pools are known, want those of the new generation", b, p)
	}
	held.Done(service.OK)
	if got := two.AppendStats(nil)[0].Active; got != 0 {
		t.Errorf("%d active after a lease of the closed generation is done", got)
	}
	two.Close()
	if b, p := reg.Len(); b != 0 || p != 0 || clock.Len() != 0 {
		t.Errorf("%d backends, %d pools, %d clock entries are left", b, p, clock.Len())
	}
	if _, err := held.Backend.Pool.Get(dialing{}, false); err == nil {
		t.Error("the pool nobody refers to is open")
	}
}

// TestPoolKeys: a pool is shared exactly by what is reached at the same place in the same way.
func TestPoolKeys(t *testing.T) {
	base := func() *config.Service { return letters(config.RoundRobin, 1) }
	https := func(c *config.Service) {
		s := &c.LoadBalancer.Servers[0]
		s.Scheme, s.Addr = "https", "a:443"
	}
	for _, c := range []struct {
		name   string
		before func(*config.Service)
		change func(*config.Service)
		shared bool
	}{
		{"another service", nil, func(c *config.Service) { c.Name = "other" }, true},
		{"another base path", nil, func(c *config.Service) { c.LoadBalancer.Servers[0].Base = "/b" }, true},
		{"another port", nil, func(c *config.Service) { c.LoadBalancer.Servers[0].Addr = "a:81" }, false},
		{"another scheme", nil, https, false},
		{"another limit", nil, func(c *config.Service) { c.LoadBalancer.Transport.MaxConnections = 1 }, false},
		{"a TLS name in clear text", nil, func(c *config.Service) { c.LoadBalancer.Transport.ServerName = "x" }, true},
		{"HTTP/2 in clear text", nil, func(c *config.Service) { c.LoadBalancer.Servers[0].Scheme = "h2c" }, false},
		{"another offer", https, func(c *config.Service) { c.LoadBalancer.Transport.ALPN = config.HTTP2 }, false},
		{"an offer in clear text", nil, func(c *config.Service) { c.LoadBalancer.Transport.ALPN = config.HTTP2 }, true},
		{"another TLS name", https, func(c *config.Service) { c.LoadBalancer.Transport.ServerName = "x" }, false},
		{"the same TLS name, written", https, func(c *config.Service) { c.LoadBalancer.Servers[0].Host = "a:443" }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := registry()
			cfg, changed := base(), base()
			if c.before != nil {
				c.before(cfg)
				c.before(changed)
			}
			c.change(changed)
			one, two := pick(t, balancer(t, cfg, reg), nil), pick(t, balancer(t, changed, reg), nil)
			if got := one.Backend.Pool == two.Backend.Pool; got != c.shared {
				t.Errorf("shared: %v, want %v", got, c.shared)
			}
		})
	}
}

// TestRoots: the file of roots is read for each generation; new content makes a new pool.
func TestRoots(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roots.pem")
	cfg := letters(config.RoundRobin, 1)
	cfg.LoadBalancer.Servers[0].Scheme = "https"
	cfg.LoadBalancer.Transport.CAFile = file
	reg := registry()

	if _, err := service.New(cfg, reg); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "api") {
		t.Errorf("without the file the error is %v", err)
	}
	write(t, file, []byte("no certificate"))
	if _, err := service.New(cfg, reg); err == nil {
		t.Error("a file without certificates is taken")
	}
	if b, p := reg.Len(); b != 0 || p != 0 {
		t.Errorf("failed services left %d backends and %d pools", b, p)
	}
	cert := certificate(t)
	write(t, file, cert)
	one := pick(t, balancer(t, cfg, reg), nil)
	two := pick(t, balancer(t, cfg, reg), nil)
	write(t, file, append(cert, '\n'))
	three := pick(t, balancer(t, cfg, reg), nil)
	if one.Backend.Pool != two.Backend.Pool || two.Backend.Pool == three.Backend.Pool {
		t.Error("pools do not follow the content of the file")
	}
}

func TestPoolDials(t *testing.T) {
	var addr string
	reg := service.NewRegistry(conn.NewClock(), func(_ context.Context, a string) (net.Conn, error) {
		addr = a
		return nil, errors.New("no route")
	}, nil)
	l := pick(t, balancer(t, letters(config.RoundRobin, 1), reg), nil)
	defer l.Done(service.Refused)
	if _, err := l.Backend.Pool.Get(dialing{}, false); err == nil || addr != "a:80" {
		t.Errorf("dialed %q with error %v", addr, err)
	}
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificate is the one that httptest servers show, as PEM.
func certificate(t *testing.T) []byte {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return pemOf(s.Certificate())
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// dialing puts no bound on a dial.
type dialing struct{}

func (dialing) LastResort() bool { return false }
func (dialing) Repeatable() bool { return false }

func (dialing) DialContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}
