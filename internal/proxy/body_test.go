package proxy_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

const upload = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

// Both bodies move at once: each piece is answered before the next one is sent.
func TestFullDuplex(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		for p.next() {
			p.head()
			p.send(sseHead)
			for {
				size := strings.TrimSuffix(p.line(), "\r\n")
				p.send(size + "\r\n")
				if size == "0" {
					p.send(p.line())
					break
				}
				p.send(p.line())
			}
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for range 2 { // the second on the same connection
			c.send(upload)
			c.head()
			for i := range 20 {
				piece := chunk(strings.Repeat("x", i+1))
				c.send(piece)
				c.expect(piece)
			}
			c.send(lastChunk)
			c.expect(lastChunk)
		}
		r := g.ended(1, exchange.OutcomeOK, "", "")
		if r.BytesIn != 210 || r.BytesOut != 210 {
			t.Errorf("%d bytes in, %d out", r.BytesIn, r.BytesOut)
		}
		if n := g.backends()[0].Pool.Stats(); n.Idle != 1 {
			t.Errorf("pool %+v", n)
		}
	})
}

// line reads a line with its end.
func (w *wire) line() string {
	s, err := w.r.ReadString('\n')
	if err != nil {
		w.fail("reading a line: %v after %q", err, s)
	}
	return s
}

// The first bytes of a body with a length are there before the last have been sent, and its answer may come first.
func TestAnswerBeforeUploadEnds(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.head()
		p.expect("12345")
		p.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nseen")
		p.expect("67890")
		p.send(" whole")
		if p.next() {
			p.fail("more than the body came")
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		c.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
		c.head()
		c.expect("seen")
		c.send("67890")
		c.expect(" whole")
		g.ended(0, exchange.OutcomeOK, "", "")
		for _, b := range g.backends() {
			if s := b.Pool.Stats(); s.Idle != 1 {
				t.Errorf("pool %+v", s)
			}
		}
	})
}

// KF-H1-03: an expectation goes to the backend, which decides.
func TestKF_H1_03(t *testing.T) {
	t.Parallel()
	const head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
	body := strings.Repeat("x", 1000000)
	expecting := func(p *peer) {
		if h := p.head(); !strings.Contains(h, "\r\nExpect: 100-continue\r\n") {
			p.fail("no expectation in %q", h)
		}
	}
	for _, tt := range []struct {
		name   string
		script func(p *peer)
		client func(t *testing.T, c *wire)
	}{
		{
			"refused", func(p *peer) {
				expecting(p)
				p.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
				p.gone(patience)
			},
			func(t *testing.T, c *wire) {
				if m := c.message(false); m.status() != "401" || m.body != "no" || m.header.Get("Connection") != "close" {
					t.Errorf("%+v", m)
				}
				if rest, err := c.closed(patience); rest != "" || err != nil {
					t.Errorf("%q, %v", rest, err)
				}
			},
		},
		{
			"closed", func(p *peer) { expecting(p) },
			func(t *testing.T, c *wire) {
				if m := c.message(false); m.status() != "502" || !strings.Contains(m.body, "backend_reset") {
					t.Errorf("%+v", m)
				}
			},
		},
		{
			"wanted", func(p *peer) {
				expecting(p)
				p.quiet(20 * time.Millisecond)
				p.send("HTTP/1.1 100 Continue\r\nX-Hint: 1\r\n\r\n")
				p.expect(body)
				p.send(ok)
				p.gone(patience)
			},
			func(t *testing.T, c *wire) {
				c.expect("HTTP/1.1 100 Continue\r\nX-Hint: 1\r\n\r\n")
				c.send(body)
				if m := c.message(false); m.status() != "200" || m.body != "ok" || m.header.Get("Connection") != "" {
					t.Errorf("%+v", m)
				}
			},
		},
		{
			"silent", func(p *peer) {
				expecting(p)
				p.expect(body)
				p.send(ok)
				p.gone(patience)
			},
			func(t *testing.T, c *wire) {
				c.quiet(300 * time.Millisecond) // then the client goes on by itself
				c.send(body)
				if m := c.message(false); m.status() != "200" || m.body != "ok" {
					t.Errorf("%+v", m)
				}
			},
		},
		{
			"answered with the 100", func(p *peer) {
				expecting(p)
				p.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok)
				p.gone(patience)
			},
			func(t *testing.T, c *wire) {
				c.expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
				if m := c.message(false); m.status() != "200" || m.body != "ok" {
					t.Errorf("%+v", m)
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend(t, tt.script)
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(head)
				tt.client(t, c)
				c.Close()
				g.record(0)
			})
		})
	}
}

