package app_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// traffic is clients that send the next datagram when the answer to the last has come.
type traffic struct {
	stop   atomic.Bool
	served atomic.Int64
	wg     sync.WaitGroup
}

func newTraffic(t testing.TB, addr string, clients int) *traffic {
	w := &traffic{}
	for i := range clients {
		c := dialUDP(t, addr)
		_ = c.SetDeadline(time.Time{})
		w.wg.Go(func() {
			b := make([]byte, 64)
			for n := 0; !w.stop.Load(); n++ {
				text := fmt.Sprintf("%d.%d", i, n)
				_ = c.SetReadDeadline(time.Now().Add(gatewaytest.Patience))
				_, err := c.Write([]byte(text))
				var k int
				if err == nil {
					k, err = c.Read(b)
				}
				if err != nil || string(b[:k]) != text {
					t.Errorf("datagram %s: %q %v", text, b[:k], err)
					return
				}
				w.served.Add(1)
			}
		})
	}
	return w
}

// more waits until others are served.
func (w *traffic) more(t testing.TB, n int64) {
	t.Helper()
	before := w.served.Load()
	gatewaytest.Until(t, "traffic goes on", func() bool { return w.served.Load() > before+n || t.Failed() })
}

func (w *traffic) end() {
	w.stop.Store(true)
	w.wg.Wait()
}

// Reloads lose no datagram, and sessions keep their backend and their socket as long as the configuration has them.
func TestUDPReload(t *testing.T) {
	var seen counted
	a := udpBackend(t, "127.0.0.1:0", func(b []byte, from net.Addr) []byte { seen.from(from); return b })
	other := udpBackend(t, "127.0.0.1:0", says("other "))
	at := gatewaytest.FreeAddress(t)
	g := gatewaytest.Start(t, datagrams(at, lasting, "", a))
	w := newTraffic(t, at, 8)
	defer w.end()
	for i := range 10 {
		w.more(t, 200)
		// Another timeout, another strategy, another rule, a backend more that gets nothing yet.
		text := datagrams(at, fmt.Sprintf("udp_session_timeout_secs = %d", 60+i%2), fmt.Sprintf("strategy = %q", []string{"random", "round-robin"}[i%2]), a)
		g.Apply(strings.Replace(text, "service     = \"s\"", fmt.Sprintf("service = \"s\", rule = \"ClientIP(`127.0.0.%d/8`)\"", i), 1))
	}
	w.more(t, 200)
	if n := seen.sources(); n != 8 {
		t.Errorf("8 clients had %d sessions", n)
	}
	gatewaytest.Until(t, "old generations are gone", func() bool { return g.Residue().Generations == 1 })
	w.end()

	c := dialUDP(t, at)
	ping(t, c, "x")
	g.Apply(datagrams(at, lasting, "", other))
	if got := ping(t, c, "x"); got != "other x" {
		t.Errorf("with its backend gone from the configuration, a client is answered %q", got)
	}
	g.Apply("shutdown_timeout_secs = 1\n" + site{backends: []string{"http://" + gatewaytest.FreeAddress(t)}}.String())
	for n := 0; n < 9+1; n++ { // eight of the traffic, which have moved on, and two of c
		if l := g.Lines.Next(t); l.Text("outcome") != "ok" && l.Text("outcome") != "drained" {
			t.Error(l)
		}
	}
	gatewaytest.Until(t, "the address of the removed entrypoint is free", func() bool {
		free, err := net.ListenPacket("udp", at)
		if err == nil {
			_ = free.Close()
		}
		return err == nil
	})
}

