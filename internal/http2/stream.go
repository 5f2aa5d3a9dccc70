package http2

import (
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// stream is one exchange on its way over a connection. Its goroutine owns everything but the atomics, the alarms and
// what the connection's lock guards. The reader fills in the request before that goroutine begins.
type stream struct {
	flow
	c   *serverConn
	set *Settings
	x   exchange.Exchange

	guard conn.Alarm // what the exchange waits for upstream
	read  conn.Alarm // a request body that does not go on

	block     []byte          // the request head as HTTP/1.1 spells it
	refused   *exchange.Error // what the head is refused with; nil: it is not
	malformed bool            // the stream is reset behind the answer (RFC 9113 §8.1.1)

	resp response

	// guarded by the connection's lock
	headSent  bool
	takenBack bool // reset by the client before our end was out
	counted   bool // among the active ones
}

var streamPool = sync.Pool{New: func() any { return &stream{flow: newFlow()} }}

// maxPooledBlock keeps an unusually large head from staying in the pool.
const maxPooledBlock = 16 << 10

// newStream fetches a stream.
func newStream(c *serverConn, id uint32) *stream {
	st := streamPool.Get().(*stream)
	st.c, st.set = c, c.srv.settings.Load()
	st.bind(&c.link, id, st.set.WriteIdleTimeout)
	st.guard.Bind(c.clock)
	st.read.Bind(c.clock)
	q := &st.x.Request
	q.Protocol, q.TLS = exchange.HTTP2, c.info.TLS != nil
	q.Method, q.Target, q.Path, q.Query, q.Host, q.Upgrade = nil, nil, nil, nil, nil, nil
	q.Expect, q.ContentLength = false, 0
	q.Fields.Reset(nil)
	return st
}

// begin opens the exchange; the request's head has been taken in.
func (st *stream) begin() { st.x.Begin(st, &st.guard, st.c.info, time.Now()) }

// run serves the stream to its end, on a goroutine of its own meanwhile.
func (st *stream) run() {
	c := st.c
	sound := st.serve()
	st.guard.Disarm()
	if sound {
		st.linger()
	}
	c.leave(st, sound)
	if sound && st.tunnel == nil { // who still holds the conn of a tunnel finds it closed
		st.recycle()
	}
}

// serve runs the exchange. A panic ends this exchange only; who has a log writes it down before it comes here.
func (st *stream) serve() (sound bool) {
	defer func() { _ = recover() }()
	if st.refused == nil {
		st.refused = precheck(&st.x.Request, st.c.set.Connect)
	}
	if st.refused != nil {
		exchange.Refuse(st.set.Handler, &st.x, st.refused)
	} else if err := st.set.Handler.Serve(&st.x); err != nil {
		st.x.Fail(err)
	}
	return true
}

// precheck refuses what is refused before routing.
func precheck(r *exchange.Request, connect bool) *exchange.Error {
	switch method := string(r.Method); {
	case method == "CONNECT":
		return precheckConnect(r, connect)
	case method == "TRACE":
		return exchange.Reject(405, exchange.CodeMethodNotAllowed, "TRACE is not allowed")
	case connect:
		return exchange.Reject(405, exchange.CodeMethodNotAllowed, "CONNECT required")
	}
	return nil
}

// How long, and for how much, the rest of a request body is waited for once the answer is whole.
const (
	restTime  = 500 * time.Millisecond
	restBytes = 64 << 10 // less than any stream's first window: the client need not be told to go on
)

// linger lets a small rest of the request body come before the stream is ended. A client may have sent it already, and some
// (curl 7.88 among them) throw an answer away that a reset follows, although RFC 9113 §8.1 tells them not to.
func (st *stream) linger() {
	c, b := st.c, &st.body
	c.mu.Lock()
	defer c.mu.Unlock()
	if !st.ended || st.tunnel != nil || b.declared < 0 || b.declared-b.got > restBytes || st.x.Request.Expect && !b.begun {
		return
	}
	for until := time.Now().Add(restTime); !st.remoteEnded && !st.closed && c.phase != closing && !c.forced.Load(); {
		left := time.Until(until)
		if left <= 0 {
			return
		}
		c.mu.Unlock()
		st.read.Arm((*readSide)(st), left)
		<-st.readWake
		st.read.Disarm()
		c.mu.Lock()
	}
}

// leave ends a stream whose exchange is over. On return nothing touches it any more, if the handler was sound.
func (c *serverConn) leave(st *stream, sound bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !st.closed && c.phase != closing {
		switch {
		case !st.ended && st.malformed && st.resp.done:
			c.reset(st, http2.ErrCodeProtocol)
		case !st.ended:
			c.reset(st, http2.ErrCodeInternal)
		case !st.remoteEnded: // the answer is whole, the rest of the request not wanted (RFC 9113 §8.1)
			c.reset(st, http2.ErrCodeNo)
		}
	}
	st.uncount()
	st.dropBody(sound)
	if st.tunnel != nil {
		st.close(false)
	}
	delete(c.streams, st.id)
	c.judge(st)
	switch {
	case len(c.streams) > 0 || c.phase != open:
	case c.draining: // before the preface, when nothing could be announced
		c.announce()
	default:
		c.await(c.set.KeepAliveTimeout)
	}
	c.settle()
}

// reset sends RST_STREAM. The lock is held.
func (c *serverConn) reset(st *stream, code http2.ErrCode) {
	o := c.buffer()
	o.b = appendReset(o.b, st.id, code)
	c.resets.add(st.id, resetsKept*c.set.MaxStreams)
	st.closed = true
	c.flush()
}

// resetsKept is how many times MaxStreams of the streams that we have reset are remembered.
const resetsKept = 2

// uncount takes the stream out of those whose number is limited. The lock is held.
func (st *stream) uncount() {
	if st.counted {
		st.counted = false
		st.c.active--
	}
}

// end notes that our end of the stream is out. The lock is held.
func (st *stream) end() {
	st.ended = true
	st.settle()
}

// settle has the stream not count any more if both its ends have come. The lock is held.
func (st *stream) settle() {
	if st.ended && st.remoteEnded {
		st.uncount()
	}
}

// close notes that the client has reset the stream, or its connection is gone; departed tells the exchange. The lock is
// held; nothing that is called blocks. Until its handler has ended the stream counts: no more handlers run than streams are
// allowed, however many are reset.
func (st *stream) close(departed bool) {
	st.closed = true
	if departed && !st.ended {
		st.x.Depart()
	}
	signal(st.sendWake)
	signal(st.readWake)
}

// recycle makes the stream ready for another exchange. One whose handler has panicked never gets here.
func (st *stream) recycle() {
	st.unbind()
	st.resp = response{scratch: st.resp.scratch[:0]}
	if cap(st.block) > maxPooledBlock {
		st.block = nil
	}
	if cap(st.resp.scratch) > maxPooledBlock {
		st.resp.scratch = nil
	}
	st.c, st.set, st.refused, st.malformed = nil, nil, nil, false
	st.headSent, st.takenBack, st.counted = false, false, false
	streamPool.Put(st)
}

// onTick is the clock's visit, with the connection's lock held.
func (st *stream) onTick(k *conn.Clock) {
	k.Expire(&st.guard)
	k.Expire(&st.read)
	k.Expire(&st.write)
	if st.c.forced.Load() { // again: a wait that began around the first time would go on
		st.x.Force()
	}
}

// Abort leaves the response as it is: a stream that is left before its end is out is reset.
func (st *stream) Abort() {}

var _ exchange.Downstream = (*stream)(nil)
