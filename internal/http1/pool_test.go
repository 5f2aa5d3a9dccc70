package http1_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// serving answers every request on a connection with 200 and the given body.
func serving(body string) script {
	return func(b peer, r *bufio.Reader, _ conn.Conn) {
		for requestHead(r) != "" {
			if _, err := io.WriteString(b, ok("Content-Length: "+itoa(len(body)))+body); err != nil {
				return
			}
		}
	}
}

func take(t *testing.T, p *http1.Pool, fresh bool) *http1.ClientConn {
	t.Helper()
	c, err := p.Get(ask{t.Context()}, fresh)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// use makes an exchange on c and gives it back.
func use(t *testing.T, c *http1.ClientConn) {
	t.Helper()
	if g := fetch(c, "GET", plainGet, false, false); g.err != nil || g.head.Status != 200 {
		t.Errorf("%d, %v", g.head.Status, g.err)
	}
	c.Release(true)
}

func eachBackend(t *testing.T, f func(t *testing.T, m backendMode)) {
	for _, m := range backendModes {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

func TestPoolReuse(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		p := backends(t, m, testClock(t), http1.PoolConfig{MaxIdle: 2}, serving("x"))
		a, b, c := take(t, p.Pool, false), take(t, p.Pool, false), take(t, p.Pool, false)
		use(t, a)
		use(t, b)
		if s := p.Stats(); s != (http1.Stats{Open: 3, Idle: 2}) {
			t.Errorf("%+v", s)
		}
		use(t, c) // one too many stays idle
		if s := p.Stats(); s != (http1.Stats{Open: 2, Idle: 2}) {
			t.Errorf("%+v", s)
		}
		first, second := take(t, p.Pool, false), take(t, p.Pool, false)
		if first != b || second != a {
			t.Error("not the one used last comes first")
		}
		if !first.Reused() {
			t.Error("not known as reused")
		}
		fresh := take(t, p.Pool, true)
		if fresh.Reused() {
			t.Error("a new connection was asked for")
		}
		for _, c := range []*http1.ClientConn{first, second, fresh} {
			use(t, c)
		}
	})
}

func TestPoolLimit(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		p := backends(t, m, testClock(t), http1.PoolConfig{MaxConnections: 2}, serving("x"))
		a, b := take(t, p.Pool, false), take(t, p.Pool, false)
		if _, err := p.Get(ask{t.Context()}, false); !errors.Is(err, http1.ErrPoolFull) {
			t.Errorf("third: %v", err)
		}
		use(t, a)
		use(t, b)
		c := take(t, p.Pool, true) // an idle one makes room
		if s := p.Stats(); s.Open != 2 || c.Reused() {
			t.Errorf("%+v", s)
		}
		use(t, c)
		p.Pool.Close()
		if _, err := p.Get(ask{t.Context()}, false); !errors.Is(err, http1.ErrPoolClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// TestPoolStale: an idle connection that the backend closed is not used; one that it closes with the request in hand is
// told apart from a failure.
func TestPoolStale(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		closed := make(chan struct{})
		p := backends(t, m, testClock(t), http1.PoolConfig{}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			requestHead(r)
			io.WriteString(b, ok("Content-Length: 0"))
			b.Close()
			close(closed)
		}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			requestHead(r)
			io.WriteString(b, ok("Content-Length: 0"))
			requestHead(r) // the second request gets no answer
		})
		use(t, take(t, p.Pool, false))
		<-closed
		c := take(t, p.Pool, false)
		if c.Reused() {
			t.Fatal("a closed connection was given out")
		}
		use(t, c)
		c = take(t, p.Pool, false)
		if !c.Reused() {
			t.Fatal("not reused")
		}
		g := fetch(c, "GET", plainGet, false, false)
		if !errors.Is(g.err, exchange.ErrStale) || c.Progress() != exchange.Sent {
			t.Errorf("%v, progress %d", g.err, c.Progress())
		}
		c.Release(true)
		if s := p.Stats(); s.Open != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestPoolPrune: the clock closes idle connections that are too old or that the backend closed.
func TestPoolPrune(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		leave := make(chan struct{})
		p := backends(t, m, testClock(t), http1.PoolConfig{}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			requestHead(r)
			io.WriteString(b, ok("Content-Length: 0"))
			<-leave
		}, serving("x"))
		a, b := take(t, p.Pool, false), take(t, p.Pool, false)
		use(t, a)
		use(t, b)
		close(leave)
		eventually(t, "the closed one is dropped", func() bool { return p.Stats() == http1.Stats{Open: 1, Idle: 1} })
	})
}

func TestPoolIdleTimeout(t *testing.T) {
	near, far := conn.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); serving("x")(far, bufio.NewReader(far), nil); far.Close() }()
	clock, ticks := testClock(t), new(ticks)
	ticks.count(t, clock)
	p := http1.NewPool(http1.PoolConfig{
		ConnectTimeout: 10 * time.Second, IdleTimeout: 3 * conn.Tick, MaxIdle: 4,
		Dial: func(context.Context) (net.Conn, error) { return near, nil },
	}, clock)
	defer p.Close()
	c := take(t, p, false)
	begun := ticks.n.Load()
	use(t, c)
	eventually(t, "the old one is dropped", func() bool { return p.Stats() == http1.Stats{} })
	if d := ticks.n.Load() - begun; d < 3 {
		t.Errorf("dropped after %d ticks", d)
	}
	<-done
}

