package http1

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// How the body of the response under way ends.
const (
	endsNone    = iota // it has none
	endsLength         // after a number of bytes
	endsChunked        // with a last chunk
	endsClose          // with the connection
)

// response follows what has been sent of the answer under way.
type response struct {
	ends  int
	rest  int64 // bytes left of a body with a length
	close bool
	begun bool // the final head is on its way: no interim one may follow
	done  bool
	err   error
}

// framing are the fields that the engine makes itself.
var framing = exchange.SetOf(exchange.FieldConnection, exchange.FieldContentLength, exchange.FieldTransferEncoding, exchange.FieldKeepAlive,
	exchange.FieldUpgrade, exchange.FieldProxyConnection, exchange.FieldTE, exchange.FieldTrailer)

// statusLines are made once.
var statusLines = func() (t [600]string) {
	for i := 100; i < len(t); i++ {
		t[i] = "HTTP/1.1 " + strconv.Itoa(i) + " " + http.StatusText(i) + "\r\n"
	}
	return t
}()

func appendStatus(dst []byte, status int) []byte {
	if status >= 100 && status < len(statusLines) {
		return append(dst, statusLines[status]...)
	}
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	return append(dst, " \r\n"...)
}

// buffer returns the connection's output buffer, emptied.
func (c *serverConn) buffer() []byte {
	if c.outp == nil {
		c.outp = outPool.Get().(*[]byte)
	}
	return (*c.outp)[:0]
}

// keep stores a buffer that may have grown for the next use.
func (c *serverConn) keep(b []byte) {
	if cap(b) <= maxPooledOut {
		*c.outp = b
	}
}

// Interim sends a 1xx head. After the final head it does nothing: whoever reads the body asks for it too.
func (c *serverConn) Interim(status int, f *exchange.Fields) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.x.Request.Protocol == exchange.HTTP10 || c.resp.begun {
		return nil
	}
	out := appendStatus(c.buffer(), status)
	if f != nil {
		out = f.AppendHTTP1(out, framing)
	}
	out = append(out, "\r\n"...)
	c.keep(out)
	return c.write(out, nil)
}

// head makes the response head and decides how the body is framed.
func (c *serverConn) makeHead(x *exchange.Exchange, size int, last bool) []byte {
	r := &c.resp
	r.begun = true
	out := appendStatus(c.buffer(), x.Response.Status)
	out = x.Response.Fields.AppendHTTP1(out, framing)
	length := x.Response.ContentLength
	if length < 0 && last {
		length = int64(size)
	}
	old := x.Request.Protocol == exchange.HTTP10
	switch status := x.Response.Status; {
	case status == 101:
		r.ends = endsNone
		out = append(out, "Connection: Upgrade\r\nUpgrade: "...)
		out = append(out, x.Response.Upgrade...)
		return append(out, "\r\n\r\n"...)
	case status < 300 && string(x.Request.Method) == "CONNECT": // RFC 9110 §9.3.6: the tunnel begins behind the head
		r.ends = endsNone
		return append(out, "\r\n"...)
	case status == 204 || status == 304 || status < 200 || string(x.Request.Method) == "HEAD":
		r.ends = endsNone
		if length = x.Response.ContentLength; status == 204 || status < 200 {
			length = -1
		}
	case length >= 0:
		r.ends, r.rest = endsLength, length
	case old:
		r.ends, r.close = endsClose, true
	default:
		r.ends = endsChunked
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	if length >= 0 {
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, length, 10)
		out = append(out, "\r\n"...)
	}
	if last && !c.body.done.Load() && (c.body.begun.Load() || !c.skippable()) {
		r.close = true // an early answer to an upload that nobody will read
	}
	r.close = r.close || x.Response.Close || c.ending.Load() != serving
	if len(x.Response.Upgrade) > 0 { // what a 426 requires (RFC 9110 section 15.5.22)
		out = append(append(append(out, "Connection: upgrade\r\nUpgrade: "...), x.Response.Upgrade...), "\r\n"...)
	}
	if string(x.Request.Method) == "CONNECT" {
		r.close = true // what follows was sent for a tunnel, and must not be read as requests
	}
	switch {
	case r.close:
		out = append(out, "Connection: close\r\n"...)
	case old:
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	return append(out, "\r\n"...)
}

// SendHead sends the head with the first body bytes.
func (c *serverConn) SendHead(x *exchange.Exchange, body []byte, last bool) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	out := c.makeHead(x, len(body), last)
	c.keep(out)
	return c.sendBody(x, out, body, last)
}

// SendBody sends body bytes.
func (c *serverConn) SendBody(x *exchange.Exchange, body []byte, last bool) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.sendBody(x, c.buffer(), body, last)
}

// smallCopy is up to how many body bytes are copied behind a head rather than gathered by the kernel.
const smallCopy = 4 << 10

