package app_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// datagrams is a configuration of a udp entrypoint "u" at an address, with the given keys, in front of backends. Who is told
// to stop does not wait for sessions.
func datagrams(at, keys, serviceKeys string, backends ...string) string {
	var servers strings.Builder
	for _, b := range backends {
		fmt.Fprintf(&servers, "    servers { url = \"udp://%s\" }\n", b)
	}
	return fmt.Sprintf(`shutdown_timeout_secs = 0
entrypoints "u" {
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
%s    %s
  }
}
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
`, at, keys, servers.String(), serviceKeys)
}

// lasting has sessions outlive whatever holds a test up.
const lasting = "udp_session_timeout_secs = 60"

// udpBackend answers each datagram with what a func makes of it; nil is silence.
func udpBackend(t testing.TB, at string, answer func(b []byte, from net.Addr) []byte) string {
	t.Helper()
	c, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.UDPConn).SetReadBuffer(4 << 20)
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if a := answer(b[:n], from); a != nil && err == nil {
				_, _ = c.WriteTo(a, from)
			}
		}
	})
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	return c.LocalAddr().String()
}

// says has a backend put its name before each datagram.
func says(name string) func([]byte, net.Addr) []byte {
	return func(b []byte, _ net.Addr) []byte { return append([]byte(name), b...) }
}

// counted counts the addresses that a backend has seen.
type counted struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *counted) from(a net.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[a.String()]++
}

func (c *counted) sources() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
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

