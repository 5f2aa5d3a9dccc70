package http2

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/http2"
)

// tunnel is a stream of either side that was taken over. The connection's lock guards it.
type tunnel struct {
	s     *flow
	conn  *StreamConn
	held  int                 // bytes that have arrived and are not read
	off   int                 // of the first piece, how much has been read
	reset func(http2.ErrCode) // sends RST_STREAM
	end   func()              // notes that END_STREAM is out
	left  func()              // called without the lock when the conn is closed; nil: nothing is to be done

	parts   bool      // the connection's reader closes what lingers
	lingers bool      // the conn is to be closed with the peer's end
	until   time.Time // or then
	done    func()    // called without the lock when it is
}

// dig makes a tunnel of a stream, whose functions t brings. What has arrived is read first. The lock is held.
func (s *flow) dig(with tunnel) *StreamConn {
	t, b := &with, &s.body
	t.s = s
	for _, p := range b.pieces {
		t.held += len(p.b)
	}
	if !b.onReceipt {
		b.onReceipt = true
		s.l.grant(t.held)
	}
	t.conn = newStreamConn(t, s.l.info, s.readWake, s.sendWake)
	s.tunnel = t
	t.replenish()
	return t.conn
}

// received counts bytes that have arrived. The lock is held.
func (t *tunnel) received(n int) {
	t.held += n
	t.replenish()
}

// replenish lets the client send what the window allows beside what is not read, when that is worth a frame. The lock is
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

func (t *tunnel) readTunnel(p []byte) (int, error) {
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
			n := t.take(p)
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

// take moves bytes of the first piece to p. The lock is held.
func (t *tunnel) take(p []byte) int {
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

func (t *tunnel) writeTunnel(p []byte) (int, error) {
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

func (t *tunnel) endTunnel() error {
	s := t.s
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.closed || l.phase == closing {
		return syscall.ECONNRESET
	}
	o := l.buffer() // an empty frame takes no window, and waits for no room
	o.b = appendFrameHead(o.b, 0, http2.FrameData, flagEnd, s.id)
	t.end()
	l.flush()
	return nil
}

func (t *tunnel) closeTunnel(code http2.ErrCode) {
	done := t.endNow(code)
	if t.left != nil {
		t.left()
	}
	if done != nil {
		done()
	}
}

func (t *tunnel) lingerTunnel(until time.Time, done func()) bool {
	l := t.s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.parts || t.over() || t.conn.closed.Load() {
		return false
	}
	t.lingers, t.until, t.done = true, until, done
	return true
}

// over reports whether nothing comes from the peer any more. The lock is held.
func (t *tunnel) over() bool { return t.s.remoteEnded || t.s.closed || t.s.l.phase == closing }

// endNow ends what has not ended yet, and returns what is to be called then.
func (t *tunnel) endNow(code http2.ErrCode) (done func()) {
	s := t.s
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	t.lingers, done, t.done = false, t.done, nil
	switch {
	case s.closed || l.phase == closing || s.ended && s.remoteEnded:
	case s.ended:
		t.reset(http2.ErrCodeNo) // RFC 9113 §8.1
	default:
		t.reset(code)
	}
	signal(s.readWake)
	signal(s.sendWake)
	return done
}

func (t *tunnel) tunnelState() (gone, unread bool) {
	s := t.s
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return t.over(), len(s.body.pieces) > 0
}
