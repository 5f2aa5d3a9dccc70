package proxy_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// A response that breaks off never looks whole.
func TestBrokenResponseBodies(t *testing.T) {
	for name, answer := range map[string]string{
		"short of its length":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"nothing of its length":     "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
		"between chunks":            sseHead + chunk("half"),
		"inside a chunk":            sseHead + "a\r\nhalf",
		"inside a size":             sseHead + chunk("half") + "1",
		"before the last empty":     sseHead + chunk("half") + "0\r\n",
		"inside trailers":           sseHead + chunk("half") + "0\r\nA: b\r\n",
		"a size that is no number":  sseHead + chunk("half") + "zz\r\n",
		"a chunk longer than said":  sseHead + "2\r\nhalf\r\n" + lastChunk,
		"a bare LF behind the size": sseHead + "4\nhalf\r\n" + lastChunk,
	} {
		for how, leave := range map[string]func(p *peer){"closing": func(*peer) {}, "resetting": (*peer).reset} {
			t.Run(name+"/"+how, func(t *testing.T) {
				b := newBackend(t, func(p *peer) {
					p.message(false)
					p.send(answer)
					leave(p)
				})
				inModes(t, func(t *testing.T, m mode) {
					for _, version := range []string{"1.1", "1.0"} {
						g := newGateway(t, m, options{}, b.addr)
						c := g.dial(t)
						c.send("GET / HTTP/" + version + "\r\nHost: a\r\n\r\n")
						a, err := c.read(false)
						if err == nil && version == "1.1" && a.status() != "502" {
							t.Errorf("looks whole: %+v", a)
						}
						if err == nil && version == "1.0" && a.status() != "502" {
							t.Errorf("HTTP/1.0: ended without a reset: %+v", a)
						}
						r := g.record(0)
						if r.Outcome != exchange.OutcomeAborted && r.Outcome != exchange.OutcomeFailed ||
							r.Code != exchange.CodeBackendReset && r.Code != exchange.CodeBadResponse {
							t.Errorf("outcome %v, code %v, err %v", r.Outcome, r.Code, r.Err)
						}
					}
				})
			})
		}
	}
}

// What a backend sends beyond its answer is nobody's.
func TestExcessResponseBytes(t *testing.T) {
	var late atomic.Int64
	evil := "HTTP/1.1 200 OK\r\nX-Evil: 1\r\nContent-Length: 4\r\n\r\nevil"
	// The backend stays, so that it is the gateway that must not use the connection again.
	answers := func(text string) func(p *peer) {
		return func(p *peer) { p.message(false); p.send(text); p.gone(patience) }
	}
	for name, script := range map[string]func(p *peer){
		"with the length": answers(ok + evil),
		"with the chunks": answers(sseHead + chunk("ok") + lastChunk + evil),
		"of a HEAD":       answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + evil),
		"a moment later": func(p *peer) {
			p.message(false)
			p.send(ok)
			p.quietly(2 * time.Millisecond)
			p.send(evil)
			late.Add(1)
			p.gone(patience)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, script)
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				for range 10 {
					before := late.Load()
					method := "GET"
					if name == "of a HEAD" {
						method = "HEAD"
					}
					c.send(method + " / HTTP/1.1\r\nHost: a\r\n\r\n")
					if a := c.message(method == "HEAD"); a.status() != "200" || a.header.Get("X-Evil") != "" || method == "GET" && a.body != "ok" {
						t.Fatalf("%+v", a)
					}
					if name == "a moment later" {
						eventually(t, patience, "the excess has been sent", func() bool { return late.Load() > before })
						c.quiet(2 * time.Millisecond) // for one millisecond after an answer nobody looks
					}
				}
			})
		})
	}
}

// holds keeps a response from the client until what it waits for has happened.
type holds struct{ until func() }

func (h holds) Filter(dst, chunk []byte, _ bool) ([]byte, error) {
	h.until()
	return append(dst, chunk...), nil
}

