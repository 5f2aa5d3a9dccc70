package http2

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// extended reports whether :protocol asks for the extended CONNECT (RFC 8441 §4), which has a path and a scheme.
func (h *requestHead) extended() bool { return h.seen&hasProtocol != 0 }

// checkConnect wants of CONNECT an authority and nothing else (RFC 9113 §8.5), of extended CONNECT everything.
func (h *requestHead) checkConnect() {
	switch {
	case !h.extended():
		if h.seen != hasMethod|hasAuthority || h.authority == "" {
			h.bad = "CONNECT with a scheme or a path, or without an authority"
		}
		h.path = h.authority
	case h.method != "CONNECT":
		h.bad = ":protocol without CONNECT"
	case h.seen != hasMethod|hasAuthority|hasScheme|hasPath|hasProtocol || h.authority == "":
		h.bad = "extended CONNECT without a scheme, a path or an authority"
	}
}

// plainConnect reports whether the request is a CONNECT without :protocol.
func (st *stream) plainConnect() bool {
	q := &st.x.Request
	return st.refused == nil && string(q.Method) == "CONNECT" && q.Upgrade == nil
}

// precheckConnect refuses CONNECT where it leads nowhere: plain CONNECT needs an entrypoint for it, extended CONNECT a
// protocol that a route can lead to.
func precheckConnect(r *exchange.Request, offered bool) *exchange.Error {
	switch {
	case r.Upgrade == nil && !offered:
		return exchange.Reject(501, exchange.CodeNotImplemented, "CONNECT is not supported here")
	case r.Upgrade != nil && (offered || string(r.Upgrade) != "websocket"):
		return exchange.Reject(501, exchange.CodeNotImplemented, "Protocol of extended CONNECT is not supported here")
	}
	return nil
}

// streamWindow is what a client may send on a stream that nobody reads.
func (s *Settings) streamWindow() int {
	if s.Connect {
		return tunnelWindow
	}
	return streamWindow
}

// serverTunnel is a stream that was taken over. The connection's lock guards it.
type serverTunnel struct {
	st   *stream
	conn *StreamConn
	held int // bytes that have arrived and are not read
	off  int // of the first piece, how much has been read
}

// Takeover gives the stream up as a connection, after a 2xx head to CONNECT, plain or extended. What the client has sent
// behind its request is read first. The handler must not return before both directions have ended; what it leaves open is
// reset.
func (st *stream) Takeover() (conn.Conn, error) {
	c, b := st.c, &st.body
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case st.tunnel != nil:
		return nil, errors.New("stream was taken over already")
	case !st.resp.tunnel || !st.headSent:
		return nil, errors.New("stream cannot be taken over without a 2xx to CONNECT")
	case b.begun:
		return nil, errors.New("stream cannot be taken over inside a request body")
	}
	t := &serverTunnel{st: st}
	for _, p := range b.pieces {
		t.held += len(p.b)
	}
	if !b.onReceipt {
		b.onReceipt = true
		c.grant(t.held)
	}
	t.conn = newStreamConn(t, c.info, st.readWake, st.sendWake)
	st.tunnel = t
	t.replenish()
	return t.conn, nil
}

// received counts bytes that have arrived. The lock is held.
func (t *serverTunnel) received(n int) {
	t.held += n
	t.replenish()
}

// replenish lets the client send what the window allows beside what is not read, when that is worth a frame. The lock is
// held.
func (t *serverTunnel) replenish() {
	st := t.st
	c, b := st.c, &st.body
	n := tunnelWindow - b.receive - t.held
	if n < tunnelWindow/4 || st.remoteEnded || st.closed || c.phase == closing {
		return
	}
	o := c.buffer()
	o.b = append4(o.b, http2.FrameWindowUpdate, st.id, uint32(n))
	b.receive += n
	c.flush()
}

func (t *serverTunnel) readTunnel(p []byte) (int, error) {
	st := t.st
	c, b := st.c, &st.body
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case t.conn.closed.Load():
			return 0, net.ErrClosed
		case t.conn.read.passed.Load():
			return 0, os.ErrDeadlineExceeded
		case len(b.pieces) > 0:
			n := t.take(p)
			t.held -= n
			t.replenish()
			return n, nil
		case st.remoteEnded:
			return 0, io.EOF
		case st.closed || c.phase == closing:
			return 0, syscall.ECONNRESET
		}
		c.mu.Unlock()
		<-st.readWake
		c.mu.Lock()
	}
}

// take moves bytes of the first piece to p. The lock is held.
func (t *serverTunnel) take(p []byte) int {
	b := &t.st.body
	first := b.pieces[0]
	n := copy(p, first.b[t.off:])
	if t.off += n; t.off < len(first.b) {
		return n
	}
	t.off = 0
	first.free()
	last := len(b.pieces) - 1
	copy(b.pieces, b.pieces[1:])
	b.pieces[last] = nil
	b.pieces = b.pieces[:last]
	return n
}

func (t *serverTunnel) writeTunnel(p []byte) (int, error) {
	st := t.st
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	done := 0
	for done < len(p) {
		n, ok := st.take(len(p) - done)
		if !ok {
			return done, t.writeError()
		}
		o := c.buffer()
		o.b = append(appendFrameHead(o.b, n, http2.FrameData, 0, st.id), p[done:done+n]...)
		c.updates.earn(perData)
		c.pass()
		done += n
	}
	c.flush()
	return done, nil
}

// writeError says why nothing can be sent. The lock is held.
func (t *serverTunnel) writeError() error {
	if t.st.closed || t.st.c.phase == closing {
		return syscall.ECONNRESET
	}
	return os.ErrDeadlineExceeded
}

func (t *serverTunnel) endTunnel() error {
	st := t.st
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed || c.phase == closing {
		return syscall.ECONNRESET
	}
	o := c.buffer() // an empty frame takes no window, and waits for no room
	o.b = appendFrameHead(o.b, 0, http2.FrameData, flagEnd, st.id)
	st.end()
	c.flush()
	return nil
}

func (t *serverTunnel) closeTunnel(code http2.ErrCode) {
	st := t.st
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case st.closed || c.phase == closing || st.ended && st.remoteEnded:
	case st.ended:
		c.reset(st, http2.ErrCodeNo) // RFC 9113 §8.1
	default:
		c.reset(st, code)
	}
	signal(st.readWake)
	signal(st.sendWake)
}

func (t *serverTunnel) tunnelState() (gone, unread bool) {
	st := t.st
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	return st.remoteEnded || st.closed || st.c.phase == closing, len(st.body.pieces) > 0
}
