package http2

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// ClientStream is one dispatch on a connection to a server. Its exchange's goroutine owns it from Open to Release, except
// that another may send the body meanwhile; the reader hands over what comes.
type ClientStream struct {
	flow
	c      *ClientConn
	reused bool // the connection has served a stream before
	secure bool
	kept   bool // somebody holds the stream as a connection
	opened time.Time
	sent   atomic.Bool
	out    []byte     // field block to be sent
	block  []byte     // the response head as HTTP/1.1 spells it
	rests  chan error // a body that did not fit the windows

	// guarded by the connection's lock
	bodiless     bool // the request is HEAD
	connect      bool // or CONNECT
	headed       bool // the final head is here
	through      bool // and opens a tunnel
	answered     bool // so is any head
	status       int
	length       int64
	fields       exchange.Fields
	trailers     exchange.Fields
	interims     []interim
	interimCount int
	interimBytes int
	gone         error // why the stream is closed
}

var clientStreams = sync.Pool{New: func() any { return &ClientStream{flow: newFlow()} }}

func newClientStream(c *ClientConn, reused bool) *ClientStream {
	s := clientStreams.Get().(*ClientStream)
	s.bind(&c.link, 0, 0)
	s.c, s.reused, s.secure = c, reused, c.info.TLS != nil
	return s
}

// Reused reports whether the connection has served a stream before.
func (s *ClientStream) Reused() bool { return s.reused }

// HTTP2 is true.
func (s *ClientStream) HTTP2() bool { return true }

// Progress of the dispatch.
func (s *ClientStream) Progress() exchange.Progress {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	switch {
	case s.answered:
		return exchange.Answered
	case s.sent.Load():
		return exchange.Sent
	}
	return exchange.NothingSent
}

// Interrupt makes what the stream waits for fail. It takes no lock.
func (s *ClientStream) Interrupt() {
	s.cut.Store(true)
	signal(s.readWake)
	signal(s.sendWake)
}

var errInterrupted = errors.New("stream was interrupted")

// fail ends the stream for who waits on it. The lock is held.
func (s *ClientStream) fail(err error) {
	if s.gone == nil {
		s.gone = err
	}
	if s.body.err == nil {
		s.body.err = s.gone
	}
	s.closed = true
	signal(s.readWake)
	signal(s.sendWake)
}

// refused ends the stream that the server has reset. A response that is whole stands: only the rest of the request is not
// wanted (RFC 9113 §8.1). The lock is held.
func (s *ClientStream) refused(code http2.ErrCode) {
	err := fmt.Errorf("server reset the stream: %v", code)
	if code == http2.ErrCodeRefusedStream && !s.answered {
		err = fmt.Errorf("%w: %v", exchange.ErrUnprocessed, code)
	}
	s.fail(err)
}

// lost is why nothing can be done with the stream any more. The lock is held.
func (s *ClientStream) lost() error {
	switch {
	case s.cut.Load():
		return errInterrupted
	case s.gone != nil:
		return s.gone
	case s.c.err != nil:
		return s.c.err
	}
	return ErrConnClosed
}

// unanswered is why no response comes. A server that leaves a connection which it has served before may never have seen the
// request: connections time out. The lock is held.
func (s *ClientStream) unanswered() error {
	err := s.lost()
	if s.reused && !s.answered && errors.Is(err, errLost) {
		return fmt.Errorf("%w: %w", exchange.ErrStale, err)
	}
	return err
}

// RoundTrip sends a request head, spelled as HTTP/1.1 does, with the whole body if that is at hand, and waits for the final
// response head; its fields go to f, whose views stay valid until Release. A body that is not at hand follows by Write and
// EndBody. What the method is and whether an upgrade is asked for is of interest to HTTP/1.1 alone.
func (s *ClientStream) RoundTrip(head, body, _ []byte, _ bool, f *exchange.Fields, sink exchange.BodySink) (exchange.Head, error) {
	if err := s.send(head, body); err != nil {
		return exchange.Head{}, err
	}
	sink.Sent()
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for !s.headed {
		switch {
		case len(s.interims) > 0:
			if err := s.passInterim(sink); err != nil {
				return exchange.Head{}, err
			}
			continue
		case s.closed || s.cut.Load():
			return exchange.Head{}, s.unanswered()
		}
		c.mu.Unlock()
		<-s.readWake
		c.mu.Lock()
	}
	for len(s.interims) > 0 {
		if err := s.passInterim(sink); err != nil {
			return exchange.Head{}, err
		}
	}
	*f, s.fields = s.fields, *f
	return exchange.Head{Status: s.status, Length: s.length}, nil
}

