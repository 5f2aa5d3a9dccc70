package http2

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// response follows what has been sent of the answer under way.
type response struct {
	bodiless bool  // the status or method allows no body
	rest     int64 // bytes left of a body with a length; -1 it has none
	done     bool  // everything is with the frame loop
	aborted  bool
	err      error
}

// unsent are the fields that never go into a response: HTTP/2 has none of connection and framing (RFC 9113 §8.2.2).
var unsent = exchange.SetOf(exchange.FieldConnection, exchange.FieldContentLength, exchange.FieldTransferEncoding, exchange.FieldKeepAlive,
	exchange.FieldUpgrade, exchange.FieldProxyConnection, exchange.FieldTE, exchange.FieldTrailer, exchange.FieldHTTP2Settings)

// progress is the piece that a client must take within WriteIdleTimeout for its stream to go on.
const progress = 32 << 10

// put copies fields into the frame loop's map, their names behind prefix.
func put(h http.Header, f *exchange.Fields, prefix string) {
	for name, value := range f.All() {
		if unsent.Has(exchange.KnownField(name)) {
			continue
		}
		key := prefix + textproto.CanonicalMIMEHeaderKey(string(name))
		h[key] = append(h[key], string(value))
	}
}

// Interim sends a 1xx head.
func (st *stream) Interim(status int, f *exchange.Fields) error {
	if st.resp.err != nil {
		return st.resp.err
	}
	if status < 100 || status > 199 || status == 101 {
		return nil
	}
	if st.gone() { // the map may still be read by the frame that was being written
		return st.failed(nil)
	}
	h := st.w.Header()
	clear(h)
	if f != nil {
		put(h, f, "")
	}
	st.write.Arm((*writeSide)(st), st.set.WriteIdleTimeout)
	st.w.WriteHeader(status)
	if st.write.Disarm() == conn.CauseDeadline || st.gone() {
		return st.failed(nil)
	}
	return nil
}

// SendHead sends the head with the first body bytes.
func (st *stream) SendHead(x *exchange.Exchange, body []byte, last bool) error {
	r, status := &st.resp, x.Response.Status
	switch {
	case r.err != nil:
		return r.err
	case status < 200 || status > 999:
		r.err = badResponse("status " + strconv.Itoa(status) + " cannot end an exchange on HTTP/2")
		return r.err
	case st.gone():
		return st.failed(nil)
	}
	r.bodiless = status == http.StatusNoContent || status == http.StatusNotModified || string(x.Request.Method) == http.MethodHead
	r.rest = x.Response.ContentLength
	if r.rest < 0 && last && !r.bodiless && x.Response.Trailers.Len() == 0 {
		r.rest = int64(len(body))
	}
	h := st.w.Header()
	clear(h)
	put(h, &x.Response.Fields, "")
	// RFC 9110 §8.6 has none on 204 and leaves 304 the choice, where some HTTP/2 clients miss the body that it announces.
	if r.rest >= 0 && status != http.StatusNoContent && status != http.StatusNotModified {
		h["Content-Length"] = []string{strconv.FormatInt(r.rest, 10)}
	}
	for _, name := range [...]string{"Date", "Content-Type"} { // what the backend did not say is not for us to guess
		if _, ok := h[name]; !ok {
			h[name] = nil
		}
	}
	if x.Response.Close || st.c.gentle.Load() {
		h["Connection"] = []string{"close"} // read by the frame loop, which then sends GOAWAY
	}
	st.w.WriteHeader(status)
	clear(h)
	return st.send(x, body, last)
}

// SendBody sends body bytes.
func (st *stream) SendBody(x *exchange.Exchange, body []byte, last bool) error {
	return st.send(x, body, last)
}

// send gives body bytes to the frame loop and waits until the client has room for them. What ends the stream goes out
// when the exchange's handler returns, together with a small last piece.
func (st *stream) send(x *exchange.Exchange, body []byte, last bool) error {
	r := &st.resp
	switch {
	case r.err != nil:
		return r.err
	case r.bodiless:
		body = nil
	case r.rest >= 0:
		if int64(len(body)) > r.rest || last && int64(len(body)) < r.rest {
			r.err = badResponse("body length differs from Content-Length")
			return r.err
		}
		r.rest -= int64(len(body))
	}
	trailers := last && x.Response.Trailers.Len() > 0
	st.write.Arm((*writeSide)(st), st.set.WriteIdleTimeout)
	err := st.writeBody(x, body, !last || trailers)
	if cause := st.write.Disarm(); err == nil && cause == conn.CauseDeadline {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		return st.failed(err)
	}
	if last {
		st.last(x, len(body))
	}
	return nil
}

// writeBody writes in pieces, each of which has the whole time limit.
func (st *stream) writeBody(x *exchange.Exchange, body []byte, flush bool) error {
	for len(body) > 0 {
		n := min(len(body), progress)
		if _, err := st.w.Write(body[:n]); err != nil {
			return err
		}
		body = body[n:]
		st.write.Extend(st.set.WriteIdleTimeout)
	}
	// The flushed head of a response to HEAD ends the stream, which would look like a departure until the handler
	// returns: it can wait for that.
	if flush && string(x.Request.Method) != http.MethodHead {
		return st.w.FlushError()
	}
	return nil
}

// last prepares the end of the response.
func (st *stream) last(x *exchange.Exchange, written int) {
	st.resp.done = true
	if !st.resp.bodiless {
		put(st.w.Header(), &x.Response.Trailers, http.TrailerPrefix)
	}
	if written > 0 && st.set.WriteIdleTimeout > 0 { // the frame loop may hold the last piece, without an alarm of ours
		_ = st.w.SetWriteDeadline(time.Now().Add(st.set.WriteIdleTimeout))
	}
}

// writeSide is the stream as what the write alarm interrupts: the stream is reset.
type writeSide stream

// Interrupt resets the stream, which fails a pending write. The frame loop takes the order unless it is just closing a
// stalled connection, which nobody else, the clock least of all, may have to wait for. The stream waits at its end.
func (s *writeSide) Interrupt() {
	s.ours.Store(true)
	s.resetting.Go(func() { _ = s.w.SetWriteDeadline(longAgo) })
}

// failed tells a client that is gone from one that takes nothing. Every later write fails the same way.
func (st *stream) failed(err error) error {
	e := &exchange.Error{Status: 503, Code: exchange.CodeClientGone, Public: "Client gone", Outcome: exchange.OutcomeDisconnected}
	switch {
	case st.ours.Load():
		e.Code, e.Public, e.Outcome, e.Limit = exchange.CodeWriteTimeout, "Write timeout", exchange.OutcomeAborted, "write_idle_timeout"
		e.Err = errors.Join(os.ErrDeadlineExceeded, err)
	case err != nil:
		e.Err = fmt.Errorf("%w: %v", exchange.ErrDeparted, err)
	default:
		e.Err = exchange.ErrDeparted
	}
	st.resp.err = e
	return e
}

// badResponse is a response that cannot be sent as it was handed over.
func badResponse(why string) error {
	return &exchange.Error{
		Status: 502, Code: exchange.CodeBadResponse, Public: "Bad gateway", Outcome: exchange.OutcomeFailed,
		Err: headError(why),
	}
}
