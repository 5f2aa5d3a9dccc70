package conn

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawRounds is how many reads one look at a socket may take. Between two looks an interruption is noticed.
const rawRounds = 64

// rawCopy is one direction between two kernel sockets: a read and a write for each message, and a buffer only while
// bytes move.
type rawCopy struct {
	relay    *relay
	src, dst *Raw
	n        int64

	// how a look at src ended
	rest  []byte // read, and not taken by dst at once
	err   error
	at    Conn // whose failure err is
	ended bool // src sends nothing more

	hints bool // the kernel tells what is left in the socket
	msg   syscall.Msghdr
	iov   syscall.Iovec
	hint  inqMessage
}

// inqMessage is the control message of TCP_INQ, tcp(7).
type inqMessage struct {
	head syscall.Cmsghdr
	inq  int32
	_    int32
}

// copyRaw is copy where both ends are kernel sockets; false: they are not.
func (r *relay) copyRaw(dst, src Conn) (int64, bool) {
	s, ok := src.(*Raw)
	if !ok {
		return 0, false
	}
	d, ok := dst.(*Raw)
	if !ok {
		return 0, false
	}
	c := &rawCopy{relay: r, src: s, dst: d}
	c.hints = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_INQ, 1) == nil // unix sockets cannot
	c.msg.Iov, c.msg.Iovlen = &c.iov, 1
	c.run()
	return c.n, true
}

func (c *rawCopy) run() {
	step := c.step
	for {
		if err := c.src.Loop(step); err != nil {
			c.relay.fail(c.src, err)
			return
		}
		switch {
		case c.err != nil:
			c.relay.fail(c.at, c.err)
			return
		case c.ended:
			c.relay.ended(c.dst)
			return
		case len(c.rest) > 0:
			n, err := c.dst.Write(c.rest)
			c.n += int64(n)
			c.relay.taken(c.dst, c.rest[:n])
			if err != nil {
				c.relay.fail(c.dst, err)
				return
			}
			c.rest = nil
		}
	}
}

// step moves what src has. False sleeps until it may have more.
func (c *rawCopy) step(fd int) bool {
	bp := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(bp)
	for range rawRounds {
		n, more, e := c.read(fd, *bp)
		switch {
		case e == syscall.EAGAIN:
			return false
		case e != 0:
			c.err, c.at = os.NewSyscallError("read", e), c.src
			return true
		case n == 0 && !more:
			c.err, c.at = syscall.ECONNRESET, c.src
			return true
		case n == 0:
			c.ended = true
			return true
		}
		m, e := c.dst.TryWrite((*bp)[:n])
		if e == syscall.EAGAIN {
			m, e = 0, 0
		}
		if e != 0 {
			c.err, c.at = os.NewSyscallError("write", e), c.dst
			return true
		}
		c.n += int64(m)
		c.relay.taken(c.dst, (*bp)[:m])
		if m < n {
			c.rest = append([]byte(nil), (*bp)[m:n]...) // exactly: dst may take its time
			return true
		}
		if !more {
			return false
		}
	}
	return true
}

// read reads what is there. more is false when that was all and src has not ended: the poller tells when that changes.
// Without it every read would be followed by one that finds nothing, since the end of a stream that came together with
// bytes is not told again. No byte and nothing more is a reset that a write has been told of, which a read takes for an
// end: after a FIN the kernel always tells of one more.
func (c *rawCopy) read(fd int, b []byte) (n int, more bool, e syscall.Errno) {
	if !c.hints {
		n, e = TryRead(fd, b)
		return n, true, e
	}
	c.msg.Control = (*byte)(unsafe.Pointer(&c.hint))
	c.msg.SetControllen(int(unsafe.Sizeof(c.hint)))
	c.iov.Base = unsafe.SliceData(b)
	c.iov.SetLen(len(b))
	for {
		r, _, errno := syscall.RawSyscall(syscall.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&c.msg)), syscall.MSG_DONTWAIT)
		if errno == syscall.EINTR {
			continue
		}
		c.iov.Base = nil // a buffer that nobody uses any more is not held by who is idle
		told := c.msg.Controllen > 0 && c.hint.head.Level == unix.IPPROTO_TCP && c.hint.head.Type == unix.TCP_INQ
		return int(r), !told || c.hint.inq != 0, errno
	}
}

// resetCheck is how many ticks lie between two looks for a reset that came together with bytes: the poller does not tell
// it again, and a side that only sends would not be noticed to be gone.
const resetCheck = 4

// watch looks at both sockets now and then until the returned func is called.
func (r *relay) watch() func() {
	if r.pace.Guard == nil || r.pace.Guard.clock == nil {
		return func() {}
	}
	for i, c := range r.ends {
		raw, ok := c.(*Raw)
		if !ok {
			return func() {}
		}
		r.fds[i] = raw.fd
	}
	c := r.pace.Guard.clock
	c.Add(r)
	return func() { c.Remove(r) }
}

// OnTick asks for a look at one side after the other.
func (r *relay) OnTick(*Clock) int {
	if r.ticks++; r.ticks%resetCheck != 0 {
		return -1
	}
	return r.fds[r.ticks/resetCheck%2]
}

// OnDeparted ends the relay if the side looked at was reset. One that has merely ended its sending goes on.
func (r *relay) OnDeparted() {
	i := r.ticks / resetCheck % 2
	p := []unix.PollFd{{Fd: int32(r.fds[i])}}
	if n, err := unix.Poll(p, 0); err == nil && n > 0 && p[0].Revents&unix.POLLERR != 0 {
		r.fail(r.ends[i], syscall.ECONNRESET)
	}
}

// Slot is the clock's.
func (r *relay) Slot() *ClockSlot { return &r.slot }
