package http1

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Phases of a connection, as the clock and a drain see them.
const (
	phaseIdle    = iota // nothing of a request has arrived
	phaseHead           // some of a head has
	phaseServing        // an exchange is under way
	phaseVisited        // the clock is telling the exchange that its client left
	phaseTaken          // the exchange has taken the connection over
)

// verdict says what the connection does after a look at its bytes.
type verdict int

const (
	needBytes  verdict = iota
	runOutside         // the request wants the connection for itself: leave the read callback first
	endConn
)

// serverConn is one client connection. Its goroutine owns everything but the atomics and the alarms.
type serverConn struct {
	srv    *Server
	set    *Settings
	c      conn.Conn
	raw    raw // nil on the plain path
	slot   conn.ClockSlot
	ticket drain.Ticket
	ending atomic.Uint32 // serving, or how the connection was told to end

	phase atomic.Uint32
	seq   atomic.Uint32 // requests begun
	seen  uint32        // clock only: seq at the last visit
	fd    int           // to probe; -1 none

	wait  conn.Alarm // reads: a request, a head, a body
	guard conn.Alarm // what the exchange waits for upstream
	slow  conn.Alarm // a write on the plain path

	reads, writes, both conn.Interrupter // what an alarm interrupts: one side, so that the other goes on

	inp  *[]byte
	in   []byte // in[r:w] has been received and not used
	r, w int
	head head
	x    *exchange.Exchange
	wmu  sync.Mutex // guards what is written: outp, resp
	outp *[]byte
	verd verdict

	body requestBody
	resp response

	more    bool // the last read filled the buffer: there is likely more
	linger  bool // unread request bytes may follow: close without a reset
	aborted bool // close with a reset
	h2      []byte
	forced  atomic.Bool
}

// How a connection was told to end.
const (
	serving  = iota
	gently   // after one more request, with Connection: close
	promptly // after the exchange under way; when idle, now
)

// ServeConn serves a connection to its end and closes it. It returns when nothing of it runs any more. The connection
// is a member of live, which may be nil, meanwhile.
func (s *Server) ServeConn(c conn.Conn, live *drain.Tracker) {
	sc := s.open(c, live)
	sc.serve()
	sc.end()
	if sc.h2 != nil {
		s.h2(c, sc.h2, live)
		return
	}
	sc.close()
}

// open makes the state of a connection, and lets those know it who may end it.
func (s *Server) open(c conn.Conn, live *drain.Tracker) *serverConn {
	sc := &serverConn{srv: s, set: s.settings.Load(), c: c, fd: descriptor(c), raw: rawOf(c)}
	sc.reads, sc.writes, sc.both = readSide{c}, writeSide{c}, conn.InterrupterOf(c)
	sc.wait.Bind(s.clock)
	sc.guard.Bind(s.clock)
	sc.slow.Bind(s.clock)
	sc.wait.Arm(sc.reads, sc.set.HeaderTimeout)
	if live != nil {
		live.Enter(&sc.ticket, sc)
	}
	s.clock.Add(sc)
	return sc
}

// end undoes open, and returns every buffer.
func (c *serverConn) end() {
	c.settle()
	if c.h2 == nil && c.linger && !c.aborted {
		c.drainInput()
	}
	c.srv.clock.Remove(c)
	c.ticket.Leave()
	c.release()
}

// descriptor is the kernel's number of a connection, for probes; -1 when it has none.
func descriptor(c conn.Conn) int {
	if d, ok := c.(interface{ FD() int }); ok {
		return d.FD()
	}
	return -1
}

// readSide and writeSide interrupt one direction.
type (
	readSide  struct{ conn.Conn }
	writeSide struct{ conn.Conn }
)

func (s readSide) Interrupt()  { _ = s.SetReadDeadline(longAgo) }
func (s writeSide) Interrupt() { _ = s.SetWriteDeadline(longAgo) }

var longAgo = time.Unix(1, 0)

// serve runs the connection's requests one after another.
func (c *serverConn) serve() {
	for {
		var err error
		if c.raw != nil {
			err = c.raw.Loop(c.step)
		} else {
			err = c.readPlain()
		}
		if err != nil {
			if !c.interrupted() {
				return
			}
			continue
		}
		if c.verd == runOutside {
			c.serveOne()
			if !c.finish() {
				return
			}
			continue
		}
		return
	}
}

// settle turns the alarm of reads off and takes back the interruption, if it has fired.
func (c *serverConn) settle() conn.Cause {
	cause := c.wait.Disarm()
	if cause != conn.CauseNone {
		c.allowReads()
	}
	return cause
}

// allowReads removes the read deadline, unless somebody else wants reads to fail, who sets his flag before it.
func (c *serverConn) allowReads() {
	_ = c.c.SetReadDeadline(time.Time{})
	if c.forced.Load() || c.body.stop.Load() {
		c.reads.Interrupt()
	}
}

// interrupted decides what follows a wait that an alarm has ended; true goes on reading.
func (c *serverConn) interrupted() bool {
	cause := c.settle()
	if c.forced.Load() {
		return false
	}
	switch cause {
	case conn.CauseDrain: // a request that has been received is still served
		if c.w > c.r || c.lastBytes() {
			c.wait.Arm(c.reads, c.set.HeaderTimeout)
			return true
		}
	case conn.CauseDeparted:
		if c.lastBytes() {
			c.wait.Arm(c.reads, c.set.HeaderTimeout)
			return true
		}
	case conn.CauseDeadline:
		if c.phase.Load() == phaseHead && c.w > c.r {
			c.refuseHead(over(408, exchange.CodeHeaderTimeout, "Request header timeout", "header_timeout"))
		}
	}
	return false
}

