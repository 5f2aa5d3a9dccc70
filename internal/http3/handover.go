package http3

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
)

// A socket that is handed over to another process is read by that one alone, and it passes packets of connections that
// stay here back, over a pair of Unix sockets. It knows them by the first bytes of the connection ids, which are other ones
// in each process.

const (
	tagSize = 2
	// idSize is the length of connection ids: the tag and what keeps them apart.
	idSize = tagSize + 8
	// maxTags bounds how many processes before this one may still have connections.
	maxTags = 16
	// passQueue is how many packets wait to be passed back. More are lost, as on any path that is full.
	passQueue = 256
	// maxPacket is the largest packet that is passed back; QUIC's are no larger on any link that there is.
	maxPacket = 2 << 10
	// greetingTime is how long the tags of the processes before may take: they are there when this one starts.
	greetingTime = time.Second
)

// tag is what the connection ids of a process begin with.
type tag [tagSize]byte

// ids makes the connection ids of this process (RFC 9000 §5.1).
type ids struct{ own tag }

// ConnectionIDLen is the length of every id.
func (ids) ConnectionIDLen() int { return idSize }

// GenerateConnectionID makes one.
func (i ids) GenerateConnectionID() (quic.ConnectionID, error) {
	var b [idSize]byte
	copy(b[:], i.own[:])
	_, _ = rand.Read(b[tagSize:]) // never fails
	return quic.ConnectionIDFromBytes(b[:]), nil
}

// socket is a UDP socket that may have belonged to another process, and may be handed over to one.
type socket struct {
	*net.UDPConn
	batch *ipv4.PacketConn
	own   tag

	opened  chan struct{} // closed when it is to be read
	opening sync.Once

	before []tag         // of processes whose packets are passed back
	pass   chan []byte   // to the one that has handed the socket over; nil: nobody has
	passed chan struct{} // closed when nothing is passed any more
	pred   *net.UnixConn
	once   sync.Once

	ceded    atomic.Bool
	returned atomic.Bool // it was ceded, and the other process had no use for it

	mu       sync.Mutex    // guards next and deadline
	next     *net.UnixConn // packets come back on it once the socket is ceded
	deadline time.Time     // of reading, as the owner has set it

	in   []byte // the reader's, as is came
	came bool   // a packet was passed back
}

// newSocket takes a socket over, from the process at the other end of pred; nil: it is ours alone.
func newSocket(udp *net.UDPConn, pred *net.UnixConn) (*socket, error) {
	s := &socket{UDPConn: udp, batch: ipv4.NewPacketConn(udp), opened: make(chan struct{}), in: make([]byte, maxPacket+32)}
	if pred != nil {
		if err := s.greeted(pred); err != nil {
			return nil, err
		}
		s.pred, s.pass, s.passed = pred, make(chan []byte, passQueue), make(chan struct{})
		go s.passBack()
	}
	for {
		_, _ = rand.Read(s.own[:])
		if !slices.Contains(s.before, s.own) {
			return s, nil
		}
	}
}

// greeted reads the tags of the processes before.
func (s *socket) greeted(pred *net.UnixConn) error {
	b := make([]byte, maxTags*tagSize)
	_ = pred.SetReadDeadline(time.Now().Add(greetingTime))
	n, err := pred.Read(b)
	if err != nil || n%tagSize != 0 {
		return fmt.Errorf("the process that handed the UDP socket over does not tell its connections: %w", err)
	}
	for t := range slices.Chunk(b[:n], tagSize) {
		s.before = append(s.before, tag(t))
	}
	return nil
}

// handOver returns a copy of the socket for a process that packets come back from by next, whose other end it has.
func (s *socket) handOver(next *net.UnixConn) (*os.File, error) {
	greeting := append([]byte(nil), s.own[:]...)
	for _, t := range s.before[:min(len(s.before), maxTags-1)] {
		greeting = append(greeting, t[:]...)
	}
	if _, err := next.Write(greeting); err != nil {
		return nil, err
	}
	f, err := s.File()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		_ = s.next.Close() // of a process that did not come up
	}
	s.next = next
	return f, nil
}

// cede leaves the socket to the process that it was handed over to.
func (s *socket) cede() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil && !s.ceded.Swap(true) {
		_ = s.UDPConn.SetReadDeadline(longAgo)
	}
}

// takeBack reads a socket on that the other process has no use for.
func (s *socket) takeBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.returned.Store(true)
	s.ceded.Store(false)
	_ = s.UDPConn.SetReadDeadline(s.deadline)
}

// open has the socket read. Until then packets wait in the kernel.
func (s *socket) open() { s.opening.Do(func() { close(s.opened) }) }

