package conn

import "sync/atomic"

// prefixed is a connection whose first bytes have been read already.
type prefixed struct {
	Conn
	pre  []byte      // the reader's
	left atomic.Bool // pre is not empty; for who asks while another reads
}

// WithPrefix returns c with pre to be read first. An empty pre returns c itself.
func WithPrefix(c Conn, pre []byte) Conn {
	if len(pre) == 0 {
		return c
	}
	p := &prefixed{Conn: c, pre: pre}
	p.left.Store(true)
	return p
}

// unread is the connection below prefixes, and what is to be read before it.
func unread(c Conn) (Conn, []byte) {
	var pre []byte
	for {
		p, ok := c.(*prefixed)
		if !ok {
			return c, pre
		}
		pre = append(pre[:len(pre):len(pre)], p.pre...)
		c = p.Conn
	}
}

// Read returns the prefix, then what the connection has.
func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.pre) > 0 {
		n := copy(b, p.pre)
		if p.pre = p.pre[n:]; len(p.pre) == 0 {
			p.left.Store(false)
		}
		return n, nil
	}
	return p.Conn.Read(b)
}

// CloseWrite ends the sending side.
func (p *prefixed) CloseWrite() error {
	if w, ok := p.Conn.(CloseWriter); ok {
		return w.CloseWrite()
	}
	return p.Conn.Close()
}

// Interrupt makes waits fail.
func (p *prefixed) Interrupt() { InterrupterOf(p.Conn).Interrupt() }

// Quiet reports whether nothing has arrived and the peer is still there.
func (p *prefixed) Quiet() bool {
	q, ok := p.Conn.(interface{ Quiet() bool })
	return ok && !p.left.Load() && q.Quiet()
}

// PeerGone reports whether the peer has left, if the connection below can tell.
func (p *prefixed) PeerGone() bool {
	b, ok := p.Conn.(Prober)
	return ok && b.PeerGone()
}

// FD is the descriptor of the connection below, for probes; -1 when it has none.
func (p *prefixed) FD() int {
	if d, ok := p.Conn.(interface{ FD() int }); ok {
		return d.FD()
	}
	return -1
}

// Abort closes with a reset where that is possible.
func (p *prefixed) Abort() error {
	if a, ok := p.Conn.(interface{ Abort() error }); ok {
		return a.Abort()
	}
	return p.Conn.Close()
}
