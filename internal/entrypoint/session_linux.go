package entrypoint

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

const (
	// maxHeld and maxHeldBytes bound what waits for the address of a backend, a session.
	maxHeld, maxHeldBytes = 8, 64 << 10
	// maxSends is how often one datagram is sent before it is dropped, and maxAgain how large one may be to be sent again.
	maxSends, maxAgain = 3, 1500
)

// session is one client's datagrams, both ways, with one backend.
type session struct {
	l      *datagrams
	b      *binding
	flow   conn.Flow
	to     exchange.Session
	fd     int // connected to the backend; -1 not yet
	place  uint32
	peer   *conn.Peer
	info   conn.Info
	x      exchange.Exchange
	ticket drain.Ticket
	forced atomic.Bool

	first        []byte // the only datagram so far, unanswered; nil: it is not sent again
	sends        int    // how often it has been sent before, in other sessions
	look         uint64 // the last one that found answers
	held         [][]byte
	heldBytes    int
	last         time.Time // of the last datagram
	older, newer *session  // by last
	sibling      *session  // the next of the same client, with another backend; nil without Datagrams.Spread
}

// Drain changes nothing: who drains a socket tells its loop.
func (s *session) Drain(drain.Mode) {}

// Force ends the session soon.
func (s *session) Force() {
	s.forced.Store(true)
	s.l.forced.Store(true)
	s.l.Wake()
}

// drop counts a datagram that is not passed on.
func (b *binding) drop(why drop) { b.counts.datagrams.dropped[why].Add(1) }

// take passes the datagram at place i of the batch on.
func (l *datagrams) take(i int) {
	b := l.owner
	if !l.in.Whole(i) {
		b.drop(dropTooLarge)
		return
	}
	flow := l.in.Flow(i)
	for range maxSends {
		s := l.next(flow)
		if s == nil || l.pass(s, l.in.Bytes(i)) {
			return
		}
	}
	b.drop(dropUnreachable)
}

// next is the session of a client's next datagram, a new one if need be; nil: the datagram has been dropped.
func (l *datagrams) next(flow conn.Flow) *session {
	s := l.table.byFlow[flow]
	for s != nil && !l.stays(s) {
		s = l.table.byFlow[flow]
	}
	var where exchange.Place
	if s != nil && l.owner.opts.Load().Datagrams.Spread {
		where = s.to.Next()
		for s != nil && s.to.Place() != where {
			s = s.sibling
		}
		if s != nil && !l.stays(s) {
			s = nil
		}
	}
	if s == nil {
		return l.open(l.owner, flow, where)
	}
	return s
}

// stays reports whether a session goes on; otherwise it has ended.
func (l *datagrams) stays(s *session) bool {
	err := s.to.Stays()
	if err != nil {
		l.close(s, err)
	}
	return err == nil
}

// pass sends one datagram to the backend, or keeps it until that can be. False: the backend cannot be reached, and the
// session has ended.
func (l *datagrams) pass(s *session, b []byte) bool {
	if s.fd < 0 {
		l.keep(s, b)
		return true
	}
	errno := conn.SendDatagram(s.fd, b)
	if errno != 0 {
		why, blamed := reasonOf(errno)
		if blamed {
			l.refused(s, errno)
			return false
		}
		s.b.drop(why)
		return true
	}
	if s.first = nil; s.x.Record.DatagramsIn == 0 && len(b) <= maxAgain && !s.x.HeadSent() {
		s.first = append(make([]byte, 0, len(b)), b...)
	}
	l.table.touch(s, l.now)
	s.x.Record.DatagramsIn++
	s.x.Record.BytesIn += int64(len(b))
	s.b.counts.datagrams.in.Add(1)
	return true
}

// refused ends a session whose backend cannot be reached. The datagram that has shown it has not been taken by anybody: it
// goes to another backend, if there is one.
func (l *datagrams) refused(s *session, errno syscall.Errno) {
	first, sends, flow := s.first, s.sends+1, s.flow
	l.close(s, errno)
	switch {
	case first == nil || s.b != l.owner:
	case sends == maxSends:
		l.owner.drop(dropUnreachable)
	default:
		if s = l.next(flow); s != nil {
			if s.sends = sends; !l.pass(s, first) {
				l.owner.drop(dropUnreachable)
			}
		}
	}
}

