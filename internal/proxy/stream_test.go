package proxy_test

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// sseHead begins an event stream.
const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

const lastChunk = "0\r\n\r\n"

// Each event arrives at once, however small.
func TestKF_STR_02(t *testing.T) {
	const events = 5
	seen := make(chan struct{}, events)
	b := newBackend(t, func(p *peer) {
		for p.next() {
			p.message(false)
			p.send(sseHead)
			for i := range events {
				p.send(chunk(fmt.Sprintf("data: %d\n\n", i)))
				select {
				case <-seen: // nothing else comes before
				case <-time.After(patience):
					t.Errorf("event %d has not arrived", i)
				}
			}
			p.send(lastChunk)
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		c.send(get)
		c.head()
		for i := range events {
			c.expect(chunk(fmt.Sprintf("data: %d\n\n", i)))
			seen <- struct{}{}
		}
		c.expect(lastChunk)
		g.ended(0, exchange.OutcomeOK, "", "")
	})
}

// The head of a stream does not wait for its first event.
func TestStreamHeadAtOnce(t *testing.T) {
	for name, head := range map[string]string{
		"head alone":         sseHead,
		"part of a size":     sseHead + "1",
		"a size":             sseHead + "10\r\n",
		"with a length":      "HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n",
		"ended by the close": "HTTP/1.1 200 OK\r\n\r\n",
	} {
		for _, version := range []string{"1.1", "1.0"} {
			t.Run(name+"/"+version, func(t *testing.T) {
				held := make(chan struct{})
				release := sync.OnceFunc(func() { close(held) })
				defer release()
				b := newBackend(t, func(p *peer) {
					p.message(false)
					p.send(head)
					<-held
					if strings.Contains(head, "chunked") {
						p.send(strings.TrimPrefix(chunk(strings.Repeat("x", 16))+lastChunk, strings.TrimPrefix(head, sseHead)))
						return
					}
					p.send(strings.Repeat("x", 16))
				})
				g := newGateway(t, kernelMode, options{}, b.addr)
				c := g.dial(t)
				c.send("GET / HTTP/" + version + "\r\nHost: a.test\r\n\r\n")
				if _, err := c.r.Peek(1); err != nil {
					t.Fatal(err)
				}
				release()
				if m := c.message(false); m.body != strings.Repeat("x", 16) {
					t.Fatalf("%+v", m)
				}
			})
		}
	}
}

// Bytes pass unchanged wherever they are cut.
func TestKF_STR_03(t *testing.T) {
	const events = "data: one\r\n\r\ndata: two\r\rdata: three\n\n"
	var whole strings.Builder
	for _, e := range []string{"data: one\r\n\r\n", "data: two\r\r", "data: three\n\n"} {
		whole.WriteString(chunk(e))
	}
	whole.WriteString(lastChunk)
	wire := whole.String()
	cuts := make(chan int, 1)
	b := newBackend(t, func(p *peer) {
		for p.next() {
			p.message(false)
			cut := <-cuts
			p.send(sseHead + wire[:cut])
			p.quiet(time.Millisecond)
			p.send(wire[cut:])
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for cut := range len(wire) {
			cuts <- cut
			c.send(get)
			if m := c.message(false); m.body != events {
				t.Fatalf("cut at %d: %q", cut, m.body)
			}
		}
	})
}

// A byte at a time, also inside of characters.
func TestKF_STR_11(t *testing.T) {
	const text = "data: 漢字 🦥 \u2028 \u0085 end\n\n"
	b := newBackend(t, func(p *peer) {
		for p.next() {
			p.message(false)
			for _, c := range []byte(sseHead + chunk(text) + chunk("x") + lastChunk) {
				p.send(string([]byte{c}))
				if c != '\n' {
					runtime.Gosched()
				}
			}
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		for _, version := range []string{"1.1", "1.0"} {
			if m := g.ask(t, "GET / HTTP/"+version+"\r\nHost: a\r\n\r\n"); m.body != text+"x" {
				t.Fatalf("%q", m.body)
			}
		}
	})
}

// A backend that repeats its framing is refused at once, by name.
func TestKF_STR_04(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.message(false)
		p.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("data: a\n\n"))
		p.gone(soon)
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		start := time.Now()
		a := g.ask(t, get)
		if a.status() != "502" || a.body != `{"error":"Bad gateway","code":"bad_backend_response","request_id":"made"}` {
			t.Fatalf("%+v", a)
		}
		if d := time.Since(start); d > soon {
			t.Errorf("took %v", d)
		}
		r := g.ended(0, exchange.OutcomeFailed, exchange.CodeBadResponse, "")
		if !strings.Contains(r.Err.Error(), b.addr) || !strings.Contains(r.Err.Error(), "Transfer-Encoding") {
			t.Errorf("the log says %q", r.Err)
		}
	})
}

