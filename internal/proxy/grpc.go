package proxy

import (
	"math"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// limitCall is the limit that a gRPC client sets itself, by the name of its field.
const limitCall = "grpc-timeout"

var errBadTimeout error = exchange.Fault("grpc-timeout is not up to eight digits and one of H, M, S, m, u, n")

// takeCall finds out whether the exchange is a gRPC call, and takes its client's deadline in. It runs since the request came.
func (f *forward) takeCall() error {
	r := &f.x.Request
	if f.call = r.GRPC(); !f.call {
		return nil
	}
	given := 0
	for v := range r.Fields.Values(limitCall) {
		d, err := parseTimeout(v)
		if given++; err != nil || given > 1 {
			e := exchange.Reject(400, exchange.CodeBadRequest, "Malformed grpc-timeout")
			e.Err = errBadTimeout
			return e
		}
		if f.callLimit = d; d <= time.Since(f.x.Record.Start) {
			return callEnded(exchange.ErrExpired)
		}
		f.x.Expire(f.x.Record.Start.Add(d))
	}
	return nil
}

// callEnded is the answer to a call whose deadline, which the client has set itself, has passed.
func callEnded(err error) *exchange.Error {
	return &exchange.Error{
		Status: 504, Code: exchange.CodeDeadlineExceeded, Public: "Deadline exceeded", Outcome: exchange.OutcomeFailed,
		Limit: limitCall, Err: err,
	}
}

// callOver reports whether the exchange has ended because the client's deadline has passed. No backend is to blame then:
// clients that allow too little would have them passed over.
func (a *attempts) callOver() bool {
	return a.callLimit > 0 && time.Since(a.dispatch) >= a.callLimit
}

// total is what the whole exchange may take, from dispatch to its end.
func (a *attempts) total() time.Duration {
	if a.callLimit > 0 {
		return min(a.callLimit, a.policy.StreamTotalTimeout)
	}
	return a.policy.StreamTotalTimeout
}

// parseTimeout reads the value of grpc-timeout (gRPC over HTTP/2, "Requests"). One that is too long for a duration is the
// longest duration.
func parseTimeout(v []byte) (time.Duration, error) {
	const maxDigits = 8
	if len(v) < 2 || len(v) > maxDigits+1 {
		return 0, errBadTimeout
	}
	n := int64(0)
	for _, c := range v[:len(v)-1] {
		if c < '0' || c > '9' {
			return 0, errBadTimeout
		}
		n = n*10 + int64(c-'0')
	}
	var unit time.Duration
	switch v[len(v)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, errBadTimeout
	}
	if n > math.MaxInt64/int64(unit) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}
