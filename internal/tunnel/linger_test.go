package tunnel_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// lingering is a server whose tunnels end when they are told to.
type lingering struct {
	*rig
	ends    chan struct{} // closed by end: the server may end its side
	end     func()
	heard   chan error    // what the server has read at the end of the client
	ended   chan error    // and after it has ended its own
	reports chan struct{} // done of Linger
}

func newLingering(t *testing.T, protocol string) *lingering {
	l := &lingering{ends: make(chan struct{}), heard: make(chan error, 1), ended: make(chan error, 1), reports: make(chan struct{}, 2)}
	l.end = sync.OnceFunc(func() { close(l.ends) })
	l.rig = connect(t, tunnel.ServerConfig{Accept: func(context.Context, *tunnel.Ask) (tunnel.Accepted, error) {
		return tunnel.Accepted{Serve: func(c conn.Conn) {
			_, err := io.Copy(io.Discard, c)
			l.heard <- err
			<-l.ends
			_, err = io.WriteString(c, "and out")
			l.ended <- errors.Join(err, c.(conn.CloseWriter).CloseWrite())
		}}, nil
	}}, tunnel.Limits{}, protocol)
	t.Cleanup(l.end)
	return l
}

func (l *lingering) done() { l.reports <- struct{}{} }

// over wants the end to have been reported once, and the tunnel to be gone.
func (l *lingering) over(t *testing.T) {
	t.Helper()
	within(t, "the end", l.reports)
	if n := l.pool.Stats().Tunnels; n != 0 {
		t.Errorf("%d tunnels are open", n)
	}
	l.pool.Close()
	l.kick()
	if len(l.reports) > 0 {
		t.Error("the end was reported twice")
	}
}

// A tunnel that lingers is gone with the peer's end, or when its time is up, or when somebody ends it, and that is reported once.
func TestLinger(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, l *lingering, c *tunnel.Conn){
		"the peer ends": func(t *testing.T, l *lingering, c *tunnel.Conn) {
			if err := c.Linger(time.Hour, l.done); err != nil {
				t.Fatal(err)
			}
			if err := within(t, "our end", l.heard); err != nil {
				t.Errorf("our end was a failure: %v", err)
			}
			if len(l.reports) > 0 || l.pool.Stats().Tunnels != 1 {
				t.Error("it is gone before the peer has ended")
			}
			l.end()
			if err := within(t, "the peer's end", l.ended); err != nil {
				t.Errorf("the peer's end: %v", err)
			}
		},
		"the peer has ended": func(t *testing.T, l *lingering, c *tunnel.Conn) {
			_ = c.CloseWrite()
			l.end()
			until(t, "the peer's end", c.PeerGone)
			if err := c.Linger(time.Hour, l.done); err != nil {
				t.Fatal(err)
			}
		},
		"time is up": func(t *testing.T, l *lingering, c *tunnel.Conn) {
			if err := c.Linger(50*time.Millisecond, l.done); err != nil {
				t.Fatal(err)
			}
		},
		"the connection is gone": func(t *testing.T, l *lingering, c *tunnel.Conn) {
			if err := c.Linger(time.Hour, l.done); err != nil {
				t.Fatal(err)
			}
			l.kick()
		},
		"the peer is cut": func(t *testing.T, l *lingering, c *tunnel.Conn) {
			if err := c.Linger(time.Hour, l.done); err != nil {
				t.Fatal(err)
			}
			if n := l.pool.Cut("a"); n != 1 {
				t.Errorf("%d tunnels were cut", n)
			}
		},
	} {
		for _, protocol := range bothProtocols {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				l := newLingering(t, protocol)
				c := l.open(t, "a")
				if _, err := io.WriteString(c, "hello"); err != nil {
					t.Fatal(err)
				}
				end(t, l, c)
				l.over(t)
			})
		}
	}
}

// One that was closed does not linger: there is an error, or the end is reported at once.
func TestLingerClosed(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			l := newLingering(t, protocol)
			c := l.open(t, "a")
			_ = c.Close()
			if err := c.Linger(time.Hour, l.done); err == nil {
				within(t, "the end", l.reports)
			}
			if len(l.reports) > 0 {
				t.Error("an end too many was reported")
			}
		})
	}
}

// A peer that does not answer in the time of the request is given up, which it hears of.
func TestSlowAnswer(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{}, 10)
			r := connect(t, tunnel.ServerConfig{Accept: func(ctx context.Context, a *tunnel.Ask) (tunnel.Accepted, error) {
				if a.Authority == "quick:1" {
					return echo(ctx, a)
				}
				<-ctx.Done()
				gone <- struct{}{}
				return tunnel.Accepted{}, ctx.Err()
			}}, tunnel.Limits{}, protocol)
			for range 2 { // on a new connection, and on one that was used before
				c, err := r.pool.Open(t.Context(), "a", r.peer, tunnel.Request{Authority: "slow:1", Within: time.Second})
				if !errors.Is(err, tunnel.ErrSlow) {
					t.Errorf("%v, %v", c, err)
				}
				within(t, "the departure", gone)
				c, err = r.pool.Open(t.Context(), "a", r.peer, tunnel.Request{Authority: "quick:1", Within: patience})
				if err != nil {
					t.Fatal(err)
				}
				exchanges(t, c, "hello")
				_ = c.Close()
			}
			if len(gone) > 0 {
				t.Error("it was asked again")
			}
		})
	}
}
