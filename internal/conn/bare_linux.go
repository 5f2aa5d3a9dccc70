package conn

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// bare is the state of a Raw that has not joined the runtime's poller yet: what the poller would keep for it.
type bare struct {
	mu            sync.Mutex // guards the rest, and the passage to the poller
	users         int        // calls that use the descriptor without the poller's knowledge; after Close the last one frees it
	closed        bool
	reads, writes time.Time // deadlines
}

// now runs step once on a socket that is not in the poller, and reports whether that was enough. A socket with a deadline
// of reads, past or to come, is left to the poller.
func (r *Raw) now(step func(fd int) bool) bool {
	if !r.enter() {
		return false
	}
	defer r.leave()
	return step(r.fd)
}

// enter keeps the descriptor open until leave.
func (r *Raw) enter() bool {
	r.bare.mu.Lock()
	defer r.bare.mu.Unlock()
	if r.f != nil || r.bare.closed || !r.bare.reads.IsZero() {
		return false
	}
	r.bare.users++
	return true
}

func (r *Raw) leave() {
	r.bare.mu.Lock()
	r.bare.users--
	last := r.bare.closed && r.bare.users == 0
	r.bare.mu.Unlock()
	if last {
		_ = r.free()
	}
}

// poll makes the socket one of the runtime's poller, with the deadlines that it has.
func (r *Raw) poll() error {
	if r.polled.Load() {
		return nil
	}
	b := &r.bare
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.f != nil { // by another goroutine, meanwhile
		return nil
	}
	if b.closed {
		return os.ErrClosed
	}
	f := os.NewFile(uintptr(r.fd), "socket")
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if !b.reads.IsZero() {
		_ = f.SetReadDeadline(b.reads)
	}
	if !b.writes.IsZero() {
		_ = f.SetWriteDeadline(b.writes)
	}
	r.f, r.rc = f, rc
	r.polled.Store(true)
	return nil
}

// Close closes the connection. What waits is woken; the descriptor is freed when nothing uses it any more.
func (r *Raw) Close() error {
	b := &r.bare
	b.mu.Lock()
	again, used := b.closed, b.users > 0
	b.closed = true
	b.mu.Unlock()
	switch {
	case again:
		return os.ErrClosed
	case !used:
		return r.free()
	case r.polled.Load(): // by who uses it: for that a write had to wait
		return r.f.SetDeadline(longAgo)
	}
	return nil
}

// free gives the descriptor back.
func (r *Raw) free() error {
	if r.polled.Load() {
		return r.f.Close()
	}
	return closeNow(r.fd)
}

// closeNow closes a socket without telling the runtime of the call: it does not wait, since no socket here lingers.
func closeNow(fd int) error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0); e != 0 {
		return os.NewSyscallError("close", e)
	}
	return nil
}

// SetDeadline sets both deadlines.
func (r *Raw) SetDeadline(t time.Time) error { return r.deadline(t, true, true) }

// SetReadDeadline sets the deadline of reads.
func (r *Raw) SetReadDeadline(t time.Time) error { return r.deadline(t, true, false) }

// SetWriteDeadline sets the deadline of writes.
func (r *Raw) SetWriteDeadline(t time.Time) error { return r.deadline(t, false, true) }

func (r *Raw) deadline(t time.Time, reads, writes bool) error {
	if !r.polled.Load() && r.remember(t, reads, writes) {
		return nil
	}
	switch {
	case !writes:
		return r.f.SetReadDeadline(t)
	case !reads:
		return r.f.SetWriteDeadline(t)
	}
	return r.f.SetDeadline(t)
}

// remember keeps a deadline for the poller, unless the socket is there already.
func (r *Raw) remember(t time.Time, reads, writes bool) bool {
	b := &r.bare
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.f != nil {
		return false
	}
	if reads {
		b.reads = t
	}
	if writes {
		b.writes = t
	}
	return true
}
