package app_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

const introduced = "PROXY TCP4 192.0.2.7 192.0.2.1 1234 443\r\n"

// Whom a trusted load balancer speaks for is the client, for lists, rules and the log; others cannot pretend to
// (KF-TLS-04).
func TestProxyProtocolTCP(t *testing.T) {
	addr := tcpBackend(t, echoes("a"))
	const trusted = `proxy_protocol { trusted_ips = ["127.0.0.1"] }`
	t.Run("believed", func(t *testing.T) {
		g := gatewaytest.Start(t, streams(trusted+"\n  tcp_allowed_ips = [\"192.0.2.0/24\"]", "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		_, _ = io.WriteString(c, introduced)
		say(t, c, "x")
		_ = c.Close()
		if l := g.Lines.Next(t); l.Text("client_ip") != "192.0.2.7" || l.Text("peer_ip") != "127.0.0.1" {
			t.Error(l)
		}
		c = dialTCP(t, g.Addr("db"))
		_, _ = io.WriteString(c, strings.Replace(introduced, "192.0.2.7", "198.51.100.7", 1))
		_ = over(t, c) // not on the list
		c = dialTCP(t, g.Addr("db"))
		_, _ = io.WriteString(c, "hello without a header\n")
		_ = over(t, c)
	})
	t.Run("not trusted", func(t *testing.T) {
		g := gatewaytest.Start(t, streams(strings.Replace(trusted, "127.0.0.1", "10.0.0.1", 1), "", "", "tcp://"+addr))
		c := dialTCP(t, g.Addr("db"))
		if got := say(t, c, strings.TrimSuffix(introduced, "\r\n")); got != "a "+strings.TrimSuffix(introduced, "\r\n") {
			t.Errorf("%q", got) // it is data like any other
		}
		_ = c.Close()
		if l := g.Lines.Next(t); l.Text("client_ip") != "127.0.0.1" || l.Text("peer_ip") != "127.0.0.1" {
			t.Error(l)
		}
	})
	t.Run("silent", func(t *testing.T) {
		g := gatewaytest.Start(t, streams(trusted, "", "", "tcp://"+addr))
		silent := dialTCP(t, g.Addr("db"))
		c := dialTCP(t, g.Addr("db")) // is not kept waiting by it
		_, _ = io.WriteString(c, introduced)
		say(t, c, "x")
		_ = c.Close()
		began := time.Now()
		g.Stop() // neither is the drain: nothing has been received
		_ = over(t, silent)
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the drain took %v", d)
		}
	})
}

// On http entrypoints the header comes before TLS or the request; the backend is told as of any client.
func TestProxyProtocolHTTP(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	certFile, keyFile := certificate(t, t.TempDir())
	g := gatewaytest.Start(t, site{
		entrypoints: fmt.Sprintf(`
entrypoints "web" { address = "127.0.0.1:0", proxy_protocol { trusted_ips = ["127.0.0.0/8"] } }
entrypoints "brief" { address = "127.0.0.1:0", header_timeout = "300ms", proxy_protocol { trusted_ips = ["127.0.0.0/8"] } }
entrypoints "tls" { address = "127.0.0.1:0", proxy_protocol { trusted_ips = ["127.0.0.0/8"] }, tls { cert_file = %q, key_file = %q } }`, certFile, keyFile),
		rule: "ClientIP(`192.0.2.0/24`)", backends: []string{b.URL},
	}.String())
	c := dialTCP(t, g.Addr("web"))
	_, _ = io.WriteString(c, introduced)
	k := gatewaytest.NewClient(t, c)
	for range 2 { // the second on the same connection
		if res, _ := k.Get("/"); res.StatusCode != 200 {
			t.Errorf("status %d", res.StatusCode)
		}
		if l := g.Lines.Next(t); l.Text("client_ip") != "192.0.2.7" || l.Text("peer_ip") != "127.0.0.1" {
			t.Error(l)
		}
	}
	_ = c.Close()

	s := dialTCP(t, g.Addr("tls"))
	_, _ = io.WriteString(s, introduced)
	if res, _ := gatewaytest.NewClient(t, startTLS(t, s, "gateway.test")).Get("/"); res.StatusCode != 200 {
		t.Errorf("status %d", res.StatusCode)
	}

	began := time.Now()
	_ = over(t, dialTCP(t, g.Addr("brief"))) // after header_timeout, and not after its default
	if d := time.Since(began); d < 300*time.Millisecond || d >= 10*time.Second {
		t.Errorf("after %v", d)
	}
}

// A backend is told who the client is, before anything else; one gateway understands another.
func TestSendProxy(t *testing.T) {
	got := make(chan string, 1)
	addr := tcpBackend(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		got <- string(b)
	})
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			behind := gatewaytest.Start(t, streams(`proxy_protocol { trusted_ips = ["127.0.0.1"] }`, "", `transport { send_proxy = "v1" }`, "tcp://"+addr))
			g := gatewaytest.Start(t, streams("", "", fmt.Sprintf("transport { send_proxy = %q }", version), "tcp://"+behind.Addr("db")))
			c := dialTCP(t, g.Addr("db"))
			me, at := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
			_, _ = io.WriteString(c, "hello")
			_ = c.CloseWrite()
			want := fmt.Sprintf("PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\nhello", me.Port, at.Port)
			if told := <-got; told != want {
				t.Errorf("told %q, want %q", told, want)
			}
			if l := g.Lines.Next(t); l.Number("bytes_in") != 5 {
				t.Error(l)
			}
		})
	}
}
