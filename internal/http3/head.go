package http3

import (
	"errors"
	"io"
	"time"

	"github.com/quic-go/qpack"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

var decoder = qpack.NewDecoder() // it has no state: no dynamic table is offered

// fieldOverhead is what the protocol counts for a field beside its bytes (RFC 9114 §4.2.2).
const fieldOverhead = 32

var errSectionTooLarge = errors.New("a field section is too large")

// decode hands out the fields of a section (RFC 9204 §4.5), as long as they are within limit: a byte of the section may be a
// whole field of the static table.
func decode(section []byte, limit int, field func(name, value string)) error {
	next := decoder.Decode(section)
	for size := 0; ; {
		f, err := next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &connError{codeDecompression, err.Error()}
		}
		if size += len(f.Name) + len(f.Value) + fieldOverhead; size > limit {
			return errSectionTooLarge
		}
		field(f.Name, f.Value)
	}
}

// readHead reads the request's head, on the stream's goroutine, within header_timeout.
func (st *stream) readHead() error {
	st.read.Arm((*readSide)(st), st.set.HeaderTimeout)
	err := st.takeHead()
	switch late := st.read.Disarm() == conn.CauseDeadline; {
	case late && err == nil: // it was there just in time: what follows has time limits of its own
		_ = st.q.SetReadDeadline(time.Time{})
	case late:
		e := exchange.Reject(408, exchange.CodeHeaderTimeout, "Request header timeout")
		e.Limit = "header_timeout"
		st.refuseHead(e)
		return nil
	}
	return err
}

// refuseHead has the request answered although its head is not known. Nothing more of it is read.
func (st *stream) refuseHead(e *exchange.Error) {
	st.refused = e
	st.body.err = errUnread
	st.x.Request.ContentLength = -1
}

// takeHead reads frames up to the head, and of requests that hardly ever have a body what is behind it.
func (st *stream) takeHead() error {
	typ, length, err := st.next(0)
	switch {
	case err == io.EOF:
		return &streamError{codeIncomplete, "the stream ends in front of its head"}
	case err != nil:
		return err
	case typ == frameData:
		return &connError{codeFrameUnexpected, "DATA in front of HEADERS"}
	}
	var h http2.Head
	h.Reset(&st.x.Request, st.block, http2.HeadLimits{Bytes: st.set.MaxHeaderBytes, Fields: st.set.MaxHeaders})
	if length > uint64(st.set.listLimit()) {
		h.TooLarge()
		st.refuseHead(h.Refused)
		return nil
	}
	section, err := st.payload(int(length), 0)
	if err != nil {
		return err
	}
	switch err := decode(section, st.set.listLimit(), h.Field); {
	case errors.Is(err, errSectionTooLarge):
		h.TooLarge()
	case err != nil:
		return err
	}
	if h.Bodiless = st.in.ended(); !h.Bodiless && h.Length < 0 && !st.x.Request.Expect && bodyRare(h.Method()) {
		if h.Bodiless, err = st.peek(); err != nil {
			return err
		}
	}
	h.Finish()
	st.block, st.refused, st.malformed = h.Block, h.Refused, h.Malformed
	if h.Bad != "" {
		return &streamError{codeMessage, h.Bad}
	}
	st.body.declared = h.Length
	if h.Bodiless {
		st.body.err = io.EOF
		st.in.free()
		st.in.err = io.EOF
	}
	return nil
}

// bodyRare tells methods whose requests hardly ever have a body. The end of the stream may come in a packet of its own, and
// without it a request would be forwarded with a body of unknown length: it is awaited.
func bodyRare(method string) bool {
	switch method {
	case "GET", "HEAD", "DELETE", "OPTIONS", "TRACE":
		return true
	}
	return false
}

// peek waits for what is behind the head, and reports whether that is nothing.
func (st *stream) peek() (bodiless bool, err error) {
	typ, length, err := st.next(0)
	switch {
	case err == io.EOF:
		return true, nil
	case err != nil:
		return false, err
	}
	st.peeked, st.peekType, st.peekLength = true, typ, length
	return false, nil
}
