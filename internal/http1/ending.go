package http1

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

// OnTick is the clock's visit.
func (c *serverConn) OnTick(k *conn.Clock) int {
	k.Expire(&c.wait)
	k.Expire(&c.guard)
	k.Expire(&c.slow)
	if c.forced.Load() {
		c.cut() // again: a wait that began around the first time would go on
		return -1
	}
	seq := c.seq.Load()
	same := seq == c.seen
	c.seen = seq
	switch c.phase.Load() {
	case phaseServing, phaseHead:
		if same {
			return c.probe()
		}
	case phaseIdle:
		if !same { // a FIN that came with the last bytes read would go unnoticed until the idle timeout
			return c.probe()
		}
	}
	return -1
}

// probe returns the descriptor to ask the kernel about, or asks a connection that has none itself.
func (c *serverConn) probe() int {
	if c.fd >= 0 {
		return c.fd
	}
	if p, ok := c.c.(conn.Prober); ok && p.PeerGone() {
		c.OnDeparted()
	}
	return -1
}

// OnDeparted tells that the client has gone. The phase keeps the exchange from being recycled meanwhile.
func (c *serverConn) OnDeparted() {
	if c.phase.CompareAndSwap(phaseServing, phaseVisited) {
		c.x.Depart()
		c.phase.Store(phaseServing)
		return
	}
	if p := c.phase.Load(); p == phaseIdle || p == phaseHead {
		c.wait.Ring(conn.CauseDeparted)
	}
}

// Slot is the clock's.
func (c *serverConn) Slot() *conn.ClockSlot { return &c.slot }

// Drain ends keep-alive. Gently, the next request is still served; promptly, an idle connection ends now.
func (c *serverConn) Drain(mode drain.Mode) {
	if mode == drain.Gentle {
		c.ending.CompareAndSwap(serving, gently)
		return
	}
	c.ending.Store(promptly)
	if c.phase.Load() == phaseIdle {
		c.wait.Ring(conn.CauseDrain)
	}
}

// Force ends the connection from outside: what it waits for fails, on both sides.
func (c *serverConn) Force() {
	c.ending.Store(promptly)
	c.forced.Store(true)
	c.cut()
}

// cut ends every wait, of the connection and of its exchange.
func (c *serverConn) cut() {
	c.guard.Ring(conn.CauseDrain)
	c.both.Interrupt()
	if c.phase.CompareAndSwap(phaseServing, phaseVisited) {
		c.x.Force()
		c.phase.Store(phaseServing)
	}
}

// close ends the connection, with a reset if a response could not be ended properly.
func (c *serverConn) close() {
	if c.aborted {
		if a, ok := c.c.(interface{ Abort() error }); ok {
			_ = a.Abort()
			return
		}
	}
	_ = c.c.Close()
}

// Bounds of the wait for a client that still sends what nobody reads.
const (
	lingerIdle  = 5 * time.Second
	lingerTotal = 30 * time.Second
)

// drainInput gives the client time to read the answer to a request whose body was not read: a close with unread bytes
// would reset the answer away (RFC 9112 §9.6).
func (c *serverConn) drainInput() {
	w, ok := c.c.(conn.CloseWriter)
	if !ok || w.CloseWrite() != nil {
		return
	}
	bp := bigPool.Get().(*[]byte)
	defer bigPool.Put(bp)
	for end := time.Now().Add(lingerTotal); time.Now().Before(end) && !c.forced.Load(); {
		if c.ending.Load() == promptly && time.Until(end) > lingerIdle {
			end = time.Now().Add(lingerIdle)
		}
		if c.c.SetReadDeadline(time.Now().Add(lingerIdle)) != nil || c.forced.Load() {
			return
		}
		if _, err := c.c.Read(*bp); err != nil {
			return
		}
	}
}
