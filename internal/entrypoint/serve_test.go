package entrypoint_test

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

func TestServesEveryKindOfAddress(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", ":0", "[::1]:0", "localhost:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
			t.Run(address, func(t *testing.T) {
				s := newSet(t, setup)
				infos := make(chan conn.Info, 1)
				srv := newLines()
				apply(t, s, wanted{"web": {Address: address, HTTP: func(c conn.Conn, live *drain.Tracker) {
					infos <- *c.Info()
					srv.serve(c, live)
				}}})
				c := mustDial(t, s.Addr("web"))
				c.want(t, "hello", "web hello")
				c.want(t, "again", "web again")
				info := <-infos
				if info.Entrypoint != "web" || info.TLS != nil {
					t.Errorf("info = %+v", info)
				}
				if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok {
					remote := c.RemoteAddr().(*net.TCPAddr).AddrPort()
					if info.Remote != tcp.AddrPort() || info.Local != remote {
						t.Errorf("info has %s to %s, the client %s to %s", info.Remote, info.Local, tcp, remote)
					}
				}
				_ = c.Close()
				eventually(t, "the connection is counted as ended", func() bool { return stats(t, s, "web").Open == 0 })
				if st := stats(t, s, "web"); st.Accepted != 1 || st.Address != s.Addr("web").String() {
					t.Errorf("stats = %+v", st)
				}
			})
		}
	})
}

// An IPv4-only and an IPv6-only entrypoint share a port.
func TestFamiliesShareAPort(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	srv := newLines()
	port := strconv.Itoa(gatewaytest.FreePorts(t, 1)[0])
	apply(t, s, wanted{"six": {Address: "[::]:" + port, HTTP: srv.serve}})
	apply(t, s, wanted{
		"six":  {Address: "[::]:" + port, HTTP: srv.serve},
		"four": {Address: "0.0.0.0:" + port, HTTP: srv.serve},
	})
	mustDial(t, s.Addr("four")).want(t, "x", "four x")
	six := net.TCPAddr{IP: net.IPv6loopback, Port: s.Addr("six").(*net.TCPAddr).Port}
	mustDial(t, &six).want(t, "x", "six x")
}

// Many short connections: every one is served, and the counters agree.
func TestShortConnections(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		const workers, total = 40, 10000
		s := newSet(t, setup)
		apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: newLines().serve}})
		addr := s.Addr("web")
		var wg sync.WaitGroup
		var lost atomic.Int32
		for range workers {
			wg.Go(func() {
				for range total / workers {
					if got, err := once(addr); err != nil || got != "web x" {
						if lost.Add(1) == 1 {
							t.Errorf("got %q, %v", got, err)
						}
					}
				}
			})
		}
		wg.Wait()
		if n := lost.Load(); n != 0 {
			t.Errorf("%d connections were lost", n)
		}
		if st := stats(t, s, "web"); st.Accepted != total || st.Refused != 0 || st.AcceptErrors != 0 {
			t.Errorf("stats = %+v", st)
		}
	})
}

func TestMaxConnections(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		srv := newLines()
		apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: srv.serve, MaxConnections: 2}})
		a, b := mustDial(t, s.Addr("web")), mustDial(t, s.Addr("web"))
		a.want(t, "1", "web 1")
		b.want(t, "2", "web 2")
		for range 3 {
			mustDial(t, s.Addr("web")).closed(t)
		}
		if st := stats(t, s, "web"); st.Open != 2 || st.Accepted != 2 || st.Refused != 3 {
			t.Errorf("stats = %+v", st)
		}
		_ = a.Close()
		eventually(t, "a place is free", func() bool { return stats(t, s, "web").Open == 1 })
		c := mustDial(t, s.Addr("web"))
		c.want(t, "3", "web 3")
		// A reload changes the limit in place, for new connections.
		apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: srv.serve, MaxConnections: 3}})
		mustDial(t, s.Addr("web")).want(t, "4", "web 4")
		mustDial(t, s.Addr("web")).closed(t)
		b.want(t, "5", "web 5")
	})
}

// Behind a load balancer a connection is accepted once its client is known and allowed; till then it takes a place.
func TestCountsIntroduced(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		apply(t, s, wanted{"web": {
			Address: "127.0.0.1:0", HTTP: newLines().serve, MaxConnections: 1,
			ProxyTrusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		}})
		free := func() bool { return stats(t, s, "web").Open == 0 }
		for _, line := range []string{"PROXY TCP4 198.51.100.1 192.0.2.2 1000 443\r", "no header in this line"} {
			c := mustDial(t, s.Addr("web"))
			if err := c.send(line); err != nil {
				t.Fatal(err)
			}
			c.closed(t)
			eventually(t, "the place is free", free)
		}
		c := mustDial(t, s.Addr("web"))
		if err := c.send("PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r"); err != nil {
			t.Fatal(err)
		}
		c.want(t, "1", "web 1")
		mustDial(t, s.Addr("web")).closed(t)
		if st := stats(t, s, "web"); st.Open != 1 || st.Accepted != 1 || st.Refused != 2 || st.ProxyFailures != 1 {
			t.Errorf("stats = %+v", st)
		}
	})
}

func TestPanicEndsOneConnection(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: newLines().serve}})
		other := mustDial(t, s.Addr("web"))
		other.want(t, "1", "web 1")
		c := mustDial(t, s.Addr("web"))
		if err := c.send("panic"); err != nil {
			t.Fatal(err)
		}
		c.closed(t)
		other.want(t, "2", "web 2")
		eventually(t, "the connection is counted as ended", func() bool { return stats(t, s, "web").Open == 1 })
		if st := stats(t, s, "web"); st.Panics != 1 {
			t.Errorf("stats = %+v", st)
		}
	})
}

func TestDrain(t *testing.T) {
	for name, c := range map[string]struct {
		mode       drain.Mode
		idleServed bool // the idle connection gets one more answer
	}{
		"prompt": {drain.Prompt, false},
		"gentle": {drain.Gentle, true},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
				s := newSet(t, setup)
				srv := newLines()
				apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: srv.serve}})
				addr := s.Addr("web")
				idle, busy := mustDial(t, addr), mustDial(t, addr)
				idle.want(t, "1", "web 1")
				if err := busy.send("hold"); err != nil {
					t.Fatal(err)
				}
				<-srv.held
				s.Drain(c.mode)
				if _, err := once(addr); err == nil {
					t.Error("a new connection was served")
				}
				if c.idleServed {
					idle.want(t, "2", "web 2")
				}
				idle.closed(t)
				if _, err := s.Prepare(t.Context(), nil); err != entrypoint.ErrStopped {
					t.Errorf("Prepare = %v", err)
				}
				close(srv.release)
				if got, err := busy.receive(); err != nil || got != "web hold" {
					t.Errorf("the busy connection got %q, %v", got, err)
				}
				busy.closed(t)
				if err := s.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestShutdownForcesAtTheDeadline(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	srv := newLines()
	apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: srv.serve}})
	busy := mustDial(t, s.Addr("web"))
	if err := busy.send("hold"); err != nil {
		t.Fatal(err)
	}
	<-srv.held
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan int, 1)
	go func() {
		n, err := s.Shutdown(ctx, drain.Prompt)
		if err != nil {
			t.Error(err)
		}
		result <- n
	}()
	eventually(t, "the set stops", func() bool { _, err := s.Prepare(t.Context(), nil); return err == entrypoint.ErrStopped })
	cancel()
	if n := <-result; n != 1 {
		t.Errorf("%d connections were forced, want 1", n)
	}
	busy.closed(t)
}
