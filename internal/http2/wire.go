package http2

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// wire is a connection as its goroutines use it: read by one, written by another, made to fail by any. A
// kernel connection must not be closed while it is written, since its descriptor's number may belong to somebody else
// the next moment, and TLS may write during a read; wire makes what is pending fail and closes once nothing is.
type wire struct {
	net.Conn

	reading sync.Mutex // held during a read; guards prefix
	prefix  []byte     // read first

	dead  atomic.Bool
	abort atomic.Bool // close with a reset

	writing sync.Mutex // held during a write; guards closed
	closed  bool
}

func newWire(c conn.Conn, prefix []byte) *wire { return &wire{Conn: c, prefix: prefix} }

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

// peerGone reports whether the peer has left, if the connection can tell, also behind bytes not read yet.
func (w *wire) peerGone() bool {
	p, ok := w.Conn.(conn.Prober)
	return ok && p.PeerGone()
}

// closeWrite tells the client that nothing follows. It waits for no acknowledgement.
func (w *wire) closeWrite() {
	w.writing.Lock()
	defer w.writing.Unlock()
	if c, ok := w.Conn.(conn.CloseWriter); ok && !w.dead.Load() && c.CloseWrite() == nil {
		return
	}
	w.kill()
}

// Interrupt is the alarm of a write that makes no progress.
func (w *wire) Interrupt() { w.kill() }
