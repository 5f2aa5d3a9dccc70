package entrypoint

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Streams says how connections are served that are not read as requests.
type Streams struct {
	Handler exchange.ConnHandler
	Clock   *conn.Clock
	// Pace bounds connections that move nothing.
	Pace conn.Pace
}

// stream is one connection being served as it is. A drain leaves it alone until it is forced, since nothing tells when
// its work is done.
type stream struct {
	x      exchange.Exchange
	guard  conn.Alarm
	slot   conn.ClockSlot
	ticket drain.Ticket
	forced atomic.Bool

	secured *secured // nil: TLS is not ended here
}

// stream serves a connection as it is.
func (b *binding) stream(c conn.Conn, o *Options) {
	s := &stream{}
	s.guard.Bind(o.Streams.Clock)
	s.x.BeginConn(&s.guard, c.Info(), time.Now())
	s.x.Pace = o.Streams.Pace
	if o.TLS != nil {
		s.x.Terminate = func(c conn.Conn) (conn.Conn, error) { return s.secure(b, c, o) }
		defer s.end()
	}
	b.live.Enter(&s.ticket, s)
	defer s.ticket.Leave()
	o.Streams.Clock.Add(s)
	defer o.Streams.Clock.Remove(s)
	if err := o.Streams.Handler.ServeConn(c, &s.x); err != nil {
		s.x.Fail(err)
	}
}

// secure ends TLS on the connection.
func (s *stream) secure(b *binding, c conn.Conn, o *Options) (conn.Conn, error) {
	t, err := b.secure(c, o)
	if errors.Is(err, errChallenge) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.secured = t
	s.x.Conn = t.Info()
	s.x.Record.ClientIdentity = t.info.Identity
	return t, nil
}

// end closes what is inside TLS.
func (s *stream) end() {
	if s.secured != nil {
		_ = s.secured.Close()
	}
}

// Drain changes nothing.
func (s *stream) Drain(drain.Mode) {}

// Force ends whatever the connection waits for.
func (s *stream) Force() {
	s.forced.Store(true)
	s.x.Force()
}

// OnTick is the clock's visit.
func (s *stream) OnTick(k *conn.Clock) int {
	k.Expire(&s.guard)
	if s.forced.Load() {
		s.x.Force() // again: a wait that began around the first time would go on
	}
	return -1
}

// OnDeparted is not used: no probe is asked for.
func (s *stream) OnDeparted() {}

// Slot is the clock's.
func (s *stream) Slot() *conn.ClockSlot { return &s.slot }
