package http2

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// PoolConfig says how a server is reached.
type PoolConfig struct {
	Dialer         *conn.Dialer // its TLS offers h2; without TLS HTTP/2 is known to be spoken
	Client         ClientSettings
	IdleTimeout    time.Duration // a connection without a stream is closed after it
	MaxConnections int           // 0 is no limit
	// Choice is set when the server may choose another protocol by ALPN; see Get.
	Choice bool
}

// Errors of Get.
var (
	ErrPoolFull   = errors.New("all streams to the backend are in use")
	ErrPoolClosed = errors.New("pool is closed")
	// ErrOther is a server that has just chosen another protocol.
	ErrOther = errors.New("backend chose another protocol than HTTP/2")
	// ErrNoSettings is a server that accepts a connection and then does not begin to speak HTTP/2.
	ErrNoSettings = errors.New("waiting for SETTINGS")
)

// Pool keeps connections to one server. It lives as long as the process knows the server.
type Pool struct {
	cfg   PoolConfig
	clock *conn.Clock
	slot  conn.ClockSlot

	mu      sync.Mutex // guards the fields below
	conns   []*ClientConn
	dialing int
	flight  *flight // the dial that others wait for; nil: none
	closed  bool
}

// flight is a dial whose result is shared by all who have found no room meanwhile.
type flight struct {
	done  chan struct{}
	err   error // once done
	alone bool  // it failed for who has dialed alone
	fresh bool  // who has dialed wants the first stream
}

// NewPool returns an empty pool, which the clock visits until Close.
func NewPool(cfg PoolConfig, clock *conn.Clock) *Pool {
	p := &Pool{cfg: cfg, clock: clock}
	clock.Add(p)
	return p
}

// Get returns a stream: on a connection that has room, or on a new one, which all who find no room wait for together.
// fresh insists on one of one's own. When the server has chosen another protocol, who has dialed gets the connection, and
// the others ErrOther.
func (p *Pool) Get(by conn.Dialing, fresh bool) (*ClientStream, conn.Dialed, error) {
	s, f, lead, err := p.join(fresh)
	if s != nil || err != nil {
		return s, conn.Dialed{}, err
	}
	ctx, cancel := by.DialContext()
	defer cancel()
	for !lead {
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, conn.Dialed{}, fmt.Errorf("%w: %w", conn.ErrConnect, ctx.Err())
		}
		if f.err != nil && !f.alone {
			return nil, conn.Dialed{}, f.err
		}
		if s, f, lead, err = p.join(fresh); s != nil || err != nil {
			return s, conn.Dialed{}, err
		}
	}
	f.fresh = fresh
	return p.lead(ctx, by, f)
}

// join returns a stream on the first connection that has room, or the dial under way, or a new one that the caller makes.
func (p *Pool) join(fresh bool) (s *ClientStream, f *flight, lead bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < len(p.conns) && !fresh; i++ {
		if s, ok := p.conns[i].Open(); ok {
			return s, nil, false, nil
		}
	}
	switch {
	case p.closed:
		return nil, nil, false, ErrPoolClosed
	case p.flight != nil && !fresh:
		return nil, p.flight, false, nil
	case p.full():
		s, f, err = p.share()
		return s, f, false, err
	}
	p.dialing++
	f = &flight{done: make(chan struct{})}
	if p.flight == nil {
		p.flight = f
	}
	return nil, f, true, nil
}

// full reports whether no further connection may be opened. Those that only wait for their server to close do not count.
// p.mu is held.
func (p *Pool) full() bool {
	if p.cfg.MaxConnections <= 0 || len(p.conns)+p.dialing < p.cfg.MaxConnections {
		return false
	}
	n := p.dialing
	for _, c := range p.conns {
		if !c.ending() {
			n++
		}
	}
	return n >= p.cfg.MaxConnections
}

// share is what who would have a connection of his own gets where there may be no more: a stream on any, or the dial under
// way. p.mu is held.
func (p *Pool) share() (*ClientStream, *flight, error) {
	for _, c := range p.conns {
		if s, ok := c.OpenShared(); ok {
			return s, nil, nil
		}
	}
	if p.flight != nil {
		return nil, p.flight, nil
	}
	return nil, nil, ErrPoolFull
}

