package conn

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memoryWindow is how many bytes one direction holds before a writer waits.
const memoryWindow = 64 << 10

// flow is one direction of an in-memory connection.
type flow struct {
	mu   sync.Mutex // guards the fields below
	cond *sync.Cond

	buf    []byte
	ended  bool // the writer has sent FIN
	reset  bool
	rgone  bool // the reader has closed
	wgone  bool // the writer has closed
	rlimit limit
	wlimit limit
}

// limit is a deadline that wakes those who wait for it.
type limit struct {
	at    time.Time
	timer *time.Timer
}

func newFlow() *flow {
	f := new(flow)
	f.cond = sync.NewCond(&f.mu)
	return f
}

func (l *limit) passed() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

// set moves the deadline. The caller holds the flow's lock.
func (l *limit) set(f *flow, t time.Time) {
	l.stop()
	l.at = t
	if !t.IsZero() {
		if d := time.Until(t); d > 0 {
			l.timer = time.AfterFunc(d, f.wake)
		}
	}
	f.cond.Broadcast()
}

func (f *flow) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cond.Broadcast()
}

func (f *flow) read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.rgone:
			return 0, net.ErrClosed
		case f.reset:
			return 0, syscall.ECONNRESET
		case f.rlimit.passed():
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(f.buf) > 0:
			n := copy(b, f.buf)
			f.buf = f.buf[n:]
			if len(f.buf) == 0 {
				f.buf = nil // an idle connection holds no buffer
			}
			f.cond.Broadcast()
			return n, nil
		case f.ended:
			return 0, io.EOF
		}
		f.cond.Wait()
	}
}

func (f *flow) write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	done := 0
	for {
		switch {
		case f.wgone:
			return done, net.ErrClosed
		case f.reset:
			return done, syscall.ECONNRESET
		case f.ended, f.rgone:
			return done, syscall.EPIPE
		case f.wlimit.passed():
			return done, os.ErrDeadlineExceeded
		case len(b) == done:
			return done, nil
		}
		if room := memoryWindow - len(f.buf); room > 0 {
			n := min(room, len(b)-done)
			f.buf = append(f.buf, b[done:done+n]...)
			done += n
			f.cond.Broadcast()
			continue
		}
		f.cond.Wait()
	}
}

// change applies a change of state and wakes who waits.
func (f *flow) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	f.cond.Broadcast()
}

// MemoryConn is one end of an in-memory connection. It behaves like a TCP socket: writes fill a window and then wait,
// closing with unread bytes resets, so does Abort.
type MemoryConn struct {
	in, out       *flow
	local, remote memoryAddr
	info          Info
}

func memoryPair(a, b memoryAddr) (*MemoryConn, *MemoryConn) {
	ab, ba := newFlow(), newFlow()
	return newMemoryConn(ba, ab, a, b), newMemoryConn(ab, ba, b, a)
}

func newMemoryConn(in, out *flow, local, remote memoryAddr) *MemoryConn {
	return &MemoryConn{in: in, out: out, local: local, remote: remote, info: Info{Local: addrPort(local), Remote: addrPort(remote)}}
}

// Info describes the connection.
func (c *MemoryConn) Info() *Info { return &c.info }

// Read returns what has arrived, waiting for something.
func (c *MemoryConn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	return n, c.wrap("read", err)
}

// Write fills the peer's window, waiting while it is full.
func (c *MemoryConn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	return n, c.wrap("write", err)
}

func (c *MemoryConn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, c.remote, err)
}

// Close ends both directions. The peer reads what was sent and then the end; but if bytes it sent are unread here, it
// is reset.
func (c *MemoryConn) Close() error {
	unread := false
	c.in.change(func() {
		unread = len(c.in.buf) > 0 && !c.in.rgone
		c.in.rgone, c.in.buf = true, nil
		c.in.rlimit.stop()
	})
	c.out.change(func() {
		c.out.wgone, c.out.ended = true, true
		if unread {
			c.out.reset, c.out.buf = true, nil
		}
		c.out.wlimit.stop()
	})
	return nil
}

// Abort ends both directions with a reset; what the peer has not read is lost.
func (c *MemoryConn) Abort() error {
	c.in.change(func() {
		c.in.rgone, c.in.reset, c.in.buf = true, true, nil
		c.in.rlimit.stop()
	})
	c.out.change(func() {
		c.out.wgone, c.out.ended, c.out.reset, c.out.buf = true, true, true, nil
		c.out.wlimit.stop()
	})
	return nil
}

func (l *limit) stop() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// CloseWrite ends the sending side.
func (c *MemoryConn) CloseWrite() error {
	c.out.change(func() { c.out.ended = true })
	return nil
}

// PeerGone reports whether the peer has ended its sending side or reset the connection, also behind unread bytes.
func (c *MemoryConn) PeerGone() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.in.ended || c.in.reset
}

// Quiet reports whether nothing has arrived and the peer is still there.
func (c *MemoryConn) Quiet() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return !c.in.ended && !c.in.reset && len(c.in.buf) == 0
}

// Interrupt makes pending and later reads and writes fail with os.ErrDeadlineExceeded.
func (c *MemoryConn) Interrupt() { _ = c.SetDeadline(longAgo) }

// LocalAddr is the own address.
func (c *MemoryConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address.
func (c *MemoryConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *MemoryConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline sets the deadline of reads.
func (c *MemoryConn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.in.rgone {
		return opError("set deadline", c.remote, net.ErrClosed)
	}
	c.in.rlimit.set(c.in, t)
	return nil
}

// SetWriteDeadline sets the deadline of writes.
func (c *MemoryConn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.wgone {
		return opError("set deadline", c.remote, net.ErrClosed)
	}
	c.out.wlimit.set(c.out, t)
	return nil
}

var _ interface {
	Conn
	CloseWriter
	Prober
	Interrupter
} = (*MemoryConn)(nil)
