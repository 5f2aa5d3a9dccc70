package app_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// streams is a configuration of a tcp entrypoint "db", with the given keys, in front of backends.
func streams(keys, routerKeys, serviceKeys string, backends ...string) string {
	var servers strings.Builder
	for _, b := range backends {
		fmt.Fprintf(&servers, "    servers { url = %q }\n", b)
	}
	return `entrypoints "db" {
  address  = "127.0.0.1:0"
  protocol = "tcp"
  ` + keys + `
}
routers "r" {
  rule    = "HostSNI(` + "`*`" + `)"
  service = "s"
  ` + routerKeys + `
}
services "s" {
  load_balancer {
` + servers.String() + `  }
  ` + serviceKeys + `
}
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
`
}

// tcpBackend serves each connection with a func, which the connection does not outlive.
func tcpBackend(t testing.TB, serve func(c *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				serve(c.(*net.TCPConn))
				_ = c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// echoes says its name on each line that it gets.
func echoes(name string) func(c *net.TCPConn) {
	return func(c *net.TCPConn) {
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(c, "%s %s", name, line); err != nil {
				return
			}
		}
	}
}

// dialTCP connects, and gives whatever follows the usual patience.
func dialTCP(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
	return c.(*net.TCPConn)
}

// say sends a line and returns the one that comes back.
func say(t testing.TB, c net.Conn, line string) string {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
	back, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatalf("after %q: %v", line, err)
	}
	return strings.TrimSuffix(back, "\n")
}

// over checks that the other end has closed, without a byte and without waiting for anything of ours.
func over(t testing.TB, c net.Conn) error {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n != 0 || err == nil {
		t.Fatal("a byte where the end was expected")
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		t.Fatal("still open")
	}
	return err
}

// scrape reads the metrics.
func scrape(t testing.TB, g *gatewaytest.Gateway) string {
	t.Helper()
	_, body := ask(t, g.Addr("management"), "/api/gateway/metrics")
	return body
}

func TestTCP(t *testing.T) {
	a, b := tcpBackend(t, echoes("a")), tcpBackend(t, echoes("b"))
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+a, b)) // a scheme is not needed
	got := map[string]int{}
	for range 4 {
		c := dialTCP(t, g.Addr("db"))
		first := say(t, c, "hello")
		if again := say(t, c, "hello"); again != first {
			t.Fatalf("%q, then %q: a connection has one backend", first, again)
		}
		got[first]++
		_ = c.Close()
	}
	for range 4 {
		l := g.Lines.Next(t)
		for member, want := range map[string]string{
			"protocol": "TCP", "outcome": "ok", "router": "r", "entrypoint": "db", "client_ip": "127.0.0.1", "host": "", "error_code": "",
		} {
			if l.Text(member) != want {
				t.Errorf("%s is %q, want %q: %v", member, l.Text(member), want, l)
			}
		}
		if l.Number("bytes_in") != 12 || l.Number("response_bytes") != 16 || l.Number("attempts") != 1 || l.Number("status") != 0 {
			t.Errorf("numbers in %v", l)
		}
		if at := strings.TrimPrefix(l.Text("backend"), "tcp://"); at != a && at != b {
			t.Errorf("backend is %q", at)
		}
	}
	if got["a hello"] != 2 || got["b hello"] != 2 {
		t.Errorf("not in turn: %v", got)
	}
	m := scrape(t, g)
	for series, want := range map[string]float64{
		`gateway_tcp_connections_total{entrypoint="db",outcome="ok"}`:     4,
		`gateway_tcp_connections_total{entrypoint="db",outcome="failed"}`: 0,
		`gateway_tcp_bytes_total{direction="in",entrypoint="db"}`:         48,
		`gateway_tcp_bytes_total{direction="out",entrypoint="db"}`:        64,
		`gateway_router_requests_total{router="r"}`:                       4,
		`gateway_router_errors_total{router="r"}`:                         0,
		`gateway_service_requests_total{service="s"}`:                     4,
		`gateway_service_active_requests{service="s"}`:                    0,
		`gateway_service_errors_total{service="s"}`:                       0,
	} {
		if v := gatewaytest.Metric(m, series); v != want {
			t.Errorf("%s is %v, want %v", series, v, want)
		}
	}
}

