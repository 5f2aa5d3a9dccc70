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
func (c *serverConn) buffer() *output {
	if c.phase == closing {
		c.lost.b = c.lost.b[:0]
		return &c.lost
	}
	if c.out == nil {
		c.out = outPool.Get().(*output)
	}
	return c.out
}

// waiting is how much is to be written. The lock is held.
func (c *serverConn) waiting() int {
	if c.out == nil {
		return 0
	}
	return len(c.out.b)
}

// flush has the writer write what is in the buffer. The lock is held.
func (c *serverConn) flush() {
	c.used = true
	if c.writing || c.ended || c.halfClosed {
		return
	}
	c.writing = true
	if c.parked {
		c.parked = false
		signal(c.wakeWriter)
		return
	}
	c.running.Add(1)
	go c.write()
}

// control is buffer for frames that answer the client's: who has us pile them up without reading is flooding.
func (c *serverConn) control() (*output, *connError) {
	if c.waiting() > maxControl {
		return nil, flood("frames to answer that are not read")
	}
	return c.buffer(), nil
}

// write is the writer. It lets everybody else run first, so that the answers of all streams that are ready go out in one
// piece; twice, since that makes others ready, and costs less than another record and system call. When there is nothing
// to write it waits, until the connection has been idle for a while.
func (c *serverConn) write() {
	defer c.running.Done()
	for {
		runtime.Gosched()
		runtime.Gosched()
		c.mu.Lock()
		o := c.out
		if o == nil {
			c.writing = false
			if c.phase != closing && !c.retiring {
				c.parked = true
				c.mu.Unlock()
				<-c.wakeWriter
				continue
			}
			c.retiring = false
			over := c.phase == closing && !c.ended
			if over {
				c.halfClosed = true
				c.await(lingerTime)
			}
			c.mu.Unlock()
			if over {
				c.wire.closeWrite()
			}
			return
		}
		c.out = nil
		c.pass()
		c.mu.Unlock()
		c.send(o.b)
		if cap(o.b) <= maxPooledOut {
			o.b = o.b[:0]
			outPool.Put(o)
		}
	}
}

// send writes b in pieces, each of which has the whole time limit. A connection that fails is dead; its reader ends it.
func (c *serverConn) send(b []byte) {
	piece := clearPiece
	if c.info.TLS != nil {
		piece = secretPiece
	}
	for limit := c.srv.settings.Load().WriteIdleTimeout; len(b) > 0; {
		n := min(len(b), piece)
		c.stall.Arm(c.wire, limit)
		_, err := c.wire.Write(b[:n])
		c.stall.Disarm()
		if err != nil {
			c.wire.kill()
			return
		}
		b = b[n:]
	}
}

// roomy reports whether a stream could send want body bytes, or a head if that is 0, as far as the connection is
// concerned. The lock is held.
func (c *serverConn) roomy(want int) bool {
	return c.waiting() < maxOut && (want == 0 || c.sendWindow > 0)
}

// pass gives the turn to the first stream in the queue that can make use of it. The lock is held.
func (c *serverConn) pass() {
	for i, st := range c.queue {
		if c.roomy(st.want) {
			c.queue = slices.Delete(c.queue, i, i+1)
			st.queued, st.turn = false, true
			c.turns++
			signal(st.sendWake)
			return
		}
	}
}

// take waits until the stream may send, in its turn, and takes as much of want as it may; with want 0 it waits for room
// alone. False: nothing can be sent any more. The lock is held, but not during the wait.
func (st *stream) take(want int) (int, bool) {
	c := st.c
	for {
		switch {
		case !st.sendable():
			st.giveUp()
			return 0, false
		case st.queued: // woken for another reason
		case want > 0 && st.window <= 0:
			st.giveUp()
		case !c.roomy(want) || want > 0 && !st.turn && len(c.queue)+c.turns > 0: // also behind who is about to wake up
			st.enqueue(want)
		default:
			st.endTurn()
			// What needs no window goes out although the client has made it negative (RFC 9113 §6.9.2).
			n := int(max(0, min(int64(want), st.window, c.sendWindow, frameSize)))
			st.window -= int64(n)
			c.sendWindow -= int64(n)
			c.moved += int64(n)
			return n, true
		}
		st.sleep()
	}
}

// enqueue puts the stream into the queue: at its end, or back in front if it was its turn.
func (st *stream) enqueue(want int) {
	c := st.c
	st.want, st.queued = want, true
	if st.endTurn() {
		c.queue = slices.Insert(c.queue, 0, st)
		return
	}
	c.queue = append(c.queue, st)
}

// endTurn takes the turn back, and reports whether it was the stream's. The lock is held.
func (st *stream) endTurn() bool {
	was := st.turn
	if was {
		st.turn = false
		st.c.turns--
	}
	return was
}

// giveUp takes the stream out of the queue, and passes its turn on.
func (st *stream) giveUp() {
	c := st.c
	if st.queued {
		st.queued = false
		c.queue = slices.DeleteFunc(c.queue, func(o *stream) bool { return o == st })
	}
	if st.endTurn() {
		c.pass()
	}
}

// sleep waits for a signal. The time limit runs from the first time on; it begins anew for a stream that has had to queue
// while the client took enough of the others. The lock is held, but not during the wait.
func (st *stream) sleep() {
	c := st.c
	c.flush()
	if st.tunnel == nil && !st.timed { // a tunnel has deadlines
		st.timed, st.shared, st.moved = true, false, c.moved
		st.write.Arm((*writeSide)(st), st.set.WriteIdleTimeout)
	}
	st.shared = st.shared || st.queued
	c.mu.Unlock()
	<-st.sendWake
	c.mu.Lock()
	if st.timedOut.Load() && st.shared && c.moved-st.moved >= progress {
		st.inTime()
	}
}

// inTime ends the time limit of a wait, even one that has just passed. The lock is held.
func (st *stream) inTime() {
	if st.timed {
		st.timed = false
		st.write.Disarm()
		st.timedOut.Store(false)
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
type writeSide stream

// Interrupt fails a pending write and all later ones.
func (s *writeSide) Interrupt() {
	s.timedOut.Store(true)
	signal(s.sendWake)
}

// putData sends body bytes, as many at a time as may be, and the end of the stream with the last of them if end is set.
// False: the stream can send nothing any more. The lock is held, but not during waits.
func (st *stream) putData(body []byte, end bool) bool {
	c := st.c
	for {
		n, ok := st.take(len(body))
		if !ok {
			return false
		}
		o, flags := c.buffer(), http2.Flags(0)
		if end && n == len(body) {
			flags = flagEnd
		}
		o.b = append(appendFrameHead(o.b, n, http2.FrameData, flags, st.id), body[:n]...)
		c.updates.earn(perData)
		c.pass()
		if body = body[n:]; len(body) == 0 {
			return true
		}
	}
}

// putBlock sends a field block, which ends the stream or not. False as with putData.
func (st *stream) putBlock(block []byte, end bool) bool {
	if _, ok := st.take(0); !ok {
		return false
	}
	st.c.block(st.id, block, end)
	st.c.pass()
	return true
}

// block appends a field block to the buffer. The lock is held.
func (c *serverConn) block(id uint32, block []byte, end bool) {
	if !c.tableTold { // the first block of the connection
		c.tableTold = true
		block = append([]byte{noTable}, block...)
	}
	o := c.buffer()
	o.b = appendBlock(o.b, id, block, end)
}
