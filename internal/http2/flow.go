package http2

import (
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// flow is what a stream is made of on both sides: what has arrived and is not read, its windows, and its place among those
// who wait to send.
type flow struct {
	l  *link
	id uint32

	write      conn.Alarm // a peer that takes nothing
	writeLimit time.Duration
	timed      bool        // the write alarm is armed
	shared     bool        // since then the stream has been in the queue
	moved      int64       // the connection's, then
	timedOut   atomic.Bool // it has fired
	cut        atomic.Bool // nothing of the stream is wanted any more
	sendWake   chan struct{}
	readWake   chan struct{}

	// guarded by the connection's lock
	body        inbound
	window      int64 // what may be sent
	want        int   // what the stream is in the queue for
	queued      bool
	turn        bool // taken out of the queue, to send
	ended       bool // our end of the stream is out
	remoteEnded bool // the peer's has come
	closed      bool // reset, by either side, or the connection is gone
	tunnel      *tunnel
}

func newFlow() flow {
	return flow{sendWake: make(chan struct{}, 1), readWake: make(chan struct{}, 1)}
}

// bind prepares a flow for a stream.
func (s *flow) bind(l *link, id uint32, writeLimit time.Duration) {
	s.l, s.id, s.writeLimit = l, id, writeLimit
	s.write.Bind(l.clock)
}

// unbind makes the flow ready for another stream.
func (s *flow) unbind() {
	s.body.clear()
	s.timed = false
	s.timedOut.Store(false)
	s.cut.Store(false)
	for _, ch := range [...]chan struct{}{s.sendWake, s.readWake} {
		select {
		case <-ch:
		default:
		}
	}
	s.l, s.tunnel = nil, nil
	s.queued, s.turn, s.ended, s.remoteEnded, s.closed = false, false, false, false, false
}

// sendable reports whether more can be sent. The lock is held.
func (s *flow) sendable() bool {
	return !s.closed && !s.timedOut.Load() && !s.cut.Load() && s.l.phase != closing && (s.tunnel == nil || !s.tunnel.conn.write.passed.Load())
}

// takeIn takes in the payload of a DATA frame; size counts its padding, too. The code is not 0 if the stream is to be reset for it.
// Who reads is not woken. The lock is held.
func (s *flow) takeIn(p []byte, size int, end bool) http2.ErrCode {
	b := &s.body
	if b.onReceipt {
		s.l.grant(size)
	}
	if b.receive -= size; b.receive < 0 {
		s.refund(size)
		return http2.ErrCodeFlowControl
	}
	if b.got += int64(len(p)); b.declared >= 0 && b.got > b.declared {
		s.refund(size)
		b.err = s.l.badBody("body is longer than Content-Length")
		return http2.ErrCodeProtocol
	}
	b.add(p)
	if s.tunnel != nil {
		s.tunnel.received(len(p))
	} else {
		s.grant(size - len(p)) // also 0: what may still be sent has become less
	}
	if end {
		s.endBody(false)
	}
	return 0
}

// refund gives n bytes back to the connection, if it has not been done on their receipt. The lock is held.
func (s *flow) refund(n int) {
	if !s.body.onReceipt {
		s.l.grant(n)
	}
}

// grant lets the peer send n more bytes: on the connection, and on the stream unless that has ended. It is told when
// there is a quarter of the window to tell of. The lock is held.
func (s *flow) grant(n int) {
	l, b := s.l, &s.body
	s.refund(n)
	if b.err != nil || s.closed || l.phase == closing {
		return
	}
	b.credit += n
	if b.credit >= b.window/4 {
		o := l.buffer()
		o.b = append4(o.b, http2.FrameWindowUpdate, s.id, uint32(b.credit))
		b.receive += b.credit
		b.credit = 0
		l.flush()
	}
}

// next takes the oldest piece out, if there is one. The lock is held.
func (b *inbound) next() bool {
	if len(b.pieces) == 0 {
		return false
	}
	b.cur = b.pieces[0]
	copy(b.pieces, b.pieces[1:])
	b.pieces = b.pieces[:len(b.pieces)-1]
	return true
}

// giveBack releases the piece that was handed out, and returns its credit to the peer.
func (s *flow) giveBack() {
	b := &s.body
	if b.cur == nil {
		return
	}
	n := len(b.cur.b)
	b.cur.free()
	b.cur = nil
	s.l.mu.Lock()
	s.grant(n)
	s.l.mu.Unlock()
}

// dropBody gives back what nobody has read. What a handler that has panicked has left behind may still read, and is
// stopped; its pieces are left to the garbage collector. The lock is held.
func (s *flow) dropBody(sound bool) {
	b := &s.body
	if !sound {
		n := 0
		for _, p := range b.pieces {
			n += len(p.b)
		}
		b.pieces = nil
		b.stop.Store(true)
		signal(s.readWake)
		s.grant(n)
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
	s.refund(n)
}

// endBody notes that the peer's end of the stream has come. Who reads is not woken. The lock is held.
func (s *flow) endBody(trailers bool) {
	b := &s.body
	s.remoteEnded = true
	b.trailers = trailers
	switch {
	case b.err != nil: // the exchange has given up on it
	case b.declared >= 0 && b.got != b.declared:
		b.err = s.l.badBody("body is shorter than Content-Length")
	default:
		b.err = io.EOF
	}
}
