// Package conn is byte-stream connections: what is known of one (Info), the kernel's without the standard library's
// detours (Raw, Linux), coarse alarms that interrupt a wait (Clock, Alarm), relaying between two, listeners with
// handed-over descriptors, and an in-memory network for tests; and sockets of datagrams, read and written in batches
// (Batch, Poll, Linux). It knows nothing of HTTP. Connections live as long as
// their owner; the Clock lives as long as the process.
package conn

import (
	"crypto/tls"
	"net"
	"net/netip"
	"syscall"
)

// Conn is a connection that says what is known of it.
type Conn interface {
	net.Conn
	Info() *Info
}

// Info describes a connection. It is filled before the connection is served and does not change afterwards.
type Info struct {
	Entrypoint string // name of the entrypoint it came in on
	Local      netip.AddrPort
	Remote     netip.AddrPort       // the client, as far as the peer or a PROXY protocol header tells
	Via        netip.AddrPort       // the peer that told Remote by such a header; invalid: none did
	TLS        *tls.ConnectionState // nil: clear text
	// Identity is who the peer is by a verified certificate: see [PeerIdentity]; "" nobody knows. Inside a tunnel it is that
	// of who has opened it, until the client proves another one there.
	Identity string
	// Outer describes the connection that this one came out of, as a tunnel; nil: it stands by itself.
	Outer *Info
	// Target is the authority that the tunnel was asked for; "" without one.
	Target string
	// For is what the tunnel was granted for, in the words of who granted it; "" for nothing in particular.
	For string
}

// CloseWriter is a connection that can end its sending side alone.
type CloseWriter interface{ CloseWrite() error }

// Prober is a connection that can tell whether its peer has left, also behind bytes not yet read.
type Prober interface{ PeerGone() bool }

// Interrupter is something whose pending and later waits can be made to fail at once. Interrupt must not block, may
// be called from any goroutine and more than once.
type Interrupter interface{ Interrupt() }

// InterrupterOf returns what makes the waits of c fail: c itself, or else its deadlines.
func InterrupterOf(c Conn) Interrupter {
	if i, ok := c.(Interrupter); ok {
		return i
	}
	return deadlined{c}
}

type deadlined struct{ Conn }

func (d deadlined) Interrupt() { _ = d.SetDeadline(longAgo) }

// Plain gives an ordinary net.Conn an Info.
type Plain struct {
	net.Conn
	info Info
}

// NewPlain wraps c. Addresses are taken from c where info has none.
func NewPlain(c net.Conn, info Info) *Plain {
	if !info.Remote.IsValid() {
		info.Remote = addrPort(c.RemoteAddr())
	}
	if !info.Local.IsValid() {
		info.Local = addrPort(c.LocalAddr())
	}
	return &Plain{Conn: c, info: info}
}

// Info describes the connection.
func (p *Plain) Info() *Info { return &p.info }

// CloseWrite ends the sending side, if the connection underneath can.
func (p *Plain) CloseWrite() error {
	if w, ok := p.Conn.(CloseWriter); ok {
		return w.CloseWrite()
	}
	return p.Conn.Close()
}

// below is the connection that TLS and other wrappers stand on.
func below(c net.Conn) net.Conn {
	for {
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = w.NetConn()
	}
}

// FD is the descriptor of the connection at the bottom, for probes; -1 when it has none.
func (p *Plain) FD() int {
	fd := -1
	switch c := below(p.Conn).(type) {
	case interface{ FD() int }:
		return c.FD()
	case syscall.Conn:
		if rc, err := c.SyscallConn(); err == nil {
			_ = rc.Control(func(f uintptr) { fd = int(f) })
		}
	}
	return fd
}

// PeerGone reports whether the peer has left, if the connection at the bottom can tell.
func (p *Plain) PeerGone() bool {
	b, ok := below(p.Conn).(Prober)
	return ok && b.PeerGone()
}

// Abort closes with a reset where that is possible, and without TLS's closing alert: the peer cannot take what it has
// for the whole.
func (p *Plain) Abort() error {
	switch c := below(p.Conn).(type) {
	case interface{ Abort() error }:
		return c.Abort()
	case interface{ SetLinger(sec int) error }:
		_ = c.SetLinger(0)
	}
	return below(p.Conn).Close()
}

func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort() // IPv4 clients of a dual-stack socket are IPv4 clients
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap
}
