package http1

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// serveOne runs the request whose head is complete at c.in[c.r:].
func (c *serverConn) serveOne() {
	x := c.x
	c.settle()
	if !c.head.upgrade.empty() {
		c.fit()
	}
	b := c.in[c.r:c.w]
	x.Request.Fields.Rebase(b) // waiting for the body may have moved the head
	c.fill(x, b)
	c.r += c.head.end
	c.resp = response{close: c.head.close || c.head.proto == exchange.HTTP10 && !c.head.keep}
	x.Begin(c, &c.guard, c.c.Info(), time.Now())
	c.seq.Add(1)
	c.phase.Store(phaseServing)
	if err := c.precheck(x); err != nil {
		x.Response.Close = true
		err.Close = true
		exchange.Refuse(c.set.Handler, x, err)
		return
	}
	if err := c.set.Handler.Serve(x); err != nil {
		x.Fail(err)
	}
}

// fit moves what has been received to a buffer of its size: a head that asks for an upgrade is kept for as long as that
// lasts.
func (c *serverConn) fit() {
	fits := append([]byte(nil), c.in[c.r:c.w]...)
	c.freeIn()
	c.in, c.r, c.w = fits, 0, len(fits)
}

// precheck refuses what is refused before routing.
func (c *serverConn) precheck(x *exchange.Exchange) *exchange.Error {
	r := &x.Request
	method := string(r.Method)
	switch {
	case method == "CONNECT" && !c.set.Connect:
		return exchange.Reject(501, exchange.CodeNotImplemented, "CONNECT is not supported here")
	case method == "TRACE":
		return exchange.Reject(405, exchange.CodeMethodNotAllowed, "TRACE is not allowed")
	case method == "CONNECT" && (c.head.chunked || c.head.length >= 0):
		return badHead("CONNECT with a body") // RFC 9110 §9.3.6: what follows is the tunnel's
	case method != "CONNECT" && c.set.Connect:
		return exchange.Reject(405, exchange.CodeMethodNotAllowed, "CONNECT required")
	case r.Target == nil:
		return badHead("request target is of no known form")
	}
	return nil
}

// fill takes the request out of its head.
func (c *serverConn) fill(x *exchange.Exchange, b []byte) {
	h, r := &c.head, &x.Request
	r.Protocol, r.Method, r.Host = h.proto, h.method.of(b), h.host.of(b)
	r.TLS = c.c.Info().TLS != nil
	r.ContentLength = max(h.length, 0)
	if h.chunked {
		r.ContentLength = -1
	}
	r.Expect = h.expect
	r.Upgrade = nil
	if !h.upgrade.empty() {
		r.Upgrade = webSocketOf(&r.Fields)
	}
	r.Target = c.target(r, h.target.of(b))
	r.Path, r.Query = r.Target, nil
	if i := bytes.IndexByte(r.Target, '?'); i >= 0 {
		r.Path, r.Query = r.Target[:i], r.Target[i+1:]
	}
}

// webSocketOf returns websocket as it is spelled, if an Upgrade field lists it; every other protocol is left out, h2c
// among them.
func webSocketOf(f *exchange.Fields) []byte {
	for v := range f.Values("upgrade") {
		for protocol := range exchange.Tokens(v) {
			if exchange.EqualFold(protocol, "websocket") {
				return protocol
			}
		}
	}
	return nil
}

// target reduces the four forms of a request target (RFC 9112 §3.2) to a path and query; nil when it is none of them.
func (c *serverConn) target(r *exchange.Request, t []byte) []byte {
	switch {
	case string(r.Method) == "CONNECT": // the authority form
		if !validAuthority(t) {
			return nil
		}
		r.Host = t
		return t
	case t[0] == '/':
		return t
	case len(t) == 1 && t[0] == '*' && string(r.Method) == "OPTIONS":
		return t
	}
	rest, ok := cutScheme(t)
	if !ok {
		return nil
	}
	end := bytes.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if end == 0 || !validAuthority(rest[:end]) {
		return nil
	}
	r.Host = rest[:end] // RFC 9112 §3.2.2: it replaces the Host field
	switch {
	case end == len(rest) && string(r.Method) == "OPTIONS":
		return []byte("*") // RFC 9112 §3.2.4
	case end == len(rest):
		return []byte("/")
	case rest[end] == '?':
		return append([]byte("/"), rest[end:]...)
	}
	return rest[end:]
}

