package http2

import (
	"runtime"
	"slices"
	"sync"

	"golang.org/x/net/http2"
)

// Bounds of what waits to be written on a connection. While one buffer is written another fills.
const (
	maxOut      = 64 << 10 // body bytes wait from here on
	maxControl  = 128 << 10
	secretPiece = 16 << 10 // one TLS record: what the client must take within WriteIdleTimeout
	clearPiece  = 64 << 10
)

// output is a buffer of frames to be written.
type output struct{ b []byte }

var outPool = sync.Pool{New: func() any { return &output{make([]byte, 0, 4<<10)} }}

// maxPooledOut keeps an unusually large buffer from staying in the pool.
const maxPooledOut = maxOut + 2*frameSize

// buffer is where frames to be written are appended. The lock is held.
func (l *link) buffer() *output {
	if l.phase == closing {
		l.lost.b = l.lost.b[:0]
		return &l.lost
	}
	if l.out == nil {
		l.out = outPool.Get().(*output)
	}
	return l.out
}

// waiting is how much is to be written. The lock is held.
func (l *link) waiting() int {
	if l.out == nil {
		return 0
	}
	return len(l.out.b)
}

// flush has the writer write what is in the buffer. The lock is held.
func (l *link) flush() {
	l.used = true
	if l.writing || l.ended || l.halfClosed {
		return
	}
	l.writing = true
	if l.parked {
		l.parked = false
		signal(l.wakeWriter)
		return
	}
	l.running.Add(1)
	go l.write()
}

// control is buffer for frames that answer the client's: who has us pile them up without reading is flooding.
func (l *link) control() (*output, *connError) {
	if l.waiting() > maxControl {
		return nil, flood("frames to answer that are not read")
	}
	return l.buffer(), nil
}

// write is the writer. It lets everybody else run first, so that the answers of all streams that are ready go out in one
// piece; twice, since that makes others ready, and costs less than another record and system call. When there is nothing
// to write it waits, until the connection has been idle for a while.
func (l *link) write() {
	defer l.running.Done()
	for {
		runtime.Gosched()
		runtime.Gosched()
		l.mu.Lock()
		o := l.out
		if o == nil {
			l.writing = false
			if l.phase != closing && !l.retiring {
				l.parked = true
				l.mu.Unlock()
				<-l.wakeWriter
				continue
			}
			l.retiring = false
			over := l.phase == closing && !l.ended
			if over {
				l.halfClosed = true
				l.await(lingerTime)
			}
			l.mu.Unlock()
			if over {
				l.wire.closeWrite()
			}
			return
		}
		l.out = nil
		l.pass()
		l.mu.Unlock()
		l.send(o.b)
		if cap(o.b) <= maxPooledOut {
			o.b = o.b[:0]
			outPool.Put(o)
		}
	}
}

// send writes b in pieces, each of which has the whole time limit. A connection that fails is dead; its reader ends it.
func (l *link) send(b []byte) {
	piece := clearPiece
	if l.info.TLS != nil {
		piece = secretPiece
	}
	for limit := l.writeLimit(); len(b) > 0; {
		n := min(len(b), piece)
		l.stall.Arm(l.wire, limit)
		_, err := l.wire.Write(b[:n])
		l.stall.Disarm()
		if err != nil {
			l.wire.kill()
			return
		}
		b = b[n:]
	}
}

// roomy reports whether a stream could send want body bytes, or a head if that is 0, as far as the connection is
// concerned. The lock is held.
func (l *link) roomy(want int) bool {
	return l.waiting() < maxOut && (want == 0 || l.sendWindow > 0)
}

// pass gives the turn to the first stream in the queue that can make use of it. The lock is held.
func (l *link) pass() {
	for i, s := range l.queue {
		if l.roomy(s.want) {
			l.queue = slices.Delete(l.queue, i, i+1)
			s.queued, s.turn = false, true
			l.turns++
			signal(s.sendWake)
			return
		}
	}
}

