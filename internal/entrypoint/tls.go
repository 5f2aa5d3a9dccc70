package entrypoint

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

// wire is the connection below TLS. It knows whether the client has sent anything.
type wire struct {
	conn.Conn
	heard   atomic.Bool
	closing atomic.Bool
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && !w.heard.Load() {
		w.heard.Store(true)
	}
	return n, err
}

// closeWait is how long close_notify may take to be sent. crypto/tls would give it five seconds, which a client that
// reads nothing makes a drain wait for.
const closeWait = 200 * time.Millisecond

// SetWriteDeadline shortens the deadline that crypto/tls sets when it closes.
func (w *wire) SetWriteDeadline(t time.Time) error {
	if w.closing.Load() {
		if most := time.Now().Add(closeWait); t.After(most) {
			t = most
		}
	}
	return w.Conn.SetWriteDeadline(t)
}

// handshake is a connection's place in the drain until its server takes over: while TLS begins, or a PROXY protocol header
// is awaited.
type handshake struct {
	ticket drain.Ticket
	wire   *wire
}

// Drain ends a connection that has sent nothing. The others get through: the server then hears of the drain.
func (h *handshake) Drain(mode drain.Mode) {
	if mode != drain.Prompt || h.wire.heard.Load() {
		return
	}
	if q, ok := h.wire.Conn.(interface{ Quiet() bool }); ok && !q.Quiet() {
		return
	}
	_ = h.wire.Close()
}

// Force ends the connection.
func (h *handshake) Force() { _ = h.wire.Close() }

// secured is a connection inside TLS. Waiting is interrupted, and departure seen, on the connection below.
type secured struct {
	*tls.Conn
	wire *wire
	info conn.Info
}

// Info describes the connection, TLS state included.
func (s *secured) Info() *conn.Info { return &s.info }

// Close sends close_notify, if the client takes it soon, and closes the connection.
func (s *secured) Close() error {
	s.wire.closing.Store(true)
	return s.Conn.Close()
}

// CloseWrite sends close_notify, then FIN for peers that wait for it.
func (s *secured) CloseWrite() error {
	if err := s.Conn.CloseWrite(); err != nil {
		return err
	}
	if w, ok := s.wire.Conn.(conn.CloseWriter); ok {
		return w.CloseWrite()
	}
	return nil
}

// Interrupt makes pending and later reads and writes fail with os.ErrDeadlineExceeded. Reading can go on after the
// deadline has been reset; writing cannot, since a record may have been sent in part.
func (s *secured) Interrupt() {
	if i, ok := s.wire.Conn.(conn.Interrupter); ok {
		i.Interrupt()
		return
	}
	_ = s.wire.SetDeadline(time.Unix(1, 0))
}

// PeerGone reports whether the client has closed or reset the connection below.
func (s *secured) PeerGone() bool {
	p, ok := s.wire.Conn.(conn.Prober)
	return ok && p.PeerGone()
}

// FD is the descriptor of the connection below, for probes; -1 it has none.
func (s *secured) FD() int {
	if d, ok := s.wire.Conn.(interface{ FD() int }); ok {
		return d.FD()
	}
	return -1
}

// Abort closes with a reset and without close_notify, so that the client cannot take what it has for the whole.
func (s *secured) Abort() error {
	if a, ok := s.wire.Conn.(interface{ Abort() error }); ok {
		return a.Abort()
	}
	return s.wire.Close()
}

// acmeALPN is what a certification authority negotiates to look at a certificate: nothing follows (RFC 8737 section 3).
const acmeALPN = "acme-tls/1"

var (
	errNoCertificate = errors.New("no certificate")
	errChallenge     = errors.New("a certification authority has looked at the certificate")
)

// secure does the handshake. After an error the connection is to be closed.
func (b *binding) secure(c conn.Conn, o *Options) (*secured, error) {
	cfg := o.TLS()
	if cfg == nil {
		b.handshakeFailed(c, errNoCertificate)
		return nil, errNoCertificate
	}
	h := &handshake{wire: &wire{Conn: c}}
	b.live.Enter(&h.ticket, h)
	defer h.ticket.Leave()
	_ = c.SetDeadline(time.Now().Add(o.handshakeTimeout()))
	t := tls.Server(h.wire, cfg)
	if err := t.Handshake(); err != nil {
		b.handshakeFailed(c, err)
		return nil, err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, err // closed meanwhile
	}
	state := t.ConnectionState()
	s := &secured{Conn: t, wire: h.wire, info: *c.Info()}
	s.info.TLS = &state
	if id := conn.PeerIdentity(&state); id != "" || s.info.Outer == nil {
		s.info.Identity = id
	}
	if state.NegotiatedProtocol == acmeALPN {
		_ = s.Close()
		return nil, errChallenge
	}
	return s, nil
}

// classify reads the ClientHello, and tells whether the connection is passed on as it is. What was read can be read again.
// Without a ClientHello it is not: the handshake then says what is wrong. An error is a client that is silent or gone.
func (b *binding) classify(c conn.Conn, o *Options) (again conn.Conn, pass bool, err error) {
	h := &handshake{wire: &wire{Conn: c}}
	b.live.Enter(&h.ticket, h)
	defer h.ticket.Leave()
	hello, again, err := conn.PeekHello(c, conn.MaxHello, o.handshakeTimeout())
	switch {
	case err == nil:
		return again, o.Passes(c.Info().Remote.Addr(), hello.ServerName), nil
	case errors.Is(err, conn.ErrNotTLS), errors.Is(err, conn.ErrBadHello), errors.Is(err, conn.ErrHelloTooLarge):
		return again, false, nil
	}
	b.handshakeFailed(c, err)
	return again, false, err
}

func (b *binding) handshakeFailed(c conn.Conn, err error) {
	b.counts.handshakes.Add(1)
	if b.log.Enabled(context.Background(), slog.LevelDebug) {
		b.log.Debug("tls handshake", "entrypoint", b.name, "peer", c.Info().Remote, "error", err)
	}
}

// looksLikeHTTP reports whether what came instead of a TLS record begins like a request line.
func looksLikeHTTP(head [5]byte) bool {
	for _, c := range head[:3] {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

const clearTextAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 53\r\nConnection: close\r\n\r\n" +
	"an HTTP request was sent to a port that expects TLS.\n"

// Bounds of the wait for a client that still sends what nobody reads: closing at once would reset the connection, and
// the answer would be lost.
const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// answerClearText tells a client that began with HTTP what is expected.
func answerClearText(c conn.Conn, err error) {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || record.Conn == nil || !looksLikeHTTP(record.RecordHeader) {
		return
	}
	if c.SetDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	if _, err := io.WriteString(c, clearTextAnswer); err != nil {
		return
	}
	if w, ok := c.(conn.CloseWriter); ok && w.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, lingerBytes)
	}
}

var _ net.Conn = (*secured)(nil)