// TestInterrupted: a connection whose wait was interrupted is not used again, even if its exchange was complete.
func TestInterrupted(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		asked := make(chan struct{})
		p := backends(t, m, testClock(t), http1.PoolConfig{}, serving("x"), func(_ peer, r *bufio.Reader, _ conn.Conn) {
			requestHead(r)
			close(asked)
			hold(r)
		})
		c := take(t, p.Pool, false)
		fetch(c, "GET", plainGet, false, false)
		c.Interrupt()
		c.Release(true)
		if s := p.Stats(); s.Open != 0 {
			t.Errorf("%+v", s)
		}
		c = take(t, p.Pool, false)
		var interrupting sync.WaitGroup
		interrupting.Go(func() {
			<-asked
			time.Sleep(50 * time.Millisecond) // the client waits for the answer by then, or is about to
			c.Interrupt()
		})
		g := fetch(c, "GET", plainGet, false, false)
		interrupting.Wait()
		if g.err == nil || errors.Is(g.err, exchange.ErrStale) || c.Progress() != exchange.Sent {
			t.Errorf("%v, progress %d", g.err, c.Progress())
		}
		c.Release(true)
	})
}

// TestEarlyResponse: a backend that answers and closes without reading a large body is heard.
func TestEarlyResponse(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		p := backends(t, m, testClock(t), http1.PoolConfig{}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			requestHead(r)
			io.WriteString(b, head("HTTP/1.1 413 Too Large", "Content-Length: 3", "Connection: close")+"big")
			b.CloseWrite()
			io.CopyN(io.Discard, r, 1<<20)
		})
		c := take(t, p.Pool, false)
		var f, trailers exchange.Fields
		var sink gather
		body := make([]byte, 1<<20)
		h, err := c.RoundTrip([]byte("POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1048576\r\n\r\n"), body, []byte("POST"), false, &f, &sink)
		if err == nil {
			err = c.CopyBody(&sink, false, &trailers)
		}
		if err != nil || h.Status != 413 || string(sink.body) != "big" {
			t.Errorf("%d %q %v", h.Status, sink.body, err)
		}
		c.Release(true)
	})
}

func TestDialErrors(t *testing.T) {
	const free = "127.0.0.1:1"                     // nobody is given this port who asks for any
	plain, err := net.Listen("tcp", "127.0.0.1:0") // answers TLS with something else
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			c.Close()
		}
	})
	defer wg.Wait()
	defer plain.Close()
	expired, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for name, tc := range map[string]struct {
		cfg  http1.PoolConfig
		ctx  context.Context
		want error
	}{
		"refused":        {http1.PoolConfig{Addr: free}, t.Context(), conn.ErrConnect},
		"no such socket": {http1.PoolConfig{Addr: "unix:" + filepath.Join(t.TempDir(), "none")}, t.Context(), conn.ErrConnect},
		"no port":        {http1.PoolConfig{Addr: "127.0.0.1"}, t.Context(), conn.ErrResolve},
		"bad name":       {http1.PoolConfig{Addr: "no such name.invalid:80"}, t.Context(), conn.ErrResolve},
		"no TLS":         {http1.PoolConfig{Addr: plain.Addr().String(), TLS: clientTLS}, t.Context(), conn.ErrTLS},
		"no time":        {http1.PoolConfig{Addr: free}, expired, conn.ErrConnect},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.ConnectTimeout, tc.cfg.IdleTimeout, tc.cfg.MaxIdle = 10*time.Second, time.Second, 1
			p := http1.NewPool(tc.cfg, testClock(t))
			defer p.Close()
			if _, err := p.Get(ask{tc.ctx}, false); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if s := p.Stats(); s.Open != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestTLSVerification: a backend whose certificate is not trusted, or is for another name, is refused.
func TestTLSVerification(t *testing.T) {
	for name, cfg := range map[string]*tls.Config{
		"untrusted":  {ServerName: "test"},
		"other name": func() *tls.Config { c := clientTLS(); c.ServerName = "other"; return c }(),
	} {
		t.Run(name, func(t *testing.T) {
			near, far := tcpPair(t)
			done := make(chan struct{})
			go func() { defer close(done); _ = tlsServer(far).Handshake(); far.Close() }()
			p := http1.NewPool(http1.PoolConfig{TLS: func() *tls.Config { return cfg }, ConnectTimeout: 10 * time.Second, Dial: func(context.Context) (net.Conn, error) { return near, nil }}, testClock(t))
			defer p.Close()
			if _, err := p.Get(ask{t.Context()}, false); !errors.Is(err, conn.ErrTLS) {
				t.Errorf("%v", err)
			}
			<-done
		})
	}
}

func TestUnixBackend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		serving("hello")(c.(*net.UnixConn), bufio.NewReader(c), nil)
	})
	defer wg.Wait()
	defer l.Close()
	p := http1.NewPool(http1.PoolConfig{Addr: "unix:" + path, ConnectTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxIdle: 1}, testClock(t))
	defer p.Close()
	for i := range 3 {
		c := take(t, p, false)
		if c.Reused() != (i > 0) {
			t.Errorf("round %d: reused %v", i, c.Reused())
		}
		use(t, c)
	}
}

