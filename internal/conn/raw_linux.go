package conn

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Raw is a kernel stream socket read and written by non-blocking system calls: no first read that finds nothing, no
// hand-off of the processor. It joins the runtime's poller only when it has to wait for the first time, which a
// connection for one request that has arrived already never does. It is also an ordinary Conn. One goroutine may read
// and one may write at a time; Close, Interrupt and deadlines are for any.
type Raw struct {
	fd   int
	info Info

	polled atomic.Bool     // f and rc are there, and do not change any more
	f      rawFile         // what waits in the poller, and owns fd
	rc     syscall.RawConn // of f
	bare   bare

	// state of a Read in progress, so that the callback needs no closure
	buf    []byte
	n      int
	errno  syscall.Errno
	onRead func(fd int) bool
	step   func(fd int) bool
	onStep func(uintptr) bool
}

// rawFile is what os.File and net.TCPConn have in common.
type rawFile interface {
	io.ReadWriteCloser
	SyscallConn() (syscall.RawConn, error)
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// NewRaw takes over a non-blocking socket descriptor.
func NewRaw(fd int, info Info) *Raw { return &Raw{fd: fd, info: info} }

// fastest takes a dialed connection over in its fastest form.
func fastest(nc net.Conn) Conn {
	if r, ok := RawOf(nc); ok {
		return r
	}
	return ordinary(nc)
}

// RawOf gives the raw form of a dialed connection, or false if it is of another kind. The Raw owns it then.
func RawOf(c net.Conn) (*Raw, bool) {
	f, ok := c.(interface {
		rawFile
		net.Conn
	})
	if !ok {
		return nil, false
	}
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil, false
	}
	r := &Raw{f: f, fd: -1, info: Info{Local: addrPort(c.LocalAddr()), Remote: addrPort(c.RemoteAddr())}}
	var err error
	if r.rc, err = f.SyscallConn(); err != nil {
		return nil, false
	}
	if err := r.rc.Control(func(fd uintptr) { r.fd = int(fd) }); err != nil {
		return nil, false
	}
	r.polled.Store(true)
	return r, true
}

// Info describes the connection.
func (r *Raw) Info() *Info { return &r.info }

// FD is the descriptor, for probes. It must not be read, written or closed directly.
func (r *Raw) FD() int { return r.fd }

// Loop calls step each time the socket may have turned readable, the first time at once, until it returns true. The
// goroutine sleeps in between; no edge between two calls is lost. Inside, TryRead may be used, Read may not.
func (r *Raw) Loop(step func(fd int) bool) error {
	if !r.polled.Load() && r.now(step) {
		return nil
	}
	if err := r.poll(); err != nil {
		return err
	}
	if r.onStep == nil {
		r.onStep = func(fd uintptr) bool { return r.step(int(fd)) }
	}
	r.step = step
	err := r.rc.Read(r.onStep)
	r.step = nil
	return err
}

// TryRead reads what is there. EAGAIN means nothing is; n = 0 without an error is the end of the stream.
func TryRead(fd int, b []byte) (int, syscall.Errno) {
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return int(n), e
		}
	}
}

// maxWrite caps one system call: a RawSyscall keeps the processor while the kernel copies.
const maxWrite = 256 << 10

// TryWrite writes what the socket takes at once.
func (r *Raw) TryWrite(b []byte) (int, syscall.Errno) {
	if len(b) > maxWrite {
		b = b[:maxWrite]
	}
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(r.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return int(n), e
		}
	}
}

func (r *Raw) readOnce(fd int) bool {
	r.n, r.errno = TryRead(fd, r.buf)
	return r.errno != syscall.EAGAIN
}

// Read reads once, waiting for something to read.
func (r *Raw) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if r.onRead == nil {
		r.onRead = r.readOnce
	}
	r.buf = b
	err := r.Loop(r.onRead)
	r.buf = nil
	if err != nil {
		return 0, err
	}
	if r.errno != 0 {
		return 0, os.NewSyscallError("read", r.errno)
	}
	if r.n == 0 {
		return 0, io.EOF
	}
	return r.n, nil
}

// Write writes all of b, waiting while the peer does not take it.
func (r *Raw) Write(b []byte) (int, error) { return r.WriteStall(b, 0) }

