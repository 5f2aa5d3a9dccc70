package http2

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// inbound is what has arrived of a body and is not read yet. The connection's lock guards it, except cur, which belongs to
// the goroutine that reads.
type inbound struct {
	pieces   []*piece
	cur      *piece // handed out
	declared int64  // Content-Length; -1 none
	got      int64
	window   int   // what the peer was granted at first
	receive  int   // what it may still send
	credit   int   // used up, and not yet told
	err      error // what follows the pieces; io.EOF at the end
	trailers bool
	begun    bool
	// onReceipt tells that the connection's credit is given back when bytes arrive and not when they are read: what nobody
	// reads then holds up nothing but its own stream.
	onReceipt bool
	// patient is the body of a gRPC call: a client may have nothing to say for as long as it listens.
	patient bool
	stop    atomic.Bool
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
func (b *inbound) add(p []byte) {
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
func (b *inbound) clear() {
	*b = inbound{pieces: b.pieces[:0]}
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
		case b.next():
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
	c, idle := st.c, st.set.BodyIdleTimeout
	if st.body.patient {
		idle = 0
	}
	c.mu.Unlock()
	st.read.Arm((*readSide)(st), idle)
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
func (st *stream) ReleaseBody() { st.giveBack() }

// InterruptBody makes a pending ReadBody fail.
func (st *stream) InterruptBody() {
	st.body.stop.Store(true)
	signal(st.readWake)
}

// BadBody is the error of a request body that breaks the protocol.
func BadBody(why string) error {
	e := exchange.Reject(400, exchange.CodeBadBody, "Malformed request body")
	e.Err = exchange.Fault(why)
	return e
}
