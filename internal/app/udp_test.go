package app_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// datagrams is a configuration of a udp entrypoint "u" at an address, with the given keys, in front of backends.
func datagrams(at, keys string, backends ...string) string {
	var servers strings.Builder
	for _, b := range backends {
		fmt.Fprintf(&servers, "    servers { url = \"udp://%s\" }\n", b)
	}
	return fmt.Sprintf(`entrypoints "u" {
  address  = %q
  protocol = "udp"
  %s
}
routers "r" {
  service     = "s"
  entrypoints = ["u"]
}
services "s" {
  load_balancer {
%s  }
}
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
`, at, keys, servers.String())
}

// udpBackend answers each datagram with what a func makes of it; nil is silence.
func udpBackend(t testing.TB, at string, answer func(b []byte, from net.Addr) []byte) string {
	t.Helper()
	c, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if a := answer(b[:n], from); a != nil {
				_, _ = c.WriteTo(a, from)
			}
		}
	})
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	return c.LocalAddr().String()
}

// named says its name before each datagram.
func named(name string) func([]byte, net.Addr) []byte {
	return func(b []byte, _ net.Addr) []byte { return append([]byte(name), b...) }
}

func dialUDP(t testing.TB, addr string) *net.UDPConn {
	t.Helper()
	c, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
	return c.(*net.UDPConn)
}

// ping sends a datagram and returns the next that comes.
func ping(t testing.TB, c net.Conn, text string) string {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return pong(t, c)
}

func pong(t testing.TB, c net.Conn) string {
	t.Helper()
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// silent reports whether nothing comes for a moment.
func silent(t testing.TB, c *net.UDPConn, d time.Duration) bool {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = c.SetReadDeadline(time.Now().Add(gatewaytest.Patience)) }()
	_, err := c.Read(make([]byte, 1))
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// Datagrams of every size go both ways, over both families, unchanged.
func TestUDPSizes(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "[::1]"} {
		t.Run(ip, func(t *testing.T) {
			b := udpBackend(t, ip+":0", named(""))
			g := gatewaytest.Start(t, datagrams(ip+":0", "", b))
			c := dialUDP(t, g.Addr("u"))
			for _, size := range []int{0, 1, 1472, 1473, 9000, 65507} {
				text := strings.Repeat("x", size)
				if got := ping(t, c, text); got != text {
					t.Errorf("%d bytes come back as %d", size, len(got))
				}
			}
		})
	}
}