// sendBody frames body bytes behind out and sends both.
func (c *serverConn) sendBody(x *exchange.Exchange, out, body []byte, last bool) error {
	r := &c.resp
	if r.err != nil {
		return r.err
	}
	switch r.ends {
	case endsNone:
		body = nil
	case endsLength:
		if int64(len(body)) > r.rest || last && int64(len(body)) < r.rest {
			r.err = errLength
			return r.err
		}
		r.rest -= int64(len(body))
	case endsChunked:
		if len(body) > 0 {
			out = strconv.AppendUint(out, uint64(len(body)), 16)
			out = append(out, "\r\n"...)
		}
	}
	r.done = last
	var tail []byte
	if r.ends == endsChunked {
		tail = c.chunkEnd(x, len(body) > 0, last)
	}
	if len(body) <= smallCopy || tail != nil && len(body) <= 4*smallCopy {
		out = append(append(out, body...), tail...)
		body, tail = nil, nil
	}
	c.keep(out)
	if err := c.write(out, body); err != nil {
		return err
	}
	if len(tail) > 0 {
		return c.write(tail, nil)
	}
	return nil
}

// chunkEnd is what follows the data of a chunk.
func (c *serverConn) chunkEnd(x *exchange.Exchange, data, last bool) []byte {
	switch {
	case last && x.Response.Trailers.Len() > 0:
		t := []byte("\r\n0\r\n")
		if !data {
			t = t[2:]
		}
		return append(x.Response.Trailers.AppendHTTP1(t, framing), "\r\n"...)
	case last && data:
		return chunkTail[:]
	case last:
		return chunkTail[2:]
	case data:
		return chunkTail[:2]
	}
	return nil
}

var chunkTail = []byte("\r\n0\r\n\r\n")

// errLength ends a response whose body does not have the length that its head gave.
var errLength = &exchange.Error{
	Status: 502, Code: exchange.CodeBadResponse, Public: "Bad gateway", Outcome: exchange.OutcomeFailed,
	Err: exchange.Fault("body length differs from Content-Length"),
}

// CanSendRaw reports whether chunks may be passed on as they are.
func (c *serverConn) CanSendRaw(x *exchange.Exchange) bool {
	return x.Request.Protocol == exchange.HTTP11 && string(x.Request.Method) != "HEAD" && x.Response.Status >= 200 &&
		x.Response.Status != 204 && x.Response.Status != 304 && x.Response.ContentLength < 0
}

// SendRaw sends chunks with their framing.
func (c *serverConn) SendRaw(x *exchange.Exchange, run exchange.RawRun, head bool) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	r := &c.resp
	if r.err != nil {
		return r.err
	}
	out, body := c.buffer(), run.Bytes
	if head {
		out = c.makeHead(x, 0, false)
	}
	r.done = run.Last
	var tail []byte
	if run.Last && !run.Closed {
		tail = append(x.Response.Trailers.AppendHTTP1(nil, framing), "\r\n"...)
	}
	if len(out) > 0 && len(body) <= smallCopy || tail != nil {
		out = append(append(out, body...), tail...)
		body = nil
	}
	c.keep(out)
	return c.write(out, body)
}

// write sends a and then b, waiting while the client does not take them.
func (c *serverConn) write(a, b []byte) error {
	if len(a) == 0 {
		a, b = b, nil
	}
	if len(a) == 0 {
		return nil
	}
	if c.forced.Load() {
		c.resp.err = exchange.ErrForced
		return c.resp.err
	}
	var err error
	if c.raw != nil {
		err = c.writeRaw(a, b)
	} else {
		err = c.writePlain(a, b)
	}
	if err != nil {
		c.resp.err = writeFailed(err)
	}
	return c.resp.err
}

// writeFailed tells a client that is gone from one that takes nothing.
func writeFailed(err error) error {
	if isTimeout(err) {
		return &exchange.Error{
			Status: 503, Code: exchange.CodeWriteTimeout, Public: "Write timeout", Outcome: exchange.OutcomeAborted,
			Limit: "write_idle_timeout", Err: err,
		}
	}
	return &exchange.Error{
		Status: 503, Code: exchange.CodeClientGone, Public: "Client gone", Outcome: exchange.OutcomeDisconnected,
		Err: joinDeparted(err),
	}
}

// writePlain writes under the alarm that a stalled client rings.
func (c *serverConn) writePlain(a, b []byte) error {
	c.slow.Arm(c.writes, c.set.WriteIdleTimeout)
	_, err := c.c.Write(a)
	if err == nil && len(b) > 0 {
		c.slow.Extend(c.set.WriteIdleTimeout)
		_, err = c.c.Write(b)
	}
	if c.slow.Disarm() != conn.CauseNone && err == nil {
		_ = c.c.SetWriteDeadline(time.Time{})
	}
	return err
}

// Abort ends the response without its proper end.
func (c *serverConn) Abort() {
	c.aborted = true
	c.resp.close = true
	c.resp.done = true
}
