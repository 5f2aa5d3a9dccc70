package http2

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// responseWriter is what the frame loop gives a handler.
type responseWriter interface {
	http.ResponseWriter
	FlushError() error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// stream is one exchange on its way over a connection. Its goroutine owns everything but the atomics and the alarms.
type stream struct {
	c    *serverConn
	set  *Settings
	w    responseWriter
	r    *http.Request
	ctx  context.Context // ends when the stream is closed, by either side
	x    exchange.Exchange
	slot conn.ClockSlot

	guard conn.Alarm // what the exchange waits for upstream
	read  conn.Alarm // a request body that does not go on
	write conn.Alarm // a client that takes nothing

	block []byte   // the request head as HTTP/1.1 spells it
	names []string // of its fields, sorted

	body requestBody
	resp response

	ours      atomic.Bool    // the stream was reset by us: its end is not the client's departure
	resetting sync.WaitGroup // the order to reset it, on its way to the frame loop
}

var streamPool = sync.Pool{New: func() any { return new(stream) }}

// maxPooledBlock keeps an unusually large head from staying in the pool.
const maxPooledBlock = 16 << 10

// ServeHTTP serves one stream; the frame loop calls it on a goroutine of its own.
func (c *serverConn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rw, ok := w.(responseWriter)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	st := streamPool.Get().(*stream)
	st.c, st.set, st.w, st.r, st.ctx = c, c.srv.settings.Load(), rw, r, r.Context()
	if !c.enter(st) {
		st.recycle()
		panic(http.ErrAbortHandler)
	}
	whole := st.serve()
	st.recycle()
	if !whole {
		panic(http.ErrAbortHandler) // the frame loop's way to reset a stream; it neither logs nor passes it on
	}
}

// serve runs the exchange and tells whether its response is whole.
func (st *stream) serve() bool {
	defer st.c.leave(st)
	x := &st.x
	bad := st.fill()
	x.Begin(st, &st.guard, st.c.info, time.Now())
	st.c.srv.clock.Add(st) // not before: a visit may end the exchange
	if bad == nil {
		bad = precheck(&x.Request)
	}
	if bad != nil {
		st.refuse(bad)
	} else if err := st.set.Handler.Serve(x); err != nil {
		x.Fail(err)
	}
	st.guard.Disarm()
	st.c.judge(st.gone() && !st.ours.Load() && !st.resp.done)
	return st.resp.done && !st.resp.aborted && st.resp.err == nil
}

// refuse lets the handler see a request that the engine refuses, so that it is recorded like every other.
func (st *stream) refuse(err *exchange.Error) {
	if r, ok := st.set.Handler.(exchange.Refuser); ok {
		r.Refuse(&st.x, err)
		return
	}
	st.x.Fail(err)
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

// recycle makes the stream ready for another exchange. A handler that panics never gets here.
func (st *stream) recycle() {
	st.body.free()
	st.body.reset()
	st.resp = response{}
	st.ours.Store(false)
	clear(st.names)
	st.c, st.set, st.w, st.r, st.ctx = nil, nil, nil, nil, nil
	if cap(st.block) > maxPooledBlock {
		st.block = nil
	}
	streamPool.Put(st)
}

// gone reports whether the stream has been closed.
func (st *stream) gone() bool { return st.ctx.Err() != nil }

// OnTick is the clock's visit. A closed stream is a client that left, whatever the exchange waits on.
func (st *stream) OnTick(k *conn.Clock) int {
	k.Expire(&st.guard)
	k.Expire(&st.read)
	k.Expire(&st.write)
	if st.gone() && !st.ours.Load() {
		st.x.Depart()
	}
	return -1
}

// OnDeparted is never called.
func (st *stream) OnDeparted() {}

// Slot is the clock's.
func (st *stream) Slot() *conn.ClockSlot { return &st.slot }

// Abort ends the exchange with a reset.
func (st *stream) Abort() { st.resp.aborted = true }

// Takeover fails: a stream cannot be given away.
func (st *stream) Takeover() (conn.Conn, error) {
	return nil, errors.New("an HTTP/2 stream cannot be taken over")
}

var _ exchange.Downstream = (*stream)(nil)
