package http2

import (
	"errors"
	"net/http"
	"os"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// What HTTP/2 and HTTP/3 hold alike against the answers that they send.

// BodyLength follows the body of an answer against its length.
type BodyLength struct {
	Bodiless bool  // the status or method allows no body
	rest     int64 // bytes left of a body with a length; -1 it has none
}

// Begin decides on the length when the head is sent with body bytes, and returns what is told of it; -1 nothing. With bodiless
// there is no body whatever status and method say.
func (l *BodyLength) Begin(x *exchange.Exchange, bodiless bool, body int, last bool) (told int64) {
	status := x.Response.Status
	empty := status == http.StatusNoContent || status == http.StatusNotModified
	l.Bodiless = bodiless || empty || string(x.Request.Method) == "HEAD"
	l.rest = x.Response.ContentLength
	if l.rest < 0 && last && !l.Bodiless && x.Response.Trailers.Len() == 0 {
		l.rest = int64(body)
	}
	if empty { // RFC 9110 §8.6 has none on 204 and leaves 304 the choice, where some clients miss the body that it announces
		return -1
	}
	return l.rest
}

// Take counts body bytes, and takes those away that may not be sent.
func (l *BodyLength) Take(body *[]byte, last bool) error {
	switch n := int64(len(*body)); {
	case l.Bodiless:
		*body = nil
	case l.rest >= 0:
		if n > l.rest || last && n < l.rest {
			return BadResponse("body length differs from Content-Length")
		}
		l.rest -= n
	}
	return nil
}

// BadResponse is a response that cannot be sent as it was handed over.
func BadResponse(why string) error {
	return &exchange.Error{
		Status: 502, Code: exchange.CodeBadResponse, Public: "Bad gateway", Outcome: exchange.OutcomeFailed,
		Err: errors.New(why),
	}
}

// Undelivered is why a client does not get more of its answer: it takes nothing, or the connection was forced to end, or it is gone.
func Undelivered(timedOut, forced bool) error {
	e := &exchange.Error{Status: 503, Code: exchange.CodeClientGone, Public: "Client gone", Outcome: exchange.OutcomeDisconnected}
	switch {
	case timedOut:
		e.Code, e.Public, e.Outcome, e.Limit = exchange.CodeWriteTimeout, "Write timeout", exchange.OutcomeAborted, "write_idle_timeout"
		e.Err = os.ErrDeadlineExceeded
	case forced:
		e.Code, e.Public, e.Outcome, e.Err = exchange.CodeDraining, "Gateway shutting down", exchange.OutcomeDrained, exchange.ErrForced
	default:
		e.Err = exchange.ErrDeparted
	}
	return e
}
