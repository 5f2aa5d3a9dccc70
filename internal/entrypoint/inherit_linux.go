package entrypoint

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// inheritFD checks a descriptor and takes it over.
func inheritFD(fd int) (*os.File, net.Addr, error) {
	unix.CloseOnExec(fd)
	bound, err := listening(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), "inherited"), bound, nil
}

// listening is what an inherited descriptor is bound to, if it is of a kind that is used: a listening stream socket, a UDP
// socket, or the end of a pair that goes with one.
func listening(fd int) (net.Addr, error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	addr := netAddr(sa)
	switch _, ip := addr.(*net.TCPAddr); {
	case kind == unix.SOCK_STREAM && accepts != 0:
	case kind == unix.SOCK_DGRAM && ip:
		addr, err = boundDatagrams(fd, sa)
	case kind == unix.SOCK_SEQPACKET && accepts == 0 && !ip:
		addr = &net.UnixAddr{Net: pairNetwork}
	case kind == unix.SOCK_STREAM:
		err = errors.New("not a listening socket")
	default:
		err = errors.New("neither a stream socket nor one of UDP")
	}
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return addr, nil
}

// socketPair makes a pair of sockets, one of them for another process.
func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "pair"), os.NewFile(uintptr(fds[1]), "pair")
	c, err := net.FileConn(mine)
	_ = mine.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// boundDatagrams checks that a socket of datagrams waits for clients.
func boundDatagrams(fd int, sa unix.Sockaddr) (net.Addr, error) {
	u, ok := datagramAddr(sa).(*net.UDPAddr)
	if !ok || u.Port == 0 {
		return nil, errors.New("not a socket of UDP that is bound to a port")
	}
	if _, err := unix.Getpeername(fd); err == nil {
		return nil, errors.New("a connected socket of datagrams")
	}
	return u, nil
}

// adoptFiles makes inherited sockets the acceptors of s. It owns the files, also when it fails.
func (s *socket) adoptFiles(socks []inheritedSocket, accept rawAccept) error {
	fds, err := dupAll(socks)
	if err != nil {
		return err
	}
	return s.adopt(fds, accept)
}

// dupAll copies the descriptors of inherited sockets, whose files it closes, also when it fails.
func dupAll(socks []inheritedSocket) (fds []int, err error) {
	for _, in := range socks {
		if err == nil {
			var fd int
			fd, err = dup(in.file)
			if err == nil {
				fds = append(fds, fd)
				if _, ok := in.bound.(*net.TCPAddr); ok {
					err = setInherited(fd) // the service manager may not have
				}
			}
		}
		_ = in.file.Close()
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

// dup copies the descriptor of f, which stays in its mode.
func dup(f *os.File) (fd int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := rc.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil {
		return -1, cerr
	}
	return fd, os.NewSyscallError("dup", err)
}