// lead makes the connection that a flight is for.
func (p *Pool) lead(ctx context.Context, by conn.Dialing, f *flight) (*ClientStream, conn.Dialed, error) {
	landed := false
	defer func() {
		if !landed { // a panic of who dials
			p.land(f, nil, ErrPoolClosed)
		}
	}()
	c, other, err := p.dial(ctx, by)
	var s *ClientStream
	if c != nil {
		if s = c.openFirst(f.fresh); s == nil {
			err = fmt.Errorf("%w: the server allows no stream", ErrPoolFull)
			c.Retire()
		}
	}
	f.alone = err != nil && ctx.Err() != nil
	landed = true
	p.land(f, c, err)
	if errors.Is(err, ErrOther) && p.cfg.Choice {
		return nil, other, nil
	}
	return s, conn.Dialed{}, err
}

// openFirst opens the first stream. With alone none overtakes it.
func (c *ClientConn) openFirst(alone bool) *ClientStream {
	s, ok := c.Open()
	if !ok {
		return nil
	}
	c.mu.Lock()
	c.alone = alone
	c.mu.Unlock()
	return s
}

// land ends a flight.
func (p *Pool) land(f *flight, c *ClientConn, err error) {
	p.mu.Lock()
	p.dialing--
	if c != nil {
		p.conns = append(p.conns, c)
	}
	if p.flight == f {
		p.flight = nil
	}
	if p.closed && c != nil {
		c.Retire()
	}
	p.mu.Unlock()
	f.err = err
	close(f.done)
}

// dial opens a connection, and waits until the server has shown that it speaks HTTP/2.
func (p *Pool) dial(ctx context.Context, by conn.Dialing) (*ClientConn, conn.Dialed, error) {
	d, err := p.cfg.Dialer.Open(ctx, by)
	if err != nil {
		return nil, d, err
	}
	if tls := d.Info().TLS; tls != nil {
		switch {
		case tls.NegotiatedProtocol == "h2" && insecure(tls):
			err = fmt.Errorf("%w: cipher that HTTP/2 prohibits", conn.ErrTLS)
		case tls.NegotiatedProtocol == "h2":
		case p.cfg.Choice:
			return nil, d, ErrOther
		default:
			err = fmt.Errorf("%w: %w", conn.ErrTLS, ErrOther)
		}
	}
	if err != nil {
		_ = d.Close()
		return nil, d, err
	}
	c := NewClientConn(d.Conn, &p.cfg.Client, p.clock)
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Dialer.Timeout)
	defer cancel()
	select {
	case <-c.Ready():
		err = c.Err()
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, d, fmt.Errorf("%w: %w: %w", conn.ErrConnect, ErrNoSettings, err)
	}
	return c, d, nil
}

// PoolStats are the pool's gauges.
type PoolStats struct{ Open, Idle, Streams int }

// Stats returns the gauges. A connection that is being opened is among the open ones.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := PoolStats{Open: len(p.conns) + p.dialing}
	for _, c := range p.conns {
		s := c.State()
		if st.Streams += s.Active; s.Active == 0 {
			st.Idle++
		}
	}
	return st
}

// Close closes the idle connections; the others close when their streams have ended.
func (p *Pool) Close() {
	p.clock.Remove(p)
	p.mu.Lock()
	p.closed = true
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		c.Retire()
	}
}

// OnTick forgets connections that are over, and retires those that have been idle for too long.
func (p *Pool) OnTick(*conn.Clock) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.conns[:0]
	for _, c := range p.conns {
		s := c.State()
		if s.Over {
			continue
		}
		if s.Usable && s.Idle > p.cfg.IdleTimeout {
			c.Retire()
		}
		kept = append(kept, c)
	}
	clear(p.conns[len(kept):])
	p.conns = kept
	return -1
}

// OnDeparted is not used: a pool asks for no probe.
func (p *Pool) OnDeparted() {}

// Slot is the clock's.
func (p *Pool) Slot() *conn.ClockSlot { return &p.slot }
