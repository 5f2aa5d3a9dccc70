package proxy_test

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// KF-LB-04: however an exchange ends, nothing of it stays counted.
func TestKF_LB_04(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		each := 100
		if m.name != "kernel" || testing.Short() {
			each = 15
		}
		b := newBackend(t, chaos)
		g := newGateway(t, m, options{
			service: func(l *config.LoadBalancer) {
				l.RequestTimeout, l.StreamIdleTimeout = 400*time.Millisecond, 400*time.Millisecond
				l.Strategy = config.LeastConnections
			},
			before: func(x *exchange.Exchange) {
				if strings.HasSuffix(string(x.Request.Path), "panic") {
					x.FilterResponse(filter{"panic"})
				}
			},
		}, b.addr)
		before := runtime.NumGoroutine()
		kinds := failures()
		var all sync.WaitGroup
		gate := make(chan struct{}, 64)
		for i := range each * len(kinds) {
			k := kinds[i%len(kinds)]
			gate <- struct{}{}
			all.Go(func() {
				k(g.dial(t))
				<-gate
			})
		}
		all.Wait()
		eventually(t, patience, "every exchange is recorded", func() bool { return g.recorded() >= each*len(kinds) })
		g.settled()
		eventually(t, patience, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+10 })
		if n := g.recorded(); n != each*len(kinds) {
			t.Errorf("%d records of %d exchanges", n, each*len(kinds))
		}
		if a := g.ask(t, get); a.status() != "200" {
			t.Errorf("afterwards: %+v", a)
		}
	})
}

