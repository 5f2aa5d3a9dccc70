package http3

import (
	"net/http"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// response follows what has been sent of the answer under way.
type response struct {
	length  http2.BodyLength
	done    bool // everything has been sent
	err     error
	scratch []byte // frames on their way
}

const (
	// progress is the piece that a client must take within WriteIdleTimeout for its stream to go on.
	progress = 32 << 10
	// together is up to how many body bytes go out in one piece with what is in front of them.
	together = 2 << 10
)

// Interim sends a 1xx head.
func (st *stream) Interim(status int, f *exchange.Fields) error {
	r := &st.resp
	if r.err != nil {
		return r.err
	}
	if status < 100 || status > 199 || status == 101 {
		return nil
	}
	st.writing.Lock()
	defer st.writing.Unlock()
	r.scratch = appendHead(r.scratch[:0], status, f, -1)
	return st.settled(st.put(r.scratch))
}

// continueHead is the head of 100 (Continue).
var continueHead = appendHead(nil, http.StatusContinue, nil, -1)

// askToGoOn sends 100 (Continue) to a client that waits for it. The reader of the body asks.
func (st *stream) askToGoOn() {
	if !st.x.Request.Expect || st.x.ExpectForwarded() {
		return
	}
	st.writing.Lock()
	defer st.writing.Unlock()
	if !st.headSent {
		st.put(continueHead)
	}
}

// SendHead sends the head with the first body bytes.
func (st *stream) SendHead(x *exchange.Exchange, body []byte, last bool) error {
	if st.q == nil {
		return nil // there is no request to answer, only one to be recorded
	}
	r := &st.resp
	if r.err != nil {
		return r.err
	}
	if status := x.Response.Status; status < 200 || status > 999 {
		r.err = http2.BadResponse("status " + strconv.Itoa(status) + " cannot end an exchange on HTTP/3")
		return r.err
	}
	told := r.length.Begin(x, false, len(body), last)
	if r.err = r.length.Take(&body, last); r.err != nil {
		return r.err
	}
	if x.Response.Close || st.c.ending() {
		st.c.announce()
	}
	st.writing.Lock()
	defer st.writing.Unlock()
	r.scratch = appendHead(r.scratch[:0], x.Response.Status, &x.Response.Fields, told)
	st.headSent = true
	return st.sendRest(x, body, last)
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
	st.writing.Lock()
	defer st.writing.Unlock()
	r.scratch = r.scratch[:0]
	return st.sendRest(x, body, last)
}

// sendRest sends what is in scratch, body bytes behind it, and with last what ends the stream. The writing lock is held.
func (st *stream) sendRest(x *exchange.Exchange, body []byte, last bool) error {
	r := &st.resp
	ok := st.sendFramed(body)
	if ok && last && !r.length.Bodiless && x.Response.Trailers.Len() > 0 {
		r.scratch = appendFields(r.scratch[:0], &x.Response.Trailers)
		ok = st.put(r.scratch)
	}
	r.done = ok && last
	if r.done {
		st.end()
	}
	return st.settled(ok)
}

// sendFramed sends scratch and a DATA frame. False: it cannot.
func (st *stream) sendFramed(body []byte) bool {
	r := &st.resp
	if len(body) > 0 {
		r.scratch = appendFrameHead(r.scratch, frameData, uint64(len(body)))
		if len(body) <= together {
			r.scratch = append(r.scratch, body...)
			body = nil
		}
	}
	if len(r.scratch) > 0 && !st.put(r.scratch) {
		return false
	}
	for len(body) > 0 {
		n := min(len(body), progress)
		if !st.put(body[:n]) {
			return false
		}
		body = body[n:]
	}
	return true
}

// put writes p, waiting while the client has no room for it. False: it cannot.
func (st *stream) put(p []byte) bool {
	st.write.Arm((*writeSide)(st), st.set.WriteIdleTimeout)
	_, err := st.q.Write(p)
	st.write.Disarm()
	return err == nil
}

// writeSide is the stream as what interrupts its writing.
type writeSide stream

// Interrupt ends a pending wait.
func (s *writeSide) Interrupt() {
	s.timedOut.Store(true)
	_ = s.q.SetWriteDeadline(longAgo)
}

// end ends our side of the stream.
func (st *stream) end() {
	st.c.mu.Lock()
	st.ended = true
	st.c.mu.Unlock()
	st.unwatch()
	_ = st.q.Close() // what fails has been given up by the client
}

// settled turns a failure into an error. It tells a client that is gone from one that takes nothing, and every later write
// fails the same way.
func (st *stream) settled(ok bool) error {
	if ok {
		return nil
	}
	st.resp.err = http2.Undelivered(st.timedOut.Load(), st.c.forced.Load())
	return st.resp.err
}
