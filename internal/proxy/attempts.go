package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// attempts is what an exchange has tried so far to reach a service.
type attempts struct {
	backends Backends
	policy   *service.Policy
	x        *exchange.Exchange

	lease    service.Lease
	tried    service.Tried
	dispatch time.Time // of the first attempt
	attempt  time.Time // of this one

	callLimit time.Duration // what the client of a gRPC call allows, from the dispatch, before that from its head; 0 no limit
}

// begin starts the clock of an attempt.
func (a *attempts) begin() {
	a.attempt = time.Now()
	if a.dispatch.IsZero() {
		a.dispatch = a.attempt
		if a.callLimit > 0 { // what was waited for until here is part of it
			a.callLimit = max(a.callLimit-a.attempt.Sub(a.x.Record.Start), 1)
		}
	}
}

// remaining is what is left for dispatching.
func (a *attempts) remaining() time.Duration {
	return min(a.policy.RequestTimeout, a.total()) - time.Since(a.dispatch)
}

// totalLeft is what is left for the whole exchange.
func (a *attempts) totalLeft() time.Duration {
	return a.total() - time.Since(a.dispatch)
}

// DialContext bounds a dial by what is left of the request timeout and by the client's presence.
func (a *attempts) DialContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.x.Context(), max(a.remaining(), 0))
}

// LastResort reports whether every other backend has been tried.
func (a *attempts) LastResort() bool { return a.backends.Exhausted(&a.tried) }

// note adds the attempt to the record.
func (a *attempts) note(status int, code exchange.Code) {
	a.x.Record.AddAttempt(exchange.Attempt{
		Backend: a.lease.Backend.URL, ID: a.lease.Backend.ID, Status: status, Code: code,
		Duration: time.Since(a.attempt),
	})
}

// failedDial gives the lease of a backend back that could not be connected to, and tells what follows.
func (a *attempts) failedDial(err error) (verdict, *exchange.Error) {
	e, blamed := a.dialError(err)
	a.note(0, e.Code)
	if blamed {
		a.lease.Done(service.Refused)
	} else {
		a.lease.Done(service.Unused)
	}
	if blamed || errors.Is(err, service.ErrPoolFull) || errors.Is(err, service.ErrNotSpoken) {
		return elsewhere, e
	}
	return failed, e
}

// dialError is the answer when no connection could be had, and whether that is the backend's fault.
func (a *attempts) dialError(err error) (e *exchange.Error, blamed bool) {
	if a.x.Gone() {
		return departed(err), false
	}
	if errors.Is(err, context.Canceled) { // only a departure and the drain deadline end the exchange's context
		return drained(err), false
	}
	e = a.bad(exchange.CodeConnectFailed, err)
	switch {
	case errors.Is(err, service.ErrPoolFull):
		e.Status, e.Code, e.Public, e.RetryAfter = 503, exchange.CodeBackendBusy, "Backend connections exhausted", 1
		return e, false
	case timedOut(err) && a.callOver():
		return callEnded(err), false
	case timedOut(err): // whatever the stage
		e.Status, e.Code, e.Public, e.Limit = 504, exchange.CodeConnectTimeout, "Upstream timeout", limitConnect
		if a.remaining() <= 0 {
			e.Limit = a.dispatchLimit()
		}
	case errors.Is(err, conn.ErrResolve):
		e.Code = exchange.CodeDNSFailed
	case errors.Is(err, conn.ErrTLS):
		e.Code = exchange.CodeTLSFailed
	}
	return e, !errors.Is(err, service.ErrNotSpoken) // or anybody could have backends passed over by calling them
}

// dispatchLimit is the limit that ends the wait for a response head.
func (a *attempts) dispatchLimit() string {
	if a.totalLeft() <= 0 {
		return limitTotal
	}
	return limitRequest
}

// bad is the answer for a backend that fails before its response head; its status is the service's choice.
func (a *attempts) bad(code exchange.Code, err error) *exchange.Error {
	e := &exchange.Error{
		Status: a.policy.UpstreamErrorStatus, Code: code, Public: "Bad gateway", Outcome: exchange.OutcomeFailed,
		Err: fmt.Errorf("backend %s: %w", a.lease.Backend.URL, err),
	}
	if e.Status == 503 {
		e.Public = "Service unavailable"
	}
	return e
}
