package proxy_test

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// ping is an exchange that allocates nothing: one request is written, one answer of known size is read.
func ping(c net.Conn, request, answer []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	_, err := io.ReadFull(c, answer)
	return err
}

// answering serves requests of a fixed size without allocating.
func answering(size int, answer []byte) func(p *peer) {
	return func(p *peer) {
		c := p.Conn.(logged).Conn
		_ = c.SetDeadline(time.Time{})
		b := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	}
}

// forwardedSize is how long a request is when it reaches the backend.
func forwardedSize(t testing.TB, request string) int {
	t.Helper()
	size := make(chan int, 1)
	b := newBackend(t, func(p *peer) {
		h := p.head()
		if bytes.Contains([]byte(h), []byte("Content-Length: 2")) {
			h += p.bytes(2)
		}
		size <- len(h)
		p.send(ok)
	})
	g := newGateway(t, kernelMode, options{}, b.addr)
	c := g.dial(t)
	c.send(request)
	c.message(false)
	return <-size
}

// An exchange with small bodies allocates nothing, from the client's request to its answer.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const answer = "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nContent-Length: 2\r\n\r\nok"
	one := func(t *testing.T, request string) string {
		return newBackend(t, answering(forwardedSize(t, request), []byte(ok))).addr
	}
	two := func(t *testing.T, _ string) string { return quickH2C(t) }
	for name, tc := range map[string]struct {
		request string
		backend func(t *testing.T, request string) (url string)
	}{
		"GET": {get, one}, "inline POST": {post, one}, "GET over HTTP/2": {get, two}, "inline POST over HTTP/2": {post, two},
	} {
		t.Run(name, func(t *testing.T) {
			request := tc.request
			g := newGateway(t, kernelMode, options{}, tc.backend(t, request))
			g.quiet = true
			c := g.dial(t)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			in, out := []byte(request), make([]byte, len(answer))
			for range 500 {
				if err := ping(c.Conn, in, out); err != nil {
					t.Fatal(err)
				}
			}
			if string(out) != answer {
				t.Fatalf("%q", out)
			}
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would empty the pools
			const rounds = 2000
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				if err := ping(c.Conn, in, out); err != nil {
					t.Fatal(err)
				}
			}
			runtime.ReadMemStats(&after)
			each := float64(after.Mallocs-before.Mallocs) / rounds
			t.Logf("%.2f allocations, %.0f bytes an exchange", each, float64(after.TotalAlloc-before.TotalAlloc)/rounds)
			if each > 0.1 {
				t.Errorf("%.2f allocations an exchange, none is allowed", each)
			}
		})
	}
}

// BenchmarkGET is one client's requests over kept connections.
func BenchmarkGET(b *testing.B) {
	benchmark(b, get, newBackend(b, answering(forwardedSize(b, get), []byte(ok))).addr)
}

// BenchmarkHTTP2 is the same to a backend of HTTP/2.
func BenchmarkHTTP2(b *testing.B) { benchmark(b, get, quickH2C(b)) }

// BenchmarkInlinePOST is the same with a small body.
func BenchmarkInlinePOST(b *testing.B) {
	benchmark(b, post, newBackend(b, answering(forwardedSize(b, post), []byte(ok))).addr)
}

func benchmark(b *testing.B, request, backend string) {
	g := newGateway(b, kernelMode, options{}, backend)
	g.quiet = true
	c := g.dial(b)
	_ = c.SetDeadline(time.Time{})
	in, out := []byte(request), make([]byte, len("HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nContent-Length: 2\r\n\r\nok"))
	b.ReportAllocs()
	for b.Loop() {
		if err := ping(c.Conn, in, out); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
}
