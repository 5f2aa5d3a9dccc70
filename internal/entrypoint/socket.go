package entrypoint

import (
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// acceptor is one listening socket.
type acceptor interface {
	// run hands connections to the socket's owner until the acceptor is closed.
	run(s *socket)
	// refuse lets no new client connect, while those that are connecting still may. False: it cannot.
	refuse(s *socket) bool
	// sweep gives b what waits in the queue.
	sweep(s *socket, b *binding)
	// file is a copy of the descriptor.
	file() (*os.File, error)
	Close() error
}

// socket is one bound address: every listening socket of it, and the entrypoint that gets its connections. It
// outlives configurations; only its owner changes.
type socket struct {
	addr      address
	bound     net.Addr
	inherited bool        // from another process: a unix path is not ours to remove
	passedOn  atomic.Bool // copies have been given to another process
	acceptors []acceptor
	log       *slog.Logger

	owner   atomic.Pointer[binding] // nil: connections wait in the queue
	running sync.WaitGroup          // accept loops
	// of a socket of datagrams
	sessions atomic.Int64
	pins     atomic.Pointer[pins] // from the process that this one has replaced; nil: none are left
	done     chan struct{}        // closed when the socket is

	mu     sync.Mutex // guards the rest
	wake   chan struct{}
	begun  bool
	closed bool
}

func newSocket(a address, log *slog.Logger) *socket {
	return &socket{addr: a, log: log, done: make(chan struct{}), wake: make(chan struct{})}
}

// assign makes b the owner of connections accepted from now on; nil leaves them in the queue. The first owner starts
// the accept loops.
func (s *socket) assign(b *binding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.owner.Store(b)
	close(s.wake)
	s.wake = make(chan struct{})
	if b == nil || s.begun {
		s.attend()
		return
	}
	s.begun = true
	for _, a := range s.acceptors {
		s.running.Go(func() { a.run(s) })
	}
}

// attend has the loops of a socket of datagrams look at what has changed.
func (s *socket) attend() {
	for _, a := range s.acceptors {
		if w, ok := a.(exchange.Waker); ok {
			w.Wake()
		}
	}
}

// drain lets the sessions of a socket of datagrams come to their end, and the socket with the last of them. Ceded:
// another process reads it already.
func (s *socket) drain(b *binding, ceded bool) {
	for _, a := range s.acceptors {
		if d, ok := a.(interface{ drain(b *binding, ceded bool) }); ok {
			d.drain(b, ceded)
		}
	}
}

// await waits for an owner; nil means that the socket has been closed.
func (s *socket) await() *binding {
	for {
		s.mu.Lock()
		wake, closed := s.wake, s.closed
		s.mu.Unlock()
		if closed {
			return nil
		}
		if b := s.owner.Load(); b != nil {
			return b
		}
		select {
		case <-wake:
		case <-s.done:
			return nil
		}
	}
}

// handshakeTime bounds the wait for clients that are connecting to a socket that is about to be closed, and
// handshakePause is how often they are looked for. The wait is as long as the longest round trip to one of them, and
// reaches its bound only when one does not answer.
const (
	handshakeTime  = time.Second
	handshakePause = time.Millisecond
)

// retire closes the socket after b has got everything that clients know as connected: what waits in the queue, and
// the connections whose last packet of the handshake has not arrived yet.
func (s *socket) retire(b *binding) {
	refused := false
	for _, a := range s.acceptors {
		refused = a.refuse(s) || refused
	}
	for end := time.Now().Add(handshakeTime); ; time.Sleep(handshakePause) {
		some := false
		if t, ok := s.bound.(*net.TCPAddr); refused && ok {
			some, _ = handshaking(uint16(t.Port)) // without an answer there is nothing to wait for
		}
		for _, a := range s.acceptors {
			a.sweep(s, b)
		}
		if !some || time.Now().After(end) {
			break
		}
	}
	s.close(true)
}

// leave closes the socket and touches nothing that another holder of it may use.
func (s *socket) leave() { s.close(false) }

func (s *socket) close(unlink bool) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.owner.Store(nil)
	close(s.done)
	s.mu.Unlock()
	if unlink && !s.inherited && s.addr.path != "" && s.addr.path[0] != '@' {
		_ = os.Remove(s.addr.path) // before the close, so that a successor's path is never removed
	}
	for _, a := range s.acceptors {
		_ = a.Close()
	}
	s.running.Wait()
}

// Pauses after an error of accept.
const (
	firstPause = 50 * time.Millisecond
	longPause  = time.Second
)

// backoff spaces attempts to accept while the process has no descriptors or memory left. One belongs to each acceptor.
type backoff struct{ pause time.Duration }

// wait sleeps after an error, longer each time, and logs the first one.
func (p *backoff) wait(s *socket, b *binding, err error) {
	b.counts.acceptErrors.Add(1)
	if p.pause == 0 {
		p.pause = firstPause
		s.log.Warn("accepting is paused", "entrypoint", b.name, "address", s.bound.String(), "error", err, "open", b.counts.open.Load())
	} else {
		p.pause = min(2*p.pause, longPause)
	}
	t := time.NewTimer(p.pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
	}
}

// ok ends a row of errors.
func (p *backoff) ok(s *socket, b *binding) {
	if p.pause != 0 {
		p.pause = 0
		s.log.Info("accepting goes on", "entrypoint", b.name, "address", s.bound.String())
	}
}
