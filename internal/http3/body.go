package http3

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// requestBody is how far the request body has been read. It belongs to the goroutine that reads it, except stop.
type requestBody struct {
	rest     uint64 // of the DATA frame under way
	declared int64  // Content-Length; -1 none
	got      int64
	err      error // what follows; io.EOF at the end
	begun    bool
	trailers http2.Trailers
	stop     atomic.Bool
}

func (b *requestBody) clear() {
	b.trailers.Reset()
	b.rest, b.declared, b.got, b.err, b.begun = 0, 0, 0, nil, false
	b.stop.Store(false)
}

var (
	errBodyStopped      = errors.New("request body no longer wanted")
	errTrailersTooLarge = http2.BadBody("trailers too large")
	errUnread           = errors.New("the head was not read to its end")
)

// Buffered returns the body if all of it has come with the head, in one frame and with its end.
func (st *stream) Buffered() ([]byte, bool) {
	b, in := &st.body, &st.in
	switch {
	case b.begun:
		return nil, false
	case b.err != nil:
		return nil, b.err == io.EOF
	case in.ended() && !st.peeked:
		return nil, true
	case in.err != io.EOF || b.declared < 0:
		return nil, false
	}
	whole, length := (*in.buf)[in.r:in.w], st.peekLength
	if !st.peeked {
		typ, l, n := frameHead(whole)
		if n == 0 || typ != frameData {
			return nil, false
		}
		whole, length = whole[n:], l
	}
	if length != uint64(len(whole)) || int64(length) != b.declared {
		return nil, false
	}
	return whole, true
}

// ReadBody returns the next body bytes. The first call asks the client to go on, if it waits for that.
func (st *stream) ReadBody() ([]byte, error) {
	b := &st.body
	if !b.begun {
		b.begun = true
		st.askToGoOn()
	}
	for {
		switch {
		case b.stop.Load():
			return nil, errBodyStopped
		case b.err != nil:
			return nil, b.err
		case b.rest > 0 && st.in.here() > 0:
			return st.take()
		}
		if err := st.advance(); err != nil {
			b.err = st.bodyError(err)
		}
	}
}

// take hands out what is here of the DATA frame under way.
func (st *stream) take() ([]byte, error) {
	b, in := &st.body, &st.in
	n := int(min(b.rest, uint64(in.here())))
	p := (*in.buf)[in.r : in.r+n]
	in.r += n
	b.rest -= uint64(n)
	b.got += int64(n)
	if b.declared >= 0 && b.got > b.declared {
		st.malformed = true
		b.err = http2.BadBody("body is longer than Content-Length")
		return nil, b.err
	}
	st.x.Record.BytesIn += int64(n)
	return p, nil
}

// advance reads on, up to the next body bytes or the end.
func (st *stream) advance() error {
	b, limit := &st.body, st.set.BodyIdleTimeout
	if b.rest > 0 {
		return cut(st.fill(limit))
	}
	typ, length, err := st.peekType, st.peekLength, error(nil)
	if !st.peeked {
		typ, length, err = st.next(limit)
	}
	st.peeked = false
	switch {
	case err != nil:
		return err
	case typ == frameHeaders:
		return st.readTrailers(length)
	case length == 0 && !st.c.spend(1):
		return &connError{codeExcessiveLoad, "too many empty DATA frames"}
	}
	b.rest = length
	return nil
}

// readTrailers reads the section behind the body, and the end of the stream (RFC 9114 §4.1).
func (st *stream) readTrailers(length uint64) error {
	b, limit := &st.body, st.set.BodyIdleTimeout
	most := st.set.listLimit()
	if length > uint64(most) {
		return errTrailersTooLarge
	}
	section, err := st.payload(int(length), limit)
	if err != nil {
		return err
	}
	switch err := decode(section, most, b.trailers.Field); {
	case errors.Is(err, errSectionTooLarge):
		return errTrailersTooLarge
	case err != nil:
		return err
	}
	if b.trailers.Bad != "" {
		return &streamError{codeMessage, b.trailers.Bad}
	}
	switch _, _, err := st.next(limit); {
	case err == nil:
		return &connError{codeFrameUnexpected, "a frame behind the trailers"}
	case err != io.EOF:
		return err
	}
	if err := b.trailers.Fill(&st.x.Request.Trailers); err != nil {
		return err
	}
	return io.EOF
}

// bodyError is what the reader of the body is told.
func (st *stream) bodyError(err error) error {
	var (
		fatal  *connError
		faulty *streamError
		told   *exchange.Error
	)
	switch {
	case err == io.EOF && st.body.declared >= 0 && st.body.got != st.body.declared:
		st.malformed = true
		return http2.BadBody("body is shorter than Content-Length")
	case err == io.EOF, errors.As(err, &told):
		return err
	case st.body.stop.Load():
		return errBodyStopped
	case st.late:
		e := exchange.Reject(408, exchange.CodeBodyTimeout, "Request body timeout")
		e.Limit = "body_idle_timeout"
		return e
	case errors.As(err, &fatal):
		st.c.fail(fatal)
		return http2.BadBody(fatal.why)
	case errors.As(err, &faulty):
		st.c.fault(st, faulty)
		return http2.BadBody(faulty.why)
	case st.c.forced.Load():
		return exchange.ErrForced
	}
	st.x.Depart() // reset, or the connection is gone
	return fmt.Errorf("%w: stream ended inside the request body: %w", exchange.ErrDeparted, err)
}

// ReleaseBody has nothing to do: QUIC has given the credit back when the bytes were read into the one buffer.
func (st *stream) ReleaseBody() {}

// InterruptBody makes a pending and every later ReadBody fail.
func (st *stream) InterruptBody() {
	st.body.stop.Store(true)
	(*readSide)(st).Interrupt()
}
