package http2_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// careful is a connection that complains when it is closed while it is used, as a kernel connection could not.
type careful struct {
	conn.Conn
	using  atomic.Int32
	closed atomic.Bool
	broken atomic.Bool
}

func (c *careful) use(f func([]byte) (int, error), b []byte) (int, error) {
	c.using.Add(1)
	defer c.using.Add(-1)
	if c.closed.Load() {
		c.broken.Store(true)
	}
	return f(b)
}

func (c *careful) Read(b []byte) (int, error)  { return c.use(c.Conn.Read, b) }
func (c *careful) Write(b []byte) (int, error) { return c.use(c.Conn.Write, b) }

func (c *careful) Close() error {
	c.closed.Store(true)
	if c.using.Load() > 0 {
		c.broken.Store(true)
	}
	return c.Conn.Close()
}

// Whoever ends a busy connection, and however: it is never closed under a read or a write.
func TestNeverClosedInUse(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		if m.tls {
			t.Skip("the same wrapper")
		}
		for how, end := range map[string]func(r *rig, f *framer){
			"force":                   func(r *rig, _ *framer) { r.live.Force() },
			"reset of the connection": func(_ *rig, f *framer) { f.resetConn() },
			"end of the connection":   func(_ *rig, f *framer) { f.c.Close() },
			"stalled":                 func(*rig, *framer) {},
		} {
			t.Run(how, func(t *testing.T) {
				var conns sync.Map
				busy := make(chan struct{}, 1)
				set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
					x.Response.Status = 200
					for {
						if err := x.Send(make([]byte, 64<<10), false); err != nil {
							return err
						}
						select {
						case busy <- struct{}{}:
						default:
						}
					}
				}))
				set.WriteIdleTimeout = 300 * time.Millisecond
				r := start(t, mode{name: m.name, prefixed: m.prefixed, wrap: func(c net.Conn) conn.Conn {
					k := &careful{Conn: m.wrap(c)}
					conns.Store(k, nil)
					return k
				}}, set)
				f := r.framer(t, widest)
				_ = f.fr.WriteWindowUpdate(0, 1<<31-1-65535)
				f.headers(1, true, nil)
				within(t, "the first piece", busy)
				end(r, f)
				within(t, "the end of the connection", r.connDone)
				conns.Range(func(k, _ any) bool {
					if c := k.(*careful); c.broken.Load() || !c.closed.Load() {
						t.Errorf("closed %v, in use %v", c.closed.Load(), c.broken.Load())
					}
					return true
				})
			})
		}
	})
}
