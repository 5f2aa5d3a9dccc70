package http3

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

const (
	// drainGrace is at most how long streams that are on their way when the end of a connection is announced are taken.
	drainGrace = time.Second
	// lingerTime is how long a client may take to close a connection that we have ended: QUIC would take back with it
	// what the client has not acknowledged yet.
	lingerTime = time.Second
)

// phase is how far a connection has come towards its end.
type phase uint8

const (
	open      phase = iota // streams come and go
	announced              // GOAWAY with the highest id was sent: streams that are on their way are still taken
	final                  // GOAWAY with the last id was sent: the streams that run are the last
	lingering              // no stream is left; the client is to close
	closing
)

// serverConn is one client connection. One goroutine takes its streams and one those of its control data; each stream
// has one while it is served.
type serverConn struct {
	srv     *Server
	set     *Settings // of the connection's begin
	info    *conn.Info
	q       *quic.Conn
	control *quic.SendStream
	slot    conn.ClockSlot
	ticket  drain.Ticket
	gentle  atomic.Bool // the next response announces the end
	forced  atomic.Bool

	wait   conn.Alarm  // the idle time, the grace of a drain, the linger
	timeUp atomic.Bool // wait has fired

	running sync.WaitGroup // streams and control data
	kinds   [4]atomic.Bool // the client's critical streams that have come

	mu      sync.Mutex // guards all below
	phase   phase
	streams map[quic.StreamID]*stream
	next    quic.StreamID // the first that was not taken
	taken   int           // streams that the client took back before their answer was whole, less those that went well
	idle    http2.Budget
	faults  http2.Budget
	flooded *connError
}

// serve serves a connection to its end. It returns when nothing of it runs any more.
func (s *Server) serve(q *quic.Conn, info *conn.Info, live *drain.Tracker, enter func(*serverConn) (leave func())) {
	c := &serverConn{
		srv: s, set: s.settings.Load(), info: info, q: q, streams: make(map[quic.StreamID]*stream),
		idle: http2.NewBudget(idleBurst, idleRate), faults: http2.NewBudget(resetsBorne*maxStreams, faultRate),
	}
	c.wait.Bind(s.clock)
	if err := c.begin(); err != nil {
		_ = q.CloseWithError(codeInternal, "no control stream")
		return
	}
	if live != nil {
		live.Enter(&c.ticket, c)
		defer c.ticket.Leave()
	}
	defer enter(c)()
	s.clock.Add(c)
	defer s.clock.Remove(c)
	defer c.release()
	c.running.Go(c.acceptControl)
	for {
		st, err := q.AcceptStream(context.Background()) // ends with the connection
		if err != nil {
			return
		}
		c.open(st)
	}
}

// begin opens our control stream.
func (c *serverConn) begin() error {
	control, err := c.q.OpenUniStream()
	if err != nil {
		return err
	}
	c.control = control
	const maxFieldSectionSize = 0x6
	payload := quicvarint.Append(quicvarint.Append(nil, maxFieldSectionSize), uint64(c.set.MaxHeaderBytes+32*c.set.MaxHeaders))
	b := appendFrameHead([]byte{controlStream}, frameSettings, uint64(len(payload)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(c.set.KeepAliveTimeout)
	return c.control.TryWriteAll(append(b, payload...))
}

// open begins to serve a stream.
func (c *serverConn) open(q *quic.Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase >= final {
		if !c.faults.Spend(1) {
			c.failNow(&connError{codeExcessiveLoad, "too many streams behind the last"})
		}
		q.CancelRead(codeRequestRejected)
		q.CancelWrite(codeRequestRejected)
		q.ReleaseStreamCredit()
		return
	}
	st := newStream(c, q)
	c.next = q.StreamID() + 4
	c.streams[q.StreamID()] = st
	if len(c.streams) == 1 && c.phase == open {
		c.await(0)
	}
	st.watch()
	c.running.Add(1)
	go st.run()
}

// givenUp tells the exchange of a stream that its client does not wait for it any more.
func (c *serverConn) givenUp(id quic.StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.streams[id]; st != nil {
		st.giveUp()
	}
}

// leave ends a stream whose exchange is over. On return nothing touches it any more, if the handler was sound.
func (c *serverConn) leave(st *stream, sound bool) {
	if !sound {
		st.InterruptBody() // what it has left behind may still read
	}
	c.mu.Lock()
	ended, faulty := st.ended, st.faulty
	c.mu.Unlock()
	st.close(ended, faulty) // not under the lock: what ends a stream's context may come for it
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, st.q.StreamID())
	c.judge(st)
	if len(c.streams) == 0 && c.phase == open {
		c.await(c.set.KeepAliveTimeout)
	}
	c.settle()
}

// judge counts a stream that has ended, and ends the connection of a client that has taken back too many. What makes up
// for one is an answer of the handler that the client has seen through (CVE-2023-44487). The lock is held.
func (c *serverConn) judge(st *stream) {
	switch {
	case st.takenBack:
		if c.taken++; c.taken >= resetsBorne*maxStreams {
			c.failNow(&connError{codeExcessiveLoad, "too many streams taken back"})
		}
	case st.refused == nil && st.resp.done:
		c.taken = max(0, c.taken-1)
	}
}

// fault resets a stream for what its client did wrong on it, which ends the exchange.
func (c *serverConn) fault(st *stream, err *streamError) {
	c.mu.Lock()
	st.faulty = true
	if !st.ended {
		st.x.Depart()
	}
	if !c.faults.Spend(1) {
		c.failNow(&connError{codeExcessiveLoad, "too many malformed requests"})
	}
	c.mu.Unlock()
	st.q.CancelRead(err.code)
	st.q.CancelWrite(err.code)
}

// Budgets of what costs work and brings nothing, as HTTP/2 has them.
const (
	idleBurst = 1000 // frames of unknown types and empty ones, each KiB of them, and instructions of QPACK
	idleRate  = 100
	faultRate = 10 // malformed requests and those behind the last; resetsBorne times the streams at once
	// resetsBorne is how many times the streams at once a client may take back more than it sees through.
	resetsBorne = 4
)

// spend takes n from the budget of what brings nothing.
func (c *serverConn) spend(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle.Spend(n)
}

// fail ends the connection for what its client did, and waits for that: nothing else is sent behind it.
func (c *serverConn) fail(err *connError) {
	c.mu.Lock()
	c.failNow(err)
	c.mu.Unlock()
	<-c.q.Context().Done()
}

// failNow is fail with the lock held, and does not wait.
func (c *serverConn) failNow(err *connError) {
	if c.phase == closing {
		return
	}
	if err.code == codeExcessiveLoad {
		c.flooded = err
	}
	c.hangUp(err.code, err.why)
}

// hangUp closes the connection without waiting for that. The lock is held.
func (c *serverConn) hangUp(code quic.ApplicationErrorCode, why string) {
	c.phase = closing
	c.running.Go(func() { _ = c.q.CloseWithError(code, why) })
}

// await has expired called after d, unless it is called again before; 0 for never. The lock is held.
func (c *serverConn) await(d time.Duration) {
	c.wait.Disarm()
	c.timeUp.Store(false)
	if d > 0 {
		c.wait.Arm((*alarmed)(c), d)
	}
}

// alarmed is the connection as what its wait alarm interrupts: the clock's visit then does what is to be done.
type alarmed serverConn

// Interrupt notes that the time is up.
func (a *alarmed) Interrupt() { a.timeUp.Store(true) }

// expired does what follows a time that has passed. The lock is held.
func (c *serverConn) expired() {
	switch c.phase {
	case open:
		if len(c.streams) == 0 {
			c.announceNow()
		}
	case announced:
		c.finalize()
	case lingering:
		c.hangUp(codeNo, "")
	}
}

// ending reports whether the next response is to announce the end.
func (c *serverConn) ending() bool { return c.gentle.Load() }

// announce begins the end.
func (c *serverConn) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.announceNow()
}

