package conn

import (
	"context"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Connect takes over a non-blocking stream socket and connects it. It is for sockets that were made in a special way, in
// another network namespace for instance. On an error the socket is closed.
func Connect(ctx context.Context, fd int, to netip.AddrPort) (*Raw, error) {
	err := unix.Connect(fd, sockaddr(to))
	if err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
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

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if addr := a.Addr(); addr.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
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
