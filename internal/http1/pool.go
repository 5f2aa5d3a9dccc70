package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// PoolConfig says how a backend is reached.
type PoolConfig struct {
	Addr           string             // host:port, or unix:/path
	TLS            func() *tls.Config // for each connection; nil: clear text; must offer http/1.1 only
	ConnectTimeout time.Duration
	IdleTimeout    time.Duration
	MaxIdle        int
	MaxConnections int
	MaxRequests    int           // after which a connection is not used again; 0 is no limit
	MaxAge         time.Duration // likewise
	// Dial replaces the kernel's network in tests; nil dials Addr.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Errors of Get.
var (
	ErrPoolFull   = errors.New("all connections to the backend are in use")
	ErrPoolClosed = errors.New("pool is closed")
)

// Pool keeps connections to one backend. It lives as long as the process knows the backend.
type Pool struct {
	cfg    PoolConfig
	clock  *conn.Clock
	slot   conn.ClockSlot
	dialer conn.Dialer

	mu     sync.Mutex // guards the fields below
	idle   []*ClientConn
	busy   []*ClientConn // in use, each at its place
	open   int
	closed bool
	ticks  int
}

// NewPool returns an empty pool, which the clock visits until Close.
func NewPool(cfg PoolConfig, clock *conn.Clock) *Pool {
	p := &Pool{cfg: cfg, clock: clock}
	p.dialer.Addr, p.dialer.TLS, p.dialer.Timeout, p.dialer.Dial = cfg.Addr, cfg.TLS, cfg.ConnectTimeout, cfg.Dial
	clock.Add(p)
	return p
}

// Dialing bounds a dial; it is asked only if one is needed.
type Dialing interface {
	conn.Dialing
	// Repeatable reports whether the request may be sent a second time if the connection turns out to be dead.
	Repeatable() bool
}

// Get returns a connection: the one used last that is still good, or a new one. fresh insists on a new one.
func (p *Pool) Get(d Dialing, fresh bool) (*ClientConn, error) {
	if !fresh {
		if c := p.reuse(d); c != nil {
			return c, nil
		}
	}
	return p.establish(d, false)
}

// Connect returns a new connection that is no HTTP connection: its bytes are the caller's, see Takeover. It counts like
// any other until Release.
func (p *Pool) Connect(d Dialing) (*ClientConn, error) { return p.establish(d, true) }

// establish opens a connection; taken is one that somebody else reads.
func (p *Pool) establish(d Dialing, taken bool) (*ClientConn, error) {
	if err := p.admit(); err != nil {
		return nil, err
	}
	ctx, cancel := d.DialContext()
	defer cancel()
	c, err := p.dialer.Open(ctx, d)
	if err != nil {
		p.forget()
		return nil, err
	}
	return p.take(c, taken), nil
}

// Adopt takes a connection that somebody else has opened, if there is room for it; otherwise it is closed.
func (p *Pool) Adopt(c conn.Dialed) (*ClientConn, error) {
	if err := p.admit(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return p.take(c, false), nil
}

// Idle returns a connection that waits for a request and is still good; nil if there is none.
func (p *Pool) Idle(d Dialing) *ClientConn { return p.reuse(d) }

// take counts a new connection among the busy ones.
func (p *Pool) take(d conn.Dialed, taken bool) *ClientConn {
	c := &ClientConn{pool: p, c: d.Conn, under: d.Under, born: time.Since(epoch)}
	if c.under == nil {
		c.raw = rawOf(c.c)
		c.step = c.clientStep
	}
	c.taken.Store(taken)
	p.mu.Lock()
	p.enter(c)
	p.mu.Unlock()
	return c
}

// epoch is what readAt counts from.
var epoch = time.Now()

// enter adds to the busy connections. p.mu is held.
func (p *Pool) enter(c *ClientConn) {
	c.place = len(p.busy)
	p.busy = append(p.busy, c)
}

// leave takes out of the busy connections, so that the clock does not touch it any more. p.mu is held.
func (p *Pool) leave(c *ClientConn) {
	last := len(p.busy) - 1
	p.busy[c.place] = p.busy[last]
	p.busy[c.place].place = c.place
	p.busy[last] = nil
	p.busy = p.busy[:last]
}

// admit counts a connection that is going to be opened. An idle one makes room for it.
func (p *Pool) admit() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrPoolClosed
	case p.cfg.MaxConnections > 0 && p.open >= p.cfg.MaxConnections:
		if len(p.idle) == 0 {
			return ErrPoolFull
		}
		_ = p.idle[0].c.Close() // the one used least recently
		p.idle = slices.Delete(p.idle, 0, 1)
		p.open--
	}
	p.open++
	return nil
}

