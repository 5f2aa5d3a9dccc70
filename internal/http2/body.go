package http2

import (
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// requestBody follows the request body of a stream. One goroutine reads it.
type requestBody struct {
	buf  *[]byte
	err  error // what every further read returns
	stop atomic.Bool
}

// bodyBuffer is how much one read returns at most: a frame.
const bodyBuffer = frameSize

var bodyPool = sync.Pool{New: func() any { b := make([]byte, bodyBuffer); return &b }}

func (b *requestBody) reset() {
	b.err = nil
	b.stop.Store(false)
}

func (b *requestBody) free() {
	if b.buf != nil {
		bodyPool.Put(b.buf)
		b.buf = nil
	}
}

var errBodyStopped = errors.New("request body no longer wanted")

// Buffered tells only of a body that is known to be empty: the frame loop does not say what has arrived.
func (st *stream) Buffered() ([]byte, bool) { return nil, st.r.ContentLength == 0 }

// ReadBody returns the next body bytes. The first call has the frame loop send 100 (Continue) if the client waits.
func (st *stream) ReadBody() ([]byte, error) {
	b := &st.body
	if b.err != nil {
		return nil, b.err
	}
	if b.stop.Load() {
		b.err = errBodyStopped
		return nil, b.err
	}
	if b.buf == nil {
		b.buf = bodyPool.Get().(*[]byte)
	}
	for {
		st.read.Arm((*readSide)(st), st.set.BodyIdleTimeout)
		n, err := st.r.Body.Read(*b.buf)
		st.read.Disarm()
		if n > 0 {
			st.x.Record.BytesIn += int64(n)
			return (*b.buf)[:n], nil
		}
		if err != nil {
			b.err = st.bodyEnd(err)
			return nil, b.err
		}
	}
}

// ReleaseBody gives the buffer back. The credit of the bytes went back when they were read into it.
func (st *stream) ReleaseBody() { st.body.free() }

// InterruptBody makes a pending ReadBody fail.
func (st *stream) InterruptBody() {
	st.body.stop.Store(true)
	_ = st.w.SetReadDeadline(longAgo)
}

// readSide is the stream as what the read alarm interrupts: only the wait for the body ends, not the stream.
type readSide stream

// Interrupt fails a pending read.
func (s *readSide) Interrupt() { _ = s.w.SetReadDeadline(longAgo) }

// bodyEnd turns the frame loop's last word about the body into ours.
func (st *stream) bodyEnd(err error) error {
	switch {
	case err == io.EOF:
		return st.trailers()
	case st.body.stop.Load():
		return errBodyStopped
	case errors.Is(err, os.ErrDeadlineExceeded):
		e := exchange.Reject(408, exchange.CodeBodyTimeout, "Request body timeout")
		e.Limit = "body_idle_timeout"
		return e
	case strings.Contains(err.Error(), "Content-Length"): // shorter or longer than declared
		return badBody(err)
	}
	return fmt.Errorf("%w: stream ended inside the request body: %v", exchange.ErrDeparted, err)
}

func badBody(err error) error {
	e := exchange.Reject(400, exchange.CodeBadBody, "Malformed request body")
	e.Err = err
	return e
}

// maxTrailers bounds the fields behind a request body.
const maxTrailers = 64

// forbiddenTrailer are the known fields that a trailer section may not hold, beside those that concern one
// connection: they frame, route or authenticate (RFC 9110 §6.5.1).
var forbiddenTrailer = exchange.SetOf(exchange.FieldHost, exchange.FieldContentLength, exchange.FieldExpect, exchange.FieldForwarded,
	exchange.FieldXForwardedFor, exchange.FieldXForwardedHost, exchange.FieldXForwardedProto, exchange.FieldXForwardedPort,
	exchange.FieldXRealIP, exchange.FieldXRequestID, exchange.FieldUnderscored, exchange.FieldContentType, exchange.FieldAuthorization,
	exchange.FieldCookie)

// trailers takes the request's trailers over and returns io.EOF. The frame loop hands out those that were announced.
func (st *stream) trailers() error {
	var names []string
	for name, values := range st.r.Trailer {
		if len(values) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	count := 0
	for _, name := range names {
		id := exchange.KnownField([]byte(name))
		if !exchange.ValidName(name) || id.HopByHop() || forbiddenTrailer.Has(id) {
			return badBody(headError("trailer " + textproto.TrimString(name) + " is not allowed"))
		}
		for _, v := range st.r.Trailer[name] {
			if count++; count > maxTrailers || !exchange.ValidValue(v) {
				return badBody(headError("malformed or too many trailers"))
			}
			st.x.Request.Trailers.Add(strings.ToLower(name), v)
		}
	}
	return io.EOF
}
