package http2

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// read handles what the server sends until its end, or an error, which is a connError if it is the server's.
func (c *ClientConn) read() error {
	r := &c.reader
	for r.need = frameHead; ; {
		if err := r.handleBuffered(); err != nil {
			return err
		}
		for i, s := range c.woken { // once, for all that has come
			signal(s.readWake)
			c.woken[i] = nil
		}
		c.woken = c.woken[:0]
		c.closeParted()
		if err := r.fill(c.quiet()); err != nil {
			if err == io.EOF {
				err = ErrConnClosed
			}
			return err
		}
	}
}

// quiet notes that something has been received, and reports whether no stream is open.
func (c *ClientConn) quiet() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardAny, c.asked = true, time.Time{}
	return len(c.streams) == 0
}

// wake has the stream's reader look again once what has been received is handled. The lock is held.
func (c *ClientConn) wake(s *ClientStream) {
	if !c.part(s) {
		c.woken = append(c.woken, s)
	}
}

// part has the conn of a stream closed that has lingered until now, and reports whether it is one. The lock is held.
func (c *ClientConn) part(s *ClientStream) bool {
	t := s.tunnel
	if t == nil || !t.lingers || !t.over() {
		return false
	}
	t.lingers = false
	c.parted = append(c.parted, t.conn)
	return true
}

// closeParted closes them; their streams have ended, so that nothing of that waits.
func (c *ClientConn) closeParted() {
	for i, sc := range c.parted {
		_ = sc.Close()
		c.parted[i] = nil
	}
	c.parted = c.parted[:0]
}

// handle handles one frame.
func (c *ClientConn) handle(f *frame) *connError {
	switch f.kind {
	case http2.FrameData:
		return c.onData(f)
	case http2.FrameHeaders:
		return c.onHeaders(f)
	case http2.FrameContinuation:
		return c.reader.onContinuation(f)
	case http2.FrameWindowUpdate:
		return c.onWindowUpdate(f)
	case http2.FrameRSTStream:
		return c.onReset(f)
	case http2.FramePushPromise:
		return protocolError("push was not allowed")
	case http2.FrameSettings:
		return c.onSettings(f)
	case http2.FramePing:
		return c.onPing(f)
	case http2.FramePriority:
		return onPriority(f)
	case http2.FrameGoAway:
		return c.onGoAway(f)
	}
	return nil // RFC 9113 §5.5
}

// find returns the stream of a frame; nil if it is over. The lock is held.
func (c *ClientConn) find(id uint32, what string) (*ClientStream, *connError) {
	switch {
	case id == 0:
		return nil, protocolError(what + " without a stream")
	case id%2 == 0 || id >= c.nextID:
		return nil, protocolError(what + " on a stream that was never opened")
	}
	s := c.streams[id]
	if s != nil && !s.closed {
		return s, nil
	}
	if what != "DATA" && !c.faults.Spend(1) { // flow control bounds DATA, which may have been under way for long
		return nil, flood("frames on streams that are over")
	}
	return nil, nil
}

// fault resets a stream for what the server did wrong on it. The lock is held.
func (c *ClientConn) fault(s *ClientStream, code http2.ErrCode, err error) *connError {
	if !c.faults.Spend(1) {
		return flood("faulty streams")
	}
	c.reset(s, code)
	s.fail(err)
	c.wake(s)
	return nil
}

// reset sends RST_STREAM. The lock is held.
func (c *ClientConn) reset(s *ClientStream, code http2.ErrCode) {
	o := c.buffer()
	o.b = appendReset(o.b, s.id, code)
	s.closed = true
	c.faults.earn(perStream) // for what the server sends before it knows
	c.flush()
}

// onData takes body bytes in (RFC 9113 §6.1).
func (c *ClientConn) onData(f *frame) *connError {
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
	s, err := c.find(f.id, "DATA")
	switch {
	case err != nil:
		return err
	case s == nil:
		c.grant(size)
		return nil
	case s.remoteEnded:
		c.grant(size)
		return c.fault(s, http2.ErrCodeStreamClosed, badResponseBody("DATA behind the end of the response"))
	case !s.headed:
		c.grant(size)
		return c.fault(s, http2.ErrCodeProtocol, badResponseBody("DATA before the response head"))
	}
	if code := s.takeIn(f.payload, size, end); code != 0 {
		err := s.body.err
		if err == nil || err == io.EOF {
			err = badResponseBody("more DATA than the stream's window")
		}
		return c.fault(s, code, err)
	}
	c.wake(s)
	return nil
}

