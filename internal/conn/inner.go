package conn

import (
	"sync/atomic"
	"syscall"
	"time"
)

// Inner is a connection that came out of another one: a tunnel that is served as a connection of its own. It has an Info of
// its own and counts its bytes. It ends as a socket does: Close lets the peer read to the end what was sent, Abort does
// not.
type Inner struct {
	Conn
	info    Info
	in, out atomic.Int64
	cut     atomic.Bool
}

// NewInner gives the tunnel c another Info; nobody uses c itself any more.
func NewInner(c Conn, info *Info) *Inner { return &Inner{Conn: c, info: *info} }

// Info describes the connection.
func (i *Inner) Info() *Info { return &i.info }

// Moved tells how many bytes were read and written.
func (i *Inner) Moved() (in, out int64) { return i.in.Load(), i.out.Load() }

// Held serves the connection by serve, until the guard of what it came out of rings, which makes it look to whatever waits on it
// as if its peer had reset it. gone tells that this is over already.
func (i *Inner) Held(guard *Alarm, gone bool, serve func()) {
	guard.Arm((*cutter)(i), 0)
	defer guard.Disarm()
	if gone {
		guard.Ring(CauseDeparted)
	}
	serve()
}

// cutter is an Inner as what an alarm interrupts. It closes nothing, since that may be done by who serves it alone.
type cutter Inner

// Interrupt cuts the connection.
func (c *cutter) Interrupt() {
	c.cut.Store(true)
	(*Inner)(c).Interrupt()
}

// lost is the error of a connection that was cut, and err of every other.
func (i *Inner) lost(err error) error {
	if i.cut.Load() {
		return syscall.ECONNRESET
	}
	return err
}

// Read counts what it reads.
func (i *Inner) Read(b []byte) (int, error) {
	if i.cut.Load() {
		return 0, syscall.ECONNRESET
	}
	n, err := i.Conn.Read(b)
	i.in.Add(int64(n))
	if err != nil {
		err = i.lost(err)
	}
	return n, err
}

// Write counts what it writes.
func (i *Inner) Write(b []byte) (int, error) {
	if i.cut.Load() {
		return 0, syscall.ECONNRESET
	}
	n, err := i.Conn.Write(b)
	i.out.Add(int64(n))
	if err != nil {
		err = i.lost(err)
	}
	return n, err
}

// SetDeadline sets both deadlines, unless the connection was cut.
func (i *Inner) SetDeadline(t time.Time) error { return i.deadline(i.Conn.SetDeadline, t) }

// SetReadDeadline sets the deadline of reads, unless the connection was cut.
func (i *Inner) SetReadDeadline(t time.Time) error { return i.deadline(i.Conn.SetReadDeadline, t) }

// SetWriteDeadline sets the deadline of writes, unless the connection was cut.
func (i *Inner) SetWriteDeadline(t time.Time) error { return i.deadline(i.Conn.SetWriteDeadline, t) }

// deadline sets one. What was cut meanwhile is interrupted again.
func (i *Inner) deadline(set func(time.Time) error, t time.Time) error {
	err := set(t)
	if i.cut.Load() {
		i.Interrupt()
		return syscall.ECONNRESET
	}
	return err
}

// Close ends both directions, the own one properly.
func (i *Inner) Close() error {
	if c, ok := i.Conn.(interface{ CloseBoth() error }); ok {
		return c.CloseBoth()
	}
	return i.Conn.Close()
}

// CloseWrite ends the sending side.
func (i *Inner) CloseWrite() error {
	if w, ok := i.Conn.(CloseWriter); ok {
		return w.CloseWrite()
	}
	return i.Close()
}

// Abort closes with a reset where that is possible. Whoever serves the connection meanwhile finds that its peer is gone, also while
// it waits for somebody else.
func (i *Inner) Abort() error {
	i.cut.Store(true)
	if a, ok := i.Conn.(interface{ Abort() error }); ok {
		return a.Abort()
	}
	return i.Conn.Close()
}

// Interrupt makes waits fail.
func (i *Inner) Interrupt() { InterrupterOf(i.Conn).Interrupt() }

// PeerGone reports whether the peer has left, if the connection below can tell, or the kernel of the descriptor below it.
func (i *Inner) PeerGone() bool {
	if i.cut.Load() {
		return true
	}
	if d, ok := i.Conn.(interface{ FD() int }); ok {
		if fd := d.FD(); fd >= 0 {
			return closedByPeer(fd)
		}
	}
	p, ok := i.Conn.(Prober)
	return ok && p.PeerGone()
}

// Quiet reports whether nothing has arrived and the peer is still there.
func (i *Inner) Quiet() bool {
	q, ok := i.Conn.(interface{ Quiet() bool })
	return ok && !i.cut.Load() && q.Quiet()
}

var _ interface {
	Conn
	CloseWriter
	Prober
	Interrupter
} = (*Inner)(nil)