// cutScheme removes http:// or https:// in any case.
func cutScheme(t []byte) ([]byte, bool) {
	for _, s := range []string{"http://", "https://"} {
		if len(t) > len(s) && exchange.EqualFold(t[:len(s)], s) {
			return t[len(s):], true
		}
	}
	return nil, false
}

// finish ends what the exchange left and tells whether the connection goes on.
func (c *serverConn) finish() bool {
	for !c.phase.CompareAndSwap(phaseServing, phaseIdle) {
		if c.phase.Load() == phaseTaken {
			return false
		}
		runtime.Gosched() // the clock is inside Depart, which does not block
	}
	if c.resp.err != nil || !c.resp.done {
		c.aborted = true
	}
	if c.aborted || c.x.Gone() || c.forced.Load() {
		return false
	}
	if !c.body.done.Load() {
		if c.resp.close || !c.discardable() {
			c.linger = true
			return false
		}
		if !c.discardBody() {
			return false
		}
	}
	if c.resp.close {
		c.linger = !c.saidLast()
		return false
	}
	return c.ready()
}

// saidLast reports whether the client has announced that it sends nothing more, and has not: closing cannot reset the
// answer away then.
func (c *serverConn) saidLast() bool {
	announced := c.head.close || c.head.proto == exchange.HTTP10 && !c.head.keep
	return announced && c.w == c.r && c.body.bw == c.body.br
}

// ready makes the connection ready for its next request.
func (c *serverConn) ready() bool {
	left := c.body.bw - c.body.br
	if left > 0 { // bytes of the next request that came with a chunked body
		c.ensure(left)
		copy(c.in[c.w:], (*c.body.bufp)[c.body.br:c.body.bw])
		c.w += left
	}
	c.body.free()
	c.body.dec.tail = nil
	if c.body.stop.Swap(false) {
		c.allowReads()
	}
	c.head.reset()
	if c.outp != nil {
		outPool.Put(c.outp)
		c.outp = nil
	}
	c.x.Request.Fields.Reset(nil)
	c.set = c.srv.settings.Load()
	c.wait.Arm(c.reads, c.set.KeepAliveTimeout)
	if c.ending.Load() == promptly && c.w == c.r {
		return false
	}
	return true
}

// refuseHead answers a malformed head, which no handler gets to see as a request, and ends the connection.
func (c *serverConn) refuseHead(err *exchange.Error) {
	x := c.x
	r := &x.Request
	c.settle()
	r.Protocol, r.Method, r.Target, r.Path, r.Query, r.Host = exchange.HTTP11, nil, nil, nil, nil, nil
	r.Expect, r.Upgrade, r.ContentLength = false, nil, 0
	r.Fields.Reset(nil)
	c.body.chunked, c.body.rest, c.body.err = false, 0, nil
	c.body.done.Store(true)
	c.resp = response{close: true}
	x.Begin(c, &c.guard, c.c.Info(), time.Now())
	c.seq.Add(1)
	c.phase.Store(phaseServing)
	exchange.Refuse(c.set.Handler, x, err)
	for !c.phase.CompareAndSwap(phaseServing, phaseIdle) {
		runtime.Gosched()
	}
	c.linger = true
}

// Takeover gives the connection up to the exchange, whose request body must have been read. Bytes behind the request are
// read first.
func (c *serverConn) Takeover() (conn.Conn, error) {
	if !c.body.done.Load() {
		return nil, errors.New("connection cannot be taken over inside a request body")
	}
	for !c.phase.CompareAndSwap(phaseServing, phaseTaken) {
		if c.phase.Load() == phaseTaken {
			return nil, errors.New("connection was taken over already")
		}
		runtime.Gosched()
	}
	pre := append([]byte(nil), c.in[c.r:c.w]...)
	if c.body.bw > c.body.br { // they came with the end of a chunked body
		pre = append(pre, (*c.body.bufp)[c.body.br:c.body.bw]...)
	}
	c.r = c.w
	if c.body.stop.Swap(false) {
		c.allowReads()
	}
	if c.outp != nil { // nothing more is sent from here
		outPool.Put(c.outp)
		c.outp = nil
	}
	c.resp.done, c.resp.close = true, true
	return conn.WithPrefix(c.c, pre), nil
}

// writeRaw writes by system calls, waiting only if the socket is full.
func (c *serverConn) writeRaw(a, b []byte) error {
	return c.raw.WriteStall2(a, b, c.set.WriteIdleTimeout)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

func joinDeparted(err error) error { return fmt.Errorf("%w: %v", exchange.ErrDeparted, err) }
