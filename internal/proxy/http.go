// Package proxy forwards exchanges to backends: it makes attempts until a response head arrives, then relays bytes until
// both bodies have ended. An HTTP value belongs to one generation; what it needs for one exchange comes from a pool. It
// picks nobody and judges nothing: service chooses backends, exchange turns errors into statuses.
package proxy

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/websocket"
)

// HTTP is the last handler of a route: it forwards.
type HTTP struct {
	backends Backends
	policy   *service.Policy
}

// Backends is who chooses where attempts go; *service.Balancer is one.
type Backends interface {
	// Pick chooses for the next attempt of x. It may block, and should then end with x.Context. See service.Balancer.
	Pick(x *exchange.Exchange, tried *service.Tried) (service.Lease, error)
	// Exhausted reports whether Pick would find nothing more than tried.
	Exhausted(tried *service.Tried) bool
	// Policy says how exchanges are conducted.
	Policy() *service.Policy
}

// New returns a forwarder. The owner of the backends closes them.
func New(b Backends) *HTTP { return &HTTP{backends: b, policy: b.Policy()} }

// forward is the state of one exchange being forwarded.
type forward struct {
	attempts
	up  service.Upstream
	out []byte

	method     []byte
	key        []byte // Sec-WebSocket-Key that the backend is to accept; nil: no upgrade is asked for
	body       []byte // inline body
	streaming  bool   // the body is pumped
	call       bool   // of gRPC
	trailers   bool   // the client takes fields behind the body
	pump       pump
	toRaw      exchange.RawBody
	sinkFailed bool // the failure is the client's side
}

var forwards = sync.Pool{New: func() any { return &forward{out: make([]byte, 0, 2<<10)} }}

// Serve forwards the exchange and relays the answer.
func (p *HTTP) Serve(x *exchange.Exchange) error {
	switch {
	case x.Request.Upgrade != nil:
	case p.policy.WebSocketOnly:
		return websocket.Required(x)
	case string(x.Request.Method) == "CONNECT":
		return exchange.Reject(501, exchange.CodeNotImplemented, "CONNECT is not supported here")
	}
	f := forwards.Get().(*forward)
	f.backends, f.policy, f.x, f.method = p.backends, p.policy, x, x.Request.Method
	f.body, f.streaming = f.inline()
	f.trailers = takesTrailers(&x.Request)
	done := false
	defer func() {
		if !done {
			f.rescue()
		}
	}()
	err := f.handshake()
	if err == nil {
		err = f.run()
	}
	f.stopPump() // that of an attempt which nobody has followed up
	done = true
	f.recycle()
	return err
}

// recycle makes f ready for another exchange. Inlined it would keep room for another forward on the stack while the
// backend is waited for.
//
//go:noinline
func (f *forward) recycle() {
	out := f.out[:0]
	if cap(out) == 0 || cap(out) > maxPooledOut {
		out = make([]byte, 0, 2<<10)
	}
	tried := f.tried
	tried.Reset()
	*f = forward{out: out, attempts: attempts{tried: tried}}
	forwards.Put(f)
}

// maxPooledOut keeps an unusually large request head from staying in the pool.
const maxPooledOut = 64 << 10

// rescue gives everything back when a handler's hook or filter has panicked; the panic goes on to who recovers it.
func (f *forward) rescue() {
	f.x.Guard.Disarm()
	f.stopPump()
	f.releaseConn(false)
	f.lease.Done(service.Unused)
}

// releaseConn gives the connection to the backend back, if there is one. What views its buffers ends with it.
func (f *forward) releaseConn(reuse bool) {
	if f.up == nil {
		return
	}
	f.x.Response.Fields.Reset(nil)
	f.x.Response.Trailers.Reset(nil)
	f.up.Release(reuse)
	f.up = nil
}

// inline returns the request body if all of it is here, and whether it must be pumped instead.
func (f *forward) inline() (body []byte, streaming bool) {
	if f.x.Request.ContentLength == 0 {
		return nil, false
	}
	body, complete := f.x.Down.Buffered()
	if complete {
		f.x.Request.ContentLength = int64(len(body)) // known by now: nothing else would end it
		f.x.Record.BytesIn += int64(len(body))
		return body, false
	}
	return nil, true
}