func send(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// ping sends a datagram and returns the next that comes.
func ping(t testing.TB, c net.Conn, text string) string {
	t.Helper()
	send(t, c, text)
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

// dropped is how many datagrams of the entrypoint "u" have been dropped for a reason.
func dropped(t testing.TB, g *gatewaytest.Gateway, reason string) float64 {
	t.Helper()
	return gatewaytest.Metric(scrape(t, g), fmt.Sprintf(`gateway_udp_dropped_datagrams_total{entrypoint="u",reason=%q}`, reason))
}

// Datagrams of every size go both ways, over both families, unchanged.
func TestUDPSizes(t *testing.T) {
	t.Parallel()
	for _, ip := range []string{"127.0.0.1", "[::1]"} {
		t.Run(ip, func(t *testing.T) {
			g := gatewaytest.Start(t, datagrams(ip+":0", lasting, "", udpBackend(t, ip+":0", says(""))))
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

// A socket of every address answers from the one that was asked, to clients of both families; backends may be of the
// other one.
func TestUDPAddresses(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"127.0.0.1:0", "[::1]:0"} {
		g := gatewaytest.Start(t, datagrams(":0", lasting, "", udpBackend(t, backend, says("a"))))
		_, port, _ := net.SplitHostPort(g.Addr("u"))
		for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.1.2.3", "::1"} {
			c := dialUDP(t, net.JoinHostPort(ip, port)) // connected: what comes from elsewhere is not read
			if got := ping(t, c, "x"); got != "ax" {
				t.Errorf("%s: %q", ip, got)
			}
		}
		// One client socket that writes to two addresses has two sessions.
		c, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
		for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
			to, _ := net.ResolveUDPAddr("udp4", net.JoinHostPort(ip, port))
			_, _ = c.WriteTo([]byte("x"), to)
			if _, from, err := c.ReadFrom(make([]byte, 9)); err != nil || from.String() != to.String() {
				t.Errorf("asked %s, answered by %v: %v", to, from, err)
			}
		}
		_ = c.Close()
		g.Stop()
	}
}

// A session is one line of the access log, and one in the counters, when it has ended.
func TestUDPRecord(t *testing.T) {
	t.Parallel()
	b := udpBackend(t, "127.0.0.1:0", says("a"))
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", "udp_session_timeout_secs = 5", "", b))
	c := dialUDP(t, g.Addr("u"))
	for range 3 {
		ping(t, c, "four")
	}
	l := g.Lines.Next(t)
	for k, want := range map[string]string{
		"protocol": "UDP", "outcome": "ok", "router": "r", "entrypoint": "u", "backend": "udp://" + b, "peer_ip": "127.0.0.1",
		"bytes_in": "12", "response_bytes": "15", "datagrams_in": "3", "datagrams_out": "3", "attempts": "1", "status": "0",
	} {
		if got := fmt.Sprint(l[k]); got != want {
			t.Errorf("%s is %s, not %s", k, got, want)
		}
	}
	gatewaytest.Until(t, "its place is free", func() bool { return g.Residue().Connections == 0 })
	m := scrape(t, g)
	for name, want := range map[string]float64{
		`gateway_udp_sessions_total{entrypoint="u",outcome="ok"}`: 1, `gateway_udp_bytes_total{direction="in",entrypoint="u"}`: 12,
		`gateway_udp_datagrams_total{direction="out",entrypoint="u"}`: 3, `gateway_open_connections{entrypoint="u"}`: 0,
		`gateway_service_errors_total{service="s"}`: 0, `gateway_service_requests_total{service="s"}`: 1,
	} {
		if got := gatewaytest.Metric(m, name); got != want {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
}

// KF-L4-05: how long a session lasts is the operator's choice, and what either side sends makes it last longer.
func TestKF_L4_05_SessionTimeout(t *testing.T) {
	t.Parallel()
	var seen counted
	late := make(chan time.Duration, 1)
	late <- 1500 * time.Millisecond
	b := udpBackend(t, "127.0.0.1:0", func(b []byte, from net.Addr) []byte {
		seen.from(from)
		select {
		case d := <-late:
			<-time.After(d) // the backend is slow
		default:
		}
		return b
	})
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", "udp_session_timeout_secs = 10", "", b))
	c := dialUDP(t, g.Addr("u"))
	if got := ping(t, c, "slow"); got != "slow" {
		t.Errorf("%q", got)
	}
	g.Stop()

	var oneWay counted
	silent := udpBackend(t, "127.0.0.1:0", func(_ []byte, from net.Addr) []byte { oneWay.from(from); return nil })
	g = gatewaytest.Start(t, datagrams("127.0.0.1:0", "udp_session_timeout_secs = 4", "", silent))
	c = dialUDP(t, g.Addr("u"))
	tick := time.NewTicker(250 * time.Millisecond) // twenty are longer than the timeout
	defer tick.Stop()
	for range 20 {
		<-tick.C
		send(t, c, "x")
	}
	if l := g.Lines.Next(t); fmt.Sprint(l["datagrams_in"]) != "20" || l.Text("outcome") != "ok" || oneWay.sources() != 1 {
		t.Errorf("%d sources: %v", oneWay.sources(), l)
	}
}

// KF-L4-06: the datagrams of one client go to one backend; clients are divided.
func TestKF_L4_06_Affinity(t *testing.T) {
	t.Parallel()
	a, b := udpBackend(t, "127.0.0.1:0", says("a")), udpBackend(t, "127.0.0.1:0", says("b"))
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, "", a, b))
	total := map[string]int{}
	for range 4 {
		c := dialUDP(t, g.Addr("u"))
		mine := map[string]int{}
		for range 100 {
			got := ping(t, c, "")
			mine[got]++
			total[got]++
		}
		if len(mine) != 1 {
			t.Errorf("one client has %v", mine)
		}
	}
	if total["a"] != 200 || total["b"] != 200 {
		t.Errorf("clients are divided as %v", total)
	}
}

// KF-L4-06: where each datagram is balanced, those of one client go to all backends in turn, each from one socket, and the
// answers of all come back. A reload to the default keeps one backend.
func TestKF_L4_06_Spread(t *testing.T) {
	t.Parallel()
	var sources [2]counted
	var backends []string
	for i, name := range []string{"a", "b"} {
		backends = append(backends, udpBackend(t, "127.0.0.1:0", func(_ []byte, from net.Addr) []byte {
			sources[i].from(from)
			return []byte(name)
		}))
	}
	const spread = lasting + "\n  udp_balance = \"datagram\""
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", spread, "", backends...))
	c := dialUDP(t, g.Addr("u"))
	total := map[string]int{}
	for range 1000 {
		total[ping(t, c, "x")]++
	}
	if total["a"] != 500 || total["b"] != 500 || sources[0].sources() != 1 || sources[1].sources() != 1 {
		t.Errorf("datagrams are divided as %v, from %d and %d sockets", total, sources[0].sources(), sources[1].sources())
	}
	g.Apply(datagrams("127.0.0.1:0", "udp_session_timeout_secs = 5", "", backends...))
	clear(total)
	for range 10 {
		total[ping(t, c, "x")]++
	}
	if len(total) != 1 {
		t.Errorf("by client: %v", total)
	}
	for range 2 { // one session ends after the other
		if l := g.Lines.Next(t); l.Text("outcome") != "ok" || l.Text("router") != "r" {
			t.Error(l)
		}
	}
}

// Where each datagram is balanced, a backend that refuses them costs none.
func TestUDPSpreadRefused(t *testing.T) {
	b := udpBackend(t, "127.0.0.1:0", says("b"))
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting+"\n  udp_balance = \"datagram\"", "", gatewaytest.FreeAddress(t), b))
	c := dialUDP(t, g.Addr("u"))
	for i := range 50 {
		if got := ping(t, c, fmt.Sprint(i)); got != "b"+fmt.Sprint(i) {
			t.Fatalf("%d: %q", i, got)
		}
	}
}

// KF-L4-07: a backend whose port is closed gets no clients once a check has found out; without checks, the answer of the
// network tells, and the datagram goes to another backend.
func TestKF_L4_07_ClosedPort(t *testing.T) {
	t.Parallel()
	b := udpBackend(t, "127.0.0.1:0", func(b []byte, _ net.Addr) []byte { return b })
	closed := gatewaytest.FreeAddress(t)
	t.Run("checked", func(t *testing.T) {
		g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, `health_check { interval = "100ms", unhealthy_threshold = 1 }`, closed, b))
		gatewaytest.Until(t, "the checks have told", func() bool {
			m := scrape(t, g)
			return strings.Contains(m, `gateway_backend_healthy`) && strings.Contains(g.Process.String(), `backend is unhealthy`) &&
				strings.Contains(g.Process.String(), `passed its first health check`)
		})
		for range 20 {
			if got := ping(t, dialUDP(t, g.Addr("u")), "x"); got != "x" {
				t.Fatal(got)
			}
		}
	})
	t.Run("found out", func(t *testing.T) {
		g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, "", closed, b))
		c := dialUDP(t, g.Addr("u"))
		if got := ping(t, c, "first"); got != "first" {
			t.Error(got)
		}
		if l := g.Lines.Next(t); l.Text("outcome") != "failed" || l.Text("error_code") != "connect_failed" || l.Text("backend") != "udp://"+closed {
			t.Error(l)
		}
		for range 20 {
			if got := ping(t, dialUDP(t, g.Addr("u")), "x"); got != "x" {
				t.Fatal(got)
			}
		}
		if got := ping(t, c, "again"); got != "again" {
			t.Fatal(got)
		}
	})
	t.Run("nobody is left", func(t *testing.T) {
		g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, "", closed))
		send(t, dialUDP(t, g.Addr("u")), "x")
		gatewaytest.Until(t, "it is dropped", func() bool { return dropped(t, g, "unreachable") == 1 })
		for range 3 { // tries
			if l := g.Lines.Next(t); l.Text("error_code") != "connect_failed" {
				t.Error(l)
			}
		}
	})
}

