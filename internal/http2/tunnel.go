package http2

import (
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// tunnelOwner is a stream of either side, as its tunnel uses it. The connection's lock is held in all of it.
type tunnelOwner interface {
	// endOut notes that END_STREAM has been sent.
	endOut()
	// abandon resets the stream, with the code unless the side prefers another one when END_STREAM was sent.
	abandon(code http2.ErrCode)
}

// tunnel is the flow of a stream that was taken over. The connection's lock guards it.
type tunnel struct {
	s     *flow
	owner tunnelOwner
	conn  *StreamConn
	held  int // bytes that have arrived and are not read
	off   int // of the first piece, how much has been read
}

// takeOver makes the stream a connection, of which nothing has been read. From now on the connection's credit is given back
// when bytes arrive. The lock is held.
func (s *flow) takeOver(owner tunnelOwner, info *conn.Info) *StreamConn {
	t := &tunnel{s: s, owner: owner}
	b := &s.body
	for _, p := range b.pieces {
		t.held += len(p.b)
	}
	if !b.onReceipt {
		b.onReceipt = true
		s.l.grant(t.held)
	}
	t.conn = &StreamConn{t: t, info: info}
	t.conn.read.wake, t.conn.write.wake = s.readWake, s.sendWake
	s.taken = t
	t.replenish()
	return t.conn
}

// received counts bytes that have arrived. The lock is held.
func (t *tunnel) received(n int) {
	t.held += n
	t.replenish()
}

// replenish lets the peer send what the window allows beside what is not read, when that is worth a frame. The lock is
// held.
func (t *tunnel) replenish() {
	s := t.s
	l, b := s.l, &s.body
	n := tunnelWindow - b.receive - t.held
	if n < tunnelWindow/4 || s.remoteEnded || s.closed || l.phase == closing {
		return
	}
	o := l.buffer()
	o.b = append4(o.b, http2.FrameWindowUpdate, s.id, uint32(n))
	b.receive += n
	l.flush()
}

// read copies bytes that have arrived into p, which is not empty, waiting for some. It returns io.EOF after the peer's end,
// syscall.ECONNRESET for a stream or connection that is gone, os.ErrDeadlineExceeded. One goroutine may be in it.
func (t *tunnel) read(p []byte) (int, error) {
	s := t.s
	l, b := s.l, &s.body
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case t.conn.closed.Load():
			return 0, net.ErrClosed
		case t.conn.read.passed.Load():
			return 0, os.ErrDeadlineExceeded
		case len(b.pieces) > 0:
			n := t.copy(p)
			t.held -= n
			t.replenish()
			return n, nil
		case s.remoteEnded:
			return 0, io.EOF
		case s.closed || l.phase == closing:
			return 0, syscall.ECONNRESET
		}
		l.mu.Unlock()
		<-s.readWake
		l.mu.Lock()
	}
}

// copy moves bytes of the first piece to p. The lock is held.
func (t *tunnel) copy(p []byte) int {
	b := &t.s.body
	first := b.pieces[0]
	n := copy(p, first.b[t.off:])
	if t.off += n; t.off < len(first.b) {
		return n
	}
	t.off = 0
	first.free()
	last := len(b.pieces) - 1
	copy(b.pieces, b.pieces[1:])
	b.pieces[last] = nil
	b.pieces = b.pieces[:last]
	return n
}

// write sends all of p. It returns how much was sent, and syscall.ECONNRESET or os.ErrDeadlineExceeded. One goroutine may be
// in it or in endWrite.
func (t *tunnel) write(p []byte) (int, error) {
	s := t.s
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	done := 0
	for done < len(p) {
		n, ok := s.take(len(p) - done)
		if !ok {
			return done, t.writeError()
		}
		o := l.buffer()
		o.b = append(appendFrameHead(o.b, n, http2.FrameData, 0, s.id), p[done:done+n]...)
		l.updates.earn(perData)
		l.pass()
		done += n
	}
	l.flush()
	return done, nil
}

// writeError says why nothing can be sent. The lock is held.
func (t *tunnel) writeError() error {
	if t.s.closed || t.s.l.phase == closing {
		return syscall.ECONNRESET
	}
	return os.ErrDeadlineExceeded
}

// endWrite sends END_STREAM, once. An empty frame takes no window, and waits for no room.
func (t *tunnel) endWrite() error {
	s := t.s
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.closed || l.phase == closing {
		return syscall.ECONNRESET
	}
	o := l.buffer()
	o.b = appendFrameHead(o.b, 0, http2.FrameData, flagEnd, s.id)
	t.owner.endOut()
	l.flush()
	return nil
}

// close resets the stream, unless both ends have come, and wakes who waits.
func (t *tunnel) close(code http2.ErrCode) {
	s := t.s
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.closed && l.phase != closing && !(s.ended && s.remoteEnded) {
		t.owner.abandon(code)
	}
	signal(s.readWake)
	signal(s.sendWake)
}

// state tells whether the peer has ended or reset the stream, and whether bytes have arrived that are not read.
func (t *tunnel) state() (gone, unread bool) {
	s := t.s
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return s.remoteEnded || s.closed || s.l.phase == closing, len(s.body.pieces) > 0
}
