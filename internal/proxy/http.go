// Package proxy forwards exchanges to backends: it makes attempts until a response head arrives, then relays bytes until
// both bodies have ended. An HTTP value belongs to one generation; what it needs for one exchange comes from a pool. It
// picks nobody and judges nothing: service chooses backends, exchange turns errors into statuses.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/service"
)

// HTTP is the last handler of a route: it forwards.
type HTTP struct {
	backends *service.Balancer
	policy   *service.Policy
}

// New returns a forwarder to a service. The balancer's owner closes it.
func New(b *service.Balancer) *HTTP { return &HTTP{backends: b, policy: b.Policy()} }

// forward is the state of one exchange being forwarded.
type forward struct {
	p     *HTTP
	x     *exchange.Exchange
	lease service.Lease
	up    *http1.ClientConn
	out   []byte

	tried    service.Tried
	dispatch time.Time // of the first attempt
	attempt  time.Time // of this one

	method     []byte
	body       []byte // inline body
	streaming  bool   // the body is pumped
	pumpDone   chan struct{}
	pumpErr    error // the client's body failed
	uploaded   bool  // the whole request was sent
	headCame   flag
	toRaw      exchange.RawBody
	sinkFailed bool // the failure is the client's side
	started    bool // response bytes have gone to the client
}

var forwards = sync.Pool{New: func() any { return &forward{out: make([]byte, 0, 2<<10)} }}

// Serve forwards the exchange and relays the answer.
func (p *HTTP) Serve(x *exchange.Exchange) error {
	f := forwards.Get().(*forward)
	f.p, f.x = p, x
	f.method = x.Request.Method
	f.tried.Reset()
	f.headCame.Store(false)
	f.pumpErr, f.uploaded, f.streaming, f.sinkFailed, f.started, f.toRaw = nil, false, false, false, false, nil
	f.body, f.streaming = f.inline()
	err := f.run()
	out := f.out[:0]
	if cap(out) > 64<<10 {
		out = make([]byte, 0, 2<<10)
	}
	tried := f.tried
	*f = forward{out: out, tried: tried}
	forwards.Put(f)
	return err
}

// inline returns the request body if all of it is here, and whether it must be pumped instead.
func (f *forward) inline() (body []byte, streaming bool) {
	if f.x.Request.ContentLength == 0 {
		return nil, false
	}
	body, complete := f.x.Down.Buffered()
	if complete {
		f.x.Record.BytesIn += int64(len(body))
		return body, false
	}
	return nil, true
}

// run makes attempts until one has an answer, and relays that. A backend that saw nothing of the request is left for
// another one; each is tried once.
func (f *forward) run() error {
	f.dispatch = f.x.Record.Start
	var last error
	for fresh := false; ; {
		if !fresh {
			lease, err := f.p.backends.Pick(f.x, &f.tried)
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

// remaining is what is left of the request timeout for dispatching.
func (f *forward) remaining() time.Duration {
	return f.p.policy.RequestTimeout - time.Since(f.dispatch)
}

// verdict says what follows an attempt.
type verdict int

const (
	answered  verdict = iota // the response head is here
	again                    // the same backend, on a new connection
	elsewhere                // another backend: this one saw nothing
	failed
)

// try is one attempt: dispatch up to the response head, the client untouched.
func (f *forward) try(fresh bool) (http1.Head, verdict, error) {
	x := f.x
	f.attempt = time.Now()
	up, err := f.lease.Backend.Pool.Get(f, f.attempt, fresh)
	if err != nil {
		v, e := f.failedDial(err)
		return http1.Head{}, v, e
	}
	f.up = up
	f.out = f.appendRequest(f.out[:0])
	x.Response.Fields.Reset(nil)
	x.Guard.Arm(up, f.p.policy.RequestTimeout)
	if x.Gone() {
		x.Guard.Ring(conn.CauseDeparted)
	}
	if f.streaming && f.pumpDone == nil {
		f.startPump()
	}
	head, err := up.RoundTrip(f.out, f.body, f.method, x.Request.Upgrade != nil, &x.Response.Fields, f)
	f.headCame.Store(true)
	if err == nil {
		f.note(head.Status, "")
		return head, answered, nil
	}
	v, e := f.failedTrip(err)
	return head, v, e
}

// DialContext bounds a dial by what is left of the request timeout and by the client's presence.
func (f *forward) DialContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(f.x.Context(), max(f.remaining(), 0))
}

// note adds the attempt to the record.
func (f *forward) note(status int, code exchange.Code) {
	f.x.Record.AddAttempt(exchange.Attempt{Backend: f.lease.Backend.URL, ID: f.lease.Backend.ID, Status: status, Code: code,
		Duration: time.Since(f.attempt)})
}

// failedTrip judges an attempt that ended without a response head.
func (f *forward) failedTrip(err error) (verdict, error) {
	cause := f.x.Guard.Disarm()
	progress := f.up.Progress()
	f.stopPump()
	f.up.Release(false)
	f.up = nil
	stale := errors.Is(err, http1.ErrStale)
	if cause == conn.CauseNone && stale && !f.streaming && repeatable(f.method) {
		f.headCame.Store(false)
		return again, nil
	}
	e := f.tripError(cause, progress, err)
	f.note(0, e.Code)
	if cause == conn.CauseNone && progress == http1.NothingSent && !f.streaming {
		f.lease.Done(service.Refused)
		return elsewhere, e
	}
	if e.Outcome == exchange.OutcomeFailed {
		f.lease.Done(service.Unanswered)
	} else {
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
