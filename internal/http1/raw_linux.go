package http1

import (
	"io"
	"os"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// raw is the fast path: a kernel socket whose readiness callbacks the connection runs in.
type raw = *conn.Raw

func rawOf(c conn.Conn) raw {
	r, _ := c.(*conn.Raw)
	return r
}

// step is called when the socket may be readable, with the descriptor's read lock held: it serves every request that
// is complete, and returns false to sleep until more arrives. No edge is lost in between.
func (c *serverConn) step(fd int) bool {
	if c.w > c.r {
		if c.verd = c.process(); c.verd != needBytes {
			return true
		}
	}
	for {
		c.ensure(1)
		space := c.in[c.w:]
		n, e := conn.TryRead(fd, space)
		if e == syscall.EAGAIN {
			break
		}
		if e != 0 || n == 0 {
			c.verd = endConn
			return true
		}
		c.w += n
		c.more = n == len(space)
		if c.verd = c.process(); c.verd != needBytes {
			return true
		}
		if !c.more {
			break
		}
	}
	if c.head.end > 0 && c.w > c.r { // a whole head whose body is still to come
		c.more = false
		c.verd = runOutside
		return true
	}
	if c.w == c.r {
		c.idle()
		c.freeIn()
	}
	return false
}

// tryRead reads what is there without waiting.
func (c *serverConn) tryRead(b []byte) int {
	n, e := conn.TryRead(c.fd, b)
	if e != 0 {
		return 0
	}
	return n
}

// readBodyRaw waits for body bytes without a buffer in hand: many clients may send slowly.
func (c *serverConn) readBodyRaw() (int, error) {
	b := &c.body
	if b.step == nil {
		b.step = c.bodyStep
	}
	if err := c.raw.Loop(b.step); err != nil {
		return 0, err
	}
	switch {
	case b.errno != 0:
		return 0, os.NewSyscallError("read", b.errno)
	case b.n == 0:
		return 0, io.EOF
	}
	return b.n, nil
}

// bodyStep is called when body bytes may have arrived.
func (c *serverConn) bodyStep(fd int) bool {
	b := &c.body
	if b.n, b.errno = conn.TryRead(fd, b.space()); b.errno == syscall.EAGAIN {
		b.free()
		return false
	}
	return true
}
