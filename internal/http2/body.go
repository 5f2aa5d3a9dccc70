package http2

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// requestBody is what has arrived of the request body and is not read yet. The connection's lock guards it, except cur,
// which belongs to the goroutine that reads.
type requestBody struct {
	pieces   []*piece
	cur      *piece // handed out
	declared int64  // Content-Length; -1 none
	got      int64
	receive  int   // what the client may still send
	credit   int   // used up, and not yet told
	err      error // what follows the pieces; io.EOF at the end
	trailers bool
	begun    bool
	stop     atomic.Bool
}

// piece holds body bytes. Its size is a power of two, so that what lies in memory is at most twice what arrived, and
// pieceMin a stream.
type piece struct{ b []byte }

const (
	pieceMin     = 1 << 10
	pieceClasses = 5 // up to frameSize
)

var piecePools [pieceClasses]sync.Pool

func class(n int) int { return bits.Len(uint(max(n, pieceMin)-1)) - bits.Len(uint(pieceMin-1)) }

func newPiece(n int) *piece {
	i := class(n)
	if p, ok := piecePools[i].Get().(*piece); ok {
		return p
	}
	return &piece{b: make([]byte, 0, pieceMin<<i)}
}

func (p *piece) free() {
	i := class(cap(p.b))
	p.b = p.b[:0]
	piecePools[i].Put(p)
}

// add takes bytes in that have arrived.
func (b *requestBody) add(p []byte) {
	if n := len(b.pieces); n > 0 {
		last := b.pieces[n-1]
		fits := min(len(p), cap(last.b)-len(last.b))
		last.b = append(last.b, p[:fits]...)
		p = p[fits:]
	}
	if len(p) > 0 {
		n := newPiece(len(p))
		n.b = append(n.b, p...)
		b.pieces = append(b.pieces, n)
	}
}

// clear empties b for the next exchange.
func (b *requestBody) clear() {
	*b = requestBody{pieces: b.pieces[:0]}
}

var errBodyStopped = errors.New("request body no longer wanted")

// Buffered returns what has arrived in the first piece, and whether that is the whole body.
func (st *stream) Buffered() ([]byte, bool) {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	b := &st.body
	switch {
	case b.begun:
		return nil, false
	case len(b.pieces) == 0:
		return nil, b.err == io.EOF && !b.trailers
	}
	// A length that was not declared would have to be framed by whoever passes the body on.
	return b.pieces[0].b, len(b.pieces) == 1 && b.err == io.EOF && !b.trailers && b.declared >= 0
}

// ReadBody returns the next body bytes. The first call asks the client to go on, if it waits for that.
func (st *stream) ReadBody() ([]byte, error) {
	st.ReleaseBody()
	c, b := st.c, &st.body
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.begun {
		b.begun = true
		st.askToGoOn()
	}
	for {
		switch {
		case b.stop.Load():
			return nil, errBodyStopped
		case len(b.pieces) > 0:
			b.cur = b.pieces[0]
			copy(b.pieces, b.pieces[1:])
			b.pieces = b.pieces[:len(b.pieces)-1]
			st.x.Record.BytesIn += int64(len(b.cur.b))
			return b.cur.b, nil
		case b.err != nil:
			return nil, b.err
		case c.forced.Load():
			return nil, exchange.ErrForced
		case st.closed || c.phase == closing:
			return nil, fmt.Errorf("%w: stream ended inside the request body", exchange.ErrDeparted)
		}
		if st.awaitBody() == conn.CauseDeadline && len(b.pieces) == 0 && b.err == nil {
			e := exchange.Reject(408, exchange.CodeBodyTimeout, "Request body timeout")
			e.Limit = "body_idle_timeout"
			b.err = e
		}
	}
}

// awaitBody sleeps until something has come of the body, or will not come. The lock is held, but not during the wait.
func (st *stream) awaitBody() conn.Cause {
	c := st.c
	c.mu.Unlock()
	st.read.Arm((*readSide)(st), st.set.BodyIdleTimeout)
	<-st.readWake
	cause := st.read.Disarm()
	c.mu.Lock()
	return cause
}

// askToGoOn sends 100 (Continue) to a client that waits for it. The lock is held.
func (st *stream) askToGoOn() {
	if !st.x.Request.Expect || st.x.ExpectForwarded() || st.headSent || !st.sendable() {
		return
	}
	st.c.block(st.id, continueBlock, false)
	st.c.flush()
}

// readSide is the stream as what the read alarm interrupts: only the wait for the body ends, not the stream.
type readSide stream

// Interrupt ends a pending wait.
func (s *readSide) Interrupt() { signal(s.readWake) }

// ReleaseBody gives the bytes last returned back, and their credit to the client.
func (st *stream) ReleaseBody() {
	b := &st.body
	if b.cur == nil {
		return
	}
	n := len(b.cur.b)
	b.cur.free()
	b.cur = nil
	st.c.mu.Lock()
	st.grant(n)
	st.c.mu.Unlock()
}

// grant lets the client send n more bytes: on the connection, and on the stream unless that has ended. It is told when
// there is a quarter of the window to tell of. The lock is held.
func (st *stream) grant(n int) {
	c, b := st.c, &st.body
	c.grant(n)
	if b.err != nil || st.closed || c.phase == closing {
		return
	}
	b.credit += n
	if b.credit >= streamWindow/4 {
		o := c.buffer()
		o.b = append4(o.b, http2.FrameWindowUpdate, st.id, uint32(b.credit))
		b.receive += b.credit
		b.credit = 0
		c.flush()
	}
}

// grant lets the client send n more bytes on the connection. It is told, too, when that is no less than what it may still
// send: what nobody reads may hold the rest of the window. The lock is held.
func (c *serverConn) grant(n int) {
	c.credit += n
	if c.credit > 0 && c.credit >= min(connWindow/4, c.receive) && c.phase != closing {
		o := c.buffer()
		o.b = append4(o.b, http2.FrameWindowUpdate, 0, uint32(c.credit))
		c.receive += c.credit
		c.credit = 0
		c.flush()
	}
}

// dropBody gives back what nobody has read. What a handler that has panicked has left behind may still read, and is
// stopped; its pieces are left to the garbage collector. The lock is held.
func (st *stream) dropBody(sound bool) {
	b := &st.body
	if !sound {
		n := 0
		for _, p := range b.pieces {
			n += len(p.b)
		}
		b.pieces = nil
		b.stop.Store(true)
		signal(st.readWake)
		st.c.grant(n)
		return
	}
	if b.cur != nil {
		b.pieces = append(b.pieces, b.cur)
		b.cur = nil
	}
	n := 0
	for i, p := range b.pieces {
		n += len(p.b)
		p.free()
		b.pieces[i] = nil
	}
	b.pieces = b.pieces[:0]
	st.c.grant(n)
}

// InterruptBody makes a pending ReadBody fail.
func (st *stream) InterruptBody() {
	st.body.stop.Store(true)
	signal(st.readWake)
}

// BadBody is the error of a request body that breaks the protocol.
func BadBody(why string) error {
	e := exchange.Reject(400, exchange.CodeBadBody, "Malformed request body")
	e.Err = headError(why)
	return e
}

// endBody notes that the client's end of the stream has come. The lock is held.
func (st *stream) endBody(trailers bool) {
	b := &st.body
	st.remoteEnded = true
	if st.ended {
		st.uncount()
	}
	b.trailers = trailers
	switch {
	case b.err != nil: // the exchange has given up on it
	case b.declared >= 0 && b.got != b.declared:
		b.err = BadBody("body is shorter than Content-Length")
	default:
		b.err = io.EOF
	}
	signal(st.readWake)
}
