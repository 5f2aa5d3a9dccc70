package worker_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// The invariants of the threat model at the worker (docs/invariants.md), by their numbers.

// I10: an actor reaches neither the worker that hosts it, nor what listens in its gateway's namespace, nor another actor: what it
// dials elsewhere goes to the egress gateway, whatever the address.
func TestI10_NoWayAside(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	h.activate("demo/b")
	l, err := net.Listen("tcp", ":0") // as a worker's own ports
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	reached := make(chan string, 10)
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- c.RemoteAddr().String()
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, a := range own {
		if n := a.(*net.IPNet); n.IP.To4() != nil && !n.IP.IsLoopback() {
			asked++
			to := net.JoinHostPort(n.IP.String(), port)
			if got := h.dial("demo/a", "tcp", to); got != "hello from demo/a to "+to {
				t.Errorf("%s: %q", to, got)
			}
		}
	}
	for to, want := range map[string]string{
		"127.0.0.1:" + port:    "dial ECONNREFUSED", // its own loopback
		"169.254.17.2:" + port: "dial ECONNREFUSED", // itself, though b has the same address
		"169.254.17.1:" + port: "dial timeout",
		"169.254.17.1:443":     "dial timeout",
		"169.254.17.1:8443":    "dial timeout",
		"169.254.17.1:15001":   reset,
	} {
		h.expectDial(t, "demo/a", "tcp", to, want)
	}
	if len(reached) > 0 || asked == 0 {
		t.Errorf("the worker was reached from %v; %d addresses were tried", <-reached, asked)
	}
}

// I11: what programs may do without privileges to what they send gets nothing out, either: addresses of others as their own,
// fragments, datagrams to all. Neither the worker nor who is at the other end takes such an address for anybody's.
func TestI11_OddSendersEndInside(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	var all sync.WaitGroup
	for _, c := range []struct{ network, to, want string }{
		{"from 10.0.0.9:0", "203.0.113.7:443", "dial ENETUNREACH|dial timeout"}, // or the answer has no way back
		{"from 169.254.17.1:0", "203.0.113.7:443", "dial ENETUNREACH|dial timeout"},
		{"from 169.254.17.1:15001", "169.254.17.1:15001", "dial ENETUNREACH|dial timeout"},
		{"from 203.0.113.7:443", "203.0.113.7:443", "dial ENETUNREACH|dial timeout"},
		{"from 127.0.0.1:0", "203.0.113.7:443", "dial EINVAL|dial ENETUNREACH|dial timeout"},
		{"large", "203.0.113.7:443", "read ECONNREFUSED"},
		{"large", "169.254.17.1:53", "read timeout"},
		{"to all", "255.255.255.255:67", "read timeout"},
		{"to all", "169.254.17.3:67", "read timeout"},
		{"udp", "224.0.0.251:5353", "read timeout"},
	} {
		all.Go(func() { h.expectDial(t, "demo/a", c.network, c.to, c.want) })
	}
	all.Wait()
	if n := len(h.dialed); n > 0 {
		t.Errorf("%d were carried, first to %s", n, <-h.dialed)
	}
}

// Connections from one port of an actor to several destinations, which are legal, are captured as one each: to the kernel that
// redirects them they look alike, and where each was meant to go must not be mixed up.
func TestPortThatIsUsedTwice(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	var all sync.WaitGroup
	for i := range 20 { // at a time, or with one whose end the kernel remembers
		all.Go(func() {
			to := fmt.Sprintf("203.0.113.%d:443", 10+i)
			if got := h.dial("demo/a", "from 169.254.17.2:40000", to); got != "hello from demo/a to "+to {
				t.Errorf("%s: %q", to, got)
			}
		})
	}
	all.Wait()
}

// I16: on the place that an actor has left, nothing of it meets the next one: its tunnels end, new ones are for nobody, and the
// next actor sees neither its bytes nor its memory, and goes out as itself.
func TestI16_NothingOfTheLastActorRemains(t *testing.T) {
	for name, leave := range map[string]func(h *host, uid string) error{
		"terminated": func(h *host, uid string) error { return h.Terminate(within(t, patience), uid) },
		"suspended":  func(h *host, uid string) error { return h.Suspend(within(t, patience), uid) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, newRun(t), func(o *worker.Options) { o.Slots = 1 })
			a := h.activate("demo/a")
			count(t, h, 1)
			client, ended := echo(t, h)
			if err := leave(h, a.UID); err != nil {
				t.Fatal(err)
			}
			if h.held.Load() != 0 {
				t.Error("its credential is kept")
			}
			h.activate("demo/b")
			<-ended
			_ = client.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(client, "of the last actor")
			if rest, err := io.ReadAll(client); errors.Is(err, os.ErrDeadlineExceeded) || len(rest) > 0 {
				t.Errorf("the tunnel of the last one goes on: %q, %v", rest, err)
			}
			if _, e := h.open("demo/a", 80); !errors.Is(<-e, worker.ErrStale) {
				t.Error("the last one is found")
			}
			if got, err := h.get("demo/b", "/count"); got != "1" || err != nil {
				t.Errorf("the next one counts %q, %v", got, err)
			}
			if got := h.dial("demo/b", "tcp", "203.0.113.7:443"); got != "hello from demo/b to 203.0.113.7:443" {
				t.Errorf("the next one goes out as %q", got)
			}
			if err := h.Terminate(within(t, patience), a.UID); err != nil { // what a suspended one keeps
				t.Error(err)
			}
		})
	}
}