// At udp_max_sessions datagrams of new clients are dropped and counted; those of known ones go on.
func TestUDPFull(t *testing.T) {
	t.Parallel()
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", "udp_session_timeout_secs = 5, udp_max_sessions = 2", "", udpBackend(t, "127.0.0.1:0", says("a"))))
	one, two, three := dialUDP(t, g.Addr("u")), dialUDP(t, g.Addr("u")), dialUDP(t, g.Addr("u"))
	ping(t, one, "x")
	ping(t, two, "x")
	send(t, three, "x")
	gatewaytest.Until(t, "the third is dropped", func() bool { return dropped(t, g, "sessions_full") == 1 })
	ping(t, one, "x")
	gatewaytest.Until(t, "a place is free", func() bool { return g.Residue().Connections < 2 })
	if got := ping(t, three, "y"); got != "ay" {
		t.Error(got)
	}
}

// Datagrams that nothing is found for are counted by why, and leave no line: anybody could write those.
func TestUDPDropped(t *testing.T) {
	t.Parallel()
	b := udpBackend(t, "127.0.0.1:0", says("a"))
	text := datagrams("127.0.0.1:0", lasting, "", b)
	g := gatewaytest.Start(t, strings.Replace(text, "service     = \"s\"", "service = \"s\", rule = \"ClientIP(`10.0.0.0/8`)\"", 1))
	c := dialUDP(t, g.Addr("u"))
	send(t, c, "x")
	gatewaytest.Until(t, "it is dropped", func() bool { return dropped(t, g, "no_route") == 1 })
	g.Stop()

	g = gatewaytest.Start(t, strings.Replace(text, `servers { url = "udp://`+b+`" }`, `servers { url = "udp://`+b+`", weight = 0 }`, 1))
	send(t, dialUDP(t, g.Addr("u")), "x")
	gatewaytest.Until(t, "it is dropped", func() bool { return dropped(t, g, "no_backend") == 1 })
	g.Stop()

	g = gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, "", "no.such.name.invalid:53"))
	send(t, dialUDP(t, g.Addr("u")), "x")
	if l := g.Lines.Next(t); l.Text("outcome") != "failed" || l.Text("error_code") != "dns_failed" {
		t.Error(l)
	}
	if dropped(t, g, "unresolved") != 1 {
		t.Error("not counted")
	}
}

// A name server answers through the gateway, which finds it by its name.
func TestUDPNameServer(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBIND(t, "zone.test")
	_, port, _ := net.SplitHostPort(b.Address)
	g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, "", "localhost:"+port, "127.0.0.1:"+port))
	for i := range 50 {
		m := new(dns.Msg)
		m.SetQuestion(fmt.Sprintf("n%d.zone.test.", i), dns.TypeA)
		c := dns.Client{Timeout: gatewaytest.Patience}
		answer, _, err := c.Exchange(m, g.Addr("u"))
		if err != nil || len(answer.Answer) != 1 || answer.Answer[0].(*dns.A).A.String() != "127.0.0.1" {
			t.Fatalf("query %d: %v %v", i, answer, err)
		}
	}
}
