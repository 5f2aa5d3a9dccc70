package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Keys of the limits that can end an exchange here, as the configuration spells them.
const (
	limitRequest = "request_timeout"
	limitConnect = "transport.connect_timeout"
	limitIdle    = "stream_idle_timeout"
	limitTotal   = "stream_total_timeout"
)

// failedDial gives the lease of a backend back that could not be connected to, and tells what follows.
func (f *forward) failedDial(err error) (verdict, *exchange.Error) {
	e, blamed := f.dialError(err)
	f.note(0, e.Code)
	if blamed {
		f.lease.Done(service.Refused)
	} else {
		f.lease.Done(service.Unused)
	}
	if blamed || errors.Is(err, http1.ErrPoolFull) {
		return elsewhere, e
	}
	return failed, e
}

// dialError is the answer when no connection could be had, and whether that is the backend's fault.
func (f *forward) dialError(err error) (e *exchange.Error, blamed bool) {
	if f.x.Gone() {
		return departed(err), false
	}
	if errors.Is(err, context.Canceled) { // only a departure and the drain deadline end the exchange's context
		return drained(err), false
	}
	e = f.bad(exchange.CodeConnectFailed, err)
	switch {
	case errors.Is(err, http1.ErrPoolFull):
		e.Status, e.Code, e.Public, e.RetryAfter = 503, exchange.CodeBackendBusy, "Backend connections exhausted", 1
		return e, false
	case timedOut(err): // whatever the stage
		e.Status, e.Code, e.Public, e.Limit = 504, exchange.CodeConnectTimeout, "Upstream timeout", limitConnect
		if f.remaining() <= 0 {
			e.Limit = f.dispatchLimit()
		}
	case errors.Is(err, http1.ErrResolve):
		e.Code = exchange.CodeDNSFailed
	case errors.Is(err, http1.ErrTLS):
		e.Code = exchange.CodeTLSFailed
	}
	return e, true
}

// timedOut reports whether connecting took too long, by our limits or the kernel's.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
}

// dispatchLimit is the limit that ends the wait for a response head.
func (f *forward) dispatchLimit() string {
	if f.totalLeft() <= 0 {
		return limitTotal
	}
	return limitRequest
}

// bad is the answer for a backend that fails before its response head; its status is the service's choice.
func (f *forward) bad(code exchange.Code, err error) *exchange.Error {
	e := &exchange.Error{
		Status: f.p.policy.UpstreamErrorStatus, Code: code, Public: "Bad gateway", Outcome: exchange.OutcomeFailed,
		Err: fmt.Errorf("backend %s: %w", f.lease.Backend.URL, err),
	}
	if e.Status == 503 {
		e.Public = "Service unavailable"
	}
	return e
}

func departed(err error) *exchange.Error {
	return &exchange.Error{
		Status: 503, Code: exchange.CodeClientGone, Public: "Client gone", Outcome: exchange.OutcomeDisconnected,
		Err: fmt.Errorf("%w: %v", exchange.ErrDeparted, err),
	}
}

func drained(err error) *exchange.Error {
	return &exchange.Error{Status: 503, Code: exchange.CodeDraining, Public: "Gateway shutting down", Outcome: exchange.OutcomeDrained, Err: err}
}

// clientError is the failure of an exchange that is not the backend's; nil when it is.
func (f *forward) clientError(cause conn.Cause, err error) *exchange.Error {
	switch {
	case f.x.Gone() || cause == conn.CauseDeparted:
		return departed(err)
	case cause == conn.CauseDrain:
		return drained(err)
	case f.pump.err != nil:
		return sideError(f.pump.err)
	case f.sinkFailed:
		return sideError(err)
	}
	return nil
}

// sideError is what the client's end of an exchange has failed with. What names no departure is a fault of our own: a
// filter or hook that failed.
func sideError(err error) *exchange.Error {
	var e *exchange.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, exchange.ErrDeparted):
		return departed(err)
	case errors.Is(err, exchange.ErrForced):
		return drained(err)
	}
	return &exchange.Error{Status: 500, Code: exchange.CodeInternal, Public: "Internal server error", Outcome: exchange.OutcomeFailed, Err: err}
}

// tripError is the answer when a dispatched request got no response head, and whether that is the backend's fault.
func (f *forward) tripError(cause conn.Cause, err error) (e *exchange.Error, blamed bool) {
	if e := f.clientError(cause, err); e != nil {
		return e, false
	}
	switch {
	case cause == conn.CauseDeadline:
		e = f.bad(exchange.CodeResponseTimeout, fmt.Errorf("no response head within %v", time.Since(f.dispatch).Round(time.Millisecond)))
		e.Status, e.Public, e.Limit = 504, "Upstream timeout", f.dispatchLimit()
	case errors.Is(err, http1.ErrBadResponse):
		e = f.bad(exchange.CodeBadResponse, err)
	default:
		e = f.bad(exchange.CodeBackendReset, err)
	}
	return e, true
}

// relayError is what ended a response after its head had come, and whether that is the backend's fault.
func (f *forward) relayError(cause conn.Cause, err error) (e *exchange.Error, blamed bool) {
	if e := f.clientError(cause, err); e != nil {
		return e, false
	}
	switch {
	case cause == conn.CauseDeadline && f.totalLeft() <= 0:
		e = f.bad(exchange.CodeStreamTotal, errors.New("stream ended by "+limitTotal))
		e.Limit = limitTotal
	case cause == conn.CauseDeadline:
		e = f.bad(exchange.CodeStreamIdle, errors.New("stream ended by "+limitIdle))
		e.Limit = limitIdle
	case errors.Is(err, http1.ErrBadResponse):
		e = f.bad(exchange.CodeBadResponse, err)
	default:
		e = f.bad(exchange.CodeBackendReset, err)
	}
	return e, true
}
