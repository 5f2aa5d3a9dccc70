package exchange

import "errors"

// What follows is how a protocol engine tells its caller of one dispatch to a backend: a request and the response to it.

// Progress tells how far a dispatch came, which decides whether it may be moved to another backend.
type Progress uint8

// Progress of one dispatch.
const (
	NothingSent Progress = iota // the backend cannot have seen any of it
	Sent                        // some may have arrived, no answer byte has
	Answered                    // the answer has begun
)

// Head is a backend's response head. Its fields go to the exchange's response.
type Head struct {
	Status int
	Length int64 // of the body; -1: known at its end
	// Upgrade is the protocol of a 101.
	Upgrade []byte
}

// Errors of a dispatch.
var (
	// ErrStale ends a dispatch on a reused connection that the backend had closed: it cannot have processed anything if
	// nothing was answered and the request can be repeated.
	ErrStale = errors.New("reused connection was closed by the backend")
	// ErrUnprocessed ends a dispatch of which the backend has told that it did not begin to work on it (RFC 9113 §8.7).
	ErrUnprocessed = errors.New("backend did not process the request")
	// ErrBadResponse is a response that breaks the protocol.
	ErrBadResponse = errors.New("backend sent an invalid response")
)

// BodySink takes a response as it arrives.
type BodySink interface {
	// Sent tells that the request head is on its way: another goroutine may now send the body.
	Sent()
	// Body takes body bytes; last comes once. The bytes are valid during the call.
	Body(p []byte, last bool) error
	// Raw takes HTTP/1.1 chunks with their framing, if the sink asked for that.
	Raw(r RawRun) error
	// Interim takes a 1xx head.
	Interim(status int, f *Fields) error
}