// WriteStall is Write that fails with os.ErrDeadlineExceeded once nothing could be written for stall; 0 waits for ever.
func (r *Raw) WriteStall(b []byte, stall time.Duration) (int, error) {
	done := 0
	for done < len(b) {
		n, e := r.TryWrite(b[done:])
		switch {
		case e == 0:
			done += n
		case e == syscall.EAGAIN:
			if err := r.waitWritable(stall); err != nil {
				return done, err
			}
		default:
			return done, os.NewSyscallError("write", e)
		}
	}
	return done, nil
}

// waitWritable sleeps until the socket takes bytes again.
func (r *Raw) waitWritable(stall time.Duration) error {
	if err := r.poll(); err != nil {
		return err
	}
	if stall > 0 {
		if err := r.f.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return err
		}
		defer func() { _ = r.f.SetWriteDeadline(time.Time{}) }()
	}
	return r.rc.Write(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, 0)
		return err != nil || n > 0
	})
}

// Interrupt makes pending and later reads and writes fail with os.ErrDeadlineExceeded.
func (r *Raw) Interrupt() { _ = r.SetDeadline(longAgo) }

// Abort closes with a reset: the peer cannot take what it has for the whole.
func (r *Raw) Abort() error {
	_ = unix.SetsockoptLinger(r.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return r.Close()
}

// CloseWrite sends FIN and keeps the receiving side.
func (r *Raw) CloseWrite() error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(r.fd), syscall.SHUT_WR, 0); e != 0 {
		return os.NewSyscallError("shutdown", e)
	}
	return nil
}

// PeerGone reports whether the peer has sent FIN or RST, also behind unread bytes.
func (r *Raw) PeerGone() bool { return closedByPeer(r.fd) }

// Quiet reports whether nothing has arrived and the peer is still there: an idle connection that can be used again.
func (r *Raw) Quiet() bool {
	arrived, _ := Arrived(r.fd)
	return !arrived
}

// LocalAddr is the own address.
func (r *Raw) LocalAddr() net.Addr {
	local := r.info.Local
	if !local.IsValid() {
		if sa, err := unix.Getsockname(r.fd); err == nil {
			local = fromUnix(sa)
		}
	}
	return net.TCPAddrFromAddrPort(local)
}

// RemoteAddr is the peer's address.
func (r *Raw) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(r.info.Remote) }

// Accept4 takes one connection from a listening descriptor, with its peer address.
func Accept4(fd int) (int, netip.AddrPort, syscall.Errno) {
	var sa syscall.RawSockaddrAny
	sl := uint32(unsafe.Sizeof(sa))
	n, _, e := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&sl)),
		syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0, 0)
	if e != 0 {
		return -1, netip.AddrPort{}, e
	}
	return int(n), fromSockaddr(&sa), 0
}

func fromSockaddr(sa *syscall.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case syscall.AF_INET:
		p := (*syscall.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(p.Addr), swap(p.Port))
	case syscall.AF_INET6:
		p := (*syscall.RawSockaddrInet6)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom16(p.Addr).Unmap(), swap(p.Port))
	}
	return netip.AddrPort{}
}

func swap(p uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&p))
	return uint16(b[0])<<8 | uint16(b[1])
}

var longAgo = time.Unix(1, 0)

// TryWrite2 writes a and then b in one system call, as far as the socket takes them at once.
func (r *Raw) TryWrite2(a, b []byte) (int, syscall.Errno) {
	if len(b) == 0 {
		return r.TryWrite(a)
	}
	if len(b) > maxWrite {
		b = b[:maxWrite]
	}
	iov := [2]syscall.Iovec{{Base: unsafe.SliceData(a), Len: uint64(len(a))}, {Base: unsafe.SliceData(b), Len: uint64(len(b))}}
	msg := syscall.Msghdr{Iov: &iov[0], Iovlen: 2}
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_SENDMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&msg)), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT)
		if e != syscall.EINTR {
			return int(n), e
		}
	}
}

// WriteStall2 writes a and then b, waiting while the peer does not take them, at most stall without any progress.
func (r *Raw) WriteStall2(a, b []byte, stall time.Duration) error {
	n, e := r.TryWrite2(a, b)
	if e != 0 && e != syscall.EAGAIN {
		return os.NewSyscallError("write", e)
	}
	if e != 0 {
		n = 0
	}
	if n < len(a) {
		if _, err := r.WriteStall(a[n:], stall); err != nil {
			return err
		}
		n = len(a)
	}
	if n -= len(a); n < len(b) {
		_, err := r.WriteStall(b[n:], stall)
		return err
	}
	return nil
}
