package app_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// A reload leaves open connections alone, whatever it changes; limits know what is open (KF-L4-08).
func TestTCPReload(t *testing.T) {
	a, b := tcpBackend(t, echoes("a")), tcpBackend(t, echoes("b"))
	text := streams("max_connections = 2", "", "", "tcp://"+a)
	text = strings.Replace(text, "127.0.0.1:0", gatewaytest.FreeAddress(t), 1)
	g := gatewaytest.Start(t, text)
	one, two := dialTCP(t, g.Addr("db")), dialTCP(t, g.Addr("db"))
	say(t, one, "x")
	say(t, two, "x")
	_ = over(t, dialTCP(t, g.Addr("db")))

	text = strings.Replace(text, "max_connections = 2", `max_connections = 3, tcp_allowed_ips = ["127.0.0.0/8"]`, 1)
	g.Apply(strings.Replace(text, a, b, 1))
	three := dialTCP(t, g.Addr("db"))
	if s := say(t, three, "x"); s != "b x" {
		t.Errorf("a new connection goes to %q", s)
	}
	_ = over(t, dialTCP(t, g.Addr("db")))
	for _, c := range []net.Conn{one, two} {
		if s := say(t, c, "still"); s != "a still" {
			t.Errorf("an old connection says %q", s)
		}
	}

	g.Apply(strings.Replace(text, "127.0.0.0/8", "10.0.0.0/8", 1)) // for new connections only
	_ = over(t, dialTCP(t, g.Addr("db")))
	if s := say(t, three, "still"); s != "b still" {
		t.Errorf("an old connection says %q", s)
	}
}

// A drain lets connections finish, and ends what is left at its deadline.
func TestTCPDrain(t *testing.T) {
	t.Parallel()
	addr := tcpBackend(t, echoes("a"))
	t.Run("finishes", func(t *testing.T) {
		g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		say(t, c, "x")
		begin(g)
		gatewaytest.Until(t, "it drains", func() bool { return strings.Contains(g.Process.String(), `"draining"`) })
		if s := say(t, c, "late"); s != "a late" {
			t.Errorf("in the drain: %q", s)
		}
		_ = c.Close()
		ended(t, g)
		if l := g.Lines.Next(t); l.Text("outcome") != "ok" {
			t.Error(l)
		}
	})
	t.Run("forced", func(t *testing.T) {
		seen := make(chan error, 1)
		addr := tcpBackend(t, func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 2))
			_, _ = io.WriteString(c, "y\n")
			_, err := c.Read(make([]byte, 1))
			seen <- err
		})
		g := gatewaytest.Start(t, "shutdown_timeout_secs = 0\n"+streams("", "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		say(t, c, "x")
		begin(g)
		for who, err := range map[string]error{"client": over(t, c), "backend": <-seen} {
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the %s may take what it has for the whole: %v", who, err)
			}
		}
		ended(t, g)
		if l := g.Lines.Next(t); l.Text("outcome") != "drained" || l.Text("error_code") != "draining" {
			t.Error(l)
		}
	})
	t.Run("removed", func(t *testing.T) {
		g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		say(t, c, "x")
		g.Apply("shutdown_timeout_secs = 5\n" + site{backends: []string{"http://" + addr}}.String())
		if s := say(t, c, "late"); s != "a late" {
			t.Errorf("after the entrypoint is gone: %q", s)
		}
		_ = over(t, c) // at the deadline
	})
}

// A port may change from one protocol to the other.
func TestTCPBecomesHTTP(t *testing.T) {
	addr := tcpBackend(t, echoes("a"))
	web := gatewaytest.NewBackend(t, "web")
	at := gatewaytest.FreeAddress(t)
	text := strings.Replace(streams("", "", "", "tcp://"+addr), "127.0.0.1:0", at, 1)
	g := gatewaytest.Start(t, text)
	c := dialTCP(t, at)
	say(t, c, "x")
	g.Apply(site{entrypoints: fmt.Sprintf("entrypoints \"db\" { address = %q }", at), backends: []string{web.URL}}.String())
	if status, _ := ask(t, at, "/"); status != 200 {
		t.Errorf("status %d", status)
	}
	if s := say(t, c, "still"); s != "a still" {
		t.Errorf("the old connection says %q", s)
	}
	g.Apply(text)
	if s := say(t, dialTCP(t, at), "again"); s != "a again" {
		t.Error(s)
	}
}

// The filter of a router counts its own connections, over reloads, and looks at the client's address.
func TestTCPFilter(t *testing.T) {
	addr := tcpBackend(t, echoes("a"))
	filter := func(keys string) string {
		return streams("", `middlewares = ["f"]`, "", "tcp://"+addr) + "middlewares \"f\" { type = \"tcp-filter\", " + keys + " }\n"
	}
	g := gatewaytest.Start(t, filter("max_connections = 1"))
	one := dialTCP(t, g.Addr("db"))
	say(t, one, "x")
	_ = over(t, dialTCP(t, g.Addr("db")))
	if l := g.Lines.Next(t); l.Text("outcome") != "rejected" || l.Text("error_code") != "too_many_connections" || l.Text("limit") != "max_connections" {
		t.Error(l)
	}
	g.Apply(filter("max_connections = 2"))
	two := dialTCP(t, g.Addr("db"))
	say(t, two, "x")
	_ = over(t, dialTCP(t, g.Addr("db")))
	g.Lines.Next(t)
	_ = one.Close()
	g.Lines.Next(t)
	say(t, dialTCP(t, g.Addr("db")), "x")

	g.Apply(filter(`allowed_ips = ["10.0.0.0/8"]`))
	_ = over(t, dialTCP(t, g.Addr("db")))
	if l := g.Lines.Next(t); l.Text("outcome") != "rejected" || l.Text("error_code") != "ip_not_allowed" {
		t.Error(l)
	}
	g.Apply(filter(`allowed_ips = ["10.0.0.0/8", "127.0.0.1"]`))
	say(t, dialTCP(t, g.Addr("db")), "x")
	if v := gatewaytest.Metric(scrape(t, g), `gateway_middleware_invocations_total{middleware="f"}`); v < 4 {
		t.Errorf("%v invocations", v)
	}
}

// What a backend has sent to its end arrives, though the backend does not take what the client still sends.
func TestTCPResetAfterEnd(t *testing.T) {
	t.Parallel()
	const size = 200 << 10
	addr := tcpBackend(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 2))
		_, _ = c.Write(make([]byte, size))
		_ = c.CloseWrite()
		_, _ = io.ReadFull(c, make([]byte, 4))
		_ = c.SetLinger(0)
	})
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
	c := dialTCP(t, g.Addr("db"))
	_ = c.SetReadBuffer(4 << 10) // most of it waits in the gateway's socket
	_, _ = io.WriteString(c, "go")
	pause := 2 * time.Second // the backend's end has come by then; its reset is found by writing to it, or by the clock
	for range 6 {
		select {
		case <-time.After(pause):
		case <-t.Context().Done():
		}
		_, _ = io.WriteString(c, "more")
		pause = 150 * time.Millisecond
	}
	if b, err := io.ReadAll(c); len(b) != size || err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	_ = c.Close()
	if l := g.Lines.Next(t); l.Text("outcome") != "aborted" || l.Text("error_code") != "backend_reset" {
		t.Error(l)
	}
}