// justUsed is for how long after the last bytes of an answer a connection is good for another request that may be repeated
// without the kernel being asked. It does not count from when the client has taken them, which may last. It is as long as an
// event loop would need to notice: under load connections are used again within microseconds, and one system call in five
// is spared.
const justUsed = time.Millisecond

// reuse takes idle connections from the top until one is good. Beyond justUsed, for requests that must not be repeated, and
// behind an answer that had no body, which some backends send all the same, the kernel is asked: what a backend has sent beyond its answer would be read as the answer to the next
// request, and a request would be lost on a connection that was just closed.
func (p *Pool) reuse(d Dialing) *ClientConn {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.enter(c)
		p.mu.Unlock()
		if c.raw != nil && c.ends != endsNone && time.Since(epoch)-c.readAt < justUsed && d.Repeatable() || c.quiet() {
			c.reused = true
			return c
		}
		p.put(c, false)
	}
}

// put takes a busy connection back, or drops it.
func (p *Pool) put(c *ClientConn, good bool) {
	if good {
		c.served++
		good = (p.cfg.MaxRequests == 0 || c.served < p.cfg.MaxRequests) && (p.cfg.MaxAge == 0 || c.readAt-c.born < p.cfg.MaxAge)
	}
	p.mu.Lock()
	p.leave(c)
	if !good {
		p.mu.Unlock()
		p.drop(c)
		return
	}
	c.idleAt = p.ticks
	if p.closed || len(p.idle) >= p.cfg.MaxIdle {
		p.mu.Unlock()
		p.drop(c)
		return
	}
	p.idle = append(p.idle, c)
	p.mu.Unlock()
}

// drop closes a connection that is in neither list.
func (p *Pool) drop(c *ClientConn) {
	_ = c.c.Close()
	p.forget()
}

// forget counts a connection as gone.
func (p *Pool) forget() {
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
}

// Stats are the pool's gauges.
type Stats struct{ Open, Idle int }

// Stats returns the gauges.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Open: p.open, Idle: len(p.idle)}
}

// Close closes the idle connections; those in use close when they are released.
func (p *Pool) Close() {
	p.clock.Remove(p)
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		p.drop(c)
	}
}

// pruneEvery is how many ticks lie between two looks at the idle connections.
const pruneEvery = 10

// OnTick closes idle connections that are too old, and those that the backend has closed, and makes busy ones that get
// nothing look whether their backend has gone.
func (p *Pool) OnTick(*conn.Clock) int {
	p.mu.Lock()
	for _, c := range p.busy {
		c.nudge()
	}
	if p.ticks++; p.ticks%pruneEvery != 0 {
		p.mu.Unlock()
		return -1
	}
	oldest := p.ticks - int(p.cfg.IdleTimeout/conn.Tick)
	var dead []*ClientConn
	kept := p.idle[:0]
	for _, c := range p.idle {
		if c.idleAt < oldest || !c.quiet() {
			dead = append(dead, c)
			continue
		}
		kept = append(kept, c)
	}
	clear(p.idle[len(kept):])
	p.idle = kept
	p.mu.Unlock()
	for _, c := range dead {
		p.drop(c)
	}
	return -1
}

// OnDeparted is not used: a pool asks for no probe.
func (p *Pool) OnDeparted() {}

// Slot is the clock's.
func (p *Pool) Slot() *conn.ClockSlot { return &p.slot }