// lastID is above the id of every stream (RFC 9114 §5.2).
const lastID = 1<<62 - 4

// announceNow asks the client to open no further streams, and once it must have read that, it is told which was the last
// (RFC 9114 §5.2). The lock is held.
func (c *serverConn) announceNow() {
	if c.phase != open {
		return
	}
	c.phase = announced
	c.goAway(lastID)
	c.await(min(max(2*c.q.ConnectionStats().SmoothedRTT, conn.Tick), drainGrace))
}

// finalize tells the client which stream was the last that is served. The lock is held.
func (c *serverConn) finalize() {
	c.phase = final
	c.goAway(c.next)
	c.settle()
}

// settle lets the client close a connection that has nothing left to do. The lock is held.
func (c *serverConn) settle() {
	if c.phase == final && len(c.streams) == 0 {
		c.phase = lingering
		c.await(lingerTime)
	}
}

// goAway sends GOAWAY. To a client that has no room for it the end of the connection is the announcement.
func (c *serverConn) goAway(id quic.StreamID) {
	n := uint64(quicvarint.Len(uint64(id)))
	_ = c.control.TryWriteAll(quicvarint.Append(appendFrameHead(nil, frameGoAway, n), uint64(id)))
}

// Drain lets the connection end: at once what is idle, after its streams what is not; gently, not before its next
// response.
func (c *serverConn) Drain(mode drain.Mode) {
	if mode == drain.Gentle {
		c.gentle.Store(true)
		return
	}
	c.announce()
}

// Force ends the connection from outside: what its streams wait for fails, on both sides.
func (c *serverConn) Force() {
	c.forced.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		st.x.Force()
	}
	if c.phase != closing {
		c.hangUp(codeNo, "")
	}
}

// release waits for what still runs of the connection, whose client is gone.
func (c *serverConn) release() {
	c.mu.Lock()
	c.phase = closing
	c.await(0)
	for _, st := range c.streams {
		if !c.forced.Load() {
			st.giveUp()
		}
	}
	c.mu.Unlock()
	c.running.Wait()
	if c.flooded != nil {
		c.record(c.flooded)
	}
}

// record has a connection that ended for a flood recorded, as a request that was refused.
func (c *serverConn) record(err *connError) {
	r, ok := c.srv.settings.Load().Handler.(exchange.Refuser)
	if !ok {
		return
	}
	st := newStream(c, nil)
	e := exchange.Reject(429, exchange.CodeFlood, "Too many frames")
	e.Err = err
	r.Refuse(&st.x, e)
	st.recycle()
}

// OnTick is the clock's visit.
func (c *serverConn) OnTick(k *conn.Clock) int {
	k.Expire(&c.wait)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timeUp.Swap(false) {
		c.expired()
	}
	for _, st := range c.streams {
		st.onTick(k)
	}
	return -1
}

// OnDeparted is never called: QUIC tells when a client leaves.
func (c *serverConn) OnDeparted() {}

// Slot is the clock's.
func (c *serverConn) Slot() *conn.ClockSlot { return &c.slot }