// TestResolverRotation: all addresses of a name are used in turn, and one that refuses is passed over.
func TestResolverRotation(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(first.Addr().String())
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		first.Close()
		t.Skip("no second loopback address: ", err)
	}
	accepted := make(chan string)
	var wg sync.WaitGroup
	for _, l := range []net.Listener{first, second} {
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- l.Addr().(*net.TCPAddr).IP.String()
				c.Close()
			}
		})
	}
	stop := nameServer(t, "127.0.0.1", "127.0.0.2", "127.0.0.3") // nobody listens on the third
	p := http1.NewPool(http1.PoolConfig{Addr: "backend.test:" + port, ConnectTimeout: 5 * time.Second}, testClock(t))
	hits := make(map[string]int)
	for range 9 {
		take(t, p, true).Release(false)
		hits[<-accepted]++
	}
	p.Close()
	queries := stop()
	first.Close()
	second.Close()
	wg.Wait()
	if hits["127.0.0.1"] < 3 || hits["127.0.0.2"] < 3 || hits["127.0.0.1"]+hits["127.0.0.2"] != 9 {
		t.Errorf("%v", hits)
	}
	if queries == 0 || queries > 8 {
		t.Errorf("%d name queries for nine dials", queries)
	}
}

// nameServer makes the process's resolver ask a server that knows every name by the same IPv4 addresses.
func nameServer(t *testing.T, ips ...string) (stop func() (queries int)) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
	n := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			k, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			n++
			_, _ = pc.WriteTo(nameAnswer(buf[:k], ips), from)
		}
	}()
	return func() int {
		net.DefaultResolver = old
		pc.Close()
		<-done
		return n
	}
}

// nameAnswer makes a response to a query with one question.
func nameAnswer(q []byte, ips []string) []byte {
	end := 12
	for q[end] != 0 {
		end += int(q[end]) + 1
	}
	kind := binary.BigEndian.Uint16(q[end+1:])
	if kind != 1 {
		ips = nil
	}
	b := append([]byte(nil), q[:2]...)
	b = append(b, 0x81, 0x80, 0, 1, 0, byte(len(ips)), 0, 0, 0, 0)
	b = append(b, q[12:end+5]...)
	for _, ip := range ips {
		b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
		b = append(b, net.ParseIP(ip).To4()...)
	}
	return b
}

// TestUpgradedBackend takes a connection over after a 101; what came behind the head is not lost.
func TestUpgradedBackend(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		p := backends(t, m, testClock(t), http1.PoolConfig{}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			requestHead(r)
			io.WriteString(b, head("HTTP/1.1 101 Switching Protocols", "Connection: upgrade", "Upgrade: websocket")+"early")
			io.Copy(b, r)
		})
		c := take(t, p.Pool, false)
		var f exchange.Fields
		var sink gather
		h, err := c.RoundTrip([]byte(plainGet), nil, []byte("GET"), true, &f, &sink)
		if err != nil || string(h.Upgrade) != "websocket" {
			t.Fatalf("%q %v", h.Upgrade, err)
		}
		up := c.Takeover()
		io.WriteString(up, " echoed")
		got := make([]byte, len("early echoed"))
		if _, err := io.ReadFull(up, got); string(got) != "early echoed" || err != nil {
			t.Errorf("%q %v", got, err)
		}
		c.Release(false)
		if s := p.Stats(); s.Open != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLargeHead: a head that outgrows the buffer, behind interim ones, keeps its fields.
func TestLargeHead(t *testing.T) {
	eachBackend(t, func(t *testing.T, m backendMode) {
		pad := strings.Repeat("p", 20_000)
		p := backends(t, m, testClock(t), http1.PoolConfig{}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			for requestHead(r) != "" {
				io.WriteString(b, head("HTTP/1.1 103 Early Hints", "Link: "+pad[:3000])+ok("X-A: "+pad, "Content-Length: 4", "X-B: b")+"body")
			}
		})
		for range 3 {
			c := take(t, p.Pool, false)
			g := fetch(c, "GET", plainGet, false, false)
			if g.err != nil || string(g.sink.body) != "body" || !strings.Contains(g.fields, "X-A: "+pad+"\r\n") || !strings.Contains(g.fields, "X-B: b\r\n") {
				t.Fatalf("%v, body %q, %d bytes of fields", g.err, g.sink.body, len(g.fields))
			}
			c.Release(true)
		}
	})
}
