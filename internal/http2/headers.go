package http2

import (
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// fieldBlock is the field block being received: HEADERS and its CONTINUATIONs (RFC 9113 §4.3). Whatever becomes of it,
// all of it is decoded, since the client's table depends on that.
type fieldBlock struct {
	open    bool // END_HEADERS has not come
	id      uint32
	end     bool // END_STREAM
	kind    blockKind
	frames  int // CONTINUATIONs
	encoded int // bytes
	decoded int // bytes of the field list (RFC 9113 §10.5.1)
	trailer Trailers
}

type blockKind uint8

const (
	ignoredBlock blockKind = iota
	headBlock
	trailerBlock
)

// listLimit is how large a field list is decoded: twice the limit and the 32 bytes a field that only HTTP/2 counts, so
// that what is not far too large is held against the limit itself.
func (s *Settings) listLimit() int { return 2*s.MaxHeaderBytes + 32*s.MaxHeaders }

// onHeaders begins a field block.
func (c *serverConn) onHeaders(f *frame) *connError {
	if f.id%2 == 0 {
		return protocolError("HEADERS on a stream that no client opens")
	}
	if err := f.unpad(); err != nil {
		return err
	}
	if err := f.unprioritize(); err != nil {
		return err
	}
	b := c.reader.begin(f)
	kind, err := c.place(b, f.flags&flagEndHeaders != 0)
	if err != nil {
		return err
	}
	if b.kind = kind; kind == headBlock {
		st := newStream(c, f.id)
		c.opening = st
		c.head.Reset(&st.x.Request, st.block, HeadLimits{Bytes: st.set.MaxHeaderBytes, Fields: st.set.MaxHeaders})
		c.head.Bodiless, c.head.Protocols = b.end, true
	}
	return c.reader.decode(f)
}

// begin begins a field block.
func (r *reader) begin(f *frame) *fieldBlock {
	b := &r.block
	b.open, b.id, b.end = true, f.id, f.flags&flagEnd != 0
	b.frames, b.encoded, b.decoded = 0, 0, 0
	b.trailer.Reset()
	return b
}

// place finds out what the block is for, and notes that it has begun.
func (c *serverConn) place(b *fieldBlock, whole bool) (blockKind, *connError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind, err := c.purpose(b)
	if c.heading = kind == headBlock; !whole {
		c.headTime = time.Now()
	}
	return kind, err
}

// purpose is what the block is for. The lock is held.
func (c *serverConn) purpose(b *fieldBlock) (blockKind, *connError) {
	if b.id > c.maxID {
		refused := c.active >= c.set.MaxStreams || len(c.streams) >= 2*c.set.MaxStreams
		if (refused || c.phase >= final) && !c.faults.Spend(1) {
			return 0, flood("streams")
		}
		if c.phase >= final {
			return ignoredBlock, nil
		}
		c.maxID = b.id
		if refused {
			c.refuse(b.id, http2.ErrCodeRefusedStream)
			return ignoredBlock, nil
		}
		c.updates.earn(perStream)
		return headBlock, nil
	}
	st := c.streams[b.id]
	if st == nil || st.closed || st.remoteEnded {
		return ignoredBlock, c.late(b.id, st)
	}
	switch {
	case st.tunnel != nil: // RFC 9113 §8.5
		b.trailer.Bad = "field block in a tunnel"
	case !b.end:
		b.trailer.Bad = "trailers do not end the stream"
	}
	return trailerBlock, nil
}

// refuse resets a stream that was not opened. The lock is held.
func (c *serverConn) refuse(id uint32, code http2.ErrCode) {
	o := c.buffer()
	o.b = appendReset(o.b, id, code)
	c.resets.add(id, resetsKept*c.set.MaxStreams)
	c.flush()
}

// onContinuation goes on with a field block.
func (r *reader) onContinuation(f *frame) *connError {
	b := &r.block
	if !b.open {
		return protocolError("CONTINUATION of nothing")
	}
	if b.frames++; b.frames > maxContinuations || len(f.payload) == 0 && !r.idle.Spend(1) {
		return flood("CONTINUATION frames")
	}
	return r.decode(f)
}

// decode decodes a part of the block.
func (r *reader) decode(f *frame) *connError {
	b, dec := &r.block, r.dec
	if b.encoded += len(f.payload); b.encoded > 2*r.limit {
		return flood("bytes in a field block")
	}
	if _, err := dec.Write(f.payload); err != nil {
		return &connError{http2.ErrCodeCompression, err.Error()}
	}
	if f.flags&flagEndHeaders == 0 {
		return nil
	}
	b.open = false
	if b.frames > 0 {
		r.l.mu.Lock()
		r.l.headTime = time.Time{}
		r.l.mu.Unlock()
	}
	if err := dec.Close(); err != nil {
		return &connError{http2.ErrCodeCompression, err.Error()}
	}
	dec.SetEmitEnabled(true)
	if b.frames > 0 && b.encoded > smallBuffer {
		r.renewDecoder()
	}
	return r.side.blockEnded(b)
}

// blockEnded does what the block was for.
func (c *serverConn) blockEnded(b *fieldBlock) *connError {
	switch b.kind {
	case headBlock:
		return c.openStream(b)
	case trailerBlock:
		return c.endStream(b)
	}
	return nil
}

// firstDynamic is the index of the newest field of a decoder's table (RFC 7541 §2.3.3).
const firstDynamic = 62

// renewDecoder replaces the decoder by one with the same table. The old one may have put together a literal out of several
// frames, and keeps the memory for that; a connection may idle for long.
func (r *reader) renewDecoder() {
	old, table := r.dec, []hpack.HeaderField(nil)
	old.SetEmitFunc(func(f hpack.HeaderField) { table = append(table, f) })
	for i := byte(firstDynamic); ; i++ { // the newest first; a table of 4 KiB has too few fields for i to be over 0xff
		index := []byte{0x80 | i}
		if i > 0x7e {
			index = []byte{0xff, i - 0x7f}
		}
		if _, err := old.Write(index); err != nil {
			break // no field has this index
		}
	}
	var b []byte
	for _, f := range slices.Backward(table) {
		b = append(b, 0x40) // a literal that goes into the table (RFC 7541 §6.2.1)
		b = append(appendInt(b, len(f.Name), 0x7f), f.Name...)
		b = append(appendInt(b, len(f.Value), 0x7f), f.Value...)
	}
	dec := hpack.NewDecoder(firstTable, func(hpack.HeaderField) {})
	dec.SetMaxStringLength(r.limit)
	_, _ = dec.Write(b) // what has been decoded before is well-formed
	_ = dec.Close()
	dec.SetEmitFunc(r.side.field)
	r.dec = dec
}

// grow counts a field, and tells whether the list has become too large. No more of it is then wanted.
func (r *reader) grow(f hpack.HeaderField) (large bool) {
	r.block.decoded += int(f.Size())
	if large = r.block.decoded > r.limit; large {
		r.dec.SetEmitEnabled(false)
	}
	return large
}

// field takes one decoded field.
func (c *serverConn) field(f hpack.HeaderField) {
	b, large := &c.reader.block, c.reader.grow(f)
	switch {
	case b.kind == headBlock && large:
		c.head.TooLarge()
	case b.kind == headBlock:
		c.head.Field(f.Name, f.Value)
	case b.kind == trailerBlock && large:
		b.trailer.TooLarge()
	case b.kind == trailerBlock:
		b.trailer.Field(f.Name, f.Value)
	}
}

// openStream has the request begin that the block is the head of.
func (c *serverConn) openStream(b *fieldBlock) *connError {
	st := c.opening
	defer func() { c.opening = nil; c.head.Clear() }()
	c.head.Finish()
	st.block, st.refused, st.malformed = c.head.Block, c.head.Refused, c.head.Malformed
	if c.head.Bad != "" {
		st.recycle()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.heading = false
		defer c.settle()
		if !c.faults.Spend(1) {
			return flood("malformed requests")
		}
		c.refuse(b.id, http2.ErrCodeProtocol)
		return nil
	}
	st.begin()
	c.mu.Lock()
	defer c.mu.Unlock()
	st.window = c.firstWindow
	window := c.set.streamWindow()
	st.body.declared, st.body.window, st.body.receive = c.head.Length, window, window
	st.body.onReceipt = st.plainConnect()
	if st.remoteEnded = b.end; b.end {
		st.endBody(false)
	} else {
		st.body.patient = st.x.Request.GRPC()
	}
	c.heading, st.counted = false, true
	c.active++
	c.streams[b.id] = st
	if len(c.streams) == 1 && c.phase == open {
		c.await(0)
	}
	c.fresh = append(c.fresh, st)
	return nil
}

// endStream ends the body that the block's trailers are behind.
func (c *serverConn) endStream(b *fieldBlock) *connError {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer b.trailer.Reset()
	st := c.streams[b.id]
	switch {
	case st == nil || st.closed:
		return nil
	case b.trailer.Bad != "":
		return c.fault(st, http2.ErrCodeProtocol)
	}
	if st.body.err == nil {
		st.body.err = b.trailer.Fill(&st.x.Request.Trailers)
	}
	st.endBody(b.trailer.Len() > 0)
	signal(st.readWake)
	st.settle()
	return nil
}
