package conn

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Connect takes over a non-blocking stream socket and connects it, within a time if that is not 0. It is for sockets that were made
// in a special way, in another network namespace for instance. On an error the socket is closed. Its Info does not tell the own
// address, LocalAddr does.
func Connect(ctx context.Context, fd int, to netip.AddrPort, within time.Duration) (*Raw, error) {
	e := connect(fd, to)
	if e == unix.EINPROGRESS || e == unix.EINTR {
		e = connect(fd, to) // on one machine the handshake is over by now
	}
	if e != 0 && e != unix.EALREADY {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("connect", e)
	}
	r := NewRaw(fd, Info{Remote: to})
	if e == 0 {
		return r, nil
	}
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	if err := r.connected(ctx); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// connected waits for the end of the handshake.
func (r *Raw) connected(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.Interrupt)
	err := r.waitWritable(0)
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if e := connect(r.fd, r.info.Remote); e != 0 {
		return os.NewSyscallError("connect", e)
	}
	return nil
}

// connect sends the SYN; called again it tells what has become of the handshake: 0 that it is over, EALREADY that it is not, or why
// it failed. It does not wait, so the runtime need not know of the call.
func connect(fd int, to netip.AddrPort) syscall.Errno {
	if to.Addr().Is4() {
		sa := syscall.RawSockaddrInet4{Family: unix.AF_INET, Port: swap(to.Port()), Addr: to.Addr().As4()}
		_, _, e := syscall.RawSyscall(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
		return e
	}
	sa := syscall.RawSockaddrInet6{Family: unix.AF_INET6, Port: swap(to.Port()), Addr: to.Addr().As16()}
	_, _, e := syscall.RawSyscall(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	return e
}

func fromUnix(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
