package http2

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// phase is how far a connection has come towards its end.
type phase uint8

const (
	opening   phase = iota // the preface is awaited
	open                   // streams come and go
	announced              // GOAWAY with the highest id was sent: streams that are on their way are still taken
	final                  // GOAWAY with the last id was sent: the streams that run are the last
	closing                // nothing is sent after what is written already
)

// link is what both sides of a connection are made of: the lock, the writer with the queue of those who wait to send, and
// flow control. Its owner is a serverConn or a clientConn, which embeds it and reads the frames.
type link struct {
	clock      *conn.Clock
	info       *conn.Info
	wire       *wire
	forced     atomic.Bool
	writeLimit func() time.Duration // how long a piece of output may take; 0 for ever
	badBody    func(why string) error

	wait   conn.Alarm  // what the owner waits for; the linger
	timeUp atomic.Bool // wait has fired
	stall  conn.Alarm  // the writer's: a peer that takes nothing

	running    sync.WaitGroup // what runs besides the reader
	wakeWriter chan struct{}

	mu       sync.Mutex // guards all below, and what it says to guard elsewhere
	phase    phase
	used     bool      // since the clock's last visit
	retiring bool      // goroutines that wait are to end
	ended    bool      // the reader is gone: nothing is sent any more
	headTime time.Time // a field block of several frames has begun then; zero: none is open

	out         *output // not written yet; nil: nothing
	lost        output  // what nobody writes any more
	writing     bool    // the writer runs
	parked      bool    // it waits for wakeWriter
	halfClosed  bool    // the writer has run for the last time
	tableTold   bool
	sendWindow  int64 // of the connection
	firstWindow int64 // of a new stream, as the peer has set it
	queue       []*flow
	turns       int   // flows of the queue that were given their turn and have not used it yet
	moved       int64 // body bytes sent

	credit  int // received, used up, and not yet told
	receive int // what the peer may still send

	updates Budget
}

// init prepares a link over a connection; w has read what came before.
func (l *link) init(clock *conn.Clock, info *conn.Info, w *wire) {
	l.clock, l.info, l.wire = clock, info, w
	l.wakeWriter = make(chan struct{}, 1)
	l.sendWindow, l.firstWindow, l.receive = firstConnWindow, firstConnWindow, connWindow
	l.updates = updateBudget()
	l.wait.Bind(clock)
	l.stall.Bind(clock)
}

// await has the owner's expired called after d, unless it is called again before; 0 for never. The lock is held.
func (l *link) await(d time.Duration) {
	l.wait.Disarm()
	l.timeUp.Store(false)
	if d > 0 {
		l.wait.Arm((*alarmed)(l), d)
	}
}

// alarmed is the connection as what its wait alarm interrupts: the clock's visit then does what is to be done.
type alarmed link

// Interrupt notes that the time is up.
func (a *alarmed) Interrupt() { a.timeUp.Store(true) }

// setWindow moves the windows of all streams by what the first one has changed by (RFC 9113 §6.9.2). The lock is held.
func (l *link) setWindow(n int64, flows iter.Seq[*flow]) *connError {
	by := n - l.firstWindow
	l.firstWindow = n
	for s := range flows {
		if s.window += by; s.window > maxWindow {
			return &connError{http2.ErrCodeFlowControl, "window of a stream too large"}
		}
		if by > 0 {
			signal(s.sendWake)
		}
	}
	return nil
}

// widen lets the connection, or a stream, send n bytes more (RFC 9113 §6.9); s is nil for a stream that is over. A fault
// is the stream's alone. The lock is held.
func (l *link) widen(id uint32, s *flow, n int64) (fault http2.ErrCode, err *connError) {
	switch {
	case !l.updates.Spend(1):
		return 0, flood("WINDOW_UPDATE frames")
	case id == 0 && n == 0:
		return 0, protocolError("WINDOW_UPDATE of 0")
	case id == 0:
		if l.sendWindow += n; l.sendWindow > maxWindow {
			return 0, &connError{http2.ErrCodeFlowControl, "window of the connection too large"}
		}
		l.pass()
	case s == nil || s.closed:
	case n == 0:
		return http2.ErrCodeProtocol, nil
	default:
		if s.window += n; s.window > maxWindow {
			return http2.ErrCodeFlowControl, nil
		}
		signal(s.sendWake)
	}
	return 0, nil
}

// grant lets the peer send n more bytes on the connection. It is told, too, when that is no less than what it may still
// send: what nobody reads may hold the rest of the window. The lock is held.
func (l *link) grant(n int) {
	l.credit += n
	if l.credit > 0 && l.credit >= min(connWindow/4, l.receive) && l.phase != closing {
		o := l.buffer()
		o.b = append4(o.b, http2.FrameWindowUpdate, 0, uint32(l.credit))
		l.receive += l.credit
		l.credit = 0
		l.flush()
	}
}
