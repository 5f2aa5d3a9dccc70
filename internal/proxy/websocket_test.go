package proxy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// What is no handshake reaches no backend, and the connection goes on.
func TestHandshakeRefused(t *testing.T) {
	b := newBackend(t, func(p *peer) { p.fail("a backend was asked: %q", p.head()) })
	spoil := func(from, to string) string {
		if !strings.Contains(handshake, from) {
			t.Fatalf("no %q in the handshake", from)
		}
		return strings.Replace(handshake, from, to, 1)
	}
	const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	rows := []struct {
		name, head string
		status     string
	}{
		{"method", spoil("GET", "POST"), "400"},
		{"no Connection", spoil("Connection: keep-alive, Upgrade", "X: y"), "400"},
		{"no option", spoil("keep-alive, Upgrade", "keep-alive"), "400"},
		{"no key", spoil(key, ""), "400"},
		{"key of the connection", spoil("keep-alive, Upgrade", "Upgrade, sec-websocket-KEY"), "400"},
		{"version of the connection", spoil("keep-alive, Upgrade", "Upgrade\r\nConnection: Sec-WebSocket-Version"), "400"},
		{"two keys", spoil(key, key+key), "400"},
		{"short key", spoil("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="), "400"},
		{"no version", spoil("Sec-WebSocket-Version: 13\r\n", ""), "400"},
		{"two versions", spoil("Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13\r\n"), "400"},
		{"another version", spoil("Version: 13", "Version: 8"), "426"},
	}
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		n := 0
		for _, row := range rows {
			c.send(row.head)
			a := c.message(false)
			code := exchange.CodeBadHandshake
			if row.status == "426" {
				code = exchange.CodeUpgradeRequired
				if a.header.Get("Sec-WebSocket-Version") != "13" || a.header.Get("Upgrade") != "websocket" || a.header.Get("Connection") != "upgrade" {
					t.Errorf("%s: %v", row.name, a.header)
				}
			}
			if a.status() != row.status || !strings.Contains(a.body, `"`+string(code)+`"`) {
				t.Errorf("%s: %s %s", row.name, a.line, a.body)
			}
			if r := g.ended(n, exchange.OutcomeRejected, code, ""); len(r.Attempts) != 0 {
				t.Errorf("%s: %d attempts", row.name, len(r.Attempts))
			}
			n++
		}
		old := g.dial(t)
		old.send(strings.Replace(handshake, "HTTP/1.1", "HTTP/1.0", 1))
		if a := old.message(false); a.status() != "400" {
			t.Errorf("HTTP/1.0: %s", a.line)
		}
	})
}

// Forms of a good handshake.
func TestHandshakeForms(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		h := p.head()
		if strings.Count(strings.ToLower(h), "upgrade: websocket\r\n") != 1 || strings.Contains(h, "h2c") {
			p.fail("%q", h)
		}
		p.send(switched + "x")
		_, _ = p.closed(patience)
	})
	g := newGateway(t, kernelMode, options{}, b.addr)
	for _, head := range []string{
		strings.Replace(handshake, "Upgrade: websocket", "Upgrade: h2c, WebSocket", 1),
		strings.Replace(handshake, "Upgrade: websocket", "Upgrade: h2c\r\nUpgrade: websocket", 1),
		strings.Replace(handshake, "Host: a\r\n", "Host: a\r\nContent-Length: 0\r\n", 1),
		strings.Replace(handshake, "keep-alive, Upgrade", "upgrade", 1),
	} {
		c := g.dial(t)
		c.send(head)
		c.expect(relayed + "x")
		c.Close()
	}
}