// run makes attempts until one has an answer, and relays that. A backend that saw nothing of the request is left for
// another one; each is tried once.
func (f *forward) run() error {
	if err := f.takeCall(); err != nil {
		return err
	}
	var last error
	for fresh := false; ; {
		if !fresh {
			lease, err := f.backends.Pick(f.x, &f.tried)
			if errors.Is(err, exchange.ErrExpired) {
				return callEnded(err)
			}
			if err != nil {
				return cmp.Or(last, err)
			}
			f.lease = lease
		}
		head, v, err := f.try(fresh)
		switch v {
		case answered:
			return f.relay(head)
		case again:
			fresh = true
			continue
		case elsewhere:
			fresh, last = false, err
			if f.remaining() > 0 && !f.x.Gone() {
				continue
			}
		}
		return err
	}
}

// verdict says what follows an attempt.
type verdict int

const (
	answered  verdict = iota // the response head is here
	again                    // the same backend, on a new connection
	elsewhere                // another backend: this one saw nothing
	failed
)

// try is one attempt: dispatch up to the response head, the client untouched. fresh insists on a new connection to the
// same backend.
func (f *forward) try(fresh bool) (exchange.Head, verdict, error) {
	x := f.x
	f.begin()
	spent := f.attempt.Sub(f.dispatch)
	up, err := f.connection(fresh)
	if err != nil {
		v, e := f.failedDial(err)
		return exchange.Head{}, v, e
	}
	if !up.Reused() || up.HTTP2() { // dialing took its time, or the wait for who dialed
		spent = time.Since(f.dispatch)
	}
	f.up = up
	f.out = f.appendRequest(f.out[:0])
	x.Response.Fields.Reset(nil)
	x.Guard.ArmWithin(up, max(f.policy.RequestTimeout-spent, 1), max(f.total()-spent, 1))
	switch {
	case x.Gone():
		x.Guard.Ring(conn.CauseDeparted)
	case f.pump.failed.Load(): // before there was anything to interrupt
		x.Guard.Ring(conn.CauseUpload)
	}
	head, err := up.RoundTrip(f.out, f.body, f.method, f.key != nil, &x.Response.Fields, f)
	if err == nil && f.key != nil {
		err = f.accepted(head)
	}
	if err == nil {
		f.note(head.Status, "")
		return head, answered, nil
	}
	v, e := f.failedTrip(err, fresh)
	return exchange.Head{}, v, e
}

// connection is where the request goes.
func (f *forward) connection(fresh bool) (service.Upstream, error) {
	var p service.Reach = f.lease.Backend.Pool
	if f.lease.Reach != nil {
		p = f.lease.Reach
	}
	switch {
	case f.call:
		return p.GetCall(f, fresh)
	case f.x.Request.Upgrade != nil:
		return p.GetUpgradable(f, fresh)
	default:
		return p.Get(f, fresh)
	}
}

// Sent is told by the connection that the request head is on its way: the body may follow. The answer is awaited
// meanwhile.
func (f *forward) Sent() {
	switch {
	case !f.streaming:
	case f.pump.done != nil:
		f.pump.copy.resume(f)
	default:
		f.startPump()
	}
}

// Repeatable reports whether the request may be sent twice, if its body is here.
func (f *forward) Repeatable() bool { return !f.streaming && repeatable(f.method) }

// failedTrip judges an attempt that ended without a response head.
func (f *forward) failedTrip(err error, fresh bool) (verdict, error) {
	cause := f.x.Guard.Disarm()
	unprocessed := cause == conn.CauseNone && errors.Is(err, exchange.ErrUnprocessed)
	begun := f.pump.done != nil
	if begun && unprocessed && f.pump.copy != nil && f.pump.copy.park(f.up) {
		begun = false // all of the body can be sent again
	} else {
		f.stopPump()
	}
	progress := f.up.Progress()
	f.releaseConn(false)
	untouched := progress == exchange.NothingSent && !begun
	if cause == conn.CauseNone && errors.Is(err, exchange.ErrStale) && (untouched || !begun && repeatable(f.method)) {
		f.note(0, exchange.CodeBackendReset)
		return again, nil
	}
	unprocessed = unprocessed && !begun
	if unprocessed && !fresh {
		f.note(0, exchange.CodeBackendReset)
		return again, nil
	}
	e, blamed := f.tripError(cause, err)
	f.note(0, e.Code)
	switch {
	case unprocessed:
		f.lease.Done(service.Unused)
		return elsewhere, e
	case cause == conn.CauseNone && untouched && blamed:
		f.lease.Done(service.Refused)
		return elsewhere, e
	case blamed:
		f.lease.Done(service.Unanswered)
	default:
		f.lease.Done(service.Unused)
	}
	return failed, e
}

// repeatable reports whether a request may be sent twice without harm (RFC 9110 §9.2.2).
func repeatable(method []byte) bool {
	switch string(method) {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE":
		return true
	}
	return false
}
