package http2

//lint:file-ignore SA1019 the frame loop is used connection by connection, which the standard library's server has no call for

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

// Flow control and framing that we grant a client. The connection's window bounds what its uploads may pile up.
const (
	frameSize    = 16 << 10
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// resetsBorne is how many times MaxStreams a client may take back more streams than it sees through. Then it has to come
// again over a new connection, so that the work that it causes for nothing has a bound (CVE-2023-44487).
const resetsBorne = 4

// drainGrace is how long a connection that began during a drain may take to send the request that it came for.
const drainGrace = time.Second

// silent takes what the frame loop would log: every line of it is about a client's misbehaviour, none is for operators.
var silent = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)

// serverConn is one client connection.
type serverConn struct {
	srv  *Server
	info *conn.Info
	wire *wire
	// base is a server of its own for this connection: its shutdown is the only way to have GOAWAY sent, and its
	// keep-alive switch the only way to have it sent after the streams that are still to come.
	base   *http.Server
	slot   conn.ClockSlot
	ticket drain.Ticket
	gentle atomic.Bool // the next response announces the end
	wait   conn.Alarm  // the preface; later, while draining, the first stream

	running sync.WaitGroup // streams

	// takenBack counts the streams that the client reset before their answer was whole, less those that went well.
	takenBack atomic.Int32
	bearable  int32 // how many of them are borne

	mu       sync.Mutex // guards all below
	open     bool       // the preface has been read
	draining bool
	ended    bool // no stream may begin
	streams  map[*stream]struct{}
}

// ServeConn serves a connection to its end and closes it. It returns when nothing of it runs any more. The connection
// is a member of live meanwhile, which may be nil.
func (s *Server) ServeConn(c conn.Conn, live *drain.Tracker) { s.ServeConnWith(c, nil, live) }

// ServeConnWith is ServeConn for a connection of which prefix, beginning with the preface, has been read already.
func (s *Server) ServeConnWith(c conn.Conn, prefix []byte, live *drain.Tracker) {
	set := s.settings.Load()
	sc := &serverConn{srv: s, info: c.Info(), wire: newWire(c, prefix), streams: make(map[*stream]struct{})}
	sc.bearable = int32(resetsBorne * set.MaxStreams)
	defer sc.wire.Close()
	loop := sc.frameLoop(set)
	if loop == nil {
		return
	}
	sc.wait.Arm(sc, set.HeaderTimeout)
	if live != nil {
		live.Enter(&sc.ticket, sc)
		defer sc.ticket.Leave()
	}
	s.clock.Add(sc)
	loop.ServeConn(sc.transport(), &http2.ServeConnOpts{Handler: sc, BaseConfig: baseConfig(sc.base)})
	sc.end()
	s.clock.Remove(sc)
	sc.wait.Disarm()
}

// frameLoop configures what reads and writes the frames.
func (c *serverConn) frameLoop(set *Settings) *http2.Server {
	c.base = &http.Server{
		ErrorLog: silent, ConnState: c.onState,
		// Twice ours and the 32 bytes a field that only HTTP/2 counts: what is not far too large gets our own answer.
		MaxHeaderBytes: 2*set.MaxHeaderBytes + 32*set.MaxHeaders,
	}
	limitFields(c.base, set.MaxHeaders)
	loop := &http2.Server{
		MaxConcurrentStreams:         uint32(set.MaxStreams),
		MaxReadFrameSize:             frameSize,
		MaxUploadBufferPerConnection: connWindow,
		MaxUploadBufferPerStream:     streamWindow,
		IdleTimeout:                  set.KeepAliveTimeout,
		WriteByteTimeout:             set.WriteIdleTimeout,
	}
	if http2.ConfigureServer(c.base, loop) != nil {
		return nil
	}
	return loop
}

func (c *serverConn) transport() net.Conn {
	if c.info.TLS != nil {
		return secure{c.wire, c.info.TLS}
	}
	return c.wire
}

// onState is told by the frame loop, on its goroutine, that the preface has been read, and later of every change
// between idle and active.
func (c *serverConn) onState(_ net.Conn, state http.ConnState) {
	if state != http.StateActive {
		return
	}
	c.mu.Lock()
	first, draining := !c.open, c.draining
	c.open = true
	c.mu.Unlock()
	switch {
	case first && draining:
		c.wait.Extend(drainGrace)
	case first:
		c.wait.Disarm()
	}
}

// Interrupt is the alarm's: the preface did not come in time, or nothing did that a draining connection waits for.
func (c *serverConn) Interrupt() {
	c.mu.Lock()
	open := c.open
	c.mu.Unlock()
	if open {
		c.goAway()
		return
	}
	c.wire.kill()
}

// Drain lets the connection end: at once what is idle, after its streams what is not; gently, not before its next
// response. One that has only just been accepted is still served what it came for.
func (c *serverConn) Drain(mode drain.Mode) {
	if mode == drain.Gentle {
		c.gentle.Store(true)
		return
	}
	c.mu.Lock()
	open := c.open
	c.draining = true
	c.mu.Unlock()
	c.base.SetKeepAlivesEnabled(false)
	if open {
		c.goAway()
	}
}

// goAway has the frame loop announce that no further stream is taken. It does not wait for that.
func (c *serverConn) goAway() { _ = c.base.Shutdown(context.Background()) }

// Force ends the connection from outside: what its streams wait for fails, on both sides.
func (c *serverConn) Force() {
	c.mu.Lock()
	for st := range c.streams {
		st.guard.Ring(conn.CauseDrain)
	}
	c.mu.Unlock()
	c.wire.abort.Store(true)
	c.wire.kill()
}

// enter admits a stream; false when the connection has ended meanwhile.
func (c *serverConn) enter(st *stream) bool {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return false
	}
	c.streams[st] = struct{}{}
	c.running.Add(1)
	c.mu.Unlock()
	return true
}

// leave takes a stream out. On return nothing touches it any more.
func (c *serverConn) leave(st *stream) {
	c.srv.clock.Remove(st)
	c.mu.Lock()
	delete(c.streams, st)
	c.mu.Unlock()
	st.resetting.Wait()
	c.running.Done()
}

// judge counts a stream that has ended, and ends the connection of a client that has taken back too many.
func (c *serverConn) judge(takenBack bool) {
	switch {
	case !takenBack:
		if c.takenBack.Add(-1) < 0 {
			c.takenBack.Add(1)
		}
	case c.takenBack.Add(1) == c.bearable:
		c.goAway()
	}
}

// end waits for the streams. Their clients are gone, which the clock's next visit tells them.
func (c *serverConn) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.running.Wait()
}

// OnTick is the clock's visit.
func (c *serverConn) OnTick(k *conn.Clock) int {
	k.Expire(&c.wait)
	return -1
}

// OnDeparted is never called: the frame loop always reads, and so sees a client leave.
func (c *serverConn) OnDeparted() {}

// Slot is the clock's.
func (c *serverConn) Slot() *conn.ClockSlot { return &c.slot }
