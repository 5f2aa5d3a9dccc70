package http1

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// ClientConn is one connection to a backend. It serves one exchange at a time; its goroutine owns it.
type ClientConn struct {
	pool   *Pool
	c      conn.Conn
	raw    raw
	under  conn.Conn // what TLS stands on; nil without
	reused bool
	place  int // among the pool's busy connections
	// for nudge
	reads  atomic.Uint32
	seen   uint32 // by the pool: reads at its last look
	nudged atomic.Bool
	taken  atomic.Bool // its bytes are read by somebody else

	born   time.Duration // when it was opened
	served int           // requests
	readAt time.Duration // when bytes have come last
	idleAt int           // the pool's tick at which the connection became idle

	in      readBuffer // response head, and what came with it; then the body
	r, w    int
	headAt  int // where the final head begins
	bodyAt  int // where body bytes are read to
	head    head
	dec     chunked
	rest    int64
	ends    int
	done    bool   // the response is complete
	upgrade []byte // of a 101

	// the step under way, so that callbacks need no closures
	step      func(fd int) bool // clientStep, made once
	out, more []byte
	sink      exchange.BodySink
	fields    *exchange.Fields
	request   requestInfo
	phase     int
	err       error
	trailers  *exchange.Fields
	rawBody   bool
	passed    bool // the sink has been given something

	keep     bool // may be used again
	answered bool
	sent     atomic.Bool
	cut      atomic.Bool // was interrupted
	interim  int         // 1xx heads of this exchange
	wrote    error       // why the request could not be sent whole
	rests    chan error  // the rest of a request that did not fit the socket
	chunks   bool        // the body sent by Write is framed in chunks
	chunk    []byte      // the last of them
}

// requestInfo is what of the request decides how the response is read.
type requestInfo struct {
	head    bool // method HEAD
	connect bool // method CONNECT
	upgrade bool // a 101 is expected
}

const (
	stepSend = iota
	stepHead
	stepBody
)

// responseLimits bound a backend's head.
var responseLimits = Limits{MaxHeaderBytes: 128 << 10, MaxHeaders: 512}

// Reused reports whether the connection has served an exchange before.
func (c *ClientConn) Reused() bool { return c.reused }

// HTTP2 is false.
func (c *ClientConn) HTTP2() bool { return false }

// Interrupt makes what the connection waits for fail. It is of no use afterwards.
func (c *ClientConn) Interrupt() {
	c.cut.Store(true)
	conn.InterrupterOf(c.c).Interrupt()
}

// Progress of the dispatch.
func (c *ClientConn) Progress() exchange.Progress {
	switch {
	case c.answered:
		return exchange.Answered
	case c.sent.Load():
		return exchange.Sent
	}
	return exchange.NothingSent
}

// RoundTrip sends a request head with the body bytes that are at hand, and reads the final response head; its fields go
// to f, whose views stay valid until Release.
func (c *ClientConn) RoundTrip(out, body []byte, method []byte, upgrade bool, f *exchange.Fields, sink exchange.BodySink) (exchange.Head, error) {
	c.out, c.more, c.fields, c.sink = out, body, f, sink
	c.request = requestInfo{head: string(method) == "HEAD", connect: string(method) == "CONNECT", upgrade: upgrade}
	c.r, c.w, c.err, c.answered, c.keep, c.done, c.phase = 0, 0, nil, false, true, false, stepSend
	c.sent.Store(false)
	c.interim, c.wrote = 0, nil
	c.head.reset()
	if err := c.run(); err != nil {
		return exchange.Head{}, err
	}
	h := exchange.Head{Status: c.head.status, Length: -1}
	if c.ends == endsNone {
		h.Length = c.head.length
	} else if c.ends == endsLength {
		h.Length = c.rest
	}
	if h.Status == 101 {
		h.Upgrade = c.upgrade
	}
	return h, nil
}

// run performs the step under way to its end.
func (c *ClientConn) run() error {
	var err error
	if c.raw != nil {
		err = c.raw.Loop(c.step)
		for err != nil && c.looksAgain() {
			err = c.raw.Loop(c.step)
		}
	} else {
		err = c.runPlain()
	}
	if c.err != nil {
		err = c.err
	}
	if err != nil {
		c.keep = false
	}
	return err
}

