package proxy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// A dial ends with the client that it is for.
func TestClientLeavesDuringDial(t *testing.T) {
	hole := blackhole(t)
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, hole, hole)
		c := g.dial(t)
		c.send(get)
		eventually(t, patience, "the dial is under way", func() bool { return g.backends()[0].Pool.Stats().Open == 1 })
		start := time.Now()
		c.Close()
		r := g.ended(0, exchange.OutcomeDisconnected, exchange.CodeClientGone, "")
		if d := time.Since(start); d > time.Second {
			t.Errorf("after %v", d)
		}
		if len(r.Attempts) != 1 {
			t.Errorf("attempts %+v", r.Attempts)
		}
		if s := g.lb.AppendStats(nil)[0]; s.Refused != 0 {
			t.Errorf("the backend is blamed: %+v", s)
		}
	})
}

// The drain deadline ends whatever an exchange waits on.
func TestForcedEnd(t *testing.T) {
	hole := blackhole(t)
	answered := func(c *wire, _ *gateway, _ *backend) bool { _, err := c.r.Peek(1); return err == nil }
	received := func(what string) func(*wire, *gateway, *backend) bool {
		return func(_ *wire, _ *gateway, b *backend) bool { return strings.HasSuffix(b.got(), what) }
	}
	silent := func(p *peer) { p.head(); p.gone(patience) }
	for _, tt := range []struct {
		name, request string
		script        func(p *peer) // nil: the connection is never established
		ready         func(c *wire, g *gateway, b *backend) bool
	}{
		{"dial", get, nil, func(_ *wire, g *gateway, _ *backend) bool { return g.backends()[0].Pool.Stats().Open == 1 }},
		{"head", get, silent, received("\r\n\r\n")},
		{"upload", upload + "1\r\nx\r\n", silent, received("x\r\n")},
		{"stream", get, func(p *peer) { p.head(); p.send(sseHead + chunk("x")); p.gone(patience) }, answered},
		{"slow reader", get, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 200 OK\r\n\r\n")
			for {
				if _, err := p.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, answered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inModes(t, func(t *testing.T, m mode) {
				b, addr := &backend{}, hole
				if tt.script != nil {
					b = newBackend(t, tt.script)
					addr = b.addr
				}
				g := newGateway(t, m, options{}, addr)
				c := g.dial(t)
				c.send(tt.request)
				eventually(t, patience, "the request is under way", func() bool { return tt.ready(c, g, b) })
				start := time.Now()
				g.live.Force()
				r := g.record(0)
				if d := time.Since(start); d > soon {
					t.Errorf("after %v", d)
				}
				if r.Outcome != exchange.OutcomeDrained || r.Code != exchange.CodeDraining {
					t.Errorf("%v %v %v", r.Outcome, r.Code, r.Err)
				}
			})
		})
	}
}

// Uploads to a backend that does not read are not held in memory, and end with their client.
func TestUploadBackPressure(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func(p *peer) { p.head(); <-time.After(500 * time.Millisecond) })
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{server: func(s *http1.Settings) { s.BodyIdleTimeout = patience }}, b.addr)
		c := g.dial(t)
		c.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
		_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n := 0
		for {
			k, err := c.Write(make([]byte, 1<<20))
			if n += k; err != nil {
				break
			}
		}
		if n > 32<<20 {
			t.Errorf("%d bytes were taken", n)
		}
		c.Close()
		g.record(0)
	})
}

// An exchange that goes on to wait for a backend after the drain deadline has passed ends all the same.
func TestForcedBeforeTheWait(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.message(false)
		p.send(ok)
		p.message(false)
		_, _ = p.closed(patience)
	})
	inModes(t, func(t *testing.T, m mode) {
		live := make(chan *drain.Tracker, 1)
		g := newGateway(t, m, options{before: func(x *exchange.Exchange) {
			if string(x.Request.Path) == "/wait" {
				(<-live).Force()
			}
		}}, b.addr)
		live <- g.live
		c := g.dial(t)
		c.send(get)
		c.message(false)
		began := time.Now()
		c.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
		if rest, err := c.closed(patience); rest != "" || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		g.ended(1, exchange.OutcomeDrained, exchange.CodeDraining, "")
		if d := time.Since(began); d > soon {
			t.Errorf("after %v", d)
		}
	})
}

// A client that leaves before a backend is waited for is not forgotten: departures are told once.
func TestDepartedBeforeTheWait(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.message(false)
		p.send(ok)
		_, _ = p.closed(patience)
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{before: func(x *exchange.Exchange) {
			if string(x.Request.Path) == "/wait" {
				<-x.Departed()
			}
		}}, b.addr)
		c := g.dial(t)
		c.send(get)
		c.message(false)
		c.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
		c.Close()
		g.ended(1, exchange.OutcomeDisconnected, exchange.CodeClientGone, "")
	})
}
