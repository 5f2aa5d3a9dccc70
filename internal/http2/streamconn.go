package http2

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// tunnelWindow is how many bytes a peer may have on their way to one tunnel, and how many nobody has read. The window of
// the connection is opened again as soon as they arrive, so that what is not read holds up nothing but itself.
const tunnelWindow = 64 << 10

// tunnelEnd is a stream of either side as its StreamConn uses it. At most one goroutine is inside each of the methods;
// those that wait do so until the deadline has passed, whose wake channel is signalled then.
type tunnelEnd interface {
	// readTunnel copies bytes that have arrived into b, which is not empty, waiting for some. It returns io.EOF after the
	// peer's END_STREAM, syscall.ECONNRESET for a stream or connection that is gone, os.ErrDeadlineExceeded.
	readTunnel(b []byte) (int, error)
	// writeTunnel sends all of b. It returns how much was sent, and syscall.ECONNRESET or os.ErrDeadlineExceeded.
	writeTunnel(b []byte) (int, error)
	// endTunnel sends END_STREAM, once.
	endTunnel() error
	// closeTunnel ends what has not ended yet: with RST_STREAM of the code, unless END_STREAM was sent and received, and of
	// NO_ERROR or CANCEL when only the peer's is missing. Nothing waits in it; reads and writes that wait fail.
	closeTunnel(code http2.ErrCode)
	// lingerTunnel has the conn closed when the peer ends or resets the stream, at the latest at a time, and calls done then;
	// false: that has come already, or the conn was closed, or nobody looks for it, since the peer is a client.
	lingerTunnel(until time.Time, done func()) bool
	// tunnelState tells whether the peer has ended or reset the stream, and whether bytes have arrived that are not read.
	tunnelState() (gone, unread bool)
}

// StreamConn is an HTTP/2 stream as a connection: a tunnel after a 2xx to CONNECT. Deadlines are real and can be lifted
// again; CloseWrite is END_STREAM; Close without it, and Abort, reset the stream, so that the peer cannot take what it has
// for the whole. One goroutine may read while another writes and a third closes. It is of use until the handler of its
// exchange has returned, or its connection ends; then reads and writes fail.
type StreamConn struct {
	end  tunnelEnd
	info *conn.Info

	reading sync.Mutex // held by who reads
	writing sync.Mutex // held by who writes; guards ended
	ended   bool

	read, write streamDeadline
	closed      atomic.Bool
}

// newStreamConn makes the conn of a stream. The channels wake who waits inside readTunnel and writeTunnel.
func newStreamConn(end tunnelEnd, info *conn.Info, readWake, sendWake chan struct{}) *StreamConn {
	c := &StreamConn{end: end, info: info}
	c.read.wake, c.write.wake = readWake, sendWake
	return c
}

// Info describes the connection that carries the stream.
func (c *StreamConn) Info() *conn.Info { return c.info }

// Read returns what has arrived, waiting for something.
func (c *StreamConn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	switch {
	case c.closed.Load():
		return 0, c.fail("read", net.ErrClosed)
	case c.read.passed.Load():
		return 0, c.fail("read", os.ErrDeadlineExceeded)
	case len(b) == 0:
		return 0, nil
	}
	n, err := c.end.readTunnel(b)
	return n, c.fail("read", err)
}

// Write sends b, waiting while the peer has no room for it.
func (c *StreamConn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	switch {
	case c.closed.Load():
		return 0, c.fail("write", net.ErrClosed)
	case c.ended:
		return 0, c.fail("write", syscall.EPIPE)
	case c.write.passed.Load():
		return 0, c.fail("write", os.ErrDeadlineExceeded)
	case len(b) == 0:
		return 0, nil
	}
	n, err := c.end.writeTunnel(b)
	return n, c.fail("write", err)
}