// looksAgain reports whether a wait was only ended so that the socket is read once more.
func (c *ClientConn) looksAgain() bool {
	return c.nudged.Swap(false) && c.c.SetReadDeadline(time.Time{}) == nil && !c.cut.Load()
}

// runPlain is run without a raw descriptor.
func (c *ClientConn) runPlain() error {
	if c.phase == stepSend {
		c.sent.Store(true)
		_, err := c.c.Write(c.out)
		if err == nil && len(c.more) > 0 {
			_, err = c.c.Write(c.more)
		}
		if err != nil && isTimeout(err) {
			return err
		}
		c.sendFailed(err)
		c.phase = stepHead
		c.sink.Sent()
	}
	for {
		n, err := c.c.Read(c.space())
		if n > 0 {
			if c.take(n) {
				return nil
			}
			continue
		}
		if err == io.EOF {
			c.endOfStream()
			return nil
		}
		return c.readError(err)
	}
}

// sendFailed notes that the request could not be written. The backend may have answered before it closed, so the answer
// is looked for; the connection is not used again.
func (c *ClientConn) sendFailed(err error) {
	if err != nil {
		c.wrote, c.keep = err, false
	}
}

func (c *ClientConn) readError(err error) error {
	if c.wrote != nil && !c.answered {
		err = c.wrote
	}
	if c.reused && !c.answered && !isTimeout(err) {
		return fmt.Errorf("%w: %v", exchange.ErrStale, err)
	}
	return err
}

// space is where the next bytes go.
func (c *ClientConn) space() []byte {
	if c.phase == stepBody {
		return c.bodySpace()
	}
	if c.r > 0 { // interim heads that have been passed on
		c.w = copy(c.in.buf, c.in.buf[c.r:c.w])
		c.r = 0
	}
	return c.in.room(c.w, c.readPool())
}

// take uses n bytes just read; true ends the step.
func (c *ClientConn) take(n int) bool {
	c.readAt = time.Since(epoch)
	if c.phase == stepBody {
		return c.bodyBytes(c.in.buf[c.bodyAt : c.bodyAt+n])
	}
	c.w += n
	c.answered = true
	return c.headBytes()
}

// maxInterim bounds the 1xx heads before a final one.
const maxInterim = 64

// headBytes parses the head, passing over interim ones.
func (c *ClientConn) headBytes() bool {
	for {
		ok, perr := c.head.parse(c.in.buf[c.r:c.w], c.fields, responseLimits, false)
		if perr != nil {
			c.err = badResponse(perr)
			return true
		}
		if !ok {
			return false
		}
		if c.head.status >= 200 || c.head.status == 101 {
			c.frame()
			return true
		}
		if c.interim++; c.interim > maxInterim {
			c.err = errInterim
			return true
		}
		if c.err = c.sink.Interim(c.head.status, c.fields); c.err != nil {
			return true
		}
		c.r += c.head.end
		c.head.reset()
		if c.r == c.w {
			c.r, c.w = 0, 0
			return false
		}
	}
}

var (
	errInterim   = fmt.Errorf("%w: too many interim responses", exchange.ErrBadResponse)
	errLargeHead = fmt.Errorf("%w: head too large", exchange.ErrBadResponse)
)

// badResponse says what is wrong with a response head.
func badResponse(e *exchange.Error) error {
	if e.Err == nil {
		return errLargeHead
	}
	return fmt.Errorf("%w: %v", exchange.ErrBadResponse, e.Err)
}

