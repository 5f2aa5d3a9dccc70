package http2

import (
	"errors"
	"net/http"
	"os"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// response follows what has been sent of the answer under way.
type response struct {
	bodiless bool  // the status or method allows no body
	tunnel   bool  // a 2xx to CONNECT: what follows is the tunnel's
	rest     int64 // bytes left of a body with a length; -1 it has none
	done     bool  // everything has been sent
	err      error
	scratch  []byte // a field block
}

// progress is the piece that a client must take within WriteIdleTimeout for its stream to go on.
const progress = 32 << 10

// Interim sends a 1xx head.
func (st *stream) Interim(status int, f *exchange.Fields) error {
	r := &st.resp
	if r.err != nil {
		return r.err
	}
	if status < 100 || status > 199 || status == 101 {
		return nil
	}
	r.scratch = appendStatus(r.scratch[:0], status)
	if f != nil {
		r.scratch = appendFields(r.scratch, f)
	}
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := st.putBlock(r.scratch, false)
	c.flush()
	return st.settled(ok)
}

// SendHead sends the head with the first body bytes.
func (st *stream) SendHead(x *exchange.Exchange, body []byte, last bool) error {
	if st.id == 0 {
		return nil // there is no request to answer, only one to be recorded
	}
	r := &st.resp
	if r.err != nil {
		return r.err
	}
	if status := x.Response.Status; status < 200 || status > 999 {
		r.err = badResponse("status " + strconv.Itoa(status) + " cannot end an exchange on HTTP/2")
		return r.err
	}
	st.frame(x, len(body), last)
	if err := r.account(&body, last); err != nil {
		return err
	}
	trailers := last && !r.bodiless && x.Response.Trailers.Len() > 0
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.Response.Close || c.draining || c.gentle.Load() {
		c.announce()
	}
	// A response that can have no body is whole with its head, whatever is still handed over.
	whole := (r.bodiless || last && len(body) == 0 && !trailers) && !st.malformed && !r.tunnel
	ok := st.putBlock(r.scratch, whole)
	st.headSent = ok
	if ok && whole {
		st.end()
	}
	if ok && !whole && !r.tunnel {
		ok = st.put(x, body, last)
	}
	c.flush()
	r.done = ok && last
	return st.settled(ok)
}

// frame decides on the length of the body, and encodes the head.
func (st *stream) frame(x *exchange.Exchange, body int, last bool) {
	r, status := &st.resp, x.Response.Status
	r.tunnel = status < 300 && string(x.Request.Method) == "CONNECT"
	r.bodiless = status == http.StatusNoContent || status == http.StatusNotModified || string(x.Request.Method) == "HEAD" || r.tunnel
	r.rest = x.Response.ContentLength
	if r.rest < 0 && last && !r.bodiless && x.Response.Trailers.Len() == 0 {
		r.rest = int64(body)
	}
	r.scratch = appendFields(appendStatus(r.scratch[:0], status), &x.Response.Fields)
	// RFC 9110 §8.6 has none on 204 and leaves 304 the choice, where some HTTP/2 clients miss the body that it announces.
	if r.rest >= 0 && !r.tunnel && status != http.StatusNoContent && status != http.StatusNotModified {
		r.scratch = appendLength(r.scratch, r.rest)
	}
}

// account counts body bytes against the length, and takes those away that may not be sent.
func (r *response) account(body *[]byte, last bool) error {
	switch n := int64(len(*body)); {
	case r.bodiless:
		*body = nil
	case r.rest >= 0:
		if n > r.rest || last && n < r.rest {
			r.err = badResponse("body length differs from Content-Length")
			return r.err
		}
		r.rest -= n
	}
	return nil
}

// SendBody sends body bytes.
func (st *stream) SendBody(x *exchange.Exchange, body []byte, last bool) error {
	r := &st.resp
	if r.err != nil {
		return r.err
	}
	if err := r.account(&body, last); err != nil {
		return err
	}
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := st.ended || st.put(x, body, last)
	c.flush()
	r.done = ok && last
	return st.settled(ok)
}

// put sends body bytes, waiting while the client has no room for them, and with last what ends the stream. False: it
// cannot. The lock is held, but not during waits.
func (st *stream) put(x *exchange.Exchange, body []byte, last bool) bool {
	trailers := last && !st.resp.bodiless && x.Response.Trailers.Len() > 0
	end := last && !trailers && !st.malformed
	for len(body) > 0 {
		n := min(len(body), progress)
		if !st.putData(body[:n], end && n == len(body)) {
			return false
		}
		body = body[n:]
		st.inTime() // the next piece has the whole time limit
		if end && len(body) == 0 {
			st.end()
			return true
		}
	}
	switch {
	case trailers:
		st.resp.scratch = appendFields(st.resp.scratch[:0], &x.Response.Trailers)
		if !st.putBlock(st.resp.scratch, true) {
			return false
		}
		st.end()
	case end:
		if !st.putData(nil, true) {
			return false
		}
		st.end()
	}
	return true
}

// settled ends the wait for the client, and turns a failure into an error. The lock is held.
func (st *stream) settled(ok bool) error {
	if ok {
		st.inTime()
		return nil
	}
	if st.timed {
		st.timed = false
		st.write.Disarm()
	}
	return st.failed()
}

// failed tells a client that is gone from one that takes nothing. Every later write fails the same way.
func (st *stream) failed() error {
	e := &exchange.Error{Status: 503, Code: exchange.CodeClientGone, Public: "Client gone", Outcome: exchange.OutcomeDisconnected}
	switch {
	case st.timedOut.Load():
		e.Code, e.Public, e.Outcome, e.Limit = exchange.CodeWriteTimeout, "Write timeout", exchange.OutcomeAborted, "write_idle_timeout"
		e.Err = os.ErrDeadlineExceeded
	case st.c.forced.Load():
		e.Code, e.Public, e.Outcome, e.Err = exchange.CodeDraining, "Gateway shutting down", exchange.OutcomeDrained, exchange.ErrForced
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
		Err: errors.New(why),
	}
}