// The backend's stream ends with its client.
func TestKF_STR_05(t *testing.T) {
	t.Parallel()
	for how, leave := range map[string]func(*wire){"FIN": func(c *wire) { c.Close() }, "RST": (*wire).reset, "half-close": (*wire).fin} {
		t.Run(how, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.message(false)
				p.send(sseHead + chunk("data: 1\n\n") + chunk("data: 2\n\n"))
				p.gone(soon)
			})
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(get)
				c.head()
				c.expect(chunk("data: 1\n\n") + chunk("data: 2\n\n"))
				start := time.Now()
				leave(c)
				g.ended(0, exchange.OutcomeDisconnected, exchange.CodeClientGone, "")
				if d := time.Since(start); d > time.Second {
					t.Errorf("noticed after %v", d)
				}
				g.settled()
				if n := g.recorded(); n != 1 {
					t.Errorf("%d records", n)
				}
			})
		})
	}
}

// So it does while nothing has been answered yet.
func TestKF_STR_06(t *testing.T) {
	t.Parallel()
	requests := map[string]string{
		"GET":         get,
		"inline POST": "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
		"upload":      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"half upload": "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{}",
		"unread":      get + get, // FIN behind bytes that nobody reads
	}
	for name, request := range requests {
		for how, leave := range map[string]func(*wire){"FIN": func(c *wire) { c.Close() }, "RST": (*wire).reset} {
			t.Run(name+"/"+how, func(t *testing.T) {
				seen := make(chan struct{}, 1)
				b := newBackend(t, func(p *peer) {
					p.head()
					seen <- struct{}{}
					p.gone(soon)
				})
				inModes(t, func(t *testing.T, m mode) {
					g := newGateway(t, m, options{}, b.addr)
					c := g.dial(t)
					c.send(request)
					<-seen
					start := time.Now()
					leave(c)
					r := g.ended(0, exchange.OutcomeDisconnected, exchange.CodeClientGone, "")
					if d := time.Since(start); d > time.Second {
						t.Errorf("noticed after %v", d)
					}
					if len(r.Attempts) != 1 || r.Attempts[0].Status != 0 || r.Attempts[0].Code != exchange.CodeClientGone {
						t.Errorf("attempts %+v", r.Attempts)
					}
					g.settled()
				})
			})
		}
	}
}

// Three limits, each with its name.
func TestKF_STR_09(t *testing.T) {
	t.Parallel()
	stream := func(events int, gap time.Duration) func(p *peer) {
		return func(p *peer) {
			p.message(false)
			p.quiet(100 * time.Millisecond)
			p.send(sseHead)
			for range events {
				if _, err := p.closed(gap); err == nil {
					return
				}
				if _, err := p.Write([]byte(chunk("data: x\n\n"))); err != nil {
					return
				}
			}
			_, _ = p.Write([]byte(lastChunk))
		}
	}
	limits := func(request, idle, total time.Duration) func(*config.LoadBalancer) {
		return func(l *config.LoadBalancer) {
			l.RequestTimeout, l.StreamIdleTimeout, l.StreamTotalTimeout = request, idle, total
		}
	}
	const long = time.Minute
	for _, tt := range []struct {
		name   string
		script func(p *peer)
		limits func(*config.LoadBalancer)
		code   exchange.Code
		limit  string
		end    exchange.Outcome
	}{
		{"within all", stream(10, 250*time.Millisecond), limits(2*time.Second, 2*time.Second, long), "", "", exchange.OutcomeOK},
		{"gap", stream(1, soon), limits(long, 500*time.Millisecond, long), exchange.CodeStreamIdle, "stream_idle_timeout", exchange.OutcomeTimeout},
		{"total", stream(100, 100*time.Millisecond), limits(long, long, 1500*time.Millisecond), exchange.CodeStreamTotal, "stream_total_timeout", exchange.OutcomeTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend(t, tt.script)
			inModes(t, func(t *testing.T, m mode) {
				t.Parallel()
				g := newGateway(t, m, options{service: tt.limits}, b.addr)
				c := g.dial(t)
				c.send(get)
				a, err := c.read(false)
				if (err == nil) != (tt.code == "") {
					t.Errorf("%+v, %v", a, err)
				}
				g.ended(0, tt.end, tt.code, tt.limit)
			})
		})
	}
	t.Run("head", func(t *testing.T) {
		b := newBackend(t, func(p *peer) {
			p.message(false)
			p.gone(5 * time.Second)
		})
		g := newGateway(t, kernelMode, options{service: limits(time.Second, long, long)}, b.addr)
		a := g.ask(t, get)
		if a.status() != "504" || a.body != `{"error":"Upstream timeout","code":"response_timeout","request_id":"made"}` {
			t.Errorf("%+v", a)
		}
		g.ended(0, exchange.OutcomeFailed, exchange.CodeResponseTimeout, "request_timeout")
	})
	t.Run("the total is the smallest", func(t *testing.T) {
		b := newBackend(t, func(p *peer) {
			p.message(false)
			p.gone(5 * time.Second)
		})
		g := newGateway(t, kernelMode, options{service: limits(2*time.Second, long, time.Second)}, b.addr)
		if a := g.ask(t, get); a.status() != "504" {
			t.Errorf("%+v", a)
		}
		g.ended(0, exchange.OutcomeFailed, exchange.CodeResponseTimeout, "stream_total_timeout")
	})
}