// frame decides how the body ends (RFC 9112 §6.3).
func (c *ClientConn) frame() {
	h := &c.head
	if h.status == 101 || c.request.connect { // its connection is kept for long
		c.unshare()
	}
	c.upgrade = h.upgrade.of(c.in.buf[c.r:c.w])
	c.headAt = c.r
	c.r += h.end
	c.bodyAt = c.r
	c.keep = c.keep && !h.close && (h.proto == exchange.HTTP11 || h.keep)
	switch {
	case h.status == 101:
		c.ends, c.keep, c.done = endsNone, false, true
		if !c.request.upgrade || h.upgrade.empty() {
			c.err = fmt.Errorf("%w: unexpected 101", exchange.ErrBadResponse)
		}
		return
	case c.request.connect && h.status < 300: // RFC 9110 §9.3.6: bytes behind the head are the tunnel's, whatever it says of a body
		c.ends, c.keep, c.done = endsNone, false, true
		c.head.length = -1
		return
	case c.request.head || h.status == 204 || h.status == 304:
		c.ends, c.done = endsNone, true
	case h.chunked:
		c.ends = endsChunked
		c.dec.reset()
	case h.length >= 0:
		c.ends, c.rest = endsLength, h.length
		c.done = h.length == 0
	default:
		c.ends, c.keep = endsClose, false
	}
	if c.done && c.r < c.w {
		c.keep = false // bytes that belong to no request
	}
}

// Done reports whether the response is complete: it has no body.
func (c *ClientConn) Done() bool {
	return c.done && c.ends == endsNone || c.ends == endsLength && c.rest == 0
}

// Buffered reports whether body bytes came with the head.
func (c *ClientConn) Buffered() bool { return c.r < c.w }

// Chunked reports whether the body comes in chunks.
func (c *ClientConn) Chunked() bool { return c.ends == endsChunked }

// endOfStream is the backend's FIN.
func (c *ClientConn) endOfStream() {
	c.keep = false
	switch {
	case c.phase == stepBody && c.ends == endsClose:
		c.done = true
		c.err = c.sink.Body(nil, true)
	case c.phase != stepBody && !c.answered && c.reused:
		c.err = exchange.ErrStale
	case c.phase != stepBody && !c.answered && c.wrote != nil:
		c.err = c.wrote
	case c.phase != stepBody && !c.answered:
		c.err = fmt.Errorf("backend closed the connection without an answer: %w", io.EOF)
	default:
		c.err = fmt.Errorf("%w: connection ended inside the response", io.ErrUnexpectedEOF)
	}
}

// Takeover gives the connection up after a 101, a 2xx to CONNECT, or Connect. What came behind the head is read first. Release closes it.
func (c *ClientConn) Takeover() conn.Conn {
	pre := append([]byte(nil), c.in.buf[c.r:c.w]...)
	c.out = nil // what takes the connection over may last
	c.taken.Store(true)
	return conn.WithPrefix(c.c, pre)
}

// quieter is a connection that can tell whether nothing has arrived and its peer is still there.
type quieter interface{ Quiet() bool }

// quiet reports whether an idle connection can be used: the backend has neither closed it nor sent anything beyond its
// answer, which would be taken for the next one. The session tickets of TLS were read with the first answer.
func (c *ClientConn) quiet() bool {
	below := c.c
	if c.under != nil {
		below = c.under
	}
	if q, ok := below.(quieter); ok {
		if !q.Quiet() { // tells a peer that is gone, too
			return false
		}
	} else if p, ok := below.(conn.Prober); ok && p.PeerGone() {
		return false
	}
	return c.under == nil || !c.decrypted()
}

// decrypted reports whether TLS holds a record that it has received and not given out. Nothing is read from below.
func (c *ClientConn) decrypted() bool {
	if c.c.SetReadDeadline(longAgo) != nil {
		return true
	}
	var b [1]byte
	n, err := c.c.Read(b[:])
	return n > 0 || !isTimeout(err) || c.c.SetReadDeadline(time.Time{}) != nil
}

// Release returns the connection to its pool, or closes it if it cannot be used again. reuse is false when the request
// was not sent whole.
func (c *ClientConn) Release(reuse bool) {
	c.out, c.more, c.sink, c.fields, c.trailers, c.chunks, c.chunk = nil, nil, nil, nil, nil, false, nil
	if c.rests != nil {
		select {
		case err := <-c.rests:
			reuse = reuse && err == nil
			c.rests = nil
		default:
			reuse = false
			c.Interrupt()
			_ = c.waitRest()
		}
	}
	c.in.free()
	c.pool.put(c, reuse && c.keep && c.done && !c.cut.Load())
}
