package http3

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Bounds of a connection.
const (
	// maxStreams is how many requests a client has at once on a connection. One counts until its handler has ended.
	maxStreams = 250
	// streamWindow and connWindow are how many body bytes a client may send ahead.
	streamWindow = 256 << 10
	connWindow   = 1 << 20
	// idleTimeout is after how long a client that sends nothing and answers nothing counts as gone, and keepAlive how often
	// it is asked.
	idleTimeout = 30 * time.Second
	keepAlive   = 15 * time.Second
	// crowd is how many handshakes may be under way before a client must prove its address first (Retry, RFC 9000 §8.1.2).
	crowd = 64
)

// Door is what a Listener asks about those who come. Its methods must not block.
type Door interface {
	// Admit counts a client that begins a connection, whose address may yet be forged; nil refuses it.
	Admit(client netip.AddrPort) *Guest
	// Crowded reports whether clients are to prove their address first.
	Crowded() bool
	// HandshakeTimeout bounds the handshake; 0 is 10 s.
	HandshakeTimeout() time.Duration
}

// Guest is a client that was admitted.
type Guest struct {
	Server     *Server
	Entrypoint string
	TLS        func() *tls.Config // asked at the handshake; nil refuses
	Live       *drain.Tracker     // the client is a member from the handshake on; nil: of nothing
	Failed     func(err error)    // the handshake has; followed by Leave
	Leave      func()             // called once, when nothing of the connection runs any more
}

// Listener is QUIC on one UDP socket.
type Listener struct {
	sock *socket
	tr   *quic.Transport
	ln   *quic.Listener
	door Door

	visits  drain.Count  // from the first packet to the end
	greeted atomic.Int64 // handshakes under way
	done    chan struct{}

	mu       sync.Mutex // guards all below
	conns    map[*serverConn]struct{}
	draining *drain.Mode // what those that enter are told; nil: nothing
	plain    *tls.Config // whose copy for QUIC is
	quic     *tls.Config
}

// Listen serves the socket from Open on, and owns it and pred unless there is an error. pred leads to the process that has handed
// the socket over; nil: none has.
func Listen(udp *net.UDPConn, pred *net.UnixConn, door Door) (*Listener, error) {
	// It would write about small buffers to standard error, past the process log; the documents tell of them.
	_ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true")
	sock, err := newSocket(udp, pred)
	if err != nil {
		return nil, err
	}
	l := &Listener{sock: sock, door: door, done: make(chan struct{}), conns: make(map[*serverConn]struct{})}
	l.tr = &quic.Transport{
		Conn: sock, ConnectionIDGenerator: ids{sock.own}, ConnContext: l.admit,
		VerifySourceAddress: func(net.Addr) bool { return l.greeted.Load() >= crowd || door.Crowded() },
	}
	cfg := &quic.Config{
		MaxIdleTimeout: idleTimeout, KeepAlivePeriod: keepAlive, MaxIncomingStreams: maxStreams, MaxIncomingUniStreams: maxControl,
		InitialStreamReceiveWindow: streamWindow, MaxStreamReceiveWindow: streamWindow,
		InitialConnectionReceiveWindow: connWindow, MaxConnectionReceiveWindow: connWindow,
		RequireStreamCreditRelease: true,
	}
	cfg.GetConfigForClient = func(*quic.ClientInfo) (*quic.Config, error) {
		own := cfg.Clone()
		own.HandshakeIdleTimeout = door.HandshakeTimeout() / 2 // twice that is what a whole handshake may take
		return own, nil
	}
	ln, err := l.tr.Listen(&tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, GetConfigForClient: l.tlsConfig}, cfg)
	if err != nil {
		return nil, err
	}
	l.ln = ln
	go l.accept()
	return l, nil
}

// protocols is what a connection must agree on.
var protocols = []string{"h3"}

// visit is a client from its first packet on. Either the failed handshake or the served connection ends it.
type visit struct {
	l      *Listener
	guest  *Guest
	ticket drain.Ticket // until the handshake is over
	taken  atomic.Bool
}

// Drain lets the handshake go on: its connection hears of the drain then.
func (v *visit) Drain(drain.Mode) {}

// Force ends the visit. What is left of the handshake goes with its time limit or the listener.
func (v *visit) Force() { go v.failed(exchange.ErrForced) } // the ticket must not be left meanwhile

type visitKey struct{}

var errRefused = errors.New("refused")

