package telemetry

import (
	"sync"
	"sync/atomic"
)

// Budget of entries that wait for the output: whichever is reached first. 64 chunks of 256 KiB are 16 MiB. Chunks are large
// because each write wakes the runtime's monitor, which then looks at the process every few microseconds for a while: with
// a quarter of the size a busy gateway spends 3 % more on each request.
const (
	chunkSize  = 256 << 10
	maxChunks  = 64
	maxEntries = 65536
	spareLimit = 2 // empty chunks kept for reuse
)

// target is where entries go and how they look. It does not change.
type target struct {
	format string
	out    *output
}

// chunk is a run of whole entries for one output. One without buffer is a mark: the output before it is done with.
type chunk struct {
	buf     []byte
	entries int
	out     *output
}

// queue holds entries until they are written. Full chunks leave in order; what the budget cannot hold is lost, the
// oldest first.
type queue struct {
	wake    chan struct{} // a full chunk or a mark waits
	lost    atomic.Uint64
	current atomic.Pointer[target] // written under mu

	mu      sync.Mutex // guards what follows; held for copies only
	open    *chunk     // being filled; nil none
	full    []*chunk
	marks   int // among full
	spare   []*chunk
	flying  int // chunks that are being written
	entries int // in open and full
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// add takes an entry made for t. It refuses when t is no longer current: the entry has the wrong form then.
func (q *queue) add(line []byte, t *target) bool {
	if len(line) > chunkSize {
		q.lost.Add(1)
		return true
	}
	q.mu.Lock()
	if q.current.Load() != t {
		q.mu.Unlock()
		return false
	}
	if q.open != nil && len(q.open.buf)+len(line) > chunkSize {
		q.seal()
	}
	if q.open == nil {
		q.open = q.empty(t.out)
	}
	q.open.buf = append(q.open.buf, line...)
	q.open.entries++
	q.entries++
	if q.entries > maxEntries {
		q.dropOldest()
	}
	q.mu.Unlock()
	return true
}

// seal moves the open chunk to the full ones. mu is held.
func (q *queue) seal() {
	if q.open != nil {
		q.full = append(q.full, q.open)
		q.open = nil
		q.signal()
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// empty returns a chunk to fill; it takes the oldest one when there may be no more. mu is held.
func (q *queue) empty(out *output) *chunk {
	if len(q.full)-q.marks+q.flying >= maxChunks {
		q.dropOldest()
	}
	c := &chunk{}
	if n := len(q.spare); n > 0 {
		c, q.spare = q.spare[n-1], q.spare[:n-1]
	} else {
		c.buf = make([]byte, 0, chunkSize)
	}
	c.out = out
	return c
}

// dropOldest loses the oldest full chunk. mu is held.
func (q *queue) dropOldest() {
	for i, c := range q.full {
		if c.buf != nil {
			q.full = append(q.full[:i], q.full[i+1:]...)
			q.entries -= c.entries
			q.lost.Add(uint64(c.entries))
			q.recycle(c)
			return
		}
	}
}

// recycle keeps a chunk for reuse. mu is held.
func (q *queue) recycle(c *chunk) {
	if len(q.spare) < spareLimit {
		c.buf, c.entries, c.out = c.buf[:0], 0, nil
		q.spare = append(q.spare, c)
	}
}

// take returns the next full chunk or mark, nil if there is none. With all set the open chunk counts as full.
func (q *queue) take(all bool) *chunk {
	q.mu.Lock()
	defer q.mu.Unlock()
	if all && len(q.full) == 0 && q.open != nil {
		q.full, q.open = append(q.full, q.open), nil
	}
	if len(q.full) == 0 {
		return nil
	}
	c := q.full[0]
	q.full[0] = nil
	if q.full = q.full[1:]; len(q.full) == 0 {
		q.full = nil
	}
	if c.buf == nil {
		q.marks--
		return c
	}
	q.entries -= c.entries
	q.flying++
	return c
}

// written gives a chunk from take back.
func (q *queue) written(c *chunk) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying--
	q.recycle(c)
}

// abandoned notes that a chunk from take never comes back.
func (q *queue) abandoned(c *chunk) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying--
	q.lost.Add(uint64(c.entries))
}

// swap makes t current. Entries taken so far still go where they were meant to go; the output of the former target
// is marked as done with unless t has the same.
func (q *queue) swap(t *target) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old := q.current.Swap(t)
	q.seal()
	if old != nil && (t == nil || t.out != old.out) {
		old.out.retired.Store(true)
		q.full = append(q.full, &chunk{out: old.out})
		q.marks++
		q.signal()
	}
}

// congested reports whether half of the budget or more is taken.
func (q *queue) congested() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.entries >= maxEntries/2 || len(q.full) >= maxChunks/2
}
