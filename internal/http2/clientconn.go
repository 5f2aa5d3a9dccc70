package http2

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// ClientSettings are how connections to a server are conducted. They do not change while a connection lives.
type ClientSettings struct {
	MaxHeaderBytes int           // a response head as HTTP/1.1 would spell it; 0 is 131072
	MaxHeaders     int           // number of its fields; 0 is 512
	MaxStreams     int           // streams at once on a connection, if the server allows as many; 0 is 250
	StreamWindow   int           // bytes of a stream that nobody reads, from 4096 to 2^31-1; 0 is 262144
	PingInterval   time.Duration // a connection with streams that receives nothing is asked for a sign of life; 0 never
	PingTimeout    time.Duration // for the answer, after which the connection is given up; 0 is 10s
	MaxRequests    int           // streams in all, after which a connection takes no new ones; 0 is no limit
	MaxAge         time.Duration // after which a connection takes no new streams; 0 is no limit
}

// Defaults of ClientSettings.
const (
	clientHeaderBytes = 128 << 10
	clientHeaders     = 512
	clientPingTimeout = 10 * time.Second
)

// maxRequestsEver keeps stream ids from running out (RFC 9113 §5.1.1).
const maxRequestsEver = 1 << 29

func (s *ClientSettings) withDefaults() *ClientSettings {
	n := *s
	n.MaxHeaderBytes = orDefault(n.MaxHeaderBytes, clientHeaderBytes)
	n.MaxHeaders = orDefault(n.MaxHeaders, clientHeaders)
	n.MaxStreams = orDefault(n.MaxStreams, defaultMaxStreams)
	n.StreamWindow = orDefault(n.StreamWindow, streamWindow)
	n.MaxRequests = min(orDefault(n.MaxRequests, maxRequestsEver), maxRequestsEver)
	if n.PingTimeout <= 0 {
		n.PingTimeout = clientPingTimeout
	}
	return &n
}

// listLimit is how large a field list is decoded; see Settings.listLimit.
func (s *ClientSettings) listLimit() int { return 2*s.MaxHeaderBytes + 32*s.MaxHeaders }

// ClientConn is a connection to a server. Its reader is a goroutine of its own; streams are served by those who open them,
// and output has the writer. It lives until its server or its owner ends it.
type ClientConn struct {
	link
	set    *ClientSettings
	slot   conn.ClockSlot
	born   time.Time
	ready  chan struct{} // closed when the server's settings have come, or never will
	done   chan struct{} // closed when nothing of the connection runs any more
	reader reader
	head   responseHead // being received
	faults Budget       // the reader's
	woken  []*ClientStream
	parted []*StreamConn // that lingered until now
	resets Budget        // RST_STREAM that we may send

	// guarded by the link's lock
	streams   map[uint32]*ClientStream
	active    int    // streams promised or not over
	requests  int    // streams promised in all
	nextID    uint32 // of the next stream
	peerMax   int    // streams that the server allows
	extended  bool   // it speaks extended CONNECT (RFC 8441)
	known     bool   // its settings have come
	lastID    uint32 // the last stream that it will serve, by GOAWAY
	leaving   bool   // it has sent GOAWAY
	retired   bool   // no new streams, for a reason of ours
	alone     bool   // none before the first one is out
	err       error  // why the connection is over
	heard     time.Time
	heardAny  bool      // something has come since the clock's last visit
	asked     time.Time // a PING is not answered since then; zero: none is out
	vouched   time.Time // the last one was, then
	idleSince time.Time // no stream is open; zero: one is
}

// Budgets of a connection to a server.
const (
	// resetBurst and resetRate are how many streams are reset at once and a second on a connection: below what servers bear,
	// which take many resets for an attack (CVE-2023-44487). Who is over has to wait; see ClientStream.Release.
	resetBurst = 100
	resetRate  = 25
	// resetPatience bounds that wait.
	resetPatience = 4 * time.Second
	clientFaults  = 1000 // streams that the server breaks, and frames on streams that are over
)

// Errors of a connection.
var (
	// ErrConnClosed is the end of a connection that its server has closed.
	ErrConnClosed = errors.New("server closed the connection")
	// ErrNoHTTP2 is a server that does not begin with settings.
	ErrNoHTTP2 = errors.New("server does not speak HTTP/2")
	// ErrPingTimeout is a server that gives no sign of life.
	ErrPingTimeout = errors.New("server does not answer PING")
	errForced      = errors.New("connection was closed by the gateway")
	errLost        = errors.New("connection was lost") // its server said nothing against it
)

