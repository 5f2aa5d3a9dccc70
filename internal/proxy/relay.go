package proxy

import (
	"errors"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// errInterrupted ends the copying of a body that would go on without a wait that could be interrupted.
var errInterrupted = errors.New("relay interrupted")

// relay passes the response on, from its head to its end, and gives everything back.
func (f *forward) relay(head exchange.Head) error {
	x := f.x
	r := &x.Response
	r.Status, r.ContentLength = head.Status, head.Length
	r.Fields.StripHopByHop()
	r.Fields.DelKnown(exchange.FieldContentLength)
	r.Fields.DelKnown(exchange.FieldXRequestID)
	f.strip(&r.Fields)
	if head.Status == 101 {
		return f.session(head)
	}
	f.pump.answered.Store(true)
	if f.pump.copy != nil {
		f.pump.copy.drop()
	}
	if !f.up.Done() {
		x.Guard.Extend(f.policy.StreamIdleTimeout)
	}
	raw := false
	if f.up.Chunked() {
		f.toRaw, raw = x.Raw()
	}
	var err error
	if !f.up.Buffered() && !f.up.Done() { // nothing of the body is here: the head must not wait for it
		f.sinkFailed = true
		err = x.Send(nil, false)
		f.sinkFailed = err != nil
	}
	if err == nil {
		err = f.up.CopyBody(f, raw, &r.Trailers)
	}
	return f.end(err)
}

// end closes the books of an exchange whose response has been relayed or broken.
func (f *forward) end(err error) error {
	cause := f.x.Guard.Disarm()
	f.stopPump()
	f.releaseConn(err == nil && cause == conn.CauseNone && (!f.streaming || f.pump.whole))
	result := service.OK
	if err != nil {
		e, blamed := f.relayError(cause, err)
		if result = service.Unused; blamed {
			result = service.Broken
		}
		err = e
	}
	f.lease.Done(result)
	return err
}

// Body passes body bytes on to the client.
func (f *forward) Body(p []byte, last bool) error {
	if last {
		f.strip(&f.x.Response.Trailers)
		return f.passed(f.x.Send(p, true), true)
	}
	f.pauseIdle()
	return f.passed(f.x.Send(p, false), false)
}

// Raw passes chunks on with their framing.
func (f *forward) Raw(r exchange.RawRun) error {
	if r.Last {
		f.strip(&f.x.Response.Trailers)
	} else {
		f.pauseIdle()
	}
	return f.passed(f.x.SendRaw(f.toRaw, r), r.Last)
}

// pauseIdle leaves only the total limit while the client is waited for: that it reads slowly does not make the backend
// idle.
func (f *forward) pauseIdle() { f.x.Guard.Extend(0) }

// passed goes on after body bytes were given to the client. A backend that always has more never makes the
// connection wait, where an interruption would be noticed.
func (f *forward) passed(err error, last bool) error {
	switch {
	case err != nil:
		f.sinkFailed = true
		return err
	case last:
		return nil
	case f.x.Guard.Cause() != conn.CauseNone:
		return errInterrupted
	}
	f.x.Guard.Extend(f.policy.StreamIdleTimeout)
	return nil
}

// Interim passes a 1xx head on.
func (f *forward) Interim(status int, fields *exchange.Fields) error {
	if status == 100 && !f.x.ExpectForwarded() {
		return nil
	}
	fields.StripHopByHop()
	f.strip(fields)
	if err := f.x.Interim(status, fields); err != nil {
		f.sinkFailed = true
		return err
	}
	return nil
}

// strip removes the fields that the service keeps to itself.
func (f *forward) strip(fields *exchange.Fields) {
	if private := f.policy.Private; private != nil {
		fields.DelFunc(func(_ exchange.FieldID, name, _ []byte) bool { return private.Has(name) })
	}
}