// SetReadDeadline ends a pending read, whatever is read.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.open()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	if s.next != nil {
		_ = s.next.SetReadDeadline(t)
	}
	return s.UDPConn.SetReadDeadline(t)
}

// ReadBatch reads packets of connections of this process.
func (s *socket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	<-s.opened
	for {
		if s.ceded.Load() {
			n, err := s.readBack(ms)
			if err != nil && !s.came && !errors.Is(err, os.ErrDeadlineExceeded) {
				s.takeBack()
				continue
			}
			return n, err
		}
		n, err := s.batch.ReadBatch(ms, flags)
		if err != nil {
			if s.ceded.Load() {
				continue
			}
			return n, err
		}
		if ceded := s.ceded.Load(); ceded || s.pass != nil {
			n = s.sift(ms[:n], ceded)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// sift passes packets of others back, and returns how many are left. A read that was under way when the socket was ceded may
// find packets that begin connections: those are dropped, since they are the other process's, which gets them again.
func (s *socket) sift(ms []ipv4.Message, ceded bool) (kept int) {
	for i := range ms {
		m := &ms[i]
		owner, known := ownerOf(m.Buffers[0][:m.N])
		if from, ok := m.Addr.(*net.UDPAddr); ok && known && slices.Contains(s.before, owner) {
			s.offer(from.AddrPort(), m.Buffers[0][:m.N])
			continue
		}
		if ceded && !(known && owner == s.own) {
			continue
		}
		if to := &ms[kept]; to != m { // only the content: a buffer belongs to its place
			to.N = copy(to.Buffers[0], m.Buffers[0][:m.N])
			to.NN = copy(to.OOB, m.OOB[:m.NN])
			to.Addr, to.Flags = m.Addr, m.Flags
		}
		kept++
	}
	return kept
}

// ownerOf returns what the connection id of a packet begins with (RFC 8999 §5). A client chooses the first id itself: that
// is no process's.
func ownerOf(p []byte) (tag, bool) {
	const long, idAt = 0x80, 6
	switch {
	case len(p) > idSize && p[0]&long == 0:
		return tag(p[1:]), true
	case len(p) >= idAt+idSize && p[0]&long != 0 && p[idAt-1] == idSize:
		return tag(p[idAt:]), true
	}
	return tag{}, false
}

// offer queues a packet to be passed back, if there is room.
func (s *socket) offer(from netip.AddrPort, p []byte) {
	if s.pass == nil || len(p) > maxPacket {
		return
	}
	select {
	case s.pass <- appendPassed(make([]byte, 0, len(p)+32), from, p):
	default:
	}
}

// appendPassed appends a packet with its sender: the sender's length, the sender, the packet.
func appendPassed(b []byte, from netip.AddrPort, p []byte) []byte {
	at := len(b)
	b, _ = from.AppendBinary(append(b, 0)) // never fails
	b[at] = byte(len(b) - at - 1)
	return append(b, p...)
}

// parsePassed takes apart what appendPassed has made.
func parsePassed(b []byte) (from netip.AddrPort, p []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return from, nil, false
	}
	n := 1 + int(b[0])
	err := from.UnmarshalBinary(b[1:n])
	return from, b[n:], err == nil && from.IsValid()
}

// passBack writes what is queued, until the process before is gone or the socket is closed.
func (s *socket) passBack() {
	defer close(s.passed)
	for b := range s.pass {
		if _, err := s.pred.Write(b); err != nil {
			break
		}
	}
	for range s.pass { // nobody takes it
	}
}

// readBack reads one packet that the process that has the socket now passes back.
func (s *socket) readBack(ms []ipv4.Message) (int, error) {
	for {
		n, err := s.next.Read(s.in)
		if err != nil {
			return 0, err
		}
		s.came = true
		from, p, ok := parsePassed(s.in[:n])
		if !ok {
			continue
		}
		if owner, known := ownerOf(p); known && slices.Contains(s.before, owner) {
			s.offer(from, p)
			continue
		}
		m := &ms[0]
		m.N, m.NN, m.Addr, m.Flags = copy(m.Buffers[0], p), 0, net.UDPAddrFromAddrPort(from), 0
		return 1, nil
	}
}

// Close closes the socket, once nothing reads it any more.
func (s *socket) Close() error {
	err := s.UDPConn.Close()
	s.once.Do(func() {
		if s.pass != nil {
			_ = s.pred.Close()
			close(s.pass)
			<-s.passed
		}
		if s.next != nil {
			err = errors.Join(err, s.next.Close())
		}
	})
	return err
}