// A 101 that does not answer the handshake is a broken response, and the client never sees one.
func TestHandshakeNotAccepted(t *testing.T) {
	for name, answer := range map[string]string{
		"no accept":                strings.Replace(switched, "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", "", 1),
		"accept of the connection": strings.Replace(switched, "Connection: Upgrade", "Connection: Upgrade, sec-websocket-accept", 1),
		"accept of another":        strings.Replace(switched, "s3pP", "s3pQ", 1),
		"subprotocol":              strings.Replace(switched, "\r\n\r\n", "\r\nSec-WebSocket-Protocol: other\r\n\r\n", 1),
		"protocol":                 strings.Replace(switched, "Upgrade: websocket", "Upgrade: h2c", 1),
		"protocol in a second":     strings.Replace(switched, "Upgrade: websocket", "Upgrade: websocket\r\nUpgrade: h2c", 1),
		"no protocol":              strings.Replace(switched, "Upgrade: websocket\r\n", "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.head()
				p.send(answer)
				p.gone(soon)
			})
			g := newGateway(t, kernelMode, options{}, b.addr)
			c := g.dial(t)
			c.send(handshake)
			if a := c.message(false); a.status() != "502" || strings.Contains(a.body, "WebSocket") {
				t.Errorf("%s %s", a.line, a.body)
			}
			r := g.ended(0, exchange.OutcomeFailed, exchange.CodeBadResponse, "")
			if r.Upgraded || len(r.Attempts) != 1 {
				t.Errorf("%+v", r)
			}
			g.settled()
		})
	}
}

// bounded sets the bounds of sessions.
func bounded(w config.WebSocket) options {
	return options{whole: func(s *config.Service) { s.WebSocket = w }}
}

const goingAway = "\x88\x02\x03\xe9"

// A session that the gateway ends is told so, if what the client has got so far ends with a frame, and closed in any case.
func TestSessionBounds(t *testing.T) {
	t.Parallel()
	const hello = "\x81\x05hello"
	for _, tt := range []struct {
		name    string
		bounds  config.WebSocket
		sent    string // by the backend
		told    string
		force   bool
		outcome exchange.Outcome
		code    exchange.Code
		limit   string
	}{
		{"idle", config.WebSocket{IdleTimeout: 300 * time.Millisecond}, hello, goingAway, false, exchange.OutcomeTimeout, exchange.CodeIdle, "websocket.idle_timeout"},
		{"idle inside a frame", config.WebSocket{IdleTimeout: 300 * time.Millisecond}, hello + "\x82\x7e\x01", "", false, exchange.OutcomeTimeout, exchange.CodeIdle, "websocket.idle_timeout"},
		{"idle after a close frame", config.WebSocket{IdleTimeout: 300 * time.Millisecond}, hello + "\x88\x00", "", false, exchange.OutcomeTimeout, exchange.CodeIdle, "websocket.idle_timeout"},
		{"lifetime", config.WebSocket{IdleTimeout: time.Minute, Lifetime: 300 * time.Millisecond}, hello, goingAway, false, exchange.OutcomeTimeout, exchange.CodeStreamTotal, "websocket.lifetime"},
		{"drain", config.WebSocket{}, hello, goingAway, true, exchange.OutcomeDrained, "", ""},
		{"drain before a frame", config.WebSocket{}, "", goingAway, true, exchange.OutcomeDrained, "", ""},
		{"drain inside a frame", config.WebSocket{}, hello[:6], "", true, exchange.OutcomeDrained, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.upgraded()
				p.send(switched + tt.sent)
				p.gone(patience)
			})
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, bounded(tt.bounds), b.addr)
				c := g.dial(t)
				c.send(handshake)
				c.expect(relayed + tt.sent)
				if tt.force {
					g.live.Force()
				}
				got := make([]byte, len(tt.told))
				if len(got) > 0 {
					got = []byte(c.bytes(len(got)))
				}
				if string(got) != tt.told {
					t.Errorf("told %q", got)
				}
				if rest, err := c.closed(soon); rest != "" || err != nil {
					t.Errorf("then %q, %v", rest, err)
				}
				_ = c.Close()
				r := g.ended(0, tt.outcome, tt.code, tt.limit)
				if !r.Upgraded || r.BytesOut != int64(len(tt.sent)) {
					t.Errorf("upgraded %t, %d bytes out", r.Upgraded, r.BytesOut)
				}
				g.settled()
			})
		})
	}
}

