package websocket

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Keys of the limits that can end a session.
const (
	limitIdle     = "websocket.idle_timeout"
	limitLifetime = "websocket.lifetime"
)

// Bounds of a session; see config.WebSocket.
type Bounds struct{ Idle, Lifetime time.Duration }

// Record writes down how a session has ended that lived for so long. How its two sides have ended is all the same: only
// they can tell whether they were done.
func (b Bounds) Record(r *exchange.Record, cause conn.Cause, lived time.Duration) {
	r.Outcome = exchange.OutcomeUpgraded
	switch {
	case cause == conn.CauseDrain:
		r.Outcome = exchange.OutcomeDrained
	case cause != conn.CauseDeadline:
	case b.Lifetime > 0 && lived >= b.Lifetime:
		r.Outcome, r.Code, r.Limit = exchange.OutcomeTimeout, exchange.CodeStreamTotal, limitLifetime
	case b.Idle > 0:
		r.Outcome, r.Code, r.Limit = exchange.OutcomeTimeout, exchange.CodeIdle, limitIdle
	default: // one side has ended, and the other has not followed
		r.Outcome, r.Code = exchange.OutcomeTimeout, exchange.CodeIdle
	}
}

// Ours reports whether it was the gateway that ended a session.
func Ours(cause conn.Cause) bool { return cause == conn.CauseDrain || cause == conn.CauseDeadline }

const (
	// goodbye bounds how long a client may take to end a session that the gateway has ended.
	goodbye = time.Second
	// maxGoodbye bounds, in bytes, what is read of one that goes on sending.
	maxGoodbye = 1 << 20
)

// Close codes that the gateway sends (RFC 6455 section 7.4.1).
const (
	GoingAway = 1001
	notText   = 1007
)

// Dismiss tells a client that stands between two frames why the gateway ends the session, and gives it a moment to end its
// side. Closing the connection is the caller's.
func Dismiss(c conn.Conn, code uint16) {
	if c.SetDeadline(time.Now().Add(goodbye)) != nil {
		return
	}
	if _, err := c.Write(closeFrame(code)); err != nil {
		return
	}
	linger(c)
}

// linger gives a client that has been sent a close frame a moment to end its side: closing with bytes unread would discard
// what it is told. Closing the connection is the caller's.
func linger(c conn.Conn) {
	if c.SetDeadline(time.Now().Add(goodbye)) != nil {
		return
	}
	if w, ok := c.(conn.CloseWriter); ok && w.CloseWrite() != nil {
		return
	}
	var b [512]byte
	for total := 0; total < maxGoodbye; {
		n, err := c.Read(b[:])
		if err != nil {
			return
		}
		total += n
	}
}