// A client that expects to be asked and sends its body all the same keeps its connection, like every other.
func TestExpectationNotWaitedFor(t *testing.T) {
	const chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
	for name, request := range map[string]string{
		"body": "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
		"none": "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.message(false)
				p.send(chunks)
				p.quiet(20 * time.Millisecond) // so that the answer's head goes out before its end
				p.send("0\r\n\r\n")
				p.message(false)
				p.send(ok)
				p.gone(patience)
			})
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(request)
				if a := c.message(false); a.status() != "200" || a.body != "ok" {
					t.Errorf("%+v", a)
				}
				c.send(get)
				if a := c.message(false); a.status() != "200" || a.header.Get("Connection") != "" {
					t.Errorf("the next request: %+v", a)
				}
			})
		})
	}
}

// KF-H1-05: framing that can be read in two ways never reaches a backend.
func TestKF_H1_05(t *testing.T) {
	b := newBackend(t, func(p *peer) { p.fail("got %q", p.head()) })
	for _, framing := range []string{
		"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
		"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
	} {
		inModes(t, func(t *testing.T, m mode) {
			g := newGateway(t, m, options{}, b.addr)
			c := g.dial(t)
			c.send("POST / HTTP/1.1\r\nHost: a\r\n" + framing + "\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n")
			if m := c.message(false); m.status() != "400" {
				t.Errorf("%+v", m)
			}
			if rest, err := c.closed(patience); rest != "" || err != nil {
				t.Errorf("then %q, %v", rest, err)
			}
		})
	}
}

// KF-H1-07: a body that breaks is the client's fault, before and after the response head.
func TestKF_H1_07(t *testing.T) {
	left := make(chan struct{}, 1)
	silent := newBackend(t, func(p *peer) {
		p.gone(patience)
		left <- struct{}{}
	})
	early := newBackend(t, func(p *peer) {
		p.head()
		p.send(sseHead + chunk("data: 1\n\n"))
		p.gone(patience)
		left <- struct{}{}
	})
	inModes(t, func(t *testing.T, m mode) {
		for name, bad := range map[string]string{"at once": "zz\r\n", "later": "3\r\nabc\r\n3\r\nabcd\r\n", "bare LF": "5;x\nabcde\r\n0\r\n\r\n"} {
			t.Run(name, func(t *testing.T) {
				g := newGateway(t, m, options{}, silent.addr)
				c := g.dial(t)
				c.send(upload + bad)
				if m := c.message(false); m.status() != "400" || m.body != `{"error":"Malformed request body","code":"bad_request_body","request_id":"made"}` || m.header.Get("Connection") != "close" {
					t.Errorf("%+v", m)
				}
				if rest, err := c.closed(patience); rest != "" || err != nil {
					t.Errorf("then %q, %v", rest, err)
				}
				<-left
				r := g.ended(0, exchange.OutcomeRejected, exchange.CodeBadBody, "")
				if len(r.Attempts) != 1 {
					t.Errorf("attempts %+v", r.Attempts)
				}
				for _, s := range g.lb.AppendStats(nil) {
					if s.Refused != 0 || s.Skipped {
						t.Errorf("the backend is blamed: %+v", s)
					}
				}
			})
		}
		t.Run("after the head", func(t *testing.T) {
			g := newGateway(t, m, options{}, early.addr)
			c := g.dial(t)
			c.send(upload + "3\r\nabc\r\n")
			c.head()
			c.expect(chunk("data: 1\n\n"))
			c.send("zz\r\n")
			if rest, err := c.closed(patience); rest != "" || err != nil {
				t.Errorf("then %q, %v", rest, err)
			}
			<-left
			g.ended(0, exchange.OutcomeAborted, exchange.CodeBadBody, "")
		})
	})
	if got := silent.got(); strings.Contains(got, "0\r\n\r\n") {
		t.Errorf("a last chunk was sent: %q", got)
	}
}

