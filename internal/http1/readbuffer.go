package http1

import "sync"

// readBuffer is where a connection to a backend reads. While there is something to read that is a large buffer from a
// pool, so that a whole answer takes one system call; what must outlast a wait lies in a small one of the connection.
type readBuffer struct {
	buf    []byte
	shared *[]byte // buf, when it is a pool's
	pool   *sync.Pool
	own    []byte // kept from one exchange to the next
}

// minOwn is the least size of a buffer of a connection's own.
const minOwn = 1 << 10

// room returns the space behind the first w bytes, which is never empty. Only now a buffer is taken, from pool.
func (b *readBuffer) room(w int, pool *sync.Pool) []byte {
	if b.buf == nil {
		b.shared, b.pool = pool.Get().(*[]byte), pool
		b.buf = *b.shared
	}
	if w == len(b.buf) {
		grown := make([]byte, 2*len(b.buf))
		copy(grown, b.buf)
		b.giveBack()
		b.buf, b.own = grown, grown
	}
	return b.buf[w:]
}

// unshare copies buf[from:to] to the connection's own buffer, gives a shared one back, and returns the copy. Nothing
// kept leaves no buffer at all.
func (b *readBuffer) unshare(from, to int) []byte {
	if from == to {
		b.giveBack()
		return nil
	}
	if len(b.own) < to-from {
		b.own = make([]byte, max(minOwn, to-from))
	}
	n := copy(b.own, b.buf[from:to])
	b.giveBack()
	b.buf = b.own
	return b.own[:n]
}

// giveBack returns a shared buffer.
func (b *readBuffer) giveBack() {
	if b.shared != nil {
		b.pool.Put(b.shared)
	}
	b.buf, b.shared = nil, nil
}

// free gives everything back but a small buffer.
func (b *readBuffer) free() {
	b.giveBack()
	if len(b.own) > maxOwn {
		b.own = nil
	}
}

// unshare leaves the shared buffer before a wait that may be long.
func (c *ClientConn) unshare() {
	switch {
	case c.in.shared == nil:
	case c.phase == stepBody:
		c.keepHead()
	default: // part of a head, or a head that is the last one and what came behind it
		c.in.unshare(c.r, c.w)
		c.r, c.w = 0, c.w-c.r
		c.fields.Rebase(c.in.buf)
	}
}

// bodySpace is where body bytes are read to: behind the head, as long as that lies in a shared buffer.
func (c *ClientConn) bodySpace() []byte {
	if c.bodyAt > 0 && len(c.in.buf)-c.bodyAt < minBodyRead {
		c.keepHead()
	}
	return c.in.room(c.bodyAt, c.readPool())
}

// readPool is where the buffers to read into come from. Without a raw descriptor one is held during the whole wait.
func (c *ClientConn) readPool() *sync.Pool {
	if c.raw != nil {
		return &bigPool
	}
	return &plainPool
}

// keepHead gives the buffer up in which body bytes are read. If the head is still in it, that is kept.
func (c *ClientConn) keepHead() {
	if c.bodyAt > 0 {
		c.fields.Rebase(c.in.unshare(c.headAt, c.headAt+c.head.end))
		c.bodyAt = 0
	}
	c.in.giveBack()
}