// admit takes a client in, or refuses it.
func (l *Listener) admit(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	if l.sock.returned.Load() { // what is here ends, and nobody takes its place
		return nil, errRefused
	}
	g := l.door.Admit(addrPort(client.RemoteAddr))
	if g == nil {
		return nil, errRefused
	}
	v := &visit{l: l, guest: g}
	l.visits.Add()
	l.greeted.Add(1)
	if g.Live != nil {
		g.Live.Enter(&v.ticket, v)
	}
	context.AfterFunc(ctx, func() { v.failed(context.Cause(ctx)) })
	return context.WithValue(ctx, visitKey{}, v), nil
}

// take ends the handshake of a visit, once: false when it is over already.
func (v *visit) take() bool {
	if v.taken.Swap(true) {
		return false
	}
	v.ticket.Leave()
	v.l.greeted.Add(-1)
	return true
}

// failed ends a visit whose handshake has not succeeded.
func (v *visit) failed(cause error) {
	if !v.take() {
		return
	}
	if v.guest.Failed != nil {
		v.guest.Failed(cause)
	}
	v.leave()
}

func (v *visit) leave() {
	v.guest.Leave()
	v.l.visits.Done()
}

var errNoCertificate = errors.New("no certificate")

// tlsConfig is what a client is served with: what clients of TLS over TCP are, with another protocol to agree on.
func (l *Listener) tlsConfig(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	v, ok := hello.Context().Value(visitKey{}).(*visit)
	if !ok {
		return nil, errNoCertificate
	}
	plain := v.guest.TLS()
	if plain == nil {
		return nil, errNoCertificate
	}
	if plain.GetConfigForClient != nil {
		special, err := plain.GetConfigForClient(hello)
		if err != nil || special != nil {
			return forQUIC(special), err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plain != plain {
		l.plain, l.quic = plain, forQUIC(plain)
	}
	return l.quic, nil
}

// forQUIC copies a configuration. Tickets are made and opened by the original, whose keys are replaced from time to time.
func forQUIC(plain *tls.Config) *tls.Config {
	if plain == nil {
		return nil
	}
	c := plain.Clone()
	c.NextProtos, c.MinVersion, c.GetConfigForClient = protocols, tls.VersionTLS13, nil
	c.WrapSession, c.UnwrapSession = plain.EncryptTicket, plain.DecryptTicket
	return c
}

// accept serves connections whose handshake is done, until the listener is closed.
func (l *Listener) accept() {
	defer close(l.done)
	for {
		q, err := l.ln.Accept(context.Background())
		if err != nil {
			return
		}
		v, ok := q.Context().Value(visitKey{}).(*visit)
		if !ok || !v.take() { // it has gone already, or was forced
			_ = q.CloseWithError(codeNo, "")
			continue
		}
		go l.serve(q, v)
	}
}

// serve serves a connection to its end.
func (l *Listener) serve(q *quic.Conn, v *visit) {
	defer v.leave()
	state := q.ConnectionState().TLS
	info := &conn.Info{
		Entrypoint: v.guest.Entrypoint, Local: addrPort(q.LocalAddr()), Remote: addrPort(q.RemoteAddr()),
		TLS: &state, Identity: conn.PeerIdentity(&state),
	}
	v.guest.Server.serve(q, info, v.guest.Live, l.enter)
}

// enter makes a connection one of those that Drain tells.
func (l *Listener) enter(c *serverConn) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	if l.draining != nil {
		c.Drain(*l.draining)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
	}
}

// Open begins to read the socket: the door is ready for those who come. After a Drain those who come are not told of it any
// more.
func (l *Listener) Open() {
	l.mu.Lock()
	l.draining = nil
	l.mu.Unlock()
	l.sock.open()
}

// Drain tells the connections to end, those that shake hands as soon as they are there. Who comes later is the door's to
// refuse.
func (l *Listener) Drain(mode drain.Mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = &mode
	for c := range l.conns {
		c.Drain(mode)
	}
}

// Wait returns nil once there is no connection, or the context's error.
func (l *Listener) Wait(ctx context.Context) error { return l.visits.Wait(ctx) }

// Close ends what is left, and closes the socket. On return nothing of the listener runs any more but what handlers of
// connections still do.
func (l *Listener) Close() error {
	l.mu.Lock()
	for c := range l.conns {
		c.Force()
	}
	l.mu.Unlock()
	err := errors.Join(l.ln.Close(), l.tr.Close())
	<-l.done
	return errors.Join(err, l.sock.Close())
}

// HandOver returns a copy of the socket for another process. Once it has the socket (Cede), it passes packets of
// connections that stay here back by the other end of next, which belongs to the listener then.
func (l *Listener) HandOver(next *net.UnixConn) (*os.File, error) { return l.sock.handOver(next) }

// Cede leaves the socket to the process that it was handed over to. Without one it does nothing.
func (l *Listener) Cede() { l.sock.cede() }

// addrPort is an address of UDP.
func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := u.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
