package http1_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// gather is a sink that keeps everything.
type gather struct {
	interim []int
	body    []byte
	runs    []byte // raw bytes
	payload int
	lasts   int
	closed  bool
	sent    int
}

func (g *gather) Sent() { g.sent++ }

func (g *gather) Body(p []byte, last bool) error {
	g.body = append(g.body, p...)
	if last {
		g.lasts++
	}
	return nil
}

func (g *gather) Raw(r exchange.RawRun) error {
	g.runs = append(g.runs, r.Bytes...)
	g.payload += r.Payload
	if r.Last {
		g.lasts++
		g.closed = r.Closed
	}
	return nil
}

func (g *gather) Interim(status int, _ *exchange.Fields) error {
	g.interim = append(g.interim, status)
	return nil
}

// ask bounds a dial.
type ask struct{ ctx context.Context }

func (ask) LastResort() bool { return false }
func (ask) Repeatable() bool { return false }

func (a ask) DialContext() (context.Context, context.CancelFunc) { return context.WithCancel(a.ctx) }

// backendMode is a kind of connection to a backend.
type backendMode struct {
	name string
	tls  bool
	dial func(t testing.TB) (near net.Conn, far peer)
}

var backendModes = []backendMode{
	{"kernel", false, func(t testing.TB) (net.Conn, peer) {
		near, far := tcpPair(t)
		return near, far.(*net.TCPConn)
	}},
	{"tls", true, func(t testing.TB) (net.Conn, peer) {
		near, far := tcpPair(t)
		return near, far.(*net.TCPConn)
	}},
	{"memory", false, func(testing.TB) (net.Conn, peer) {
		near, far := conn.Pipe()
		return near, far
	}},
}

// script plays a backend on one connection: b is the connection, r reads from it, far is what the pool holds.
type script func(b peer, r *bufio.Reader, far conn.Conn)

// backed is a pool whose connections are played by scripts, one after another; the last is repeated.
type backed struct {
	*http1.Pool
	wg sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	dials int
	ends  []peer
}

func backends(t testing.TB, m backendMode, clock *conn.Clock, cfg http1.PoolConfig, scripts ...script) *backed {
	b := new(backed)
	cfg.Dial = func(context.Context) (net.Conn, error) {
		near, far := m.dial(t)
		b.mu.Lock()
		play := scripts[min(b.dials, len(scripts)-1)]
		b.dials++
		b.mu.Unlock()
		b.wg.Go(func() { b.play(t, m, play, near, far) })
		return near, nil
	}
	if m.tls {
		cfg.TLS = clientTLS
	}
	if cfg.MaxIdle == 0 {
		cfg.MaxIdle = 8
	}
	cfg.ConnectTimeout, cfg.IdleTimeout = 10*time.Second, max(cfg.IdleTimeout, 10*time.Second)
	b.Pool = http1.NewPool(cfg, clock)
	t.Cleanup(func() {
		b.Pool.Close()
		b.mu.Lock()
		for _, e := range b.ends {
			_ = e.Close()
		}
		b.mu.Unlock()
		b.wg.Wait()
		if s := b.Pool.Stats(); s.Open != 0 {
			t.Errorf("%d connections stayed open", s.Open)
		}
	})
	return b
}

func (b *backed) play(t testing.TB, m backendMode, play script, near net.Conn, far peer) {
	defer far.Close()
	_ = far.SetDeadline(time.Now().Add(20 * time.Second))
	end := far
	if m.tls {
		s := tlsServer(far)
		if s.Handshake() != nil {
			return
		}
		end = s
	}
	b.mu.Lock()
	b.ends = append(b.ends, end)
	b.mu.Unlock()
	held, ok := near.(conn.Conn)
	if !ok {
		held = conn.NewPlain(near, conn.Info{})
	}
	play(end, bufio.NewReader(end), held)
}

// requestHead reads a request head, or returns "" at the end.
func requestHead(r *bufio.Reader) string {
	var all strings.Builder
	for {
		line, err := r.ReadString('\n')
		all.WriteString(line)
		if err != nil {
			return ""
		}
		if line == "\r\n" {
			return all.String()
		}
	}
}

// got is what a client made of a response.
type got struct {
	head     exchange.Head
	fields   string
	sink     gather
	trailers string
	err      error
	bodyErr  bool // err came after the head
}

const plainGet = "GET / HTTP/1.1\r\nHost: b\r\n\r\n"

// fetch sends a request on c and reads the whole response.
func fetch(c *http1.ClientConn, method, request string, upgrade, raw bool) (g got) {
	var f, trailers exchange.Fields
	g.head, g.err = c.RoundTrip([]byte(request), nil, []byte(method), upgrade, &f, &g.sink)
	if g.err != nil {
		return g
	}
	g.fields = string(f.AppendHTTP1(nil, 0))
	if g.err = c.CopyBody(&g.sink, raw && c.Chunked(), &trailers); g.err != nil {
		g.bodyErr = true
		return g
	}
	g.trailers = string(trailers.AppendHTTP1(nil, 0))
	return g
}

// hold keeps a backend's connection open until the pool closes it.
func hold(r io.Reader) { _, _ = io.Copy(io.Discard, r) }
