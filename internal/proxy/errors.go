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
)

// Keys of the limits that can end an exchange here, as the configuration spells them.
const (
	limitRequest = "request_timeout"
	limitConnect = "transport.connect_timeout"
	limitIdle    = "stream_idle_timeout"
	limitTotal   = "stream_total_timeout"
)

// timedOut reports whether connecting took too long, by our limits or the kernel's.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
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
	case f.pump.failed.Load():
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

// late is the answer for a backend that a limit of time has ended the wait for.
func (f *forward) late(code exchange.Code, limit string, err error) *exchange.Error {
	e := f.bad(code, err)
	e.Status, e.Public, e.Limit = 504, "Upstream timeout", limit
	return e
}

// tripError is the answer when a dispatched request got no response head, and whether that is the backend's fault.
func (f *forward) tripError(cause conn.Cause, err error) (e *exchange.Error, blamed bool) {
	if e := f.clientError(cause, err); e != nil {
		return e, false
	}
	switch {
	case cause == conn.CauseDeadline && f.callOver():
		return callEnded(exchange.ErrExpired), false
	case cause == conn.CauseDeadline:
		e = f.late(exchange.CodeResponseTimeout, f.dispatchLimit(), fmt.Errorf("no response head within %v", time.Since(f.dispatch).Round(time.Millisecond)))
	case errors.Is(err, exchange.ErrBadResponse):
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
	case cause == conn.CauseDeadline && f.callOver():
		return callEnded(exchange.ErrExpired), false
	case cause == conn.CauseDeadline && f.totalLeft() <= 0:
		e = f.late(exchange.CodeStreamTotal, limitTotal, errors.New("stream ended by "+limitTotal))
	case cause == conn.CauseDeadline:
		e = f.late(exchange.CodeStreamIdle, limitIdle, errors.New("stream ended by "+limitIdle))
	case errors.Is(err, exchange.ErrBadResponse):
		e = f.bad(exchange.CodeBadResponse, err)
	default:
		e = f.bad(exchange.CodeBackendReset, err)
	}
	return e, true
}
