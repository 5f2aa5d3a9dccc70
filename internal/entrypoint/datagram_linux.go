package entrypoint

import (
	"errors"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

const (
	// datagramBatch is how many datagrams one system call moves, and answerBatch how many of one backend.
	datagramBatch, answerBatch = 32, 8
	// listenTurn is how often the socket of the clients is read before the answers have their turn.
	listenTurn = 4
	// loopTurn is how many looks a loop takes before others get the processor.
	loopTurn = 64
	// tickEvery is how often a loop that has sessions looks for what has timed out.
	tickEvery = 250 * time.Millisecond
	// datagramBuffer is asked for the queue of a socket; the kernel caps it at net.core.rmem_max.
	datagramBuffer = 4 << 20
	// listenPlace is the place of the clients' socket in the poll; those of sessions begin behind it.
	listenPlace = 0
)

// Orders to a loop, from others.
const (
	orderDrain uint32 = 1 << iota // new clients are dropped; ends when no session is left on the whole socket
	orderCede                     // clients are left to another process; ends as above
	orderClose                    // ends now
)

// datagrams is one socket of an entrypoint of datagrams with the sessions of the clients that the kernel gives to it. One
// goroutine does all of it: it reads a batch from the clients, sends each to the socket of its session, and collects the
// answers of all sessions for one call.
type datagrams struct {
	s    *socket
	fd   int
	wild bool // the socket has several addresses
	poll *conn.Poll
	hold func() bool // another process still reads

	orders    atomic.Uint32
	attention atomic.Bool
	forced    atomic.Bool // some session is
	answer    atomic.Pointer[chan<- []handed]

	mu     sync.Mutex // guards the fields below, and fd against being closed
	closed bool
	holder *binding // counts this loop while it drains

	// The rest is the loop's.
	owner     *binding
	listening bool
	in, out   *conn.Batch
	pending   int        // addressed answers in out
	owed      []*session // whose they are
	table     sessions
	opening   []*session // whose backend's address is not known yet
	now       time.Time
	fresh     bool // now is of the look under way
	ticked    time.Time
	turns     int
	looks     uint64 // how many there have been
	onReady   func(uint32)
	onMore    func() bool
}

func newDatagrams(s *socket, fd int, hold func() bool) (*datagrams, error) {
	poll, err := conn.NewPoll()
	if err != nil {
		return nil, err
	}
	l := &datagrams{s: s, fd: fd, poll: poll, hold: hold, wild: wildcard(s.bound)}
	l.onReady, l.onMore = l.ready, l.more
	return l, nil
}

func wildcard(bound net.Addr) bool {
	u, ok := bound.(*net.UDPAddr)
	return ok && u.IP.IsUnspecified()
}

// Wake has the loop look at its orders.
func (l *datagrams) Wake() {
	l.attention.Store(true)
	l.poll.Wake()
}

func (l *datagrams) order(o uint32) {
	l.orders.Or(o)
	l.Wake()
}

// run is the loop.
func (l *datagrams) run(*socket) {
	defer func() { l.end(); l.in.Free(); l.out.Free() }()
	l.in, l.out, l.owed = conn.NewBatch(datagramBatch), conn.NewBatch(datagramBatch), make([]*session, datagramBatch)
	l.table = newSessions()
	for {
		l.turns = 0
		l.poll.Until(l.due())
		on, err := l.turn()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			l.s.log.Error("a socket of datagrams is not served any more", "address", l.s.bound.String(), "error", err)
			return
		}
		if !on {
			return
		}
		if l.turns >= loopTurn {
			runtime.Gosched()
		}
	}
}

// turn obeys orders and serves what comes. False: the loop has come to its end.
func (l *datagrams) turn() (on bool, err error) {
	on = true
	defer l.contain()
	if on = l.attend(); on {
		err = l.poll.Wait(l.onReady, l.onMore)
	}
	return on, err
}

// contain has a panic end what was being served, not the rest.
func (l *datagrams) contain() {
	if r := recover(); r != nil {
		l.owner.counts.panicked.Add(1)
		l.s.log.Error("serving a datagram ended by a panic", "entrypoint", l.owner.name, "panic", r, "stack", string(debug.Stack()))
	}
}

// due is when the loop must look at its sessions; zero without any.
func (l *datagrams) due() time.Time {
	if len(l.table.byFlow) == 0 {
		return time.Time{}
	}
	return time.Now().Add(tickEvery)
}

// attend obeys orders and does what is due. False: the loop has come to its end.
func (l *datagrams) attend() bool {
	l.attention.Store(false)
	l.now = time.Now()
	orders, owner := l.orders.Load(), l.s.owner.Load()
	if orders&orderClose != 0 {
		return false
	}
	if owner != nil && owner != l.owner {
		l.owner = owner
		l.endAll(func(s *session) bool { return s.b != owner })
	}
	l.listen(owner != nil && orders&orderCede == 0 && !l.hold())
	if l.forced.Swap(false) {
		l.endAll(func(s *session) bool { return s.forced.Load() })
	}
	l.connectOpening()
	if l.now.Sub(l.ticked) >= tickEvery {
		l.tick()
	}
	if c := l.answer.Swap(nil); c != nil {
		*c <- l.handed()
	}
	l.flush()
	return orders == 0 || l.s.sessions.Load() > 0
}

// listen reads the clients' socket, or leaves its queue alone.
func (l *datagrams) listen(on bool) {
	switch {
	case on == l.listening:
	case on:
		if err := l.poll.Add(l.fd, listenPlace); err != nil {
			l.s.log.Error("reading a socket of datagrams", "address", l.s.bound.String(), "error", err)
			return
		}
		l.listening = true
	default:
		l.poll.Remove(l.fd)
		l.listening = false
	}
}

