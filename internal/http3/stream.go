package http3

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// stream is one exchange on its way over a connection. Its goroutine owns everything but the atomics, the alarms and
// what a lock guards; one other goroutine may read the body.
type stream struct {
	c   *serverConn
	set *Settings
	q   *quic.Stream
	x   exchange.Exchange

	guard conn.Alarm // what the exchange waits for upstream
	read  conn.Alarm // a head or body that does not go on
	write conn.Alarm // a client that takes nothing

	block     []byte          // the request head as HTTP/1.1 spells it
	refused   *exchange.Error // what the head is refused with; nil: it is not
	malformed bool            // the client is told so behind the answer (RFC 9114 §4.1.2)

	in         input
	late       bool // the read alarm has fired
	peeked     bool // the head of the frame behind the request's head has been read
	peekType   uint64
	peekLength uint64
	body       requestBody
	reading    sync.Mutex   // held during a read
	sized      *atomic.Bool // the client's end of the stream is known: FIN, or a reset

	resp     response
	timedOut atomic.Bool // the write alarm has fired
	writing  sync.Mutex  // held during a write; guards headSent
	headSent bool

	unwatch func() bool

	// guarded by the connection's lock
	ended     bool // our end of the stream is out
	takenBack bool // given up by the client before that
	faulty    bool // reset for what the client did
}

var streamPool = sync.Pool{New: func() any { return new(stream) }}

// maxPooled keeps unusually large buffers from staying in the pool.
const maxPooled = 16 << 10

// newStream fetches a stream.
func newStream(c *serverConn, q *quic.Stream) *stream {
	st := streamPool.Get().(*stream)
	st.c, st.q, st.set = c, q, c.srv.settings.Load()
	st.guard.Bind(c.srv.clock)
	st.read.Bind(c.srv.clock)
	st.write.Bind(c.srv.clock)
	r := &st.x.Request
	r.Protocol, r.TLS = exchange.HTTP3, true
	r.Method, r.Target, r.Path, r.Query, r.Host, r.Upgrade = nil, nil, nil, nil, nil, nil
	r.Expect, r.ContentLength = false, 0
	r.Fields.Reset(nil)
	st.x.Begin(st, &st.guard, c.info, time.Now())
	return st
}

// watch has the exchange told when its client gives the stream up, or is gone. QUIC tells the first by STOP_SENDING, which
// ends the context of the stream, or by a reset of the request alone.
func (st *stream) watch() {
	c, id := st.c, st.q.StreamID()
	st.unwatch = context.AfterFunc(st.q.Context(), func() { c.givenUp(id) })
	sized := new(atomic.Bool)
	st.sized = sized
	st.q.SetReceiveFinalSizeCallback(func(int64) { sized.Store(true) })
}

// run serves the stream to its end, on a goroutine of its own.
func (st *stream) run() {
	c := st.c
	defer c.running.Done()
	sound := st.serve()
	st.guard.Disarm()
	c.leave(st, sound)
	if sound {
		st.recycle()
	}
}

// serve runs the exchange. A panic ends this exchange only; who has a log writes it down before it comes here.
func (st *stream) serve() (sound bool) {
	defer func() { _ = recover() }()
	if err := st.readHead(); err != nil {
		st.unreadable(err)
		return true
	}
	if st.refused == nil {
		st.refused = precheck(&st.x.Request)
	}
	if st.refused != nil {
		exchange.Refuse(st.set.Handler, &st.x, st.refused)
	} else if err := st.set.Handler.Serve(&st.x); err != nil {
		st.x.Fail(err)
	}
	return true
}

// unreadable ends a stream on which no request has come.
func (st *stream) unreadable(err error) {
	var (
		fatal  *connError
		faulty *streamError
	)
	switch {
	case errors.As(err, &fatal):
		st.c.fail(fatal)
	case errors.As(err, &faulty):
		st.c.fault(st, faulty)
	default:
		st.c.givenUp(st.q.StreamID())
	}
}

// precheck refuses what is refused before routing.
func precheck(r *exchange.Request) *exchange.Error {
	switch string(r.Method) {
	case "CONNECT":
		return exchange.Reject(501, exchange.CodeNotImplemented, "CONNECT is not supported here")
	case "TRACE":
		return exchange.Reject(405, exchange.CodeMethodNotAllowed, "TRACE is not allowed")
	}
	return nil
}

// close ends both sides of the stream as far as they are not ended yet, and lets the client open another one. The answer
// is whole if ours has ended; the rest of the request is then not wanted (RFC 9114 §4.1). A reset would take the answer to
// a malformed request back, so that its client is told on the other side only.
func (st *stream) close(ended, faulty bool) {
	st.unwatch()
	if !ended && !faulty {
		st.q.CancelWrite(codeInternal)
	}
	if st.malformed {
		st.q.CancelRead(codeMessage)
	} else {
		st.q.CancelRead(codeNo)
	}
	st.q.ReleaseStreamCredit()
}

// recycle makes the stream ready for another exchange. One whose handler has panicked never gets here.
func (st *stream) recycle() {
	st.in.free()
	st.body.clear()
	st.resp = response{scratch: st.resp.scratch[:0]}
	if cap(st.block) > maxPooled {
		st.block = nil
	}
	if cap(st.resp.scratch) > maxPooled {
		st.resp.scratch = nil
	}
	st.c, st.set, st.q, st.refused, st.unwatch, st.sized = nil, nil, nil, nil, nil, nil
	st.malformed, st.late, st.peeked, st.headSent = false, false, false, false
	st.timedOut.Store(false)
	st.ended, st.takenBack, st.faulty = false, false, false
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
	if st.wasReset() {
		st.giveUp()
	}
}

// wasReset reports whether the client has reset its side of the stream while nobody reads it. A read of nothing tells.
func (st *stream) wasReset() bool {
	if !st.sized.Load() || !st.reading.TryLock() {
		return false
	}
	defer st.reading.Unlock()
	_, err := st.q.Read(nil)
	var reset *quic.StreamError
	return errors.As(err, &reset) && reset.Remote
}

// giveUp notes that the client has given the stream up. The connection's lock is held.
func (st *stream) giveUp() {
	if !st.ended {
		st.takenBack = true
		st.x.Depart()
	}
}

// Abort leaves the response as it is: a stream that is left before its end is out is reset.
func (st *stream) Abort() {}

// Takeover fails: a stream cannot be given away.
func (st *stream) Takeover() (conn.Conn, error) {
	return nil, errors.New("an HTTP/3 stream cannot be taken over")
}

var _ exchange.Downstream = (*stream)(nil)
