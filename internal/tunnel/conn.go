package tunnel

import (
	"io"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// Conn is an open tunnel. It is a connection with half-close and deadlines, and ends as a socket does: Close lets the peer read
// to the end what was sent, Abort is a failure.
type Conn struct {
	*conn.Inner
	end  func()
	once sync.Once
}

// hold counts a tunnel among the open ones of its peer.
func (p *Pool[K]) hold(pe *peer, down conn.Conn, up upstream) (*Conn, error) {
	c := &Conn{Inner: conn.NewInner(down, down.Info())}
	c.end = func() {
		up.Release(false)
		p.mu.Lock()
		delete(pe.open, c)
		p.mu.Unlock()
	}
	p.mu.Lock()
	cut := pe.ctx.Err() != nil
	if !cut {
		pe.open[c] = struct{}{}
	}
	p.mu.Unlock()
	if cut {
		_ = c.Abort()
		return nil, ErrClosed
	}
	return c, nil
}

// Close ends the tunnel.
func (c *Conn) Close() error {
	err := c.Inner.Close()
	c.once.Do(c.end)
	return err
}

// Linger ends the sending side, and the tunnel once the peer has ended its own, at the latest after d; what still comes until then is
// dropped. Nobody else may use the tunnel any more. done is called when it has ended; it must not block. On an error nothing of
// that is done.
func (c *Conn) Linger(d time.Duration, done func()) error {
	over := func() { c.once.Do(c.end); done() }
	if s, ok := c.Inner.Conn.(interface {
		Linger(d time.Duration, done func()) error
	}); ok {
		return s.Linger(d, over)
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	go func() {
		_ = c.SetReadDeadline(time.Now().Add(d))
		_, _ = io.CopyN(io.Discard, c, streamWindow)
		_ = c.Inner.Close()
		over()
	}()
	return nil
}

// Abort ends the tunnel as a connection does that has failed.
func (c *Conn) Abort() error {
	err := c.Inner.Abort()
	c.once.Do(c.end)
	return err
}

// Cut ends every tunnel of a key, and every attempt to open one, and forgets the key. It returns how many tunnels there were.
func (p *Pool[K]) Cut(key K) int {
	p.mu.Lock()
	pe := p.peers[key]
	delete(p.peers, key)
	p.mu.Unlock()
	return p.drop(pe)
}

// drop ends a peer that is not in the map any more; nil is none.
func (p *Pool[K]) drop(pe *peer) int {
	if pe == nil {
		return 0
	}
	p.mu.Lock()
	pe.cut(ErrClosed)
	open := make([]*Conn, 0, len(pe.open))
	for c := range pe.open {
		open = append(open, c)
	}
	for a := range pe.asked {
		a.up.Interrupt()
	}
	p.mu.Unlock()
	for _, c := range open {
		_ = c.Abort()
	}
	pe.close()
	return len(open)
}

// Retire lets the tunnels of a key go on, and opens the next ones on new connections.
func (p *Pool[K]) Retire(key K) {
	p.mu.Lock()
	pe := p.peers[key]
	delete(p.peers, key)
	p.mu.Unlock()
	if pe != nil {
		pe.close()
	}
}

// Close ends every tunnel. No further one is opened.
func (p *Pool[K]) Close() {
	p.mu.Lock()
	p.closed = true
	all := p.peers
	p.peers = nil
	p.mu.Unlock()
	for _, pe := range all {
		p.drop(pe)
	}
}

// Stats are the gauges of a pool.
type Stats struct{ Peers, Connections, Tunnels int }

// Stats returns the gauges.
func (p *Pool[K]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Peers: len(p.peers)}
	for _, pe := range p.peers {
		s.Connections += pe.h2.Stats().Open + pe.h1.Stats().Open
		s.Tunnels += len(pe.open)
	}
	return s
}