// Either side may end its sending and still receive, and what was sent before is not lost (KF-TUN-03).
func TestTCPHalfClose(t *testing.T) {
	const size = 3 << 20
	addr := tcpBackend(t, func(c *net.TCPConn) {
		n, err := io.Copy(io.Discard, c) // to the client's end
		if err != nil {
			return
		}
		_, _ = c.Write(make([]byte, n))
	})
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
	c := dialTCP(t, g.Addr("db"))
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	if l := g.Lines.Next(t); l.Text("outcome") != "ok" || l.Number("bytes_in") != size || l.Number("response_bytes") != size {
		t.Error(l)
	}
}

// The end that comes in one packet with the last bytes is noticed at once, every time.
func TestTCPEndWithBytes(t *testing.T) {
	addr := tcpBackend(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		_, _ = c.Write(b)
	})
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
	for range 200 {
		c := dialTCP(t, g.Addr("db"))
		began := time.Now()
		_, _ = io.WriteString(c, "ping")
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); string(b) != "ping" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Fatalf("took %v", d)
		}
		_ = c.Close()
	}
}

// A server that speaks first is not waited for (KF-L4-02).
func TestTCPServerFirst(t *testing.T) {
	addr := tcpBackend(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 ready\r\n") })
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))
	c := dialTCP(t, g.Addr("db"))
	if b, err := io.ReadAll(c); string(b) != "220 ready\r\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// Nothing has been sent when a backend cannot be connected to, so another one is (KF-L4-07).
func TestTCPConnectRetry(t *testing.T) {
	closed := gatewaytest.FreeAddress(t)
	good := tcpBackend(t, echoes("good"))
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+closed, "tcp://"+good))
	two := 0
	for range 20 {
		c := dialTCP(t, g.Addr("db"))
		if s := say(t, c, "x"); s != "good x" {
			t.Fatal(s)
		}
		_ = c.Close()
	}
	for range 20 {
		l := g.Lines.Next(t)
		if l.Text("outcome") != "ok" || l.Text("backend") != "tcp://"+good {
			t.Fatal(l)
		}
		if l.Number("attempts") == 2 {
			two++
		}
	}
	if two == 0 || two > 5 {
		t.Errorf("%d of 20 connections tried the closed one, want few: it is passed over for a while", two)
	}
}

// Without any backend the client is closed without a byte, and the log says why.
func TestTCPNoBackend(t *testing.T) {
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+gatewaytest.FreeAddress(t), "tcp://"+gatewaytest.FreeAddress(t)))
	_ = over(t, dialTCP(t, g.Addr("db")))
	l := g.Lines.Next(t)
	if l.Text("outcome") != "failed" || l.Text("error_code") != "connect_failed" || l.Number("attempts") != 2 {
		t.Error(l)
	}
	if v := gatewaytest.Metric(scrape(t, g), `gateway_router_errors_total{router="r"}`); v != 1 {
		t.Errorf("%v errors", v)
	}
}

// With a health check, which for tcp is a connection, a dead backend gets nothing.
func TestTCPHealthCheck(t *testing.T) {
	t.Parallel()
	closed, good := gatewaytest.FreeAddress(t), tcpBackend(t, echoes("good"))
	text := strings.Replace(streams("", "", "", "tcp://"+closed, "tcp://"+good), "  load_balancer {\n",
		"  load_balancer {\n    health_check { interval = \"100ms\", unhealthy_threshold = 1 }\n", 1)
	g := gatewaytest.Start(t, text)
	gatewaytest.Until(t, "one backend of two is healthy", func() bool {
		return strings.Contains(scrape(t, g), `service="s"} 0`) && strings.Contains(g.Process.String(), "backend is unhealthy")
	})
	for range 20 {
		c := dialTCP(t, g.Addr("db"))
		say(t, c, "x")
		_ = c.Close()
	}
	for range 20 {
		if l := g.Lines.Next(t); l.Number("attempts") != 1 {
			t.Fatal(l)
		}
	}
}

