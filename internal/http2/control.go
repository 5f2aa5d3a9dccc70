package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Flow control and framing that we grant a client. The connection's window bounds what its uploads may pile up.
const (
	frameSize    = 16 << 10
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// What holds before settings have been exchanged (RFC 9113 §6.5.2, §6.9.2).
const (
	firstConnWindow = 64<<10 - 1
	firstTable      = 4 << 10
)

// onSettings takes the client's settings over (RFC 9113 §6.5).
func (c *serverConn) onSettings(f *frame) *connError {
	ack, err := settingsFrame(f)
	if ack || err != nil {
		return err
	}
	c.reader.known = true
	window := int64(-1)
	for p := f.payload; len(p) > 0; p = p[6:] {
		s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(p)), Val: binary.BigEndian.Uint32(p[2:])}
		if err := checkSetting(s); err != nil {
			return err
		}
		if s.ID == http2.SettingInitialWindowSize {
			window = int64(s.Val)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if window >= 0 {
		if err := c.setWindow(window, c.flows); err != nil {
			return err
		}
	}
	o, err := c.control()
	if err != nil {
		return err
	}
	o.b = appendFrameHead(o.b, 0, http2.FrameSettings, flagAck, 0)
	c.flush()
	return nil
}

// settingsFrame checks the shape of a SETTINGS frame, and tells whether it acknowledges ours.
func settingsFrame(f *frame) (ack bool, err *connError) {
	switch {
	case f.id != 0:
		return false, protocolError("SETTINGS on a stream")
	case f.flags&flagAck != 0 && len(f.payload) > 0:
		return false, sizeError("SETTINGS acknowledgement with a payload")
	case f.flags&flagAck != 0:
		return true, nil
	case len(f.payload)%6 != 0:
		return false, sizeError("SETTINGS of a broken length")
	}
	return false, nil
}

// checkSetting refuses values that the protocol does not allow. We push nothing, keep no table for what we encode, and
// send no frame that is longer than every client must take: of the known settings only the window concerns us.
func checkSetting(s http2.Setting) *connError {
	switch s.ID {
	case http2.SettingEnablePush, http2.SettingEnableConnectProtocol:
		if s.Val > 1 {
			return protocolError("setting is neither 0 nor 1")
		}
	case http2.SettingInitialWindowSize:
		if s.Val > maxWindow {
			return &connError{http2.ErrCodeFlowControl, "initial window too large"}
		}
	case http2.SettingMaxFrameSize:
		if s.Val < frameSize || s.Val > 1<<24-1 {
			return protocolError("frame size out of range")
		}
	}
	return nil
}

// onPing answers a PING (RFC 9113 §6.7), and takes the answer to ours.
func (c *serverConn) onPing(f *frame) *connError {
	if err := pingFrame(f); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.flags&flagAck != 0 {
		if c.phase == announced && string(f.payload) == drainPing {
			c.finalize(false)
		}
		return nil
	}
	return c.pong(f)
}

// pingFrame checks the shape of a PING frame.
func pingFrame(f *frame) *connError {
	switch {
	case len(f.payload) != 8:
		return sizeError("PING of another length than 8")
	case f.id != 0:
		return protocolError("PING on a stream")
	}
	return nil
}

// pong answers a PING. The lock is held.
func (l *link) pong(f *frame) *connError {
	o, err := l.control()
	if err != nil {
		return err
	}
	o.b = append(appendFrameHead(o.b, 8, http2.FramePing, flagAck, 0), f.payload...)
	l.flush()
	return nil
}

// onPriority checks what is then ignored (RFC 9113 §6.3).
func onPriority(f *frame) *connError {
	switch {
	case f.id == 0:
		return protocolError("PRIORITY without a stream")
	case len(f.payload) != 5:
		return sizeError("PRIORITY of another length than 5")
	}
	return checkPriority(f.id, f.payload)
}

// onGoAway checks a GOAWAY, which says nothing to a server that pushes nothing (RFC 9113 §6.8).
func onGoAway(f *frame) *connError {
	switch {
	case f.id != 0:
		return protocolError("GOAWAY on a stream")
	case len(f.payload) < 8:
		return sizeError("GOAWAY too short")
	}
	return nil
}

// onWindowUpdate lets streams send on (RFC 9113 §6.9).
func (c *serverConn) onWindowUpdate(f *frame) *connError {
	if len(f.payload) != 4 {
		return sizeError("WINDOW_UPDATE of another length than 4")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.id != 0 && c.unopened(f.id) {
		return protocolError("WINDOW_UPDATE on a stream that was never opened")
	}
	st := c.streams[f.id]
	fault, err := c.widen(f.id, st.asFlow(), int64(binary.BigEndian.Uint32(f.payload)&maxWindow))
	if fault != 0 {
		return c.fault(st, fault)
	}
	return err
}

// flows are the open streams as flow control sees them. The lock is held.
func (c *serverConn) flows(yield func(*flow) bool) {
	for _, st := range c.streams {
		if !yield(&st.flow) {
			return
		}
	}
}

// asFlow is the stream as flow control sees it; nil if there is none.
func (st *stream) asFlow() *flow {
	if st == nil {
		return nil
	}
	return &st.flow
}

// fault resets a stream for what its client did wrong on it, which ends the exchange. The lock is held.
func (c *serverConn) fault(st *stream, code http2.ErrCode) *connError {
	if !c.faults.Spend(1) {
		return flood("faulty streams")
	}
	c.reset(st, code)
	st.close(true)
	return nil
}

// onReset ends a stream that its client takes back (RFC 9113 §6.4).
func (c *serverConn) onReset(f *frame) *connError {
	switch {
	case len(f.payload) != 4:
		return sizeError("RST_STREAM of another length than 4")
	case f.id == 0:
		return protocolError("RST_STREAM without a stream")
	}
	st, err := c.takeBack(f.id)
	if st != nil {
		c.drop(st)
	}
	return err
}

// takeBack closes the stream that its client has reset; nil if it was not open any more.
func (c *serverConn) takeBack(id uint32) (*stream, *connError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unopened(id) {
		return nil, protocolError("RST_STREAM on a stream that was never opened")
	}
	st := c.streams[id]
	if st == nil || st.closed {
		return nil, nil
	}
	st.takenBack = !st.ended
	st.close(true)
	return st, nil
}

// drop ends a stream that has not begun its exchange, and now need not.
func (c *serverConn) drop(st *stream) {
	for i, o := range c.fresh {
		if o == st {
			c.fresh = append(c.fresh[:i], c.fresh[i+1:]...)
			c.leave(st, true)
			st.recycle()
			return
		}
	}
}

// onData takes body bytes in (RFC 9113 §6.1).
func (c *serverConn) onData(f *frame) *connError {
	if f.id == 0 {
		return protocolError("DATA without a stream")
	}
	size := len(f.payload) // padding counts
	if err := f.unpad(); err != nil {
		return err
	}
	end := f.flags&flagEnd != 0
	if len(f.payload) == 0 && !end && !c.reader.idle.Spend(1) {
		return flood("empty DATA frames")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.receive -= size; c.receive < 0 {
		return &connError{http2.ErrCodeFlowControl, "more DATA than the connection's window"}
	}
	if c.unopened(f.id) {
		return protocolError("DATA on a stream that was never opened")
	}
	st := c.streams[f.id]
	if st == nil || st.closed || st.remoteEnded {
		c.grant(size)
		return c.late(f.id, st)
	}
	if code := st.takeIn(f.payload, size, end); code != 0 {
		return c.fault(st, code)
	}
	signal(st.readWake)
	st.settle()
	return nil
}

// unopened reports whether a stream does not exist yet. Those that come after the final GOAWAY do, but are not taken. The
// lock is held.
func (c *serverConn) unopened(id uint32) bool {
	return id%2 == 0 || id > c.maxID && c.phase < final
}

// late judges a frame on a stream whose client's end has come, or which is no more. The lock is held.
func (c *serverConn) late(id uint32, st *stream) *connError {
	switch {
	case id > c.maxID, c.resets.has(id): // sent before GOAWAY or the reset was known
		return nil
	case st != nil && !st.closed && !st.ended: // half-closed
		return c.fault(st, http2.ErrCodeStreamClosed)
	case len(c.resets.ids) < resetsKept*c.set.MaxStreams:
		return &connError{http2.ErrCodeStreamClosed, "frame on a closed stream"}
	case !c.faults.Spend(1): // it may have been one of the streams that are not remembered
		return flood("frames on closed streams")
	}
	o := c.buffer()
	o.b = appendReset(o.b, id, http2.ErrCodeStreamClosed)
	c.flush()
	return nil
}