// take waits until the stream may send, in its turn, and takes as much of want as it may; with want 0 it waits for room
// alone. False: nothing can be sent any more. The lock is held, but not during the wait.
func (s *flow) take(want int) (int, bool) {
	l := s.l
	for {
		switch {
		case !s.sendable():
			s.giveUp()
			return 0, false
		case s.queued: // woken for another reason
		case want > 0 && s.window <= 0:
			s.giveUp()
		case !l.roomy(want) || want > 0 && !s.turn && len(l.queue)+l.turns > 0: // also behind who is about to wake up
			s.enqueue(want)
		default:
			s.endTurn()
			// What needs no window goes out although the client has made it negative (RFC 9113 §6.9.2).
			n := int(max(0, min(int64(want), s.window, l.sendWindow, frameSize)))
			s.window -= int64(n)
			l.sendWindow -= int64(n)
			l.moved += int64(n)
			return n, true
		}
		s.sleep()
	}
}

// enqueue puts the stream into the queue: at its end, or back in front if it was its turn.
func (s *flow) enqueue(want int) {
	l := s.l
	s.want, s.queued = want, true
	if s.endTurn() {
		l.queue = slices.Insert(l.queue, 0, s)
		return
	}
	l.queue = append(l.queue, s)
}

// endTurn takes the turn back, and reports whether it was the stream's. The lock is held.
func (s *flow) endTurn() bool {
	was := s.turn
	if was {
		s.turn = false
		s.l.turns--
	}
	return was
}

// giveUp takes the stream out of the queue, and passes its turn on.
func (s *flow) giveUp() {
	l := s.l
	if s.queued {
		s.queued = false
		l.queue = slices.DeleteFunc(l.queue, func(o *flow) bool { return o == s })
	}
	if s.endTurn() {
		l.pass()
	}
}

// sleep waits for a signal. The time limit runs from the first time on; it begins anew for a stream that has had to queue
// while the client took enough of the others. The lock is held, but not during the wait.
func (s *flow) sleep() {
	l := s.l
	l.flush()
	if s.writeLimit > 0 && s.tunnel == nil && !s.timed { // a tunnel has deadlines
		s.timed, s.shared, s.moved = true, false, l.moved
		s.write.Arm((*writeSide)(s), s.writeLimit)
	}
	s.shared = s.shared || s.queued
	l.mu.Unlock()
	<-s.sendWake
	l.mu.Lock()
	if s.timedOut.Load() && s.shared && l.moved-s.moved >= progress {
		s.inTime()
	}
}

// inTime ends the time limit of a wait, even one that has just passed. The lock is held.
func (s *flow) inTime() {
	if s.timed {
		s.timed = false
		s.write.Disarm()
		s.timedOut.Store(false)
	}
}

// signal wakes who waits on ch, now or next.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// writeSide is the stream as what the write alarm interrupts.
type writeSide flow

// Interrupt fails a pending write and all later ones.
func (s *writeSide) Interrupt() {
	s.timedOut.Store(true)
	signal(s.sendWake)
}

// putData sends body bytes, as many at a time as may be, and the end of the stream with the last of them if end is set.
// False: the stream can send nothing any more. The lock is held, but not during waits.
func (s *flow) putData(body []byte, end bool) bool {
	l := s.l
	for {
		n, ok := s.take(len(body))
		if !ok {
			return false
		}
		o, flags := l.buffer(), http2.Flags(0)
		if end && n == len(body) {
			flags = flagEnd
		}
		o.b = append(appendFrameHead(o.b, n, http2.FrameData, flags, s.id), body[:n]...)
		l.updates.earn(perData)
		l.pass()
		if body = body[n:]; len(body) == 0 {
			return true
		}
	}
}

// putBlock sends a field block, which ends the stream or not. False as with putData.
func (s *flow) putBlock(block []byte, end bool) bool {
	if _, ok := s.take(0); !ok {
		return false
	}
	s.l.block(s.id, block, end)
	s.l.pass()
	return true
}

// block appends a field block to the buffer. The lock is held.
func (l *link) block(id uint32, block []byte, end bool) {
	if !l.tableTold { // the first block of the connection
		l.tableTold = true
		block = append([]byte{noTable}, block...)
	}
	o := l.buffer()
	o.b = appendBlock(o.b, id, block, end)
}
