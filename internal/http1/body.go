package http1

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// requestBody follows the body of the request under way. One goroutine reads it.
type requestBody struct {
	chunked  bool
	rest     int64 // bytes left of a body with a length
	dec      chunked
	bufp     *[]byte
	br, bw   int // bytes read beyond the connection's own buffer
	done     atomic.Bool
	err      error
	patience time.Duration     // for the next bytes
	step     func(fd int) bool // of a raw connection, made once; it reads n bytes or fails with errno
	n        int
	errno    syscall.Errno
	begun    atomic.Bool // somebody reads the body, maybe another goroutine: only done may be looked at
	stop     atomic.Bool
}

// begin prepares for the body that the head announces.
func (b *requestBody) begin(h *head, idle time.Duration) {
	b.chunked, b.rest, b.err = h.chunked, max(h.length, 0), nil
	b.patience = idle
	b.begun.Store(false)
	b.done.Store(!h.chunked && b.rest == 0)
	b.br, b.bw = 0, 0
	b.stop.Store(false)
	if h.chunked {
		b.dec.reset()
	}
}

// missing is how much of the body is not among have bytes behind the head; -1 when that cannot be told.
func (b *requestBody) missing(have int) int64 {
	if b.chunked {
		return -1
	}
	return max(0, b.rest-int64(have))
}

func (b *requestBody) free() {
	if b.bufp != nil {
		bigPool.Put(b.bufp)
		b.bufp = nil
	}
}

var errBodyStopped = errors.New("request body no longer wanted")

// Buffered returns the body if all of it came with the head.
func (c *serverConn) Buffered() ([]byte, bool) {
	if c.body.chunked || c.body.begun.Load() {
		return nil, false
	}
	have := c.in[c.r:c.w]
	if int64(len(have)) < c.body.rest {
		return have, false
	}
	return have[:c.body.rest], true
}

// ReadBody returns the next body bytes.
func (c *serverConn) ReadBody() ([]byte, error) {
	b := &c.body
	if b.err != nil {
		return nil, b.err
	}
	if b.done.Load() {
		return nil, io.EOF
	}
	if !b.begun.Swap(true) {
		if c.x.Request.Expect && !c.x.ExpectForwarded() {
			if err := c.Interim(100, nil); err != nil {
				return nil, c.bodyFailed(err)
			}
		}
	}
	for {
		if p, ok, err := c.takeBody(); err != nil {
			return nil, c.bodyFailed(err)
		} else if ok {
			c.x.Record.BytesIn += int64(len(p))
			return p, nil
		} else if b.done.Load() {
			return nil, io.EOF
		}
		if err := c.fillBody(); err != nil {
			return nil, c.bodyFailed(err)
		}
	}
}

// takeBody takes body bytes out of what has been received.
func (c *serverConn) takeBody() (p []byte, ok bool, err error) {
	b := &c.body
	src, own := c.in[c.r:c.w], true
	if len(src) == 0 && b.bw > b.br {
		src, own = (*b.bufp)[b.br:b.bw], false
	}
	if len(src) == 0 {
		return nil, false, nil
	}
	used := 0
	if b.chunked {
		var done bool
		if used, p, done, err = b.dec.next(src); err != nil {
			return nil, false, err
		}
		if done {
			err = b.dec.trailers(&c.x.Request.Trailers)
			b.done.Store(err == nil)
		}
	} else {
		used = int(min(int64(len(src)), b.rest))
		p = src[:used]
		b.rest -= int64(used)
	}
	if own {
		c.r += used
	} else {
		b.br += used
	}
	if err != nil {
		return nil, false, err
	}
	if !b.chunked && b.rest == 0 {
		b.done.Store(true)
	}
	if len(p) == 0 && !b.done.Load() {
		return c.takeBody()
	}
	return p, len(p) > 0, nil
}

// space is where body bytes are read to.
func (b *requestBody) space() []byte {
	if b.bufp == nil {
		b.bufp = bigPool.Get().(*[]byte)
	}
	space := *b.bufp
	if !b.chunked && int64(len(space)) > b.rest {
		space = space[:b.rest] // never into the next request
	}
	return space
}

// fillBody waits for more of the body.
func (c *serverConn) fillBody() error {
	b := &c.body
	if b.stop.Load() {
		return errBodyStopped
	}
	c.wait.Arm(c.reads, b.patience)
	var n int
	var err error
	if c.raw != nil {
		n, err = c.readBodyRaw()
	} else {
		n, err = c.c.Read(b.space())
	}
	cause := c.settle()
	b.br, b.bw = 0, n
	switch {
	case n > 0:
		return nil
	case b.stop.Load():
		return errBodyStopped
	case c.forced.Load():
		return exchange.ErrForced
	case cause == conn.CauseDeadline:
		return over(408, exchange.CodeBodyTimeout, "Request body timeout", "body_idle_timeout")
	case cause == conn.CauseDrain: // it was meant for an idle connection
		return nil
	case err == io.EOF:
		return fmt.Errorf("%w: connection ended inside the request body", exchange.ErrDeparted)
	}
	return fmt.Errorf("%w: %v", exchange.ErrDeparted, err)
}

// bodyFailed makes every later read fail the same way.
func (c *serverConn) bodyFailed(err error) error {
	if errors.Is(err, errChunk) {
		e := refuse(400, exchange.CodeBadBody, "Malformed request body")
		e.Err = err
		err = e
	}
	c.body.err = err
	return err
}

// ReleaseBody has nothing to give back: TCP's window follows what was read.
func (c *serverConn) ReleaseBody() {}

// InterruptBody makes a pending ReadBody fail.
func (c *serverConn) InterruptBody() {
	c.body.stop.Store(true)
	_ = c.c.SetReadDeadline(longAgo)
}

// maxDiscard is how much of an unread body is read away to keep the connection.
const maxDiscard = 64 << 10

// skippable reports whether a body that nobody has begun to read is small enough to be read away. Another goroutine may
// be about to read it.
func (c *serverConn) skippable() bool {
	return !c.head.chunked && !c.head.expect && c.head.length <= maxDiscard && !c.body.stop.Load()
}

// discardable reports whether the rest of the body is small enough to be read away.
func (c *serverConn) discardable() bool {
	b := &c.body
	return b.err == nil && !b.stop.Load() && !b.chunked && !c.x.Request.Expect && b.rest <= maxDiscard
}

// discardBody reads the rest of the body away; false when the connection is of no use any more.
func (c *serverConn) discardBody() bool {
	c.body.patience = min(c.set.BodyIdleTimeout, lingerIdle)
	for end := time.Now().Add(lingerIdle); !c.body.done.Load(); {
		if !c.discardable() || time.Now().After(end) {
			return false
		}
		if _, err := c.ReadBody(); err != nil && err != io.EOF {
			return false
		}
	}
	return c.body.err == nil
}