// Excess bytes are looked for also before a connection is used again that was given back a moment ago, if they had time to come
// while the client took its answer.
func TestExcessResponseBytesWhileTheClientIsSlow(t *testing.T) {
	evil := "HTTP/1.1 200 OK\r\nX-Evil: 1\r\nContent-Length: 4\r\n\r\nevil"
	inModes(t, func(t *testing.T, m mode) {
		sent := make(chan struct{})
		var once sync.Once
		b := newBackend(t, func(p *peer) {
			p.message(false)
			p.send(ok)
			once.Do(func() {
				p.quietly(5 * time.Millisecond)
				p.send(evil)
				close(sent)
			})
			p.gone(patience)
		})
		g := newGateway(t, m, options{before: func(x *exchange.Exchange) { x.FilterResponse(holds{func() { <-sent }}) }}, b.addr)
		c := g.dial(t)
		c.send(strings.Repeat("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2))
		for range 2 {
			if a := c.message(false); a.status() != "200" || a.header.Get("X-Evil") != "" || a.body != "ok" {
				t.Errorf("%+v", a)
			}
		}
	})
}

// Backends that send a body behind the head of a response that has none are not rare: after such a head excess bytes are looked
// for however soon the connection is used again.
func TestExcessResponseBytesOfHead(t *testing.T) {
	const evil = "HTTP/1.1 200 OK\r\nX-Evil: 1\r\nContent-Length: 4\r\n\r\nevil"
	for name, first := range map[string][2]string{
		"HEAD": {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 57\r\n\r\n"},
		"304":  {"GET", "HTTP/1.1 304 Not Modified\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan struct{}, 1)
			b := newBackend(t, func(p *peer) {
				m := p.message(false)
				if !strings.Contains(m.line, "/none") {
					p.send(ok)
					return
				}
				p.send(first[1])
				p.quietly(100 * time.Microsecond)
				p.send(evil)
				sent <- struct{}{}
				_, _ = p.read(false)
			})
			g := newGateway(t, kernelMode, options{before: func(x *exchange.Exchange) {
				if string(x.Request.Path) == "/" {
					<-sent
				}
			}}, b.addr)
			for range 20 {
				c := g.dial(t)
				c.send(first[0] + " /none HTTP/1.1\r\nHost: a\r\n\r\n" + get)
				c.message(true)
				if a := c.message(false); a.header.Get("X-Evil") != "" || a.body != "ok" {
					t.Fatalf("%+v", a)
				}
				c.Close()
			}
		})
	}
}

// request_timeout restarts with each byte of the upload.
func TestRequestTimeoutAndUpload(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		for m, err := p.read(false); err == nil; m, err = p.read(false) {
			p.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(m.body), m.body))
		}
	})
	o := options{service: func(l *config.LoadBalancer) { l.RequestTimeout = 1500 * time.Millisecond }}
	inModes(t, func(t *testing.T, m mode) {
		t.Parallel()
		g := newGateway(t, m, o, b.addr)
		c := g.dial(t)
		c.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n")
		for range 8 {
			c.quiet(250 * time.Millisecond) // in all longer than the timeout
			c.send("x")
		}
		if a := c.message(false); a.status() != "200" || a.body != "xxxxxxxx" {
			t.Errorf("%+v", a)
		}
		start := time.Now()
		c.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nx")
		a := c.message(false)
		if a.status() != "504" || a.body != `{"error":"Upstream timeout","code":"response_timeout","request_id":"made"}` {
			t.Errorf("%+v", a)
		}
		if d := time.Since(start); d < 1500*time.Millisecond || d > soon {
			t.Errorf("after %v", d)
		}
		g.ended(1, exchange.OutcomeFailed, exchange.CodeResponseTimeout, "request_timeout")
	})
}

// The client's own limit for its body.
func TestBodyIdleTimeout(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(p *peer) { p.gone(patience) })
	o := options{server: func(s *http1.Settings) { s.BodyIdleTimeout = 200 * time.Millisecond }}
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, o, b.addr)
		if a := g.ask(t, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nx"); a.status() != "408" || !strings.Contains(a.body, "body_timeout") {
			t.Errorf("%+v", a)
		}
		g.ended(0, exchange.OutcomeRejected, exchange.CodeBodyTimeout, "body_idle_timeout")
	})
}

// A client that takes nothing at all.
func TestWriteIdleTimeout(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(p *peer) {
		p.message(false)
		p.send("HTTP/1.1 200 OK\r\n\r\n")
		block := []byte(strings.Repeat("x", 1<<20))
		for {
			if _, err := p.Write(block); err != nil {
				return
			}
		}
	})
	o := options{server: func(s *http1.Settings) { s.WriteIdleTimeout = 300 * time.Millisecond }}
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, o, b.addr)
		c := g.dial(t)
		c.send(get)
		c.head()
		g.ended(0, exchange.OutcomeTimeout, exchange.CodeWriteTimeout, "write_idle_timeout")
	})
}

// fin2 ends the sending side of a backend.
func (p *peer) fin2() { (&wire{Conn: p.Conn.(logged).Conn}).fin() }
