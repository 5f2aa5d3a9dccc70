package actor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// What a client is told when a request does not get to its actor: status, code and text. Texts are a contract, like codes.

// again is what Retry-After says of what may soon be otherwise, in seconds.
const again = 1

// failed is an answer because something did not work.
func failed(status int, code exchange.Code, text string, err error) *exchange.Error {
	e := &exchange.Error{Status: status, Code: code, Public: text, Outcome: exchange.OutcomeFailed, Err: err}
	if status == 503 {
		e.RetryAfter = again
	}
	return e
}

// badReference answers a request that does not name an actor.
func badReference(err error) *exchange.Error {
	e := exchange.Reject(404, exchange.CodeActorReference, "invalid actor reference")
	e.GRPC, e.Err = int(InvalidArgument), err
	return e
}

// denied answers a client that may not reach the actor.
func denied(q Asked, d Decision) *exchange.Error {
	e := exchange.Reject(403, exchange.CodeActorDenied, fmt.Sprintf("actor %s access denied", q.Ref))
	e.Err = fmt.Errorf("client %.200q: %s allows it", q.Caller, d.By)
	return e
}

// left answers a client that has gone, or that its own deadline or the end of the process has not let wait any longer.
func left(ref Ref, cause error) *exchange.Error {
	if errors.Is(cause, exchange.ErrForced) {
		e := failed(503, exchange.CodeDraining, fmt.Sprintf("actor %s unavailable", ref), cause)
		e.Outcome = exchange.OutcomeDrained
		return e
	}
	if errors.Is(cause, exchange.ErrExpired) {
		return failed(504, exchange.CodeDeadlineExceeded, fmt.Sprintf("actor %s request timed out", ref), cause)
	}
	e := failed(408, exchange.CodeClientGone, fmt.Sprintf("request for actor %s canceled by client", ref), cause)
	e.GRPC, e.Outcome = int(Canceled), exchange.OutcomeDisconnected
	return e
}

// refused answers a request whose actor could not be woken.
func refused(ref Ref, stay service.Stay, err error) *exchange.Error {
	switch {
	case errors.Is(err, service.ErrLotFull):
		return failed(503, exchange.CodeActorCapacity, fmt.Sprintf("actor %q unavailable: router at capacity", ref.String()), err)
	case errors.Is(err, service.ErrLotClosed):
		return failed(503, exchange.CodeDraining, fmt.Sprintf("actor %s unavailable", ref), err)
	case stay.Landing == service.Left:
		return left(ref, err)
	case errors.Is(err, ErrAnswer):
		return failed(500, exchange.CodeActorRouting, fmt.Sprintf("actor %s routing failed", ref), err)
	case stay.Landing == service.TimedOut:
		return failed(504, exchange.CodeActorTimeout, fmt.Sprintf("actor %s request timed out", ref), err)
	}
	var e *Error
	if !errors.As(err, &e) {
		return failed(500, exchange.CodeActorFailed, fmt.Sprintf("error resuming actor %s", ref), err)
	}
	return ofControl(ref, e)
}

// ofControl is what a refusal of the control plane is to a client.
func ofControl(ref Ref, e *Error) *exchange.Error {
	switch e.Code {
	case NotFound:
		out := exchange.Reject(404, exchange.CodeActorNotFound, fmt.Sprintf("actor %s not found", ref))
		out.GRPC, out.Err = int(NotFound), e
		return out
	case ResourceExhausted, FailedPrecondition, Aborted:
		return failed(503, exchange.CodeActorUnavailable, fmt.Sprintf("actor %s unavailable: %s", ref, oneLine(e.Text)), e)
	case Unavailable:
		return failed(503, exchange.CodeActorUnavailable, fmt.Sprintf("actor %s unavailable", ref), e)
	case DeadlineExceeded:
		return failed(504, exchange.CodeActorTimeout, fmt.Sprintf("actor %s request timed out", ref), e)
	case PermissionDenied:
		return failed(403, exchange.CodeActorDenied, fmt.Sprintf("actor %s access denied", ref), e)
	case Unauthenticated:
		return failed(401, exchange.CodeActorAuth, fmt.Sprintf("actor %s authentication required", ref), e)
	case DataLoss:
		out := failed(410, exchange.CodeActorLost, fmt.Sprintf("actor %s unrecoverable: %s", ref, oneLine(e.Text)), e)
		out.GRPC = int(DataLoss)
		return out
	}
	return failed(500, exchange.CodeActorFailed, fmt.Sprintf("error resuming actor %s", ref), e)
}

// maxText is how much of the control plane's text a client is told, in bytes.
const maxText = 512

// oneLine is a text in printable ASCII, and not too long.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s)
	return s[:min(len(s), maxText)]
}

// runOut answers when an actor was not to be found where it is said to be, until the budget had run out.
func runOut(ref Ref, err error) *exchange.Error {
	return failed(503, exchange.CodeActorUnavailable, fmt.Sprintf("actor %s unavailable", ref), err)
}

// unreached answers when there is no tunnel, and there would be none elsewhere.
func unreached(ref Ref, err error) *exchange.Error {
	var r *tunnel.Refusal
	switch {
	case errors.Is(err, tunnel.ErrFull), errors.As(err, &r) && r.Status == 503:
		return failed(503, exchange.CodeBackendBusy, fmt.Sprintf("actor %s unavailable", ref), err)
	case r != nil && r.Status == 502: // its port is closed
		return failed(502, exchange.CodeConnectFailed, "bad gateway", err)
	}
	return failed(500, exchange.CodeActorRouting, fmt.Sprintf("actor %s routing failed", ref), err)
}

// answer is what a client is told of what went wrong once there was a tunnel.
func (v *Visit) answer(x *exchange.Exchange, err error) error {
	var e *exchange.Error
	if err == nil || x.HeadSent() || !errors.As(err, &e) {
		return err
	}
	out := *e
	switch out.Code {
	case exchange.CodeBackendReset: // it may have been suspended meanwhile
		out.Status, out.RetryAfter, out.Public = 503, again, fmt.Sprintf("actor %s unavailable", v.asked.Ref)
	case exchange.CodeResponseTimeout:
		out.Public = fmt.Sprintf("actor %s request timed out", v.asked.Ref)
	case exchange.CodeConnectFailed, exchange.CodeBadResponse:
		out.Public = "bad gateway"
	}
	return &out
}