// ready reads what has something to read.
func (l *datagrams) ready(place uint32) {
	if !l.fresh {
		l.now, l.fresh = time.Now(), true
	}
	if place != listenPlace {
		if s := l.table.at(place); s != nil {
			l.answers(s)
		}
		return
	}
	for range listenTurn {
		n, errno := l.in.Receive(l.fd, 0, datagramBatch, true)
		if errno != 0 {
			return
		}
		for i := range n {
			l.take(i)
		}
		if n < datagramBatch {
			return
		}
	}
}

// more ends a look.
func (l *datagrams) more() bool {
	l.flush()
	l.fresh = false
	l.turns++
	l.looks++
	if l.turns >= loopTurn || l.attention.Load() {
		return false
	}
	if l.now.Sub(l.ticked) >= tickEvery {
		l.tick()
	}
	return true
}

// end is the end of the loop and of its sessions.
func (l *datagrams) end() {
	for l.table.oldest != nil {
		func() {
			defer l.contain()
			l.endAll(func(*session) bool { return true })
		}()
	}
	l.mu.Lock()
	l.closed = true
	_ = unix.Close(l.fd)
	b := l.holder
	l.mu.Unlock()
	_ = l.poll.Close()
	if c := l.answer.Swap(nil); c != nil {
		*c <- nil
	}
	l.s.attend() // others that drain may have waited for the last session of this one
	if b != nil && b.conns.Done() == 0 && b.retired.Load() {
		b.set.forget(b)
	}
}

// drain lets the loop end with its last session.
func (l *datagrams) drain(b *binding, ceded bool) {
	l.mu.Lock()
	if !l.closed && l.holder == nil {
		b.conns.Add()
		l.holder = b
	}
	l.mu.Unlock()
	if ceded {
		l.order(orderCede)
	} else {
		l.order(orderDrain)
	}
}

// cede leaves the clients to another process.
func (l *datagrams) cede(answer chan<- []handed) {
	l.answer.Store(&answer)
	l.order(orderCede)
}

func (l *datagrams) refuse(*socket) bool { return false }

func (l *datagrams) sweep(*socket, *binding) {}

func (l *datagrams) file() (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, os.ErrClosed
	}
	dup, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(dup), "datagrams"), nil
}

// Close orders the loop to end, or closes what no loop has begun with.
func (l *datagrams) Close() error {
	l.s.mu.Lock()
	begun := l.s.begun
	l.s.mu.Unlock()
	if begun {
		l.order(orderClose)
		return nil
	}
	l.closed = true
	return errors.Join(unix.Close(l.fd), l.poll.Close())
}

// bindDatagrams opens n sockets on a resolved address, among which the kernel divides the clients. Their number stays,
// since it is what says which of them a client's datagrams come to. With shared set, another socket of this process that
// is about to be closed holds an overlapping address.
func bindDatagrams(s *socket, n int, shared bool) error {
	fds, err := bindGroup(s.addr, n, shared, bindDatagram)
	if err != nil {
		return err
	}
	return s.adoptLoops(fds, never)
}

func never() bool { return false }

// bindDatagram opens one socket. As with listening ones, the first of a group is bound like an ordinary one, so that an
// address in use is refused; SO_REUSEADDR would have it shared.
func bindDatagram(a *address, member bool) (int, error) {
	fd, sa, err := openIP(a, unix.SOCK_DGRAM)
	if err == nil && member {
		err = setInts(fd, [][3]int{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}})
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sa))
	}
	if err == nil {
		err = setInts(fd, [][3]int{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}, {unix.SOL_SOCKET, unix.SO_RCVBUF, datagramBuffer}})
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
	}
	return fd, err
}

// adoptDatagrams makes inherited sockets those of s. It owns the files, also when it fails.
func (s *socket) adoptDatagrams(socks []inheritedSocket, hold func() bool) error {
	fds, err := dupAll(socks)
	if err != nil {
		return err
	}
	return s.adoptLoops(fds, hold)
}

// adoptLoops makes bound descriptors the acceptors of s. It owns them, also when it fails.
func (s *socket) adoptLoops(fds []int, hold func() bool) error {
	for i, fd := range fds {
		l, err := s.adoptLoop(fd, hold)
		if err != nil {
			closeAll(fds[i:])
			for _, done := range s.acceptors {
				_ = done.Close()
			}
			return err
		}
		s.acceptors = append(s.acceptors, l)
	}
	return nil
}

func (s *socket) adoptLoop(fd int, hold func() bool) (*datagrams, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	s.bound = datagramAddr(sa)
	if wildcard(s.bound) {
		if err := sayAddresses(fd, sa); err != nil {
			return nil, err
		}
	}
	return newDatagrams(s, fd, hold)
}

// sayAddresses has the kernel tell which address each datagram came to, so that answers come from there.
func sayAddresses(fd int, sa unix.Sockaddr) error {
	if _, ok := sa.(*unix.SockaddrInet4); ok {
		return setInts(fd, [][3]int{{unix.IPPROTO_IP, unix.IP_PKTINFO, 1}})
	}
	return setInts(fd, [][3]int{{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}})
}

func datagramAddr(sa unix.Sockaddr) net.Addr {
	t, ok := netAddr(sa).(*net.TCPAddr)
	if !ok {
		return netAddr(sa)
	}
	return &net.UDPAddr{IP: t.IP, Port: t.Port, Zone: t.Zone}
}

// reasonOf is why the system has not sent a datagram; blamed means that the other side cannot be reached at all.
func reasonOf(errno syscall.Errno) (why drop, blamed bool) {
	switch errno {
	case syscall.EMSGSIZE:
		return dropTooLarge, false
	case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.ENOPROTOOPT:
		return dropUnreachable, true
	}
	return dropNotSent, false
}