// KF-H1-08: many requests over one connection, to a backend that takes nothing but its own framing.
func TestKF_H1_08(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		for n := 0; p.next(); n++ {
			m := p.message(false)
			for _, name := range []string{"Connection", "Keep-Alive", "Transfer-Encoding", "Te", "Upgrade"} {
				if v, ok := m.header[name]; ok && (name != "Transfer-Encoding" || len(v) != 1 || v[0] != "chunked") {
					p.fail("request %d has %s: %q", n, name, v)
				}
			}
			want := m.header.Get("X-Size")
			if fmt.Sprint(len(m.body)) != want {
				p.fail("request %d: %d bytes, want %s", n, len(m.body), want)
			}
			p.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(m.body), m.body))
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for i := range 200 {
			_ = c.SetDeadline(time.Now().Add(patience))
			size := i * i * 7 % 100_000
			body := strings.Repeat(string(rune('a'+i%26)), size)
			framing, framed := fmt.Sprintf("Content-Length: %d", size), body
			if i%3 == 0 {
				framing, framed = "Transfer-Encoding: chunked", chunk(body)+lastChunk
				if size == 0 {
					framed = lastChunk
				}
			}
			done := make(chan struct{})
			go func() { // the answer comes while this is still being sent
				defer close(done)
				_, _ = io.WriteString(c.Conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\nTE: trailers\r\nX-Size: "+
					fmt.Sprint(size)+"\r\n"+framing+"\r\n\r\n"+framed)
			}()
			a := c.message(false)
			<-done
			if a.status() != "200" || a.body != body {
				t.Fatalf("request %d of %d bytes: %s, %d bytes", i, size, a.line, len(a.body))
			}
		}
		if n := g.recorded(); n < 199 {
			t.Errorf("%d records", n)
		}
	})
	if n := b.opened(); n > 6 {
		t.Errorf("%d connections to the backend for three clients", n)
	}
}

// KF-H1-10: the answer to an upload that nobody reads reaches the client.
func TestKF_H1_10(t *testing.T) {
	t.Parallel()
	const answer = `{"error":"too large"}`
	for name, end := range map[string]func(p *peer){
		"closing":        func(*peer) {},
		"resetting late": func(p *peer) { p.quietly(50 * time.Millisecond); p.reset() },
		"staying":        func(p *peer) { _, _ = p.closed(patience) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.head()
				p.bytes(1 << 10)
				p.send("HTTP/1.1 413 Too Large\r\nContent-Length: " + fmt.Sprint(len(answer)) + "\r\n\r\n" + answer)
				end(p)
			})
			inModes(t, func(t *testing.T, m mode) {
				for _, framing := range []string{"Content-Length: 20971520", "Transfer-Encoding: chunked"} {
					g := newGateway(t, m, options{}, b.addr)
					c := g.dial(t)
					sent := make(chan struct{})
					go func() {
						defer close(sent)
						block := strings.Repeat("x", 1<<16)
						if strings.HasPrefix(framing, "T") {
							block = chunk(block)
						}
						_, _ = io.WriteString(c.Conn, "POST / HTTP/1.1\r\nHost: a\r\n"+framing+"\r\n\r\n")
						for range 320 {
							if _, err := io.WriteString(c.Conn, block); err != nil {
								return
							}
						}
					}()
					if a := c.message(false); a.status() != "413" || a.body != answer || a.header.Get("Connection") != "close" {
						t.Errorf("%+v", a)
					}
					<-sent
					if _, err := c.closed(patience); err != nil {
						t.Error(err)
					}
					c.Close()
					g.ended(0, exchange.OutcomeOK, "", "")
				}
			})
		})
	}
}