// A drain lets sessions go on until they are idle, takes no new client, and ends what is left at its deadline.
func TestUDPDrain(t *testing.T) {
	t.Parallel()
	b := udpBackend(t, "127.0.0.1:0", says("a"))
	t.Run("idle", func(t *testing.T) {
		text := datagrams("127.0.0.1:0", "udp_session_timeout_secs = 3", "", b)
		g := gatewaytest.Start(t, strings.Replace(text, "shutdown_timeout_secs = 0", "shutdown_timeout_secs = 30", 1))
		at := g.Addr("u")
		c := dialUDP(t, at)
		ping(t, c, "x")
		begin(g)
		early := 0 // clients that come between the order and the drain, each with one datagram
		gatewaytest.Until(t, "a new client is refused", func() bool {
			send(t, dialUDP(t, at), "x")
			early++
			return ping(t, c, "x") == "ax" && dropped(t, g, "draining") > 0
		})
		sent := float64(early + 2)
		if got := ping(t, c, "late"); got != "alate" {
			t.Errorf("in the drain: %q", got)
		}
		ended(t, g)
		for found := false; !found; early-- {
			l := g.Lines.Next(t)
			if found = l.Number("datagrams_in") == sent; l.Text("outcome") != "ok" || early == 0 {
				t.Fatal(l)
			}
		}
	})
	t.Run("forced", func(t *testing.T) {
		g := gatewaytest.Start(t, datagrams("127.0.0.1:0", lasting, "", b))
		ping(t, dialUDP(t, g.Addr("u")), "x")
		begin(g)
		ended(t, g)
		if l := g.Lines.Next(t); l.Text("outcome") != "drained" || l.Text("error_code") != "draining" {
			t.Error(l)
		}
	})
}

// A binary upgrade under traffic loses no datagram, and every client keeps its backend.
func TestUDPUpgrade(t *testing.T) {
	t.Parallel()
	var backends []string
	for _, name := range []string{"a", "b", "c"} {
		backends = append(backends, udpBackend(t, "127.0.0.1:0", func(b []byte, _ net.Addr) []byte {
			if string(b) == "who" {
				return []byte(name)
			}
			return b
		}))
	}
	dir := installed(t, "v1")
	install(t, "v2", filepath.Join(dir, "next"))
	path := filepath.Join(dir, "gateway.acl")
	if err := os.WriteFile(path, []byte(datagrams("127.0.0.1:0", "udp_session_timeout_secs = 8", "", backends...)), 0o600); err != nil {
		t.Fatal(err)
	}
	old := gatewaytest.Run(t, filepath.Join(dir, "sluice"), "-c", path, "--log-format", "json")
	at := old.Await(t, `"listening","entrypoint":"u","address":"([^"]+)"`)
	var clients []*net.UDPConn
	var who []string
	for range 30 {
		c := dialUDP(t, at)
		clients, who = append(clients, c), append(who, ping(t, c, "who"))
	}
	w := newTraffic(t, at, 8)
	defer w.end()
	w.more(t, 200)
	if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "sluice")); err != nil {
		t.Fatal(err)
	}
	pid, gone := upgraded(t, old)
	old.Await(t, `"sessions of datagrams taken over","sessions":(38)`)
	for i, c := range clients {
		if got := ping(t, c, "who"); got != who[i] {
			t.Errorf("client %d had backend %s and has %s", i, who[i], got)
		}
	}
	w.more(t, 500)
	if code, err := old.Ended(gatewaytest.Patience); code != 0 || err != nil { // its sessions are idle
		t.Errorf("the old process: %d %v\n%s", code, err, old.Output())
	}
	w.more(t, 200)
	w.end()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	gatewaytest.Until(t, "the new process has ended", gone)
}

// An address of both protocols is two sockets, and each may go without the other.
func TestUDPBesideTCP(t *testing.T) {
	t.Parallel()
	b := udpBackend(t, "127.0.0.1:0", says("a"))
	tcp := tcpBackend(t, echoes("t"))
	at := gatewaytest.FreeAddress(t)
	both := datagrams(at, "udp_session_timeout_secs = 3", "", b) + fmt.Sprintf("entrypoints \"t\" { address = %q, protocol = \"tcp\" }\nrouters \"t\" { rule = \"HostSNI(`*`)\", service = \"t\" }\nservices \"t\" { load_balancer { servers { url = %q } } }\n", at, "tcp://"+tcp)
	g := gatewaytest.Start(t, both)
	if got := ping(t, dialUDP(t, at), "x"); got != "ax" {
		t.Error(got)
	}
	if got := say(t, dialTCP(t, at), "x"); got != "t x" {
		t.Error(got)
	}
	g.Apply(strings.Replace(streams("", "", "", "tcp://"+tcp), "127.0.0.1:0", at, 1))
	if got := say(t, dialTCP(t, at), "x"); got != "t x" {
		t.Error(got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), gatewaytest.Patience)
	defer cancel()
	if err := g.ReloadText(ctx, datagrams(at, lasting, "", b)); err != nil {
		t.Fatal(err)
	}
	if got := ping(t, dialUDP(t, at), "x"); got != "ax" {
		t.Error(got)
	}
}