// The total limit ends also a stream that always has more.
func TestTotalLimitOfBusyStream(t *testing.T) {
	slower := func(x *exchange.Exchange) { x.FilterResponse(laborious{}) }
	b := newBackend(t, func(p *peer) {
		p.message(false)
		block := strings.Repeat("x", 1<<20)
		p.send("HTTP/1.1 200 OK\r\n\r\n")
		for {
			if _, err := p.Write([]byte(block)); err != nil {
				return
			}
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{service: func(l *config.LoadBalancer) { l.StreamTotalTimeout = time.Second }, before: slower}, b.addr)
		c := g.dial(t)
		c.send(get)
		start := time.Now()
		buf := make([]byte, 1<<20)
		for {
			if _, err := c.Read(buf); err != nil {
				break
			}
		}
		if d := time.Since(start); d > soon {
			t.Errorf("took %v", d)
		}
		g.ended(0, exchange.OutcomeTimeout, exchange.CodeStreamTotal, "stream_total_timeout")
	})
}

// laborious works on a body for longer than a backend takes to send more: the gateway never has to wait for that.
type laborious struct{}

func (laborious) Filter(dst, chunk []byte, _ bool) ([]byte, error) {
	for range 8 {
		sha256.Sum256(chunk)
	}
	return append(dst, chunk...), nil
}

// A client that reads slowly holds its backend back, in bounded memory, and is no idle backend.
func TestKF_STR_13(t *testing.T) {
	const size = 64 << 20
	sent := make(chan int, 64)
	b := newBackend(t, func(p *peer) {
		p.message(false)
		block := []byte(strings.Repeat("x", 1<<20))
		p.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size))
		n := 0
		defer func() { sent <- n }()
		for n < size {
			k, err := p.Write(block)
			n += k
			if err != nil {
				return
			}
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{
			service: func(l *config.LoadBalancer) { l.StreamIdleTimeout = time.Second },
		}, b.addr)
		const clients = 8
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var all []*wire
		for range clients {
			c := g.dial(t)
			c.send(get)
			c.bytes(1 << 10)
			all = append(all, c)
		}
		other := newBackend(t, replies(ok))
		fast := newGateway(t, m, options{}, other.addr)
		pace := time.NewTicker(20 * time.Millisecond) // in all longer than the timeout; the test keeps a record of each request, which takes memory too
		defer pace.Stop()
		for range 100 {
			<-pace.C
			start := time.Now()
			fast.ask(t, get)
			if d := time.Since(start); d > soon {
				t.Errorf("another request took %v", d)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > clients<<20+8<<20 {
			t.Errorf("heap grew by %d bytes for %d stalled streams", grown, clients)
		}
		if n := g.recorded(); n != 0 {
			t.Fatalf("%d streams ended: %+v", n, g.record(0))
		}
		for _, c := range all {
			c.Close()
			if n := <-sent; n > 32<<20 {
				t.Errorf("backend could write %d bytes", n)
			}
		}
	})
}

// Nothing is sent before a backend has answered, so another one may.
func TestKF_STR_14(t *testing.T) {
	b := newBackend(t, replies(ok))
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, refusing(t), b.addr)
		a := g.ask(t, get)
		if a.status() != "200" || a.body != "ok" {
			t.Errorf("%+v", a)
		}
		r := g.ended(0, exchange.OutcomeOK, "", "")
		if len(r.Attempts) != 2 || r.Attempts[0].Code != exchange.CodeConnectFailed || r.Attempts[1].Status != 200 {
			t.Errorf("attempts %+v", r.Attempts)
		}
		alone := newGateway(t, m, options{}, refusing(t))
		if a := alone.ask(t, get); a.status() != "502" || a.body != `{"error":"Bad gateway","code":"connect_failed","request_id":"made"}` {
			t.Errorf("%+v", a)
		}
		alone.ended(0, exchange.OutcomeFailed, exchange.CodeConnectFailed, "")
	})
}
