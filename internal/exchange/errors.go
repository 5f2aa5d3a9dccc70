package exchange

import (
	"errors"
	"fmt"
	"strconv"
)

// Code is the stable machine-readable name of an error; docs/errors.md lists them all. Codes never change.
type Code string

// Codes of errors that the gateway answers with, or that end a stream.
const (
	CodeBadRequest         Code = "bad_request"
	CodeHeaderTooLarge     Code = "header_too_large"
	CodeURITooLong         Code = "uri_too_long"
	CodeVersionUnsupported Code = "version_not_supported"
	CodeHeaderTimeout      Code = "header_timeout"
	CodeBadBody            Code = "bad_request_body"
	CodeBodyTimeout        Code = "body_timeout"
	CodeMethodNotAllowed   Code = "method_not_allowed"
	CodeNotImplemented     Code = "not_implemented"
	CodeExpectationFailed  Code = "expectation_failed"
	CodeMisdirected        Code = "misdirected_request"
	CodeBadHandshake       Code = "bad_websocket_handshake"
	CodeUpgradeRequired    Code = "upgrade_required"
	CodeOrigin             Code = "origin_not_allowed"
	CodeFlood              Code = "flood"
	CodeNoRoute            Code = "no_route"
	CodeConnectDenied      Code = "connect_not_allowed"
	CodeDestinationDenied  Code = "destination_not_allowed"
	CodeEgressDenied       Code = "egress_denied"
	CodeEgressUnavailable  Code = "egress_unavailable"
	CodeRateLimited        Code = "rate_limited"
	CodeHandshakeFailed    Code = "tls_handshake_failed"
	CodeIPNotAllowed       Code = "ip_not_allowed"
	CodeTooManyConnections Code = "too_many_connections"
	CodeNoBackend          Code = "no_backend"
	CodeBackendBusy        Code = "backend_busy"
	CodeConnectFailed      Code = "connect_failed"
	CodeConnectTimeout     Code = "connect_timeout"
	CodeDNSFailed          Code = "dns_failed"
	CodeTLSFailed          Code = "tls_failed"
	CodeBackendReset       Code = "backend_reset"
	CodeBadResponse        Code = "bad_backend_response"
	CodeResponseTimeout    Code = "response_timeout"
	CodeDeadlineExceeded   Code = "deadline_exceeded"
	CodeStreamIdle         Code = "stream_idle_timeout"
	CodeStreamTotal        Code = "stream_total_timeout"
	CodeWriteTimeout       Code = "write_timeout"
	CodeIdle               Code = "idle_timeout"
	CodeDraining           Code = "draining"
	CodeInternal           Code = "internal_error"
	CodeClientGone         Code = "client_gone"
)

// Codes of the way to actors, which are also the values of ate-router-reason.
const (
	CodeActorReference   Code = "invalid_actor_reference"
	CodeActorNotFound    Code = "actor_not_found"
	CodeActorDenied      Code = "actor_access_denied"
	CodeActorAuth        Code = "actor_authentication_required"
	CodeActorUnavailable Code = "actor_unavailable"
	CodeActorCapacity    Code = "actor_parking_full"
	CodeActorTimeout     Code = "actor_timeout"
	CodeActorLost        Code = "actor_unrecoverable"
	CodeActorRouting     Code = "actor_routing_failed"
	CodeActorFailed      Code = "actor_resume_failed"
)

// Error is a failure with what the client may know of it. Err is for the operator.
type Error struct {
	Status     int
	Code       Code
	Public     string // text in the body; no addresses, no causes
	RetryAfter int    // seconds; 0 sends no Retry-After
	Outcome    Outcome
	Limit      string // configuration key of the limit that fired; "" none
	Close      bool   // the connection must end after the answer
	GRPC       int    // the status for clients of gRPC calls; 0: what Status stands for
	Err        error
}

// Error is the operator's text.
func (e *Error) Error() string {
	if e.Err == nil {
		return string(e.Code) + ": " + e.Public
	}
	return fmt.Sprintf("%s: %v", e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fault says what is wrong with what a client has sent, in words of ours alone: it quotes nothing, so that logs may show it.
type Fault string

// Error is the text.
func (f Fault) Error() string { return string(f) }

// Reject makes an error for a request that the gateway refuses.
func Reject(status int, code Code, public string) *Error {
	return &Error{Status: status, Code: code, Public: public, Outcome: OutcomeRejected}
}

var internalError = &Error{Status: 500, Code: CodeInternal, Public: "Internal server error", Outcome: OutcomeFailed}

// Fail ends the exchange with an error: the one place where errors become statuses and outcomes. Before the commit
// point the client gets a complete answer, in JSON, or as the status of a gRPC call; after it the stream is aborted, or a gRPC
// call over a protocol that has streams ended with a status. A departed client gets nothing, and so does the client of a
// connection. nil does nothing.
func (x *Exchange) Fail(err error) {
	if err == nil {
		return
	}
	var e *Error
	if !errors.As(err, &e) {
		e = internalError
	}
	x.Record.Code, x.Record.Limit, x.Record.Err = e.Code, e.Limit, err
	switch {
	case x.Gone() || errors.Is(err, ErrDeparted):
		x.Record.Outcome = OutcomeDisconnected
		x.Record.Code = CodeClientGone
		x.abort()
	case x.forced.Load() || errors.Is(err, ErrForced):
		x.Record.Outcome, x.Record.Code = OutcomeDrained, CodeDraining
		x.abort()
	case x.headSent:
		x.Record.Outcome = OutcomeAborted
		if e.Limit != "" {
			x.Record.Outcome = OutcomeTimeout
		}
		if e.Outcome == OutcomeDrained {
			x.Record.Outcome = OutcomeDrained
		}
		if !x.endGRPC(e) {
			x.abort()
		}
	default:
		x.Record.Outcome = e.Outcome
		if x.Down == nil {
			return
		}
		if err := x.sendError(e); err != nil {
			x.Record.Outcome = OutcomeDisconnected
		}
	}
}

// abort ends the exchange without a proper end. A connection is closed by who serves it.
func (x *Exchange) abort() {
	if x.Down != nil {
		x.Down.Abort()
	}
}

// sendError answers with an error.
func (x *Exchange) sendError(e *Error) error {
	r := &x.Response
	r.Fields.Reset(nil)
	r.Trailers.Reset(nil)
	r.Upgrade = nil
	x.filters = x.filters[:0]
	r.Close = r.Close || e.Close
	if e.RetryAfter > 0 {
		r.Fields.Add("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if x.Request.GRPC() {
		return x.sendGRPC(e)
	}
	body, kind := []byte(e.Public), "text/plain; charset=utf-8"
	if !x.PlainErrors {
		body, kind = AppendErrorBody(nil, e.Public, e.Code, x.Record.RequestID), "application/json"
	}
	r.Status, r.ContentLength = e.Status, int64(len(body))
	r.Fields.Add("Content-Type", kind)
	r.Fields.Add("Cache-Control", "no-store")
	return x.Send(body, true)
}

// AppendErrorBody appends {"error":…,"code":…,"request_id":…} with every string escaped.
func AppendErrorBody(dst []byte, text string, code Code, requestID string) []byte {
	dst = append(dst, `{"error":`...)
	dst = appendJSON(dst, text)
	dst = append(dst, `,"code":`...)
	dst = appendJSON(dst, string(code))
	dst = append(dst, `,"request_id":`...)
	dst = appendJSON(dst, requestID)
	return append(dst, '}')
}

// appendJSON appends s as a JSON string; bytes outside printable ASCII are escaped, so invalid UTF-8 does no harm.
func appendJSON(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20 || c >= 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