// A shorter idle bound holds also when one side has ended.
func TestSessionHalfClosedIdle(t *testing.T) {
	over := make(chan struct{})
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		if _, err := p.closed(patience); err != nil {
			p.fail("%v", err)
		}
		<-over // without an end of its own
	})
	t.Cleanup(func() { close(over) })
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, bounded(config.WebSocket{IdleTimeout: 300 * time.Millisecond}), b.addr)
		c := g.dial(t)
		c.send(handshake)
		c.expect(relayed)
		c.fin()
		if rest, err := c.closed(patience); rest != goingAway || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		g.ended(0, exchange.OutcomeTimeout, exchange.CodeIdle, "websocket.idle_timeout")
	})
}

// A client that takes nothing cannot keep a session beyond its bounds.
func TestSessionStalled(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		for chunk := strings.Repeat("x", 1<<20); ; {
			if _, err := p.Write([]byte(chunk)); err != nil {
				return
			}
		}
	})
	for limit, bounds := range map[string]config.WebSocket{
		"websocket.idle_timeout": {IdleTimeout: 300 * time.Millisecond},
		"websocket.lifetime":     {Lifetime: 600 * time.Millisecond},
	} {
		t.Run(limit, func(t *testing.T) {
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, bounded(bounds), b.addr)
				c := g.dial(t)
				c.send(handshake)
				c.expect(relayed)
				if r := g.record(0); r.Outcome != exchange.OutcomeTimeout || r.Limit != limit {
					t.Errorf("%v for %q", r.Outcome, r.Limit)
				}
				_ = c.Close()
			})
		})
	}
}

// Each byte restarts the idle bound, whichever side sends it; the lifetime is restarted by nothing.
func TestSessionMoves(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		for range 6 {
			p.expect("x")
			p.send("y")
		}
		p.gone(patience)
	})
	inModes(t, func(t *testing.T, m mode) {
		t.Parallel()
		g := newGateway(t, m, bounded(config.WebSocket{IdleTimeout: 2 * time.Second}), b.addr)
		c := g.dial(t)
		c.send(handshake)
		c.expect(relayed)
		for range 6 { // in all longer than the bound
			c.quiet(400 * time.Millisecond)
			c.send("x")
			c.expect("y")
		}
		_ = c.Close()
		g.ended(0, exchange.OutcomeUpgraded, "", "")
	})
}

// KF-WS-06: the limits of the entrypoint and of responses do not apply to a session, in which only the backend speaks.
func TestKF_WS_06(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		for range 8 {
			p.send("\x81\x01x")
			time.Sleep(300 * time.Millisecond) // the silence is what is tested
		}
		p.fin2()
		_, _ = p.closed(patience)
	})
	const short = time.Second // for the handshake to be over in
	o := options{
		service: func(lb *config.LoadBalancer) {
			lb.RequestTimeout, lb.StreamIdleTimeout, lb.StreamTotalTimeout = short, short/10, short
		},
	}
	o.server = func(s *http1.Settings) {
		s.HeaderTimeout, s.BodyIdleTimeout, s.WriteIdleTimeout, s.KeepAliveTimeout = short, short, short, short
	}
	inModes(t, func(t *testing.T, m mode) {
		t.Parallel()
		g := newGateway(t, m, o, b.addr)
		c := g.dial(t)
		c.send(handshake)
		c.expect(relayed + strings.Repeat("\x81\x01x", 8))
		c.fin()
		if rest, err := c.closed(patience); rest != "" || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		g.ended(0, exchange.OutcomeUpgraded, "", "")
	})
}

