package http2

import (
	"crypto/tls"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Times of the end of a connection.
const (
	// drainGrace is how long a connection that began during a drain may take to send the request that it came for, and
	// how long the answer to the PING that follows the first GOAWAY is waited for.
	drainGrace = time.Second
	// lingerTime is how long a client may take to close a connection that we have ended: closing it under bytes that are
	// still on their way would take the last answers back.
	lingerTime = time.Second
)

// serverConn is one client connection. Its reader is the goroutine of ServeConn; each stream has one while it is served,
// and output has the writer. Those that wait for work end soon after the connection has become idle.
type serverConn struct {
	link
	srv    *Server
	set    *Settings // of the connection's begin
	slot   conn.ClockSlot
	ticket drain.Ticket
	gentle atomic.Bool // the next response announces the end
	// moments are the ticks since it was forced; the clock's
	moments int

	reader  reader
	opening *stream // the one whose head is being received
	head    Head
	fresh   []*stream  // opened by what has just been read; they begin when all of that has been handled
	faults  Budget     // the reader's
	flooded *connError // the connection ended for that

	// guarded by the link's lock
	idle     []*worker // they wait for a stream
	draining bool      // the first stream is the last
	holding  bool      // the final phase lasts at least until wait fires
	maxID    uint32    // of the streams that were opened
	streams  map[uint32]*stream
	active   int // streams whose exchange is not over, on either side
	resets   resets
	heading  bool // the head of a request that counts among those below maxID has begun
	taken    int  // streams that the client took back before their answer was whole, less those that went well
}

// resets remembers the streams that we have reset last: what their clients sent before they knew is ignored.
type resets struct {
	ids  []uint32
	next int
}

func (r *resets) add(id uint32, limit int) {
	if len(r.ids) < limit {
		r.ids = append(r.ids, id)
		return
	}
	r.ids[r.next] = id
	r.next = (r.next + 1) % limit
}

func (r *resets) has(id uint32) bool {
	for _, have := range r.ids {
		if have == id {
			return true
		}
	}
	return false
}

// ServeConn serves a connection to its end and closes it. It returns when nothing of it runs any more. The connection
// is a member of live meanwhile, which may be nil.
func (s *Server) ServeConn(c conn.Conn, live *drain.Tracker) { s.ServeConnWith(c, nil, live) }

// ServeConnWith is ServeConn for a connection of which prefix, beginning with the preface, has been read already.
func (s *Server) ServeConnWith(c conn.Conn, prefix []byte, live *drain.Tracker) {
	set := s.settings.Load()
	sc := &serverConn{srv: s, set: set, streams: make(map[uint32]*stream), faults: NewBudget(resetsBorne*set.MaxStreams, faultRate)}
	sc.link.init(s.clock, c.Info(), newWire(c, prefix))
	sc.writeLimit, sc.badBody = s.writeLimit, BadBody
	sc.reader.init(&sc.link, set.listLimit(), sc)
	sc.await(set.HeaderTimeout)
	if live != nil {
		live.Enter(&sc.ticket, sc)
	}
	s.clock.Add(sc)
	defer sc.release(live) // also behind a panic: nothing of the connection stays
	if err := sc.read(); err != nil && err.code == http2.ErrCodeEnhanceYourCalm {
		sc.flooded = err
	}
}

// release waits for what still runs of the connection, and closes it.
func (c *serverConn) release(live *drain.Tracker) {
	c.end()
	c.clock.Remove(c)
	c.wait.Disarm()
	if live != nil {
		c.ticket.Leave()
	}
	_ = c.wire.Close()
	c.reader.free()
	if c.flooded != nil {
		c.record(c.flooded)
	}
}

// insecure reports whether the session's cipher is among those that HTTP/2 prohibits (RFC 9113 §9.2.2).
func insecure(s *tls.ConnectionState) bool {
	if s == nil || s.Version >= tls.VersionTLS13 {
		return false
	}
	switch s.CipherSuite {
	case tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256:
		return s.Version < tls.VersionTLS12
	}
	return true
}

// begin is called when the preface has been read: our side of it goes out.
func (c *serverConn) begin() *connError {
	if insecure(c.info.TLS) {
		return &connError{http2.ErrCodeInadequateSecurity, "the session's cipher is prohibited"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = open
	b := c.buffer()
	b.b = appendSettings(b.b,
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.set.MaxStreams)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(c.set.streamWindow())},
		http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(min(c.set.MaxHeaderBytes+32*c.set.MaxHeaders, maxWindow))},
	)
	b.b = append4(b.b, http2.FrameWindowUpdate, 0, connWindow-firstConnWindow)
	c.flush()
	if c.draining {
		c.await(drainGrace)
	} else {
		c.await(c.set.KeepAliveTimeout)
	}
	return nil
}

// expired does what follows a time that has passed. The lock is held.
func (c *serverConn) expired() {
	switch c.phase {
	case opening, closing:
		c.wire.kill()
	case open:
		if len(c.streams) == 0 {
			c.announce()
		}
	case announced:
		c.finalize(false)
	case final:
		c.holding = false
		c.settle()
	}
}

// drainPing is the payload of the PING whose answer tells that the client has seen the first GOAWAY.
const drainPing = "\x00\x00drain\x00"

