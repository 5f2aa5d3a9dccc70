package conn

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollEvents is how many ready descriptors one look takes.
const pollEvents = 64

// Poll is a set of descriptors that one goroutine waits for. The set itself waits in the runtime's poller, so that the
// goroutine sleeps like any other one.
type Poll struct {
	f      *os.File
	rc     syscall.RawConn
	fd     int
	events [pollEvents]unix.EpollEvent
	step   func(place uint32)
	more   func() bool
	onWait func(uintptr) bool
}

// NewPoll makes an empty set.
func NewPoll() (*Poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &Poll{f: os.NewFile(uintptr(fd), "poll"), fd: fd}
	p.onWait = p.look
	if p.rc, err = p.f.SyscallConn(); err != nil {
		_ = p.f.Close()
		return nil, err
	}
	return p, nil
}

// Add has the set tell of fd, as long as there is something to read, by its place. Closing fd removes it.
func (p *Poll) Add(fd int, place uint32) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(place)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &e))
}

// Remove takes fd out.
func (p *Poll) Remove(fd int) {
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

// Wait calls step for each descriptor that can be read, and more after each look, until that returns false. It sleeps
// while there is none, until Wake or the time given to Until: the error is os.ErrDeadlineExceeded then.
func (p *Poll) Wait(step func(place uint32), more func() bool) error {
	p.step, p.more = step, more
	return p.rc.Read(p.onWait)
}

func (p *Poll) look(uintptr) bool {
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), pollEvents, 0, 0, 0)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 || n == 0 {
			return false
		}
		for i := range p.events[:n] {
			p.step(uint32(p.events[i].Fd))
		}
		if !p.more() {
			return true
		}
	}
}

// Until bounds the present and later waits; the zero time lifts the bound.
func (p *Poll) Until(t time.Time) { _ = p.f.SetReadDeadline(t) }

// Wake ends the present wait, or the next one, from any goroutine, unless Until is called in between.
func (p *Poll) Wake() { _ = p.f.SetReadDeadline(longAgo) }

// Close frees the set, not the descriptors in it.
func (p *Poll) Close() error { return p.f.Close() }