// lastBytes looks once more for bytes on a connection that is to be closed.
func (c *serverConn) lastBytes() bool {
	c.ensure(1)
	n := 0
	if c.raw != nil {
		n = c.tryRead(c.in[c.w:])
	} else if d := c.lastLook(); d > 0 && c.c.SetReadDeadline(time.Now().Add(d)) == nil {
		n, _ = c.c.Read(c.in[c.w:])
		c.allowReads()
	}
	c.w += n
	return n > 0
}

// lastLook is how long to wait for the last bytes of a connection that cannot be read without waiting. It is long where they are known
// to be there: a read that comes to it only after its deadline does not look, and a record of TLS may be on its way still.
func (c *serverConn) lastLook() time.Duration {
	arrived, known := false, false
	if q, ok := c.c.(quieter); ok {
		arrived, known = !q.Quiet(), true
	} else if c.fd >= 0 {
		arrived, known = conn.Arrived(c.fd)
	}
	switch {
	case arrived:
		return time.Second
	case known:
		return 0
	}
	return 5 * time.Millisecond
}

// readPlain is step for connections without a raw descriptor.
func (c *serverConn) readPlain() error {
	for {
		if c.w > c.r {
			if c.verd = c.process(); c.verd != needBytes {
				return nil
			}
		}
		c.ensure(1)
		n, err := c.c.Read(c.in[c.w:])
		c.w += n
		if n == 0 && err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			c.verd = endConn
			return nil
		}
	}
}

// process serves the requests that are complete in the buffer.
func (c *serverConn) process() verdict {
	for {
		b := c.in[c.r:c.w]
		if len(b) == 0 {
			c.idle()
			return needBytes
		}
		if c.head.seen == 0 && c.seq.Load() == 0 && c.srv.h2 != nil && isPreface(b) {
			return c.preface(b)
		}
		if c.x == nil {
			c.begin()
		}
		if c.head.end == 0 {
			done, err := c.head.parse(b, &c.x.Request.Fields, c.set.Limits, true)
			if err != nil {
				c.refuseHead(err)
				return endConn
			}
			if !done {
				c.headWait()
				c.ensure(1)
				return needBytes
			}
			c.body.begin(&c.head, c.set.BodyIdleTimeout)
		}
		if v, wait := c.dispatch(len(b) - c.head.end); wait || v != needBytes {
			return v
		}
	}
}

// headWait starts the head's time limit with its first bytes.
func (c *serverConn) headWait() {
	if c.phase.Load() == phaseIdle {
		c.phase.Store(phaseHead)
		c.wait.Extend(c.set.HeaderTimeout)
	}
}

// dispatch runs the request whose head is complete and have bytes behind it are here; or it tells that the request
// must run outside the read callback, which holds the descriptor's read lock; or (wait) that the rest of a small body
// is to be read first, since it is likely to be there.
func (c *serverConn) dispatch(have int) (v verdict, wait bool) {
	missing := c.body.missing(have)
	c.head.expect = c.head.expect && missing != 0 // RFC 9110 §10.1.1: who has sent its body waits for nothing
	if c.raw != nil {
		switch {
		case !c.head.upgrade.empty(), c.set.Connect: // who serves it may take the connection over
			return runOutside, false
		case missing > 0 && c.more && c.body.rest <= maxInline:
			c.ensure(int(missing))
			return needBytes, true
		case missing != 0:
			return runOutside, false
		}
	}
	c.serveOne()
	if !c.finish() {
		return endConn, false
	}
	return needBytes, false
}

// begin fetches an exchange for the request whose first bytes have arrived.
func (c *serverConn) begin() {
	c.set = c.srv.settings.Load()
	c.x = xPool.Get().(*exchange.Exchange)
	c.head.reset()
}

// idle gives back what a connection does not need while nothing is under way.
func (c *serverConn) idle() {
	if c.x != nil {
		xPool.Put(c.x)
		c.x = nil
	}
	c.r, c.w = 0, 0
	if c.inp == nil {
		c.in = nil // one that has grown
	}
}

// release returns every buffer.
func (c *serverConn) release() {
	c.idle()
	c.freeIn()
	if c.outp != nil {
		outPool.Put(c.outp)
		c.outp = nil
	}
	c.body.free()
}

func (c *serverConn) freeIn() {
	if c.inp != nil {
		smallPool.Put(c.inp)
	}
	c.in, c.inp = nil, nil
}

// ensure makes room for n more bytes.
func (c *serverConn) ensure(n int) {
	if c.in == nil {
		c.inp = smallPool.Get().(*[]byte)
		c.in = *c.inp
	}
	if len(c.in)-c.w >= n {
		return
	}
	if c.r > 0 && len(c.in)-(c.w-c.r) >= n {
		copy(c.in, c.in[c.r:c.w])
		c.r, c.w = 0, c.w-c.r
		return
	}
	grown := make([]byte, max(2*len(c.in), c.w-c.r+n))
	c.w = copy(grown, c.in[c.r:c.w])
	c.r = 0
	if c.inp != nil {
		smallPool.Put(c.inp)
		c.inp = nil
	}
	c.in = grown
}

// preface hands a connection over that speaks HTTP/2, once all of the preface is here.
func (c *serverConn) preface(b []byte) verdict {
	if len(b) < len(preface) {
		if c.x == nil {
			c.begin() // whoever falls silent here is answered like every other client
		}
		c.headWait()
		c.ensure(1)
		return needBytes
	}
	c.h2 = append([]byte(nil), b...)
	return endConn
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// isPreface reports whether b may become the HTTP/2 preface.
func isPreface(b []byte) bool {
	n := min(len(b), len(preface))
	return string(b[:n]) == preface[:n]
}
