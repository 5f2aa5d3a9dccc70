package http2

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// wire is a connection as the frame loop uses it: read by one goroutine, written by another, closed by a third. A
// kernel connection must not be closed while it is written, since its descriptor's number may belong to somebody else
// the next moment, and TLS may write during a read; wire makes what is pending fail and closes once nothing is.
type wire struct {
	net.Conn

	reading sync.Mutex // held during a read; guards prefix
	prefix  []byte     // read first

	deadlines sync.Mutex // guards setting deadlines against kill
	dead      atomic.Bool
	abort     atomic.Bool // close with a reset

	writing sync.Mutex // held during a write; guards closed
	closed  bool
}

func newWire(c conn.Conn, prefix []byte) *wire { return &wire{Conn: c, prefix: prefix} }

// secure is a wire under TLS; the frame loop refuses ciphers that HTTP/2 prohibits.
type secure struct {
	*wire
	state *tls.ConnectionState
}

// ConnectionState describes the session.
func (s secure) ConnectionState() tls.ConnectionState { return *s.state }

// Read returns the prefix, then what the connection has.
func (w *wire) Read(b []byte) (int, error) {
	w.reading.Lock()
	defer w.reading.Unlock()
	if w.dead.Load() {
		return 0, net.ErrClosed
	}
	if len(w.prefix) > 0 {
		n := copy(b, w.prefix)
		w.prefix = w.prefix[n:]
		return n, nil
	}
	return w.Conn.Read(b)
}

// Write writes all of b.
func (w *wire) Write(b []byte) (int, error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	if w.dead.Load() {
		return 0, net.ErrClosed
	}
	return w.Conn.Write(b)
}

var longAgo = time.Unix(1, 0)

// kill makes pending and later reads and writes fail, for good. It does not block.
func (w *wire) kill() {
	w.deadlines.Lock()
	defer w.deadlines.Unlock()
	w.dead.Store(true)
	_ = w.Conn.SetDeadline(longAgo)
}

// Close closes the connection once nothing is under way on it.
func (w *wire) Close() error {
	w.kill()
	w.reading.Lock()
	defer w.reading.Unlock()
	w.writing.Lock()
	defer w.writing.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if a, ok := w.Conn.(interface{ Abort() error }); ok && w.abort.Load() {
		return a.Abort()
	}
	return w.Conn.Close()
}

// SetDeadline sets both deadlines, unless the wire is dead.
func (w *wire) SetDeadline(t time.Time) error { return w.deadline(w.Conn.SetDeadline, t) }

// SetReadDeadline sets the deadline of reads, unless the wire is dead.
func (w *wire) SetReadDeadline(t time.Time) error { return w.deadline(w.Conn.SetReadDeadline, t) }

// SetWriteDeadline sets the deadline of writes, unless the wire is dead.
func (w *wire) SetWriteDeadline(t time.Time) error { return w.deadline(w.Conn.SetWriteDeadline, t) }

func (w *wire) deadline(set func(time.Time) error, t time.Time) error {
	w.deadlines.Lock()
	defer w.deadlines.Unlock()
	if w.dead.Load() {
		return os.ErrDeadlineExceeded
	}
	return set(t)
}

// RemoteAddr is the peer's address; the frame loop prints it and cannot do without.
func (w *wire) RemoteAddr() net.Addr {
	if a := w.Conn.RemoteAddr(); a != nil {
		return a
	}
	return &net.TCPAddr{}
}
