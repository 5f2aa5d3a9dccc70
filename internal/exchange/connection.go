package exchange

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// ConnHandler serves a connection as one exchange, without reading its bytes as requests. It returns when both
// directions have ended; closing c is the caller's. A returned error becomes an outcome as that of a Handler does, and
// nothing is sent for it.
type ConnHandler interface {
	ServeConn(c conn.Conn, x *Exchange) error
}

// BeginConn prepares an exchange for a connection.
func (x *Exchange) BeginConn(guard *conn.Alarm, info *conn.Info, now time.Time) {
	x.Begin(nil, guard, info, now)
	x.Request.Protocol = TCP
}

// Upgraded tells that the connection has switched protocols and belongs to a handler now, after Takeover.
func (x *Exchange) Upgraded() {
	x.Record.Upgraded = true
	if x.Watch != nil {
		x.Watch.Upgraded(x)
	}
}

// AcceptTunnel answers a CONNECT with 200 and takes what it has opened over: the commit point. What a backend would have to say
// stays unsaid. The outcome is that of an upgrade, unless an error ends it.
func (x *Exchange) AcceptTunnel() (conn.Conn, error) {
	x.Response.Status, x.Response.ContentLength = 200, -1
	if err := x.Send(nil, true); err != nil {
		return nil, err
	}
	down, err := x.Down.Takeover()
	if err != nil {
		return nil, err
	}
	x.Record.Outcome = OutcomeUpgraded
	return down, nil
}

// Connected tells that bytes move both ways from now on: the commit point of a connection, and of a session its first
// answer, after which an error ends a stream.
func (x *Exchange) Connected() {
	x.headSent = true
	x.Record.HeadAt = time.Since(x.Record.Start)
}