// keep holds a datagram for a backend whose address is being looked up.
func (l *datagrams) keep(s *session, b []byte) {
	if len(s.held) == maxHeld || s.heldBytes+len(b) > maxHeldBytes {
		s.b.drop(dropUnresolved)
		return
	}
	s.held = append(s.held, append(make([]byte, 0, len(b)), b...))
	s.heldBytes += len(b)
}

// open begins a session of a client, with a backend if that is given; nil: its datagram is dropped.
func (l *datagrams) open(b *binding, flow conn.Flow, where exchange.Place) *session {
	o := b.opts.Load().Datagrams
	if l.orders.Load() != 0 {
		b.drop(dropDraining)
		return nil
	}
	if b.counts.open.Add(1) > o.maxSessions() {
		l.expire()
		if b.counts.open.Load() > o.maxSessions() {
			b.counts.open.Add(-1)
			b.counts.refused.Add(1)
			b.drop(dropFull)
			return nil
		}
	}
	s := &session{l: l, b: b, flow: flow, fd: -1, last: l.now}
	s.info = conn.Info{Entrypoint: b.name, Remote: flow.Client(), Local: l.localOf(&flow)}
	s.x.BeginSession(&s.info, time.Now())
	defer func() {
		if s.to == nil { // also when the handler panics
			b.counts.open.Add(-1)
		}
	}()
	if where == (exchange.Place{}) {
		where = l.pinned(&flow)
	}
	to, err := o.Handler.OpenSession(&s.x, where, l)
	if err != nil {
		b.drop(refusal(err))
		return nil
	}
	s.to = to
	s.peer = flow.Peer()
	b.counts.accepted.Add(1)
	b.conns.Add()
	l.s.sessions.Add(1)
	l.table.add(s)
	b.live.Enter(&s.ticket, s)
	if len(l.table.byFlow) == 1 {
		l.Wake() // the loop slept without a bound
	}
	if !l.connect(s) {
		return nil
	}
	if s.fd < 0 {
		l.opening = append(l.opening, s)
	}
	return s
}

// localOf is the address that a client has written to.
func (l *datagrams) localOf(flow *conn.Flow) netip.AddrPort {
	bound, _ := netip.ParseAddrPort(l.s.bound.String())
	if ip := flow.Local(); ip.IsValid() {
		return netip.AddrPortFrom(ip, bound.Port())
	}
	return bound
}

// pinned is the backend that the client has had in another process.
func (l *datagrams) pinned(flow *conn.Flow) exchange.Place {
	p := l.s.pins.Load()
	if p != nil && l.now.Sub(p.since) > l.owner.opts.Load().Datagrams.timeout() {
		l.s.pins.Store(nil)
		return exchange.Place{}
	}
	return p.take(client{flow.Client(), flow.Local()})
}

// refusal is why a handler takes no session.
func refusal(err error) drop {
	var e *exchange.Error
	switch {
	case !errors.As(err, &e):
		return dropNotSent
	case e.Code == exchange.CodeNoRoute:
		return dropRefused
	case e.Code == exchange.CodeDraining:
		return dropDraining
	}
	return dropNoBackend
}

// connect gives a session its socket, once the backend's address is known. False: it cannot, and the session has ended.
func (l *datagrams) connect(s *session) bool {
	addr, err := s.to.Address()
	if err == nil && !addr.IsValid() {
		return true
	}
	why := dropUnresolved
	if err == nil {
		why = dropNotSent
		if s.fd, err = conn.DialDatagram(addr); err == nil {
			err = l.poll.Add(s.fd, s.place)
		}
	}
	if err == nil {
		return true
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		var blamed bool
		if why, blamed = reasonOf(errno); !blamed {
			err = errors.New(errno.Error()) // descriptors or memory of ours: not the backend's fault
		}
	}
	s.b.counts.datagrams.dropped[why].Add(uint64(max(1, len(s.held))))
	s.held = nil
	l.close(s, err)
	return false
}

