package conn

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

var relayBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Pace bounds how long a relay may move nothing. The zero value bounds nothing.
type Pace struct {
	// Guard is armed by the owner of the relay, with a target that interrupts both connections: what one does not take, the
	// other is not asked for. The relay moves its deadline, and its clock looks for resets; nil with zero bounds only.
	Guard *Alarm
	// Idle is for both directions together; 0 is no bound.
	Idle time.Duration
	// HalfClosed holds instead of Idle once one direction has ended; 0 is no bound.
	HalfClosed time.Duration
	// ToA is told of the bytes that a has taken, in their order; nil: nobody. It must not keep them.
	ToA func(p []byte)
}

// Relayed is what a relay has moved, and how it ended.
type Relayed struct {
	AtoB, BtoA int64
	AEnded     bool  // a had properly ended its sending, and b was told
	BEnded     bool  // the same of b
	Err        error // what ended it; nil when both directions ended properly
	AFailed    bool  // Err came from a, not from b
}

// Relay copies bytes between two connections in both directions until both have ended. The end of one direction is
// passed on alone (half-close); a failure ends both. Relay closes neither connection. Idle kernel sockets hold no
// buffer.
func Relay(a, b Conn, p Pace) Relayed {
	r := &relay{pace: p}
	a, toB := unread(a)
	b, toA := unread(b)
	r.ends[0], r.ends[1] = a, b
	r.look()
	defer r.watch()()
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		r.done.AtoB = r.copy(b, a, toB)
	}()
	r.done.BtoA = r.copy(a, b, toA)
	wg.Wait()
	r.done.AEnded, r.done.BEnded = r.over[0].Load(), r.over[1].Load()
	return r.done
}

// relay is the state that both directions share.
type relay struct {
	pace Pace
	over [2]atomic.Bool // a, b: has properly ended its sending
	ends [2]Conn        // a and b

	// of the clock's visits
	slot  ClockSlot
	ticks int
	fds   [2]int

	once sync.Once // the first failure counts: those that follow are its consequence
	done Relayed
}

// bound is what holds now.
func (r *relay) bound() time.Duration {
	if r.over[0].Load() || r.over[1].Load() {
		return r.pace.HalfClosed
	}
	return r.pace.Idle
}

// look moves the deadline to a bound from now, or lifts it.
func (r *relay) look() {
	if r.pace.Idle <= 0 && r.pace.HalfClosed <= 0 {
		return
	}
	for {
		d := r.bound()
		r.pace.Guard.Extend(d)
		if r.bound() == d { // the other direction has not ended meanwhile
			return
		}
	}
}

// taken tells that dst has taken p.
func (r *relay) taken(dst Conn, p []byte) {
	if r.pace.ToA != nil && dst == r.ends[0] {
		r.pace.ToA(p)
	}
	r.look()
}

// fail ends both directions because of c.
func (r *relay) fail(c Conn, err error) {
	r.once.Do(func() { r.done.Err, r.done.AFailed = err, c == r.ends[0] })
	InterrupterOf(r.ends[0]).Interrupt()
	InterrupterOf(r.ends[1]).Interrupt()
}

// copy moves first, which has been read already, and then all bytes of src to dst, and ends dst's receiving of them.
func (r *relay) copy(dst, src Conn, first []byte) int64 {
	if len(first) > 0 {
		n, err := dst.Write(first)
		r.taken(dst, first[:n])
		if err != nil {
			r.fail(dst, err)
			return 0
		}
	}
	n, ok := r.copyRaw(dst, src)
	if !ok {
		n = r.copyPlain(dst, src)
	}
	return n + int64(len(first))
}

// ended passes the end of src on.
func (r *relay) ended(dst Conn) {
	if w, ok := dst.(CloseWriter); ok {
		_ = w.CloseWrite() // a peer that is gone shows when the other direction is written or read
	}
	from := 0
	if dst == r.ends[0] {
		from = 1
	}
	r.over[from].Store(true)
	r.look()
}

// copyPlain is for connections that only Read and Write are known of.
func (r *relay) copyPlain(dst, src Conn) int64 {
	bp := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(bp)
	n := int64(0)
	for {
		k, err := src.Read(*bp)
		if k > 0 {
			w, werr := dst.Write((*bp)[:k])
			r.taken(dst, (*bp)[:w])
			if werr != nil {
				r.fail(dst, werr)
				return n
			}
			n += int64(k)
		}
		if err == io.EOF {
			r.ended(dst)
			return n
		}
		if err != nil {
			r.fail(src, err)
			return n
		}
	}
}