// NewClientConn begins HTTP/2 on a connection to a server, which it owns from then on.
func NewClientConn(c conn.Conn, set *ClientSettings, clock *conn.Clock) *ClientConn {
	now := time.Now()
	cc := &ClientConn{
		set: set.withDefaults(), born: now, ready: make(chan struct{}), done: make(chan struct{}),
		faults: NewBudget(clientFaults, faultRate), resets: NewBudget(resetBurst, resetRate), streams: make(map[uint32]*ClientStream),
		nextID: 1, lastID: maxStreamID, heard: now, idleSince: now,
	}
	cc.link.init(clock, c.Info(), newWire(c, nil))
	cc.writeLimit, cc.badBody = func() time.Duration { return 0 }, badResponseBody
	cc.reader.init(&cc.link, cc.set.listLimit(), cc)
	cc.begin()
	clock.Add(cc)
	go cc.run()
	return cc
}

// badResponseBody is a body that is not as its head has told.
func badResponseBody(why string) error { return fmt.Errorf("%w: %s", exchange.ErrBadResponse, why) }

// begin sends our side of the preface (RFC 9113 §3.4).
func (c *ClientConn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = open
	c.peerMax = c.set.MaxStreams
	o := c.buffer()
	o.b = append(o.b, preface...)
	o.b = appendSettings(o.b,
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(c.set.StreamWindow)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(min(c.set.MaxHeaderBytes+32*c.set.MaxHeaders, maxWindow))},
	)
	o.b = append4(o.b, http2.FrameWindowUpdate, 0, connWindow-firstConnWindow)
	c.flush()
}

// Ready returns a channel that is closed once the server's settings have come, or the connection is over; see Err.
func (c *ClientConn) Ready() <-chan struct{} { return c.ready }

// Done returns a channel that is closed when nothing of the connection runs any more.
func (c *ClientConn) Done() <-chan struct{} { return c.done }

// Info describes the connection.
func (c *ClientConn) Info() *conn.Info { return c.info }

// Err tells why the connection is over; nil while it is not.
func (c *ClientConn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// run reads until the end of the connection, and cleans up.
func (c *ClientConn) run() {
	err := c.read()
	c.mu.Lock()
	if cerr := (*connError)(nil); errors.As(err, &cerr) {
		c.tell(cerr)
		err = fmt.Errorf("%w: %w", exchange.ErrBadResponse, cerr)
	} else {
		err = fmt.Errorf("%w: %w", errLost, err)
		c.wire.kill() // there is nobody to write to
	}
	if !c.known {
		err = fmt.Errorf("%w: %w", ErrNoHTTP2, err)
	}
	c.over(err)
	c.ended = true
	if c.parked {
		c.parked, c.writing, c.retiring = false, true, true
		signal(c.wakeWriter)
	}
	for _, s := range c.streams {
		c.part(s)
	}
	c.mu.Unlock()
	c.closeParted()
	c.running.Wait()
	c.clock.Remove(c)
	c.wait.Disarm()
	_ = c.wire.Close()
	c.reader.free()
	close(c.done)
}

// tell sends GOAWAY for what the server did, for which it has a moment. The lock is held.
func (c *ClientConn) tell(err *connError) {
	o := c.buffer()
	o.b = appendGoAway(o.b, 0, err.code, err.why)
	c.flush()
	c.await(lingerTime)
}

// over ends the connection for all its streams. The lock is held.
func (c *ClientConn) over(err error) {
	if c.err == nil {
		c.err = err
	}
	c.phase = closing
	for _, s := range c.streams {
		s.fail(c.err)
	}
	if !c.known {
		c.known = true
		close(c.ready)
	}
}

// Close ends the connection at once, and fails its streams. It does not wait.
func (c *ClientConn) Close() { c.abandon(errForced) }

// abandon is Close for a reason.
func (c *ClientConn) abandon(err error) {
	c.mu.Lock()
	c.over(err)
	c.mu.Unlock()
	c.wire.kill()
}

// Retire lets the connection end after its streams.
func (c *ClientConn) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
	c.settle()
}