// KF-WS-05: a session that breaks is not tried again, and neither is a handshake that a backend has seen.
func TestKF_WS_05(t *testing.T) {
	for name, at := range map[string]bool{"after a frame": true, "before an answer": false} {
		t.Run(name, func(t *testing.T) {
			script := func(p *peer) {
				p.upgraded()
				if at {
					p.send(switched + "frame")
					p.expect("reply")
				}
				p.reset()
			}
			a, b := newBackend(t, script), newBackend(t, script)
			g := newGateway(t, kernelMode, options{}, a.addr, b.addr)
			c := g.dial(t)
			c.send(handshake)
			if at {
				c.expect(relayed + "frame")
				c.send("reply")
				if rest, err := c.closed(patience); rest != "" || err != nil {
					t.Errorf("%q, %v", rest, err)
				}
				g.ended(0, exchange.OutcomeUpgraded, "", "")
			} else {
				if m := c.message(false); m.status() != "502" {
					t.Errorf("%s", m.line)
				}
				g.ended(0, exchange.OutcomeFailed, exchange.CodeBackendReset, "")
			}
			if r := g.record(0); len(r.Attempts) != 1 {
				t.Errorf("%d attempts", len(r.Attempts))
			}
		})
	}
}

// KF-WS-09: a handshake that is answered with something else leaks no connection.
func TestKF_WS_09(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		for p.next() {
			p.message(false)
			p.send("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone")
		}
	})
	g := newGateway(t, kernelMode, options{}, b.addr)
	for range 100 {
		c := g.dial(t)
		c.send(handshake)
		if a := c.message(false); a.status() != "404" || a.body != "gone" {
			t.Fatalf("%+v", a)
		}
		c.Close()
		g.settled() // the answer is out a moment before its connection is free
	}
	if s := g.backends()[0].Pool.Stats(); s.Open != 1 {
		t.Errorf("%d connections for one after the other", s.Open)
	}
}

// KF-WS-02: the offer passes as it is, and so does the choice.
func TestKF_WS_02(t *testing.T) {
	const offer = "Sec-WebSocket-Protocol: graphql-ws\r\nSec-WebSocket-Protocol: v2, v1\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
	const choice = "Sec-WebSocket-Protocol: v2\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSet-Cookie: a=b\r\n"
	b := newBackend(t, func(p *peer) {
		if h := p.head(); !strings.Contains(h, offer) {
			p.fail("the offer is not in %q", h)
		}
		p.send(strings.Replace(switched, "Sec-WebSocket-Accept", choice+"Sec-WebSocket-Accept", 1))
		_, _ = p.closed(patience)
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		c.send(strings.Replace(handshake, "Sec-WebSocket-Protocol: chat\r\n", offer, 1))
		c.expect(strings.Replace(relayed, "Sec-WebSocket-Accept", choice+"Sec-WebSocket-Accept", 1))
		c.Close()
	})
}

// A service of ws backends speaks nothing else.
func TestWebSocketOnly(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		_, _ = p.closed(patience)
	})
	o := options{whole: func(s *config.Service) { s.LoadBalancer.Servers[0].WebSocket = true }}
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, o, b.addr)
		c := g.dial(t)
		for _, head := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"} {
			c.send(head)
			if a := c.message(false); a.status() != "426" || a.header.Get("Upgrade") != "websocket" || a.header.Get("Sec-WebSocket-Version") != "13" ||
				!strings.Contains(a.body, `"upgrade_required"`) {
				t.Errorf("%s %v %s", a.line, a.header, a.body)
			}
		}
		c.send(handshake)
		c.expect(relayed)
		c.Close()
	})
}

// A client that has ended its sending still gets what the backend has to say.
func TestSessionHalfClosed(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		if rest, err := p.closed(patience); rest != "asked" || err != nil {
			p.fail("%q, %v", rest, err)
		}
		p.send("answered")
		p.fin2()
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		c.send(handshake)
		c.expect(relayed)
		c.send("asked")
		c.fin()
		if rest, err := c.closed(patience); rest != "answered" || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		g.ended(0, exchange.OutcomeUpgraded, "", "")
	})
}