// connectOpening looks again at the sessions whose backend had no address.
func (l *datagrams) connectOpening() {
	waiting := l.opening
	l.opening = nil
	for _, s := range waiting {
		switch {
		case l.table.at(s.place) != s: // ended
		case !l.connect(s):
		case s.fd < 0:
			l.opening = append(l.opening, s)
		default:
			l.release(s)
		}
	}
}

// release sends what a session has held.
func (l *datagrams) release(s *session) {
	held := s.held
	s.held, s.heldBytes = nil, 0
	for i, b := range held {
		if !l.pass(s, b) {
			s.b.counts.datagrams.dropped[dropUnreachable].Add(uint64(len(held) - i))
			return
		}
	}
}

// answers takes what a backend has sent.
func (l *datagrams) answers(s *session) {
	if datagramBatch-l.pending < answerBatch {
		l.flush()
	}
	n, errno := l.out.Receive(s.fd, l.pending, l.pending+l.expected(s), false)
	if errno != 0 {
		if _, blamed := reasonOf(errno); blamed {
			l.refused(s, errno)
		}
		return
	}
	if !s.x.HeadSent() {
		s.first = nil
		s.to.Answered()
	}
	l.table.touch(s, l.now)
	for range n {
		l.out.Address(l.pending, s.peer)
		l.owed[l.pending] = s
		l.pending++
	}
}

// expected is how many answers to ask for: one as a rule, since looking for a second one in vain costs as much as taking it;
// where there are more, the next look tells of them, and a batch is taken then.
func (l *datagrams) expected(s *session) int {
	last := s.look
	if s.look = l.looks; last+1 == l.looks {
		return answerBatch
	}
	return 1
}

// flush sends the collected answers.
func (l *datagrams) flush() {
	for i := 0; i < l.pending; {
		n, errno := l.out.Send(l.fd, i, l.pending)
		if errno != 0 {
			why, _ := reasonOf(errno)
			l.owed[i].b.drop(why)
			i++
			continue
		}
		for ; n > 0; n-- {
			l.sent(i)
			i++
		}
	}
	clear(l.owed[:l.pending])
	l.pending = 0
}

// sent counts an answer.
func (l *datagrams) sent(i int) {
	s := l.owed[i]
	s.x.Record.DatagramsOut++
	s.x.Record.BytesOut += int64(len(l.out.Bytes(i)))
	s.b.counts.datagrams.out.Add(1)
}

// tick ends what is idle, and what another configuration, or the backend's health, has no place for.
func (l *datagrams) tick() {
	l.ticked = l.now
	l.expire()
	for s := l.table.oldest; s != nil; {
		next := s.newer
		l.stays(s)
		s = next
	}
}

// expire ends the sessions that are idle.
func (l *datagrams) expire() {
	for s := l.table.oldest; s != nil; s = l.table.oldest {
		if l.now.Sub(s.last) < s.b.opts.Load().Datagrams.timeout() {
			return
		}
		l.close(s, nil)
	}
}

// endAll ends the chosen sessions because time is up.
func (l *datagrams) endAll(which func(*session) bool) {
	for s := l.table.oldest; s != nil; {
		next := s.newer
		if which(s) {
			l.close(s, exchange.ErrForced)
		}
		s = next
	}
}

// close ends a session. Answers that it has brought go out before its record is closed.
func (l *datagrams) close(s *session, why error) {
	l.flush()
	l.table.remove(s)
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	s.b.counts.datagrams.dropped[dropUnresolved].Add(uint64(len(s.held)))
	s.ticket.Leave()
	defer l.leave(s) // also when the handler panics
	s.to.Close(why)
}

// leave gives the place of a session back.
func (l *datagrams) leave(s *session) {
	s.b.leave()
	if l.s.sessions.Add(-1) == 0 && l.orders.Load() != 0 {
		l.s.attend()
	}
}

// handed lists the sessions for another process.
func (l *datagrams) handed() []handed {
	all := make([]handed, 0, len(l.table.byFlow))
	for flow, s := range l.table.byFlow {
		all = append(all, handed{Entrypoint: s.b.name, client: client{flow.Client(), flow.Local()}, Place: s.to.Place()})
	}
	return all
}
