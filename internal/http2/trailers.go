package http2

import (
	"golang.org/x/net/http/httpguts"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// maxTrailers bounds the fields behind a request body.
const maxTrailers = 64

// forbiddenTrailer are the known fields that a trailer section may not hold, beside those that HTTP forbids there: they
// frame, route or authenticate (RFC 9110 §6.5.1).
var forbiddenTrailer = exchange.SetOf(exchange.FieldHost, exchange.FieldContentLength, exchange.FieldExpect, exchange.FieldForwarded,
	exchange.FieldXForwardedFor, exchange.FieldXForwardedHost, exchange.FieldXForwardedProto, exchange.FieldXForwardedPort, exchange.FieldXForwardedOther,
	exchange.FieldXRealIP, exchange.FieldXRequestID, exchange.FieldUnderscored, exchange.FieldContentType, exchange.FieldAuthorization,
	exchange.FieldCookie)

// Trailers reads the fields behind a request body, at most 64. A Trailers belongs to one goroutine and is reused after
// Reset.
type Trailers struct {
	// Bad says why the stream is to be reset; "" it is not.
	Bad string

	fields []trailer
	count  int
}

type trailer struct{ name, value string }

// Reset lets go of what has been read.
func (t *Trailers) Reset() {
	clear(t.fields)
	t.Bad, t.fields, t.count = "", t.fields[:0], 0
}

// Len is how many fields have been kept.
func (t *Trailers) Len() int { return len(t.fields) }

// TooLarge has the body fail for the size of what is behind it.
func (t *Trailers) TooLarge() {
	if t.Bad == "" {
		t.count = maxTrailers + 1
	}
}

// Field takes a field in. What breaks the protocol is Bad; what we refuse fails the body.
func (t *Trailers) Field(name, value string) {
	switch {
	case t.Bad != "":
	case !lowerName(name) || !fieldValue(value) || !httpguts.ValidTrailerHeader(name):
		t.Bad = "malformed trailer"
	case t.count >= maxTrailers:
		t.TooLarge()
	default:
		t.count++
		t.fields = append(t.fields, trailer{name, value})
	}
}

// Fill adds the fields to f, or says with what the body fails. What is Bad is the caller's to look at.
func (t *Trailers) Fill(f *exchange.Fields) error {
	if why := t.refused(); why != "" {
		return BadBody(why)
	}
	for _, have := range t.fields {
		f.Add(have.name, have.value)
	}
	return nil
}

// refused says what is wrong with the trailers; "" nothing.
func (t *Trailers) refused() string {
	if t.count > maxTrailers {
		return "too many trailers"
	}
	for _, f := range t.fields {
		if id := exchange.KnownField([]byte(f.name)); id.HopByHop() || forbiddenTrailer.Has(id) {
			return "trailer " + f.name + " is not allowed"
		}
		if !exchange.ValidValue(f.value) {
			return "malformed trailer"
		}
	}
	return ""
}
