package proxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/websocket"
)

// sessionHalfClosed bounds a session of which one side has ended without the other following, while nothing moves.
const sessionHalfClosed = 30 * time.Second

// handshake judges a request for WebSocket before a backend is chosen. Over HTTP/2 it becomes the one of HTTP/1.1 that
// backends understand (RFC 8441 section 5): the key is ours then, as is the look at what answers it.
func (f *forward) handshake() error {
	if f.x.Request.Upgrade == nil {
		return nil
	}
	key, err := websocket.Check(f.x)
	if err != nil {
		return err
	}
	if key == nil {
		f.method, f.streaming, f.body = methodGet, false, nil
		f.x.Request.Fields.Del("sec-websocket-key")
		key = websocket.AppendKey(nil)
		f.x.Request.Fields.AddBytes("Sec-WebSocket-Key", key)
	}
	f.key = key
	return nil
}

var methodGet = []byte("GET")

// appendUpgrade appends what of the handshake belongs to the connection. The rest are fields like others.
func (f *forward) appendUpgrade(b []byte) []byte {
	b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
	return append(append(b, f.x.Request.Upgrade...), "\r\n"...)
}

// accepted reports what is wrong with the answer to a handshake. Over HTTP/2 any status of success says that the session is
// open, so that there only a 101 may become one.
func (f *forward) accepted(head exchange.Head) error {
	switch {
	case head.Status >= 200 && head.Status < 300 && f.x.Request.Protocol == exchange.HTTP2:
		return fmt.Errorf("%w: status %d to a handshake", exchange.ErrBadResponse, head.Status)
	case head.Status != 101:
		return nil
	}
	f.x.Response.Fields.StripHopByHop() // what it names would not reach the client
	err := websocket.Verify(f.key, &f.x.Request.Fields, &f.x.Response.Fields)
	if !exchange.EqualFold(head.Upgrade, "websocket") {
		err = errors.New("101 for another protocol")
	}
	if err != nil {
		return fmt.Errorf("%w: %v", exchange.ErrBadResponse, err)
	}
	return nil
}

// session relays bytes both ways after a 101, until both sides have ended.
func (f *forward) session(head exchange.Head) error {
	x := f.x
	bounds := websocket.Bounds{Idle: f.policy.WebSocket.IdleTimeout, Lifetime: f.policy.WebSocket.Lifetime}
	if x.Request.Protocol == exchange.HTTP2 { // its stream is open by a status of success
		x.Response.Status = 200
		x.Response.Fields.Del("sec-websocket-accept")
	} else {
		x.Response.Upgrade = head.Upgrade
	}
	x.Guard.Limit(0) // the limits of the request are over
	x.Guard.Extend(0)
	if err := x.Send(nil, x.Response.Status == 101); err != nil {
		f.sinkFailed = true
		return f.end(err)
	}
	down, err := x.Down.Takeover()
	if err != nil {
		f.sinkFailed = true
		return f.end(err)
	}
	x.Upgraded()
	f.out = nil // nothing is kept for a session that needs nothing
	up := f.up.Takeover()
	since := time.Now()
	f.guard(conn.Ends{down, up}, bounds)
	var frames websocket.Frames
	half := sessionHalfClosed
	if bounds.Idle > 0 {
		half = min(half, bounds.Idle)
	}
	pace := conn.Pace{Guard: x.Guard, Idle: bounds.Idle, HalfClosed: half, ToA: frames.Feed}
	done := conn.Relay(down, up, pace)
	cause := x.Guard.Disarm()
	x.Record.BytesIn += done.AtoB
	x.Record.BytesOut += done.BtoA
	bounds.Record(&x.Record, cause, time.Since(since))
	if websocket.Ours(cause) && !done.BEnded && frames.Between() {
		websocket.Dismiss(down, websocket.GoingAway)
	}
	_ = down.Close()
	f.releaseConn(false)
	f.lease.Done(service.OK)
	return nil
}

// guard has the bounds of a session end both sides from now on: while one takes nothing, nobody waits for the other.
func (f *forward) guard(both conn.Ends, b websocket.Bounds) {
	g := f.x.Guard
	cause := g.Disarm()
	g.ArmWithin(both, b.Idle, b.Lifetime)
	if cause == conn.CauseNone && f.x.Gone() {
		cause = conn.CauseDeparted
	}
	if cause != conn.CauseNone { // it came too early to end these; the drain deadline is told again
		g.Ring(cause)
	}
}