// announce begins the end: the client is asked to open no further streams, and once it has surely read that, it is told
// which was the last (RFC 9113 §6.8). The lock is held.
func (c *serverConn) announce() {
	if c.phase != open {
		return
	}
	c.phase = announced
	b := c.buffer()
	b.b = appendGoAway(b.b, maxStreamID, http2.ErrCodeNo, "")
	b.b = append(appendFrameHead(b.b, len(drainPing), http2.FramePing, 0, 0), drainPing...)
	c.flush()
	c.await(drainGrace)
}

// finalize tells the client which stream was the last that is served. With hold the connection stays a moment longer
// than that, to see what the client makes of it. The lock is held.
func (c *serverConn) finalize(hold bool) {
	if c.phase != open && c.phase != announced {
		return
	}
	c.phase = final
	b := c.buffer()
	b.b = appendGoAway(b.b, c.maxID, http2.ErrCodeNo, "")
	c.flush()
	c.await(0)
	if c.holding = hold; hold {
		c.await(drainGrace)
	}
	c.settle()
}

// settle closes a connection that has nothing left to do. The lock is held.
func (c *serverConn) settle() {
	if c.phase == final && len(c.streams) == 0 && !c.heading && !c.holding {
		c.phase = closing
		c.flush()
	}
}

// fail ends the connection for what its client did.
func (c *serverConn) fail(err *connError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failNow(err)
}

// failNow is fail with the lock held.
func (c *serverConn) failNow(err *connError) {
	if c.phase == closing {
		return
	}
	b := c.buffer()
	b.b = appendGoAway(b.b, c.maxID, err.code, err.why)
	c.phase = closing
	c.depart()
	c.flush()
}

// depart tells the exchanges that their client is gone. The lock is held; nothing that is called blocks.
func (c *serverConn) depart() {
	for _, st := range c.streams {
		st.close(!c.forced.Load())
	}
}

// Drain lets the connection end: at once what is idle, after its streams what is not; gently, not before its next
// response. One that has only just been accepted is still served what it came for.
func (c *serverConn) Drain(mode drain.Mode) {
	if mode == drain.Gentle {
		c.gentle.Store(true)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	c.announce()
}

// Force ends the connection from outside: what its streams wait for fails, on both sides. Who has taken a stream over may
// have something to say at its end, and has a moment for that.
func (c *serverConn) Force() {
	c.forced.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		st.x.Force()
	}
	if !c.tunnels() {
		c.sever()
	}
}

// tunnels reports whether a stream has been taken over. The lock is held.
func (c *serverConn) tunnels() bool {
	for _, st := range c.streams {
		if st.tunnel != nil {
			return true
		}
	}
	return false
}

// lastWords is how many ticks tunnels have after Force.
const lastWords = 2

// sever ends the connection with a reset, now. It does not block.
func (c *serverConn) sever() {
	c.wire.abort.Store(true)
	c.wire.kill()
}

// end waits for the streams, whose clients are gone.
func (c *serverConn) end() {
	c.mu.Lock()
	c.ended = true
	c.phase = closing
	c.depart()
	c.retire()
	c.mu.Unlock()
	c.wire.kill()
	for _, st := range c.fresh {
		c.leave(st, true)
		st.recycle()
	}
	c.running.Wait()
}

// judge counts a stream that has ended, and ends the connection of a client that has taken back too many. What makes up
// for one is an answer of the handler that the client has seen through. The lock is held.
func (c *serverConn) judge(st *stream) {
	switch {
	case st.takenBack && st.tunnel == nil: // that is how many clients end a tunnel
		if c.taken++; c.taken == resetsBorne*c.set.MaxStreams {
			c.finalize(true)
		}
	case st.refused == nil && st.resp.done:
		c.taken = max(0, c.taken-1)
	}
}

// record has a connection that ended for a flood recorded, as a request that was refused.
func (c *serverConn) record(err *connError) {
	set := c.srv.settings.Load()
	r, ok := set.Handler.(exchange.Refuser)
	if !ok {
		return
	}
	st := newStream(c, 0)
	st.begin()
	e := exchange.Reject(429, exchange.CodeFlood, "Too many frames")
	e.Err = err
	r.Refuse(&st.x, e)
	st.recycle()
}

// OnTick is the clock's visit.
func (c *serverConn) OnTick(k *conn.Clock) int {
	k.Expire(&c.wait)
	k.Expire(&c.stall)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timeUp.Swap(false) {
		c.expired()
	}
	if limit := c.set.HeaderTimeout; limit > 0 && !c.headTime.IsZero() && time.Since(c.headTime) > limit {
		c.failNow(&connError{http2.ErrCodeEnhanceYourCalm, "a field block takes too long"})
	}
	for _, st := range c.streams {
		st.onTick(k)
	}
	if c.forced.Load() {
		if c.moments++; c.moments > lastWords || !c.tunnels() {
			c.sever()
		}
	}
	if !c.used && len(c.streams) == 0 {
		c.retire()
	}
	c.used = false
	return -1
}

// OnDeparted is never called: the reader always reads, and so sees a client leave.
func (c *serverConn) OnDeparted() {}

// Slot is the clock's.
func (c *serverConn) Slot() *conn.ClockSlot { return &c.slot }
