package http1_test

import (
	"bufio"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// unchunk decodes what was passed on verbatim, completed as the server's side does.
func unchunk(t *testing.T, g gather, trailers string) string {
	t.Helper()
	all := string(g.runs)
	if !g.closed {
		all += trailers + "\r\n"
	}
	body, used, ok := decodeChunks([]byte(all))
	if !ok || used != len(all) || len(body) != g.payload {
		t.Errorf("passed on: %q (payload %d)", all, g.payload)
	}
	return string(body)
}

// run plays the case and checks what the client makes of it, and whether the connection is used again.
func (r *responded) run(t *testing.T, m backendMode, clock *conn.Clock, d delivery, raw bool) {
	method := r.method
	if method == "" {
		method = "GET"
	}
	sent := make(chan struct{})
	first := func(b peer, in *bufio.Reader, far conn.Conn) {
		if requestHead(in) == "" {
			close(sent)
			return
		}
		send(b, far, r.in, d)
		if r.fin {
			_ = b.Close()
		}
		close(sent)
		if !r.fin && requestHead(in) != "" {
			_, _ = b.Write([]byte(ok("Content-Length: 4") + "next"))
		}
		hold(in)
	}
	second := func(b peer, in *bufio.Reader, _ conn.Conn) {
		if requestHead(in) != "" {
			_, _ = b.Write([]byte(ok("Content-Length: 4") + "next"))
		}
		hold(in)
	}
	p := backends(t, m, clock, http1.PoolConfig{}, first, second)
	c, err := p.Get(ask{t.Context()}, false)
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(15*time.Second, c.Interrupt)
	g := fetch(c, method, method+" / HTTP/1.1\r\nHost: b\r\n\r\n", r.upgrade, raw)
	timer.Stop()
	r.check(t, d, g, raw)
	c.Release(true)
	if r.err == nil {
		<-sent
	}
	c, err = p.Get(ask{t.Context()}, false)
	if err != nil {
		t.Fatal(err)
	}
	if c.Reused() != r.reuse {
		t.Errorf("%+v: reused %v", d, c.Reused())
	}
	if g := fetch(c, "GET", plainGet, false, false); g.err != nil || string(g.sink.body) != "next" {
		t.Errorf("%+v: next response is %d %q, %v", d, g.head.Status, g.sink.body, g.err)
	}
	c.Release(true)
}

// TestResponses is the table of backends' responses, whole, byte by byte, and cut at every byte; chunked ones decoded and
// passed on verbatim.
func TestResponses(t *testing.T) {
	t.Parallel()
	for _, m := range backendModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			clock := testClock(t)
			for _, r := range responseCases {
				t.Run(r.name, func(t *testing.T) {
					r.run(t, m, clock, delivery{}, false)
					r.run(t, m, clock, delivery{}, true)
					if len(r.in) >= longCase {
						return
					}
					r.run(t, m, clock, delivery{each: true}, false)
					r.run(t, m, clock, delivery{each: true}, true)
					dist := 1
					if m.tls {
						dist = 37
					}
					for cut := 1; cut < len(r.in); cut += dist {
						r.run(t, m, clock, delivery{cut: cut}, cut%2 == 0)
					}
				})
			}
		})
	}
}