// passInterim passes the oldest 1xx head on. The lock is held, but not meanwhile.
func (s *ClientStream) passInterim(sink exchange.BodySink) error {
	i := s.interims[0]
	s.interims = s.interims[1:]
	s.c.mu.Unlock()
	defer s.c.mu.Lock()
	return sink.Interim(i.status, &i.fields)
}

// send opens the stream with its head and what of the body is at hand.
func (s *ClientStream) send(head, body []byte) error {
	var q requestFrame
	s.out, q = appendRequest(s.out[:0], head, s.secure)
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	end := !q.connect && q.length == 0
	if err := s.begin(q, end); err != nil {
		return err
	}
	switch {
	case len(body) == 0:
	case s.fits(len(body)):
		s.putData(body, true)
		s.ended = true
	default:
		s.rests = make(chan error, 1)
		go func() { s.rests <- s.write(body, true) }()
	}
	c.flush()
	return nil
}

// begin sends the head. The lock is held, but not during waits.
func (s *ClientStream) begin(q requestFrame, end bool) error {
	c := s.c
	if _, ok := s.take(0); !ok {
		if s.cut.Load() {
			return errInterrupted
		}
		return fmt.Errorf("%w: %w", exchange.ErrUnprocessed, s.lost())
	}
	if c.leaving || c.nextID > maxStreamID {
		c.pass() // the turn, which is not used
		return fmt.Errorf("%w: the connection ends", exchange.ErrUnprocessed)
	}
	s.id, s.opened = c.nextID, time.Now()
	c.nextID += 2
	s.bodiless, s.connect, s.length = q.head, q.connect, -1
	s.window = c.firstWindow
	s.body.window, s.body.receive, s.body.declared = c.set.StreamWindow, c.set.StreamWindow, -1
	s.body.onReceipt = true
	s.ended = end
	c.streams[s.id] = s
	c.alone = false
	c.updates.earn(perStream)
	s.sent.Store(true)
	c.block(s.id, s.out, end)
	c.pass()
	return nil
}

// fits reports whether n bytes can be sent without a wait. The lock is held.
func (s *ClientStream) fits(n int) bool {
	l := s.l
	return int64(n) <= min(s.window, l.sendWindow) && len(l.queue)+l.turns == 0 && l.waiting()+n < maxOut
}

// write sends body bytes, and the end of the stream with the last.
func (s *ClientStream) write(p []byte, end bool) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := s.putData(p, end)
	if ok && end {
		s.ended = true
	}
	c.flush()
	if !ok {
		return s.lost()
	}
	return nil
}

// Write sends body bytes, waiting while the server has no room for them; one other goroutine may do so while the response
// is read.
func (s *ClientStream) Write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	return s.write(p, false)
}

// BeginBody has nothing to do: DATA frames need no length.
func (s *ClientStream) BeginBody(int64) {}

// EndBody ends the body, with trailers if there are any; see Write.
func (s *ClientStream) EndBody(trailers *exchange.Fields) error {
	if trailers == nil || trailers.Len() == 0 {
		return s.write(nil, true)
	}
	block := appendFields(nil, trailers)
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := s.putBlock(block, true)
	if ok {
		s.ended = true
	}
	c.flush()
	if !ok {
		return s.lost()
	}
	return nil
}

// Done reports whether the response is complete without a body.
func (s *ClientStream) Done() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return len(s.body.pieces) == 0 && s.body.err == io.EOF && !s.body.trailers
}

// Buffered reports whether body bytes are here.
func (s *ClientStream) Buffered() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return len(s.body.pieces) > 0
}

// Chunked is false: there are no chunks to pass on.
func (s *ClientStream) Chunked() bool { return false }

// CopyBody gives the response body to sink until its end. Trailers go to t before the last call.
func (s *ClientStream) CopyBody(sink exchange.BodySink, _ bool, t *exchange.Fields) error {
	for {
		p, last, err := s.next()
		if err != nil {
			return err
		}
		if last {
			*t, s.trailers = s.trailers, *t
			t.StripHopByHop()
		}
		if err := sink.Body(p, last); err != nil || last {
			return err
		}
		s.giveBack()
	}
}