// Trailers pass in both directions.
func TestTrailers(t *testing.T) {
	trailers := make(chan string, 1)
	b := newBackend(t, func(p *peer) {
		for p.next() {
			m := p.message(false)
			trailers <- fmt.Sprint(m.body, m.trailer)
			p.send("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nx-Other: 2\r\n\r\n")
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for range 2 {
			c.send(upload + "3\r\nabc\r\n0\r\nX-Digest: d\r\nX-More: e\r\n\r\n")
			if a := c.message(false); a.body != "ok" || a.trailer.Get("X-Sum") != "1" || a.trailer.Get("X-Other") != "2" {
				t.Errorf("%+v", a)
			}
			if got := <-trailers; got != "abcmap[X-Digest:[d] X-More:[e]]" {
				t.Errorf("backend got %s", got)
			}
		}
		// HTTP/1.0 has no place for them.
		c = g.dial(t)
		c.send("GET / HTTP/1.0\r\n\r\n")
		if a := c.message(false); a.body != "ok" {
			t.Errorf("%+v", a)
		}
		<-trailers
	})
}

// Trailers that frame, route or authenticate are refused.
func TestForbiddenTrailers(t *testing.T) {
	begun := make(chan struct{})
	b := newBackend(t, func(p *peer) {
		p.message(false)
		p.send(sseHead + chunk("x"))
		<-begun
		p.send("0\r\nContent-Length: 5\r\n\r\n")
		p.gone(patience)
	})
	g := newGateway(t, kernelMode, options{}, b.addr)
	c := g.dial(t)
	c.send(get)
	c.head()
	c.expect(chunk("x"))
	close(begun)
	if rest, err := c.closed(patience); rest != "" || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
	g.ended(0, exchange.OutcomeAborted, exchange.CodeBadResponse, "")
}

// filter doubles what passes; with "bad" it fails, with "panic" it panics.
type filter struct{ mode string }

func (f filter) Filter(dst, chunk []byte, last bool) ([]byte, error) {
	switch f.mode {
	case "bad":
		return nil, io.ErrNoProgress
	case "panic":
		panic("filter")
	}
	return append(append(dst, chunk...), chunk...), nil
}

// Filters see payload, whatever the framing was; one that fails or panics harms nobody else.
func TestBodyFilters(t *testing.T) {
	for name, answer := range map[string]string{"length": ok, "chunks": sseHead + chunk("o") + chunk("k") + lastChunk, "close": "HTTP/1.1 200 OK\r\n\r\nok"} {
		b := newBackend(t, func(p *peer) { p.message(false); p.send(answer); p.fin2(); _, _ = p.closed(patience) })
		inModes(t, func(t *testing.T, m mode) {
			for _, f := range []string{"", "bad", "panic"} {
				t.Run(name+"/"+f, func(t *testing.T) {
					g := newGateway(t, m, options{before: func(x *exchange.Exchange) { x.FilterResponse(filter{f}) }}, b.addr)
					c := g.dial(t)
					c.send(get)
					a, err := c.read(false)
					switch {
					case f == "" && (err != nil || len(a.body) != 4 || a.header.Get("Content-Length") == "2"):
						t.Errorf("%+v, %v", a, err)
					case f != "" && (err != nil || a.status() != "500" || !strings.Contains(a.body, "internal_error")):
						t.Errorf("%+v, %v", a, err)
					}
					if f != "" {
						g.ended(0, exchange.OutcomeFailed, exchange.CodeInternal, "")
					}
					for _, s := range g.lb.AppendStats(nil) {
						if s.State != service.Healthy || s.Skipped {
							t.Errorf("%+v", s)
						}
					}
				})
			}
		})
	}
}
