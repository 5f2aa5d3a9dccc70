package http2

import (
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// response follows what has been sent of the answer under way.
type response struct {
	length  BodyLength
	tunnel  bool // a 2xx to CONNECT: what follows is the tunnel's
	done    bool // everything has been sent
	err     error
	scratch []byte // a field block
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
		r.err = BadResponse("status " + strconv.Itoa(status) + " cannot end an exchange on HTTP/2")
		return r.err
	}
	st.frame(x, len(body), last)
	if r.err = r.length.Take(&body, last); r.err != nil {
		return r.err
	}
	trailers := last && !r.length.Bodiless && x.Response.Trailers.Len() > 0
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.Response.Close || c.draining || c.gentle.Load() {
		c.announce()
	}
	// A response that can have no body is whole with its head, whatever is still handed over.
	whole := (r.length.Bodiless || last && len(body) == 0 && !trailers) && !st.malformed && !r.tunnel
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
	told := r.length.Begin(x, r.tunnel, body, last)
	r.scratch = appendFields(appendStatus(r.scratch[:0], status), &x.Response.Fields)
	if told >= 0 && !r.tunnel {
		r.scratch = appendLength(r.scratch, told)
	}
}

// SendBody sends body bytes.
func (st *stream) SendBody(x *exchange.Exchange, body []byte, last bool) error {
	r := &st.resp
	if r.err != nil {
		return r.err
	}
	if r.err = r.length.Take(&body, last); r.err != nil {
		return r.err
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
	trailers := last && !st.resp.length.Bodiless && x.Response.Trailers.Len() > 0
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
	st.resp.err = Undelivered(st.timedOut.Load(), st.c.forced.Load())
	return st.resp.err
}
