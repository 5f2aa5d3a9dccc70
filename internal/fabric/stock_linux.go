package fabric

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// stocked is how many sockets are made at a time. Getting onto the thread of a namespace and back costs several times what all of
// them do.
const stocked = 16

// stock is IPv4 sockets of a namespace for connections to come: non-blocking, bound to nothing. At most stocked of them are open.
type stock struct {
	mu     sync.Mutex // guards the rest
	fds    []int
	closed bool
}

// take returns a socket that was made before.
func (s *stock) take() (fd int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fds) == 0 {
		return -1, false
	}
	fd = s.fds[len(s.fds)-1]
	s.fds = s.fds[:len(s.fds)-1]
	return fd, true
}

// keep takes a socket in; it closes one that there is no room for.
func (s *stock) keep(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.fds) >= stocked {
		_ = unix.Close(fd)
		return
	}
	s.fds = append(s.fds, fd)
}

// close ends the stock and what is in it.
func (s *stock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.fds {
		_ = unix.Close(fd)
	}
	s.fds, s.closed = nil, true
}

// socket returns a TCP socket of the namespace, which the caller closes.
func (n *Namespace) socket(family int) (fd int, err error) {
	if family != unix.AF_INET {
		err = n.Do(func() (err error) { fd, err = newSocket(family); return err })
		return fd, err
	}
	if fd, ok := n.stock.take(); ok {
		return fd, nil
	}
	err = n.Do(func() (err error) {
		var ok bool
		if fd, ok = n.stock.take(); ok { // somebody else has just had some made
			return nil
		}
		if fd, err = newSocket(family); err == nil {
			n.fill()
		}
		return err
	})
	return fd, err
}

// fill makes a stock, on the thread of the namespace. Where there are no more to be had, the next one who finds none is told.
func (n *Namespace) fill() {
	for range stocked {
		fd, err := newSocket(unix.AF_INET)
		if err != nil {
			return
		}
		n.stock.keep(fd)
	}
}

func newSocket(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	return fd, os.NewSyscallError("socket", err)
}