// next returns the next body bytes, and whether they are the last.
func (s *ClientStream) next() (p []byte, last bool, err error) {
	c, b := s.c, &s.body
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case s.cut.Load():
			return nil, false, errInterrupted
		case b.next():
			return b.cur.b, len(b.pieces) == 0 && b.err == io.EOF && !b.trailers, nil // trailers follow by themselves
		case b.err == io.EOF:
			return nil, true, nil
		case b.err != nil:
			return nil, false, b.err
		case s.closed || c.phase == closing:
			return nil, false, s.lost()
		}
		c.mu.Unlock()
		<-s.readWake
		c.mu.Lock()
	}
}

// Takeover gives the stream up as a connection, after a 2xx to CONNECT, plain or extended. Its Close is the end of the
// stream, and so is Release.
func (s *ClientStream) Takeover() conn.Conn {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.kept = true
	return s.dig(tunnel{
		reset: func(code http2.ErrCode) { c.reset(s, code) },
		end:   func() { s.ended = true },
		left:  func() { s.leave(http2.ErrCodeCancel) },
		parts: true,
	})
}

// Release gives the stream back to its connection. What has not ended of it is reset. A server that would take offence at
// yet another reset is spared it for a moment, at the expense of the exchange whose client wants it. The connection is used
// on.
func (s *ClientStream) Release(bool) {
	if s.kept {
		_ = s.tunnel.conn.Close()
		return
	}
	if s.rests != nil {
		s.Interrupt()
		<-s.rests
		s.rests = nil
	}
	s.leave(http2.ErrCodeCancel)
	s.recycle()
}

// leave ends the stream on its connection. A reset that is due is sent with the code.
func (s *ClientStream) leave(code http2.ErrCode) {
	c := s.c
	c.mu.Lock()
	if s.pace(); s.open() {
		c.doubt(s)
		c.reset(s, code)
	}
	s.closed = true
	s.giveUp()
	s.dropBody(true)
	delete(c.streams, s.id)
	c.alone = false
	if c.active--; c.active == 0 {
		c.idleSince = time.Now()
	}
	c.settle()
	c.mu.Unlock()
}

// pace waits until the stream may be reset, if it has to be. The lock is held, but not during the wait.
func (s *ClientStream) pace() {
	c := s.c
	c.resets.gain() // a connection that has been calm for long has no more at once than any other
	for waited := time.Duration(0); s.open() && !c.resets.Spend(1) && waited < resetPatience; waited += time.Second / resetRate {
		c.mu.Unlock()
		time.Sleep(time.Second / resetRate)
		c.mu.Lock()
	}
}

// open reports whether the stream would have to be reset to end. The lock is held.
func (s *ClientStream) open() bool {
	return s.id != 0 && !s.closed && s.c.phase != closing && !(s.ended && s.remoteEnded)
}

// silence is how long a stream must have waited on a connection that brought nothing for its reset to raise doubts; trust is
// for how long an answer dispels them: some servers take PINGs that come more often for an attack.
const (
	silence = time.Second
	trust   = time.Minute
)

// doubt asks a server for a sign of life that has left a stream without an answer and others, too; until then it gets no
// new streams. The lock is held.
func (c *ClientConn) doubt(s *ClientStream) {
	now := time.Now()
	if !s.answered && !c.heardAny && now.Sub(s.opened) > silence && now.Sub(c.heard) > silence && now.Sub(c.vouched) > trust {
		c.ask(now)
	}
}

// recycle makes the stream ready for another dispatch.
func (s *ClientStream) recycle() {
	s.unbind()
	if cap(s.block) > maxPooledBlock {
		s.block = nil
	}
	if cap(s.out) > maxPooledBlock {
		s.out = nil
	}
	s.fields.Reset(nil)
	s.trailers.Reset(nil)
	s.sent.Store(false)
	s.c, s.kept, s.interims, s.interimCount, s.interimBytes, s.gone = nil, false, nil, 0, 0, nil
	s.bodiless, s.connect, s.headed, s.through, s.answered, s.status, s.length = false, false, false, false, false, 0, 0
	clientStreams.Put(s)
}