// A reset of one side reaches the other as a reset.
func TestTCPReset(t *testing.T) {
	reset := make(chan struct{})
	seen := make(chan error, 1)
	addr := tcpBackend(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_, _ = io.WriteString(c, "b")
		select {
		case <-reset:
			_ = c.SetLinger(0)
			_ = c.Close()
		default:
			_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
			_, err := c.Read(make([]byte, 1))
			seen <- err
		}
	})
	g := gatewaytest.Start(t, streams("", "", "", "tcp://"+addr))

	c := dialTCP(t, g.Addr("db"))
	_, _ = io.WriteString(c, "a")
	_, _ = io.ReadFull(c, make([]byte, 1))
	_ = c.SetLinger(0)
	_ = c.Close()
	if err := <-seen; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the backend saw %v of the client's reset", err)
	}
	if l := g.Lines.Next(t); l.Text("outcome") != "disconnected" || l.Text("error_code") != "client_gone" || l.Number("status") != 0 {
		t.Error(l)
	}

	close(reset)
	c = dialTCP(t, g.Addr("db"))
	_, _ = io.WriteString(c, "a")
	_, _ = io.ReadFull(c, make([]byte, 1))
	if err := over(t, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v of the backend's reset", err)
	}
	if l := g.Lines.Next(t); l.Text("outcome") != "aborted" || l.Text("error_code") != "backend_reset" {
		t.Error(l)
	}
}

// Idle is when both directions are (KF-TUN-01).
func TestTCPIdle(t *testing.T) {
	t.Parallel()
	addr := tcpBackend(t, func(c *net.TCPConn) {
		for range 10 {
			if _, err := io.WriteString(c, "tick"); err != nil {
				return
			}
			select {
			case <-time.After(400 * time.Millisecond):
			case <-t.Context().Done():
				return
			}
		}
		_, _ = c.Read(make([]byte, 1))
	})
	g := gatewaytest.Start(t, streams(`tcp_idle_timeout = "3s"`, "", "", "tcp://"+addr))
	c := dialTCP(t, g.Addr("db"))
	b, err := io.ReadAll(c)
	if string(b) != strings.Repeat("tick", 10) || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if l := g.Lines.Next(t); l.Text("outcome") != "timeout" || l.Text("limit") != "tcp_idle_timeout" || l.Text("error_code") != "idle_timeout" {
		t.Error(l)
	}
}

// A client that has left does not hold a backend that says nothing (KF-TUN-02).
func TestTCPHalfCloseTimeout(t *testing.T) {
	silent := make(chan struct{})
	addr := tcpBackend(t, func(*net.TCPConn) { <-silent })
	t.Cleanup(func() { close(silent) }) // before the backend waits for its connections
	g := gatewaytest.Start(t, streams(`tcp_half_close_timeout = "300ms"`, "", "", "tcp://"+addr))
	for range 20 {
		_ = dialTCP(t, g.Addr("db")).Close()
	}
	for range 20 {
		if l := g.Lines.Next(t); l.Text("outcome") != "timeout" || l.Text("limit") != "tcp_half_close_timeout" {
			t.Fatal(l)
		}
	}
}

// The same relay runs over connections that are no sockets.
func TestTCPInMemory(t *testing.T) {
	m := conn.NewMemory()
	l, err := m.Listen("backend:1")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		c, err := l.AcceptConn()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	text := strings.Replace(streams("", "", "", "tcp://backend:1"), `"127.0.0.1:0"`, `"127.0.0.1:7001"`, 1)
	g := gatewaytest.Start(t, text, gatewaytest.InMemory(m))
	c, err := m.Dial(t.Context(), g.Addr("db"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s := say(t, c, "hello"); s != "hello" {
		t.Error(s)
	}
	_ = c.CloseWrite()
	if err := over(t, c); err != io.EOF {
		t.Error(err)
	}
	if l := g.Lines.Next(t); l.Text("outcome") != "ok" {
		t.Error(l)
	}
}
