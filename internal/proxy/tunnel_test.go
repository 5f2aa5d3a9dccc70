package proxy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

const (
	handshake = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
	switched  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
	// relayed is how it reaches the client.
	relayed = "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)

// upgraded reads a handshake at the backend.
func (p *peer) upgraded() {
	h := p.head()
	for _, want := range []string{"Connection: Upgrade\r\nUpgrade: websocket\r\n", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "Sec-WebSocket-Protocol: chat\r\n", "X-Forwarded-For: 127.0.0.1\r\n"} {
		if strings.Count(h, want) != 1 {
			p.fail("%q is not in %q", want, h)
		}
	}
	if n := strings.Count(h, "Upgrade"); n != 2 {
		p.fail("client's own upgrade fields in %q", h)
	}
}

// KF-H1-13: the relay begins with the 101, and not a byte that came along with either handshake is lost.
func TestKF_H1_13(t *testing.T) {
	for name, before := range map[string]string{"101": "", "103 and 101": "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.upgraded()
				p.send(before + switched + "first frame")
				p.expect("early data")
				p.send("second frame")
				p.expect("later data")
				p.send("last frame")
				(&wire{Conn: p.Conn.(logged).Conn}).fin()
				p.expect("after your end")
				if rest, err := p.closed(patience); rest != "" || err != nil {
					p.fail("then %q, %v", rest, err)
				}
			})
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(handshake + "early data")
				c.expect(before + relayed + "first frame" + "second frame")
				if s := g.backends()[0].Pool.Stats(); s.Open != 1 {
					t.Errorf("a relayed connection is not counted: %+v", s)
				}
				c.send("later data")
				if rest, err := c.closed(patience); rest != "last frame" || err != nil {
					t.Errorf("%q, %v", rest, err)
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				c.send("after your end")
				c.fin()
				r := g.ended(0, exchange.OutcomeUpgraded, "", "")
				if r.Status != 101 || r.BytesIn != 34 || r.BytesOut != 33 {
					t.Errorf("status %d, %d bytes in, %d out", r.Status, r.BytesIn, r.BytesOut)
				}
			})
		})
	}
}

// The handshake and what follows may be cut anywhere.
func TestTunnelCuts(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		p.expect("hello")
		p.send("x")
	})
	g := newGateway(t, kernelMode, options{}, b.addr)
	for _, cut := range []int{1, 20, len(handshake) - 2, len(handshake) - 1, len(handshake), len(handshake) + 2} {
		c := g.dial(t)
		whole := handshake + "hello"
		c.send(whole[:cut])
		if cut < len(handshake) {
			c.quiet(5 * time.Millisecond)
		} else {
			c.expect(relayed)
		}
		c.send(whole[cut:])
		if cut < len(handshake) {
			c.expect(relayed)
		}
		c.expect("x")
		c.Close()
	}
}

// Either side's reset ends both.
func TestTunnelResets(t *testing.T) {
	for _, who := range []string{"client", "backend"} {
		t.Run(who, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.upgraded()
				p.send(switched)
				p.expect("hello")
				if who == "backend" {
					p.reset()
					return
				}
				p.gone(soon)
			})
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				c.send(handshake)
				c.expect(relayed)
				c.send("hello")
				if who == "client" {
					eventually(t, patience, "hello arrives", func() bool { return strings.HasSuffix(b.got(), "hello") })
					c.reset()
				} else if _, err := c.closed(soon); err != nil {
					t.Error(err)
				}
				g.ended(0, exchange.OutcomeUpgraded, "", "")
				g.settled()
			})
		})
	}
}

// A drain deadline ends relayed connections.
func TestTunnelForced(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched)
		p.gone(soon)
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		c.send(handshake)
		c.expect(relayed)
		g.live.Force()
		if _, err := c.closed(soon); err != nil {
			t.Error(err)
		}
		g.ended(0, exchange.OutcomeDrained, "", "")
	})
}

// A backend that refuses to switch answers like any other, and the connections go on.
func TestUpgradeRefused(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		for n := 0; p.next(); n++ {
			p.message(false)
			p.send(fmt.Sprintf("HTTP/1.1 403 Forbidden\r\nX-N: %d\r\nContent-Length: 2\r\n\r\nno", n))
		}
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for n := range 3 {
			c.send(handshake)
			if a := c.message(false); a.status() != "403" || a.body != "no" || a.header.Get("X-N") != fmt.Sprint(n) {
				t.Errorf("%+v", a)
			}
		}
		g.ended(2, exchange.OutcomeOK, "", "")
	})
}

// An upgrade moves on from a backend that cannot be reached.
func TestUpgradeFailover(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched + "frame")
		_, _ = p.closed(patience)
	})
	g := newGateway(t, kernelMode, options{}, refusing(t), b.addr)
	c := g.dial(t)
	c.send(handshake)
	c.expect(relayed + "frame")
	c.Close()
	if r := g.ended(0, exchange.OutcomeUpgraded, "", ""); len(r.Attempts) != 2 {
		t.Errorf("attempts %+v", r.Attempts)
	}
}

// A backend that resets together with bytes is gone for the client too, though neither side sends anything more.
func TestTunnelLateReset(t *testing.T) {
	frames := strings.Repeat("frame", 20_000)
	b := newBackend(t, func(p *peer) {
		p.upgraded()
		p.send(switched + frames)
		p.reset()
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		c.send(handshake)
		c.expect(relayed)
		if _, err := c.closed(patience); err != nil {
			t.Error(err)
		}
	})
}