// chaos is a backend that does what the path asks for.
func chaos(p *peer) {
	for p.next() {
		h := p.head()
		path := strings.Fields(h)[1]
		switch path {
		case "/close":
			return
		case "/reset":
			p.reset()
			return
		case "/silent", "/upload-silent":
			_, _ = p.closed(5 * time.Second)
			return
		case "/nonsense":
			p.sendAny("nonsense and more nonsense\r\n\r\n")
			return
		case "/half":
			p.sendAny("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
			return
		case "/half-chunk":
			p.sendAny(sseHead + "a\r\nhalf")
			p.reset()
			return
		case "/stall":
			p.sendAny(sseHead + chunk("x"))
			_, _ = p.closed(5 * time.Second)
			return
		case "/flood":
			p.sendAny("HTTP/1.1 200 OK\r\n\r\n")
			block := make([]byte, 1<<20)
			for {
				if _, err := p.Write(block); err != nil {
					return
				}
			}
		case "/early":
			p.sendAny("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
			return
		case "/switch", "/switch-close":
			p.sendAny(switched + "frame")
			if path == "/switch" {
				_, _ = p.closed(5 * time.Second)
			}
			return
		case "/switch-no":
			p.sendAny("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
		case "/echo":
			if !p.echo(h) {
				return
			}
		default:
			p.sendAny(ok)
		}
	}
}

// sendAny writes to a gateway that may be gone.
func (p *peer) sendAny(s string) { _, _ = io.WriteString(p.Conn, s) }

// echo answers with the request's own body while that is still coming.
func (p *peer) echo(head string) bool {
	if !strings.Contains(head, "Transfer-Encoding: chunked") {
		n := 0
		if i := strings.Index(head, "Content-Length: "); i >= 0 {
			_, _ = fmt.Sscanf(head[i:], "Content-Length: %d", &n)
		}
		p.sendAny(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", n))
		_, err := io.CopyN(p.Conn, p.r, int64(n))
		return err == nil
	}
	p.sendAny(sseHead)
	for {
		size, err := p.r.ReadString('\n')
		if err != nil {
			return false
		}
		p.sendAny(size)
		n := 0
		_, _ = fmt.Sscanf(size, "%x", &n)
		if _, err := io.CopyN(p.Conn, p.r, int64(n)+2); err != nil {
			return false
		}
		if n == 0 {
			return true
		}
	}
}

func request(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n" }

// failures are ways to end one exchange, each on a connection of its own. They run on many goroutines and must not
// fail the test by themselves.
func failures() []func(c *wire) {
	plain := func(path string) func(c *wire) {
		return func(c *wire) {
			_, _ = io.WriteString(c.Conn, request(path))
			_, _ = c.read(false)
			c.Close()
		}
	}
	leaving := func(path, body string, leave func(*wire), bytes int) func(c *wire) {
		return func(c *wire) {
			r := request(path)
			if body != "" {
				r = strings.Replace(upload, "POST /", "POST "+path, 1) + body
			}
			_, _ = io.WriteString(c.Conn, r)
			if bytes > 0 {
				_, _ = io.ReadFull(c.r, make([]byte, bytes))
			} else { // the request should have arrived
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				_, _ = c.r.Peek(1)
			}
			leave(c)
		}
	}
	fin := func(c *wire) { c.Close() }
	tunnel := func(path string, leave func(*wire)) func(c *wire) {
		return func(c *wire) {
			_, _ = io.WriteString(c.Conn, strings.Replace(handshake, "/chat", path, 1))
			_, _ = io.ReadFull(c.r, make([]byte, 40))
			leave(c)
		}
	}
	return []func(c *wire){
		plain("/close"), plain("/reset"), plain("/nonsense"), plain("/half"), plain("/half-chunk"), plain("/panic"), plain("/"),
		leaving("/silent", "", fin, 0), leaving("/silent", "", (*wire).reset, 0), plain("/silent"),
		leaving("/stall", "", fin, 30), leaving("/stall", "", (*wire).reset, 30), plain("/stall"),
		leaving("/flood", "", fin, 100_000), leaving("/flood", "", (*wire).reset, 100_000),
		leaving("/upload-silent", "5\r\nab", fin, 0), leaving("/upload-silent", "5\r\nab", (*wire).reset, 0),
		leaving("/upload-silent", "zz\r\n", fin, 20), leaving("/early", "5\r\nab", fin, 20), leaving("/echo", "2\r\nab\r\n0\r\n\r\n", fin, 100),
		leaving("/echo", "2\r\nab\r\n", (*wire).reset, 60),
		tunnel("/switch", fin), tunnel("/switch", (*wire).reset), tunnel("/switch-close", fin), tunnel("/switch-no", fin),
	}
}

// A panic behind or in front of the commit point gives everything back.
func TestPanicGivesEverythingBack(t *testing.T) {
	for name, answer := range map[string]string{"length": ok, "stream": sseHead + chunk("x")} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.head()
				p.sendAny(answer)
				p.gone(patience)
			})
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{before: func(x *exchange.Exchange) { x.OnHead(panics{}) }}, b.addr)
				c := g.dial(t)
				c.send(upload + "2\r\nab\r\n") // its pump must end too
				if a, err := c.read(false); err == nil && a.status() != "500" {
					t.Errorf("%+v", a)
				}
				r := g.record(0)
				if r.Err == nil || !strings.Contains(r.Err.Error(), "panic") {
					t.Errorf("%+v", r)
				}
				g.settled()
			})
		})
	}
}

// panics is a head hook that panics the first time.
type panics struct{}

func (panics) ResponseHead(x *exchange.Exchange) {
	if x.Response.Status != 500 {
		panic("hook")
	}
}

// Error bodies are JSON whatever the client calls itself.
func TestErrorBodyOfHostileRequest(t *testing.T) {
	g := newGateway(t, kernelMode, options{}, refusing(t))
	a := g.ask(t, "GET /\"'<> HTTP/1.1\r\nHost: a\r\nX-Request-Id: \"},{\"\\\xff\r\n\r\n")
	if want := `{"error":"Bad gateway","code":"connect_failed","request_id":"\"},{\"\\\u00ff"}`; a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
}
