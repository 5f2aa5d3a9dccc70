package app_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// A reload leaves open connections alone, whatever it changes; limits know what is open (KF-L4-08).
func TestTCPReload(t *testing.T) {
	a, b := tcpBackend(t, echoes("a")), tcpBackend(t, echoes("b"))
	text := streams("max_connections = 2", "", "", "tcp://"+a)
	text = strings.Replace(text, "127.0.0.1:0", freeAddress(t), 1)
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
		g := gatewaytest.Start(t, "shutdown_timeout_secs = 0\n"+streams("", "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		say(t, c, "x")
		begin(g)
		_ = over(t, c)
		ended(t, g)
		if l := g.Lines.Next(t); l.Text("outcome") != "drained" || l.Text("error_code") != "draining" {
			t.Error(l)
		}
	})
	t.Run("removed", func(t *testing.T) {
		g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		say(t, c, "x")
		g.Apply("shutdown_timeout_secs = 1\n" + site{backends: []string{"http://" + addr}}.String())
		if s := say(t, c, "late"); s != "a late" {
			t.Errorf("after the entrypoint is gone: %q", s)
		}
		_ = over(t, c) // a second later
	})
}

// A port may change from one protocol to the other.
func TestTCPBecomesHTTP(t *testing.T) {
	addr := tcpBackend(t, echoes("a"))
	web := gatewaytest.NewBackend(t, "web")
	at := freeAddress(t)
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
