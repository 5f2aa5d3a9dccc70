package worker_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// Connections to an actor leave nothing behind in the kernel's table of connections, which would be full after some minutes of
// traffic; those that are captured are in it, as they have to be.
func TestTunnelsAreNotTracked(t *testing.T) {
	r := newRun(t)
	h := newHost(t, r, nil)
	s := h.activate("demo/a")
	n, err := worker.OpenNetwork(r, s.UID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	tracked := func() (count string) {
		t.Helper()
		err := n.Gateway.Do(func() error {
			b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
			count = strings.TrimSpace(string(b))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	for range 20 {
		if _, err := h.get("demo/a", "/healthz"); err != nil {
			t.Fatal(err)
		}
	}
	if got := tracked(); got != "0" {
		t.Errorf("%s connections are tracked after 20 tunnels", got)
	}
	to := "203.0.113.7:443"
	if got := h.dial("demo/a", "tcp", to); got != "hello from demo/a to "+to {
		t.Errorf("captured: %q", got)
	}
	if got := tracked(); got != "1" {
		t.Errorf("%s connections are tracked after one was captured", got)
	}
}

// A server that lets its clients end connections first does not use up the ports to reach it from, which the kernel keeps for a
// minute after that.
func TestPortsAreUsedAgain(t *testing.T) {
	const ports = 10
	n := network(t, newRun(t), "a")
	if err := n.Gateway.Sysctl("net.ipv4.ip_local_port_range", "40000 40009"); err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort("169.254.17.2:80")
	l, err := n.Actor.Listen(to)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1)) // the end of the client, which is first
			_ = c.Close()
		}
	})
	defer serving.Wait()
	defer func() { _ = l.Close() }()
	once := func() error {
		c, err := n.Gateway.Dial(t.Context(), to)
		if err != nil {
			return err
		}
		_ = c.CloseWrite()
		_, _ = c.Read(make([]byte, 1)) // the server's
		return c.Close()
	}
	for range ports {
		if err := once(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for err = once(); errors.Is(err, syscall.EADDRNOTAVAIL) && ctx.Err() == nil; err = once() {
		time.Sleep(50 * time.Millisecond) // the kernel wants a second to have passed, and tells of no event
	}
	if err != nil {
		t.Errorf("beyond the ports there are: %v", err)
	}
}
