package conn

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Connect takes over a non-blocking stream socket and connects it. It is for sockets that were made in a special way, in
// another network namespace for instance. On an error the socket is closed.
func Connect(ctx context.Context, fd int, to netip.AddrPort) (*Raw, error) {
	if e := startConnect(fd, to); e != 0 && e != unix.EINPROGRESS && e != unix.EINTR {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("connect", e)
	}
	r := NewRaw(fd, Info{Remote: to})
	if err := r.connected(ctx); err != nil {
		_ = r.Close()
		return nil, err
	}
	if local, err := unix.Getsockname(fd); err == nil {
		r.info.Local = fromUnix(local)
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
	code, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return os.NewSyscallError("connect", err)
}

// startConnect sends the SYN. It does not wait, so the runtime need not know of the call.
func startConnect(fd int, to netip.AddrPort) syscall.Errno {
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
