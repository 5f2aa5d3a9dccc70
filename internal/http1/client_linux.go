package http1

import (
	"os"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// clientStep sends the request and reads the answer inside one callback of the poller: the callback begins before the
// request is sent, so the answer's readiness cannot be lost, and no read is tried before there is something.
func (c *ClientConn) clientStep(fd int) bool {
	if c.phase == stepSend {
		c.phase = stepHead
		return c.sendStep()
	}
	for {
		space := c.space()
		n, e := conn.TryRead(fd, space)
		switch {
		case e == syscall.EAGAIN:
			c.unshare()
			return false
		case e != 0:
			c.err = c.readError(os.NewSyscallError("read", e))
			return true
		case n == 0:
			c.endOfStream()
			return true
		}
		c.reads.Add(1)
		if c.take(n) {
			return true
		}
		// After a short read the socket is empty, and what comes next wakes us. An end of stream that came together with
		// these bytes does not: where that is how the body ends we look again at once, elsewhere the pool's visit finds it.
		if n < len(space) && c.phase == stepBody && c.ends != endsClose {
			c.unshare()
			return false
		}
	}
}

// sendStep writes the request; true when the step has ended already. What the socket does not take at once is written by another
// goroutine, since the backend may answer before it has read all.
func (c *ClientConn) sendStep() bool {
	n, e := c.raw.TryWrite2(c.out, c.more)
	if e != 0 && e != syscall.EAGAIN {
		c.sendFailed(os.NewSyscallError("write", e))
		if c.reused { // whatever lies there was not sent in answer to this request
			c.err = c.readError(c.wrote)
			return true
		}
		return c.clientStep(c.raw.FD())
	}
	if e != 0 {
		n = 0
	}
	c.sent.Store(true)
	if total := len(c.out) + len(c.more); n < total {
		left := append(append([]byte(nil), c.out...), c.more...)[n:]
		done := make(chan error, 1)
		c.rests = done
		go func() {
			_, err := c.raw.Write(left)
			done <- err
		}()
	}
	c.sink.Sent()
	return false
}

// nudge is the pool's visit. A wait that goes on without a byte may have slept through an end of stream that came
// together with the last bytes read: it is made to look again then.
func (c *ClientConn) nudge() {
	n := c.reads.Load()
	if c.raw == nil || c.taken.Load() || n != c.seen {
		c.seen = n
		return
	}
	if c.raw.PeerGone() {
		c.nudged.Store(true)
		_ = c.raw.SetReadDeadline(longAgo)
	}
}