// onHeaders begins a field block.
func (c *ClientConn) onHeaders(f *frame) *connError {
	if err := f.unpad(); err != nil {
		return err
	}
	if err := f.unprioritize(); err != nil {
		return err
	}
	b := c.reader.begin(f)
	c.mu.Lock()
	s, err := c.find(f.id, "HEADERS")
	if f.flags&flagEndHeaders == 0 {
		c.headTime = time.Now()
	}
	switch {
	case s == nil:
		b.kind = ignoredBlock
	case s.remoteEnded:
		b.kind = ignoredBlock
		err = c.fault(s, http2.ErrCodeStreamClosed, badResponseBody("field block behind the end of the response"))
	case s.headed:
		if b.kind = trailerBlock; !b.end {
			b.trailer.Bad = "trailers do not end the stream"
		}
		if s.through {
			b.trailer.Bad = "field block in a tunnel"
		}
	default:
		b.kind = headBlock
		c.head.reset()
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.reader.decode(f)
}

// field takes one decoded field.
func (c *ClientConn) field(f hpack.HeaderField) {
	b, large := &c.reader.block, c.reader.grow(f)
	switch {
	case b.kind == headBlock && large:
		c.head.bad = "head too large"
	case b.kind == headBlock:
		c.head.field(f, c.set)
	case b.kind == trailerBlock && large:
		b.trailer.TooLarge()
	case b.kind == trailerBlock:
		b.trailer.Field(f.Name, strings.Trim(f.Value, " \t"))
	}
}

// blockEnded does what the block was for.
func (c *ClientConn) blockEnded(b *fieldBlock) *connError {
	defer b.trailer.Reset()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[b.id]
	if s == nil || s.closed || b.kind == ignoredBlock {
		return nil
	}
	var bad string
	if b.kind == headBlock {
		bad = c.takeHead(s, b.end)
	} else {
		bad = takeTrailers(s, &b.trailer)
	}
	if bad != "" {
		return c.fault(s, http2.ErrCodeProtocol, fmt.Errorf("%w: %s", exchange.ErrBadResponse, bad))
	}
	c.wake(s)
	return nil
}

// takeHead hands a response head over to its stream; why it cannot. The lock is held.
func (c *ClientConn) takeHead(s *ClientStream, end bool) (why string) {
	h := &c.head
	switch h.finish(); {
	case h.bad != "":
		return h.bad
	case h.status == 101:
		return "status 101"
	case h.status < 200 && end:
		return "interim response ends the stream"
	case h.status < 200:
		return s.addInterim(h, c.set)
	}
	return s.setHead(h, end)
}

// takeTrailers ends the response whose trailers the block is. The lock is held.
func takeTrailers(s *ClientStream, t *Trailers) (why string) {
	if t.Bad != "" {
		return t.Bad
	}
	if why := t.refused(); why != "" {
		return why
	}
	for _, f := range t.fields {
		s.trailers.Add(f.name, f.value)
	}
	s.endBody(t.Len() > 0)
	if s.body.err != io.EOF {
		return "body is shorter than Content-Length"
	}
	return ""
}

// onReset ends a stream that the server resets (RFC 9113 §6.4).
func (c *ClientConn) onReset(f *frame) *connError {
	if len(f.payload) != 4 {
		return sizeError("RST_STREAM of another length than 4")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.find(f.id, "RST_STREAM")
	if s == nil {
		return err
	}
	s.refused(http2.ErrCode(binary.BigEndian.Uint32(f.payload)))
	c.wake(s)
	return nil
}

// onWindowUpdate lets streams send on (RFC 9113 §6.9).
func (c *ClientConn) onWindowUpdate(f *frame) *connError {
	if len(f.payload) != 4 {
		return sizeError("WINDOW_UPDATE of another length than 4")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var s *flow
	if f.id != 0 {
		if f.id%2 == 0 || f.id >= c.nextID {
			return protocolError("WINDOW_UPDATE on a stream that was never opened")
		}
		if st := c.streams[f.id]; st != nil {
			s = &st.flow
		}
	}
	fault, err := c.widen(f.id, s, int64(binary.BigEndian.Uint32(f.payload)&maxWindow))
	if fault != 0 {
		return c.fault(c.streams[f.id], fault, badResponseBody("faulty WINDOW_UPDATE"))
	}
	return err
}
