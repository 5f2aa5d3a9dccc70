package http2

import (
	"bytes"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// side is what reads a connection: a server's or a client's.
type side interface {
	handle(f *frame) *connError          // one frame
	field(f hpack.HeaderField)           // one field of the block being received
	blockEnded(b *fieldBlock) *connError // the block is whole
}

// reader takes frames in. All of it belongs to the connection's goroutine.
type reader struct {
	l     *link
	side  side
	limit int // of a field list
	buf   *[]byte
	r, w  int // what has been read and not handled
	need  int // how much the next frame takes
	dec   *hpack.Decoder
	frame frame
	block fieldBlock
	known bool // the peer's settings have come
	idle  Budget
}

// Buffers of the reader. A connection without streams holds a small one.
const (
	smallBuffer = 4 << 10
	bigBuffer   = 64 << 10
)

var (
	smallPool = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	bigPool   = sync.Pool{New: func() any { b := make([]byte, bigBuffer); return &b }}
)

func (r *reader) init(l *link, limit int, side side) {
	r.l, r.side, r.limit = l, side, limit
	r.buf = smallPool.Get().(*[]byte)
	r.dec = hpack.NewDecoder(firstTable, side.field)
	r.dec.SetMaxStringLength(limit)
	r.idle = NewBudget(idleBurst, idleRate)
}

func (r *reader) free() {
	if len(*r.buf) == smallBuffer {
		smallPool.Put(r.buf)
	} else {
		bigPool.Put(r.buf)
	}
}

// resize moves to a buffer from another pool.
func (r *reader) resize(p *sync.Pool) {
	next := p.Get().(*[]byte)
	r.w = copy(*next, (*r.buf)[r.r:r.w])
	r.r = 0
	r.free()
	r.buf = next
}

// fill reads once more, into a buffer that has room for the next frame.
func (r *reader) fill(idle bool) error {
	switch {
	case r.need > len(*r.buf):
		r.resize(&bigPool)
	case r.r == r.w:
		if r.r, r.w = 0, 0; idle && len(*r.buf) > smallBuffer {
			r.resize(&smallPool)
		}
	case r.r+r.need > len(*r.buf):
		r.w = copy(*r.buf, (*r.buf)[r.r:r.w])
		r.r = 0
	}
	n, err := r.l.wire.Read((*r.buf)[r.w:])
	r.w += n
	if n > 0 {
		return nil
	}
	return err
}

// read handles what the client sends until its end, or an error that is the client's, which has then been told.
func (c *serverConn) read() *connError {
	err := c.readPreface()
	for err == nil {
		if err = c.reader.handleBuffered(); err != nil {
			break
		}
		if c.reader.fill(c.begun()) != nil {
			return nil
		}
	}
	if err.code == http2.ErrCodeNo {
		return nil
	}
	c.fail(err)
	c.linger()
	return err
}

var preface = []byte(http2.ClientPreface)

// gone is the end of a connection that needs no answer.
var gone = &connError{code: http2.ErrCodeNo}

// readPreface reads what every client sends first, and answers it.
func (c *serverConn) readPreface() *connError {
	r := &c.reader
	for r.need = len(preface); r.w < len(preface); {
		if r.fill(false) != nil {
			return gone
		}
		if n := min(r.w, len(preface)); !bytes.Equal((*r.buf)[:n], preface[:n]) {
			return protocolError("bad preface")
		}
	}
	r.r, r.need = len(preface), frameHead
	return c.begin()
}

// handleBuffered handles the frames that are here.
func (r *reader) handleBuffered() *connError {
	for {
		f, size, need, err := parseFrame((*r.buf)[r.r:r.w])
		r.frame = f
		if err != nil {
			return err
		}
		if size == 0 {
			r.need = need
			return nil
		}
		r.r += size
		if err := r.check(&r.frame); err != nil {
			return err
		}
		if err := r.side.handle(&r.frame); err != nil {
			return err
		}
	}
}

// check holds against a frame what goes for all of them, in both directions.
func (r *reader) check(f *frame) *connError {
	if r.block.open && (f.kind != http2.FrameContinuation || f.id != r.block.id) {
		return protocolError("a field block is interrupted")
	}
	if !r.known && (f.kind != http2.FrameSettings || f.flags&flagAck != 0) {
		return protocolError("SETTINGS must come first")
	}
	cost := 0
	switch f.kind {
	case http2.FrameData, http2.FrameHeaders, http2.FrameContinuation, http2.FrameWindowUpdate, http2.FrameRSTStream, http2.FramePushPromise:
	case http2.FrameSettings:
		cost = 1 + len(f.payload)/64
	default:
		cost = 1
	}
	if !r.idle.Spend(cost) {
		return flood(f.kind.String() + " frames")
	}
	return nil
}

// begun begins the exchanges of the streams that have been opened, and tells whether none is there.
func (c *serverConn) begun() (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, st := range c.fresh {
		c.fresh[i] = nil
		c.work(st)
	}
	c.fresh = c.fresh[:0]
	return len(c.streams) == 0
}

// maxDiscard bounds what a client may still send after its connection has failed.
const maxDiscard = 1 << 20

// linger reads what the client still sends until it closes the connection or the time is up.
func (c *serverConn) linger() {
	r := &c.reader
	for n := 0; n < maxDiscard; n += r.w {
		r.r, r.w, r.need = 0, 0, 0
		if r.fill(false) != nil {
			return
		}
	}
}

// handle handles one frame.
func (c *serverConn) handle(f *frame) *connError {
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
		return protocolError("a client cannot push")
	case http2.FrameSettings:
		return c.onSettings(f)
	case http2.FramePing:
		return c.onPing(f)
	case http2.FramePriority:
		return onPriority(f)
	case http2.FrameGoAway:
		return onGoAway(f)
	}
	return nil // RFC 9113 §5.5
}
