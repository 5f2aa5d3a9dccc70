package exchange

import (
	"net/netip"
	"time"
)

// Outcome says how an exchange ended, as one stable word for logs and metrics.
type Outcome uint8

// Outcomes.
const (
	OutcomeNone         Outcome = iota
	OutcomeOK                   // the response was sent whole, whatever its status
	OutcomeRejected             // the gateway answered by itself
	OutcomeFailed               // the backend could not answer; the gateway did
	OutcomeDisconnected         // the client went away first
	OutcomeAborted              // the response broke after its head was sent
	OutcomeTimeout              // a limit ended it after the head was sent
	OutcomeUpgraded             // the connection switched protocols and was relayed to its end
	OutcomeDrained              // the drain deadline ended it
	Outcomes                    // the number of them
)

// String is the word of the access log.
func (o Outcome) String() string {
	return [...]string{"none", "ok", "rejected", "failed", "disconnected", "aborted", "timeout", "upgraded", "drained"}[o]
}

// Attempt is one dispatch to a backend.
type Attempt struct {
	Backend  string        // URL as configured, without credentials
	ID       string        // opaque backend id
	Status   int           // response status; 0 none came
	Code     Code          // why it failed; "" it did not
	Duration time.Duration // until the response head or the failure
}

// maxAttempts bounds the list; later ones replace the last.
const maxAttempts = 16

// Record is what is known of an exchange once it has ended: the access log entry, the metrics and the trace all
// come from it. Strings are owned by the generation or the process and outlive the exchange.
type Record struct {
	Start       time.Time
	HeadAt      time.Duration // until the response head was sent
	FirstByteAt time.Duration // until the first response body byte; 0 none
	Duration    time.Duration

	Peer     netip.AddrPort // the socket's other end, or whom it speaks for by the PROXY protocol
	ClientIP netip.Addr     // after trusted forwarding headers; equals Peer without them
	// ClientIdentity is who the socket's other end is by its verified certificate (conn.PeerIdentity); "" unknown.
	ClientIdentity string

	Entrypoint, Router, Service string
	Middleware                  string // the middleware that answered; "" none
	Attempts                    []Attempt

	Status   int
	BytesIn  int64 // request body; of a connection everything from the client
	BytesOut int64 // response body; of a connection everything to the client
	Upgraded bool  // the connection has switched protocols: bytes are those of the session
	// DatagramsIn and DatagramsOut are those of a session that were passed on: to the backend, and to the client.
	DatagramsIn, DatagramsOut int64
	Outcome                   Outcome
	Code                      Code   // of the error the gateway answered with, or that ended the stream
	Limit                     string // the limit that fired, by its configuration key; "" none
	Err                       error  // cause, for the operator only

	RequestID string
	TraceID   string
}

func (r *Record) begin(now time.Time) {
	*r = Record{Start: now, Attempts: r.Attempts[:0]}
}

// AddAttempt appends to the list of attempts.
func (r *Record) AddAttempt(a Attempt) {
	if len(r.Attempts) == maxAttempts {
		r.Attempts[maxAttempts-1] = a
		return
	}
	r.Attempts = append(r.Attempts, a)
}

// Backend is the URL of the last attempt's backend; "" when there was none.
func (r *Record) Backend() string {
	if n := len(r.Attempts); n > 0 {
		return r.Attempts[n-1].Backend
	}
	return ""
}
