package conn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeSet asks the kernel, in one poll, which of many sockets have been closed or reset by their peer. POLLRDHUP is
// reported also behind unread bytes.
type probeSet struct {
	fds []unix.PollFd
	who []Timed
}

func (p *probeSet) reset() {
	clear(p.who)
	p.fds, p.who = p.fds[:0], p.who[:0]
}

func (p *probeSet) add(fd int, e Timed) {
	p.fds = append(p.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLRDHUP})
	p.who = append(p.who, e)
}

func (p *probeSet) poll() {
	if len(p.fds) == 0 {
		return
	}
	if n, err := unix.Poll(p.fds, 0); err != nil || n == 0 {
		return
	}
	for i, f := range p.fds {
		if f.Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
			p.who[i].OnDeparted()
		}
	}
}

// closedByPeer asks the kernel about one socket.
func closedByPeer(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// Arrived asks the kernel whether a socket has bytes to be read, or its end. known is false where that cannot be asked.
func Arrived(fd int) (arrived, known bool) {
	var b [1]byte
	_, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), 1, syscall.MSG_DONTWAIT|syscall.MSG_PEEK, 0, 0)
	return e != syscall.EAGAIN, true
}
