package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/service"
)

type flag = atomic.Bool

// failedDial gives the lease of a backend back that could not be connected to, and tells what follows.
func (f *forward) failedDial(err error) (verdict, *exchange.Error) {
	e := f.dialError(err)
	switch {
	case f.x.Gone():
		f.lease.Done(service.Unused)
		return failed, e
	case errors.Is(err, http1.ErrPoolFull):
		f.lease.Done(service.Unused)
	default:
		f.lease.Done(service.Refused)
	}
	return elsewhere, e
}

// dialError is the answer when no connection could be had.
func (f *forward) dialError(err error) *exchange.Error {
	e := &exchange.Error{Status: f.p.policy.UpstreamErrorStatus, Public: "Bad gateway", Outcome: exchange.OutcomeFailed, Err: f.at(err)}
	if e.Status == 503 {
		e.Public = "Service unavailable"
	}
	switch {
	case f.x.Gone():
		return departed(err)
	case errors.Is(err, http1.ErrPoolFull):
		e.Status, e.Code, e.Public, e.RetryAfter = 503, exchange.CodeBackendBusy, "Backend connections exhausted", 1
	case f.remaining() <= 0:
		e.Status, e.Code, e.Public, e.Limit = 504, exchange.CodeResponseTimeout, "Upstream timeout", "request_timeout"
	case errors.Is(err, http1.ErrResolve):
		e.Code = exchange.CodeDNSFailed
	case errors.Is(err, http1.ErrTLS):
		e.Code = exchange.CodeTLSFailed
	case errors.Is(err, context.DeadlineExceeded):
		e.Status, e.Code, e.Public, e.Limit = 504, exchange.CodeConnectTimeout, "Upstream timeout", "transport.connect_timeout"
	default:
		e.Code = exchange.CodeConnectFailed
	}
	f.note(0, e.Code)
	return e
}

// at adds the backend to an error, for the operator.
func (f *forward) at(err error) error {
	return fmt.Errorf("backend %s: %w", f.lease.Backend.URL, err)
}

func departed(err error) *exchange.Error {
	return &exchange.Error{Status: 503, Code: exchange.CodeClientGone, Public: "Client gone", Outcome: exchange.OutcomeDisconnected,
		Err: fmt.Errorf("%w: %v", exchange.ErrDeparted, err)}
}

// tripError is the answer when a dispatched request got no response head.
func (f *forward) tripError(cause conn.Cause, progress http1.Progress, err error) *exchange.Error {
	var client *exchange.Error
	switch {
	case f.x.Gone() || cause == conn.CauseDeparted:
		return departed(err)
	case f.pumpErr != nil && errors.As(f.pumpErr, &client):
		return client
	case f.pumpErr != nil:
		return departed(f.pumpErr)
	case f.sinkFailed:
		return departed(err)
	case cause == conn.CauseDrain:
		return &exchange.Error{Status: 503, Code: exchange.CodeDraining, Public: "Gateway shutting down", Outcome: exchange.OutcomeDrained, Err: err}
	case cause == conn.CauseDeadline:
		return &exchange.Error{Status: 504, Code: exchange.CodeResponseTimeout, Public: "Upstream timeout", Outcome: exchange.OutcomeFailed,
			Limit: "request_timeout", Err: f.at(fmt.Errorf("no response head within %v", f.p.policy.RequestTimeout))}
	}
	e := &exchange.Error{Status: f.p.policy.UpstreamErrorStatus, Code: exchange.CodeBackendReset, Public: "Bad gateway",
		Outcome: exchange.OutcomeFailed, Err: f.at(err)}
	if errors.Is(err, http1.ErrBadResponse) {
		e.Status, e.Code = 502, exchange.CodeBadResponse
	}
	if e.Status == 503 {
		e.Public = "Service unavailable"
	}
	return e
}

// relayError is what ended a response after its head had come.
func (f *forward) relayError(cause conn.Cause, err error) *exchange.Error {
	e := &exchange.Error{Status: f.p.policy.UpstreamErrorStatus, Code: exchange.CodeBackendReset, Public: "Bad gateway",
		Outcome: exchange.OutcomeFailed, Err: f.at(err)}
	var own *exchange.Error
	switch {
	case f.x.Gone() || cause == conn.CauseDeparted:
		return departed(err)
	case f.sinkFailed && errors.As(err, &own):
		return own
	case f.sinkFailed:
		return departed(err)
	case cause == conn.CauseDrain:
		e.Code, e.Outcome = exchange.CodeDraining, exchange.OutcomeDrained
	case cause == conn.CauseDeadline:
		e.Code, e.Limit = exchange.CodeStreamIdle, "stream_idle_timeout"
		if f.totalLeft() <= conn.Tick {
			e.Code, e.Limit = exchange.CodeStreamTotal, "stream_total_timeout"
		}
		e.Err = f.at(errors.New("stream ended by " + e.Limit))
	case errors.Is(err, http1.ErrBadResponse):
		e.Code = exchange.CodeBadResponse
	}
	return e
}