// settle ends a connection that has no stream and takes none. The lock is held.
func (c *ClientConn) settle() {
	if c.active > 0 || c.phase == closing || !c.retired && !c.leaving {
		return
	}
	o := c.buffer()
	o.b = appendGoAway(o.b, 0, http2.ErrCodeNo, "")
	c.phase = closing
	c.flush()
}

// usable reports whether new streams may be promised. The lock is held.
func (c *ClientConn) usable() bool {
	return c.known && c.err == nil && c.phase == open && !c.leaving && !c.retired && !c.alone && c.asked.IsZero()
}

// Open promises a stream, if the connection has room for one. Each is given back by its Release. Of an idle connection the
// kernel is asked whether its server has left, which the reader may be about to find out: a request would be lost on it.
func (c *ClientConn) Open() (*ClientStream, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open()
}

// OpenShared is Open that leaves nobody the connection for himself.
func (c *ClientConn) OpenShared() (*ClientStream, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone = false
	return c.open()
}

// open is Open with the lock held.
func (c *ClientConn) open() (*ClientStream, bool) {
	if c.usable() && c.active == 0 && c.wire.peerGone() {
		c.retired = true
		c.settle()
	}
	if !c.usable() || c.active >= min(c.peerMax, c.set.MaxStreams) {
		return nil, false
	}
	c.active++
	c.requests++
	c.idleSince = time.Time{}
	if c.requests >= c.set.MaxRequests {
		c.retired = true
	}
	return newClientStream(c, c.requests > 1), true
}

// ending reports whether nothing is left but to see the server close.
func (c *ClientConn) ending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leaving || c.phase == closing {
		return c.phase == closing
	}
	for _, s := range c.streams {
		if !s.closed {
			return false
		}
	}
	return true
}

// State is what the owner of a connection needs to know of it.
type State struct {
	Active int           // streams
	Idle   time.Duration // for how long no stream is open
	Usable bool          // new streams may be opened, now or when others have ended
	Over   bool
}

// State returns the state of the connection.
func (c *ClientConn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Active: c.active, Usable: c.usable(), Over: c.err != nil}
	if !c.idleSince.IsZero() {
		s.Idle = time.Since(c.idleSince)
	}
	return s
}

// Extended reports whether the server speaks extended CONNECT.
func (c *ClientConn) Extended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.extended
}

// lifePing is the payload of the PING that asks for a sign of life.
const lifePing = "\x00\x00alive\x00"

// ask sends it, unless an answer is awaited. The lock is held.
func (c *ClientConn) ask(now time.Time) {
	if !c.asked.IsZero() || c.phase == closing {
		return
	}
	c.asked = now
	o := c.buffer()
	o.b = append(appendFrameHead(o.b, len(lifePing), http2.FramePing, 0, 0), lifePing...)
	c.flush()
}

// slowHead bounds a field block of several frames.
const slowHead = 10 * time.Second

// OnTick is the clock's visit: silence, age and slow field blocks.
func (c *ClientConn) OnTick(k *conn.Clock) int {
	k.Expire(&c.wait)
	k.Expire(&c.stall)
	if c.timeUp.Swap(false) { // the server takes nothing any more, or does not close
		c.wire.kill()
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heardAny {
		c.heardAny, c.heard = false, now
	}
	switch {
	case c.err != nil:
		return -1
	case !c.asked.IsZero() && now.Sub(c.asked) > c.set.PingTimeout:
		c.over(ErrPingTimeout)
		c.wire.kill()
		return -1
	case c.set.PingInterval > 0 && c.active > 0 && now.Sub(c.heard) > c.set.PingInterval:
		c.ask(now)
	}
	if !c.headTime.IsZero() && now.Sub(c.headTime) > slowHead {
		c.over(fmt.Errorf("%w: a field block takes too long", exchange.ErrBadResponse))
		c.wire.kill()
		return -1
	}
	if c.set.MaxAge > 0 && now.Sub(c.born) > c.set.MaxAge {
		c.retired = true
	}
	for _, s := range c.streams {
		if t := s.tunnel; t != nil && t.lingers && now.After(t.until) {
			t.lingers = false
			go func() { _ = t.conn.Close() }() // which may have to wait until it may reset
		}
	}
	c.settle()
	return -1
}

// OnDeparted is never called: the reader always reads.
func (c *ClientConn) OnDeparted() {}

// Slot is the clock's.
func (c *ClientConn) Slot() *conn.ClockSlot { return &c.slot }