// fail puts an error into the shape of the net package.
func (c *StreamConn) fail(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if c.closed.Load() {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "http2", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// CloseWrite ends the sending side, behind a write that is under way.
func (c *StreamConn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	switch {
	case c.closed.Load():
		return c.fail("close", net.ErrClosed)
	case c.ended:
		return nil
	}
	c.ended = true
	return c.fail("close", c.end.endTunnel())
}

// Close ends both directions.
func (c *StreamConn) Close() error { return c.shut(http2.ErrCodeCancel) }

// CloseBoth is Close as that of a socket: what was sent is properly ended first, unless a write is under way.
func (c *StreamConn) CloseBoth() error {
	if c.writing.TryLock() {
		if !c.ended && !c.closed.Load() {
			c.ended = true
			_ = c.end.endTunnel()
		}
		c.writing.Unlock()
	}
	return c.Close()
}

// Linger ends the sending side, and has the conn closed once the peer, a server, has ended its own, at the latest after d; what
// still comes until then is dropped. Nobody waits for that, and nobody may use the conn any more but to close it sooner. done is called behind
// the end, once, by whoever brings it. On an error nothing of that is done.
func (c *StreamConn) Linger(d time.Duration, done func()) error {
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if !c.end.lingerTunnel(time.Now().Add(d), done) {
		_ = c.Close()
		done()
	}
	return nil
}

// Abort ends both directions as a connection does that has failed (RFC 9113 §8.5).
func (c *StreamConn) Abort() error { return c.shut(http2.ErrCodeConnect) }

func (c *StreamConn) shut(code http2.ErrCode) error {
	if !c.closed.Swap(true) {
		c.read.set(time.Time{})
		c.write.set(time.Time{})
		c.end.closeTunnel(code)
	}
	return nil
}

// PeerGone reports whether the peer has ended its sending side or reset the stream, also behind unread bytes.
func (c *StreamConn) PeerGone() bool {
	gone, _ := c.end.tunnelState()
	return gone
}

// Quiet reports whether nothing has arrived and the peer is still there.
func (c *StreamConn) Quiet() bool {
	gone, unread := c.end.tunnelState()
	return !gone && !unread
}

// Interrupt makes pending and later reads and writes fail with os.ErrDeadlineExceeded. It takes no lock of the
// connection, under which alarms ring.
func (c *StreamConn) Interrupt() { _ = c.SetDeadline(longAgo) }

// LocalAddr is the own address of the connection below.
func (c *StreamConn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.info.Local) }

// RemoteAddr is the address of the connection's client.
func (c *StreamConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.info.Remote) }

// SetDeadline sets both deadlines.
func (c *StreamConn) SetDeadline(t time.Time) error {
	c.read.set(t)
	c.write.set(t)
	return c.settable()
}

// SetReadDeadline sets the deadline of reads.
func (c *StreamConn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return c.settable()
}

// SetWriteDeadline sets the deadline of writes.
func (c *StreamConn) SetWriteDeadline(t time.Time) error {
	c.write.set(t)
	return c.settable()
}

func (c *StreamConn) settable() error {
	if c.closed.Load() {
		return c.fail("set deadline", net.ErrClosed)
	}
	return nil
}

// streamDeadline is a deadline that can be moved and lifted, also after it has passed.
type streamDeadline struct {
	passed atomic.Bool
	wake   chan struct{} // signalled when it passes

	mu    sync.Mutex // guards timer
	timer *time.Timer
}

func (d *streamDeadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	left := time.Until(t)
	if d.passed.Store(!t.IsZero() && left <= 0); d.passed.Load() {
		signal(d.wake)
		return
	}
	if t.IsZero() {
		return
	}
	var own *time.Timer
	own = time.AfterFunc(left, func() { d.expire(&own) })
	d.timer = own
}

// expire is called by a timer; one that was stopped too late does nothing. The lock makes sure that own is set.
func (d *streamDeadline) expire(own **time.Timer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == *own {
		d.timer = nil
		d.passed.Store(true)
		signal(d.wake)
	}
}

var _ interface {
	conn.Conn
	conn.CloseWriter
	conn.Prober
	conn.Interrupter
} = (*StreamConn)(nil)
