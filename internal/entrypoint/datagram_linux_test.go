package entrypoint_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// toBackend sends every client to one backend.
type toBackend struct {
	addr  netip.AddrPort
	wait  atomic.Bool // the address is not known
	mu    sync.Mutex
	wakes []exchange.Waker
	ends  []error
	asked []exchange.Place
}

func (h *toBackend) OpenSession(x *exchange.Exchange, again exchange.Place, wake exchange.Waker) (exchange.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wakes = append(h.wakes, wake)
	h.asked = append(h.asked, again)
	if x.Record.Peer.Port() == 0 {
		panic("no peer")
	}
	return &toSession{h}, nil
}

type toSession struct{ h *toBackend }

func (s *toSession) Address() (netip.AddrPort, error) {
	if s.h.wait.Load() {
		return netip.AddrPort{}, nil
	}
	return s.h.addr, nil
}
func (s *toSession) Place() exchange.Place { return exchange.Place{Service: "s", Backend: "b"} }
func (s *toSession) Next() exchange.Place  { return s.Place() }
func (s *toSession) Stays() error          { return nil }
func (s *toSession) Answered()             {}
func (s *toSession) Close(err error) {
	s.h.mu.Lock()
	s.h.ends = append(s.h.ends, err)
	s.h.mu.Unlock()
}

// known has the address become known.
func (h *toBackend) known() {
	h.wait.Store(false)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.wakes {
		w.Wake()
	}
}

// echoUDP sends back what it gets.
func echoUDP(t testing.TB) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], from)
		}
	})
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// datagramSet serves an entrypoint "u".
func datagramSet(t testing.TB, d *entrypoint.Datagrams) (*entrypoint.Set, string) {
	t.Helper()
	s := entrypoint.NewSet(entrypoint.Setup{})
	p, err := s.Prepare(t.Context(), map[string]*entrypoint.Options{"u": {Address: "127.0.0.1:0", Datagrams: d}})
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	p.Finish(0)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := s.Shutdown(ctx, drain.Prompt); err != nil {
			t.Error(err)
		}
		if st := s.Stats(); st[0].Open != 0 || s.Addr("u") == nil {
			t.Errorf("left behind: %+v", st)
		}
	})
	return s, s.Addr("u").String()
}

func udpClient(t testing.TB, to string, from net.IP) *net.UDPConn {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: from}, addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// A datagram on a session that exists costs no memory.
func TestDatagramAllocations(t *testing.T) {
	_, at := datagramSet(t, &entrypoint.Datagrams{Handler: &toBackend{addr: echoUDP(t)}})
	c := udpClient(t, at, nil)
	defer c.Close()
	b, text := make([]byte, 64), []byte("text")
	roundTrip := func() {
		if _, err := c.Write(text); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(b); err != nil || !bytes.Equal(b[:n], text) {
			t.Fatal(n, err)
		}
	}
	for range 100 {
		roundTrip()
	}
	var before, after runtime.MemStats
	const trips = 5000
	runtime.ReadMemStats(&before)
	for range trips {
		roundTrip()
	}
	runtime.ReadMemStats(&after)
	if n := float64(after.Mallocs-before.Mallocs) / trips; n > 0.05 {
		t.Errorf("%.2f allocations a round trip", n)
	}
}

// What comes while the address of a backend is looked up waits, up to its bound, and is sent in its order.
func TestDatagramsWait(t *testing.T) {
	h := &toBackend{addr: echoUDP(t)}
	h.wait.Store(true)
	s, at := datagramSet(t, &entrypoint.Datagrams{Handler: h})
	c := udpClient(t, at, nil)
	defer c.Close()
	for i := range 11 { // 8 are held
		_, _ = c.Write([]byte{byte(i)})
	}
	until(t, func() bool { return s.Stats()[0].Datagrams.Dropped["unresolved"] == 3 })
	h.known()
	b := make([]byte, 9)
	for i := range 8 {
		if n, err := c.Read(b); n != 1 || int(b[0]) != i || err != nil {
			t.Fatal(i, b[:n], err)
		}
	}
}

// What waits is bounded in bytes, too: two datagrams fill the 64 KiB exactly, and not one byte more is held.
func TestDatagramsWaitBytes(t *testing.T) {
	h := &toBackend{addr: echoUDP(t)}
	h.wait.Store(true)
	s, at := datagramSet(t, &entrypoint.Datagrams{Handler: h})
	c := udpClient(t, at, nil)
	defer c.Close()
	for i, size := range []int{32 << 10, 32<<10 - 1, 2, 1, 1} {
		if _, err := c.Write(bytes.Repeat([]byte{byte(i)}, size)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool { return s.Stats()[0].Datagrams.Dropped["unresolved"] == 2 })
	h.known()
	b := make([]byte, 64<<10)
	for _, want := range []struct{ first, size int }{{0, 32 << 10}, {1, 32<<10 - 1}, {3, 1}} {
		if n, err := c.Read(b); n != want.size || int(b[0]) != want.first || err != nil {
			t.Fatal(want, n, b[0], err)
		}
	}
}

// What waits for an address when its session ends is counted as dropped.
func TestDatagramsWaitInVain(t *testing.T) {
	h := &toBackend{}
	h.wait.Store(true)
	s, at := datagramSet(t, &entrypoint.Datagrams{Handler: h, Timeout: 100 * time.Millisecond})
	c := udpClient(t, at, nil)
	defer c.Close()
	for range 3 {
		_, _ = c.Write([]byte("x"))
	}
	until(t, func() bool { return s.Stats()[0].Datagrams.Dropped["unresolved"] == 3 })
}

// until waits for a condition.
func until(t testing.TB, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// A flood of new clients is held at the bound: in memory, in descriptors, in time.
func TestDatagramFlood(t *testing.T) {
	const most, clients = 4000, 6000
	sink, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	h := &toBackend{addr: sink.LocalAddr().(*net.UDPAddr).AddrPort()}
	s, at := datagramSet(t, &entrypoint.Datagrams{Handler: h, MaxSessions: most, Timeout: time.Hour})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range clients {
		c := udpClient(t, at, net.IPv4(127, 1, byte(i>>8), byte(i)))
		_, _ = c.Write([]byte("x"))
		_ = c.Close()
		if i%64 == 0 { // the queue of the socket is no part of the question
			until(t, func() bool { st := s.Stats()[0]; return int(st.Accepted+st.Refused) == i+1 })
		}
	}
	until(t, func() bool { st := s.Stats()[0]; return st.Accepted+st.Refused == clients })
	st := s.Stats()[0]
	if st.Open != most || st.Datagrams.Dropped["sessions_full"] != clients-most {
		t.Errorf("%d sessions; dropped %v", st.Open, st.Datagrams.Dropped)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / most
	t.Logf("%d bytes a session", each)
	if each > 4<<10 {
		t.Errorf("%d bytes a session", each)
	}
	known := udpClient(t, at, net.IPv4(127, 1, 0, 0)) // a new port: a new client
	defer known.Close()
	if _, err := known.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.Stats()[0].Refused == clients-most+1 })
}

// The sessions of a socket are told to a process that has its copies; that asks for the same backend, and reads only then.
func TestDatagramHandOver(t *testing.T) {
	h := &toBackend{addr: echoUDP(t)}
	s, at := datagramSet(t, &entrypoint.Datagrams{Handler: h})
	var clients []*net.UDPConn
	ask := func(c *net.UDPConn) {
		t.Helper()
		_, _ = c.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	for range 20 {
		c := udpClient(t, at, nil)
		defer c.Close()
		clients = append(clients, c)
		ask(c)
	}
	names, files, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		_ = f.Close()
	}
	in := entrypoint.Inherit(names, fds, nil)
	in.Hold()
	next := entrypoint.NewSet(entrypoint.Setup{Inherited: in})
	h2 := &toBackend{addr: h.addr}
	p, err := next.Prepare(t.Context(), map[string]*entrypoint.Options{"u": {Address: at, Datagrams: &entrypoint.Datagrams{Handler: h2}}})
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	p.Finish(0)
	for _, c := range clients { // the old one still reads
		ask(c)
	}
	var table bytes.Buffer
	if err := s.HandOver(&table); err != nil {
		t.Fatal(err)
	}
	_, _ = clients[0].Write([]byte("x")) // between the two
	if n, err := next.TakeOver(&table); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	_, _ = clients[0].Read(make([]byte, 9))
	for _, c := range clients {
		ask(c)
	}
	h2.mu.Lock()
	asked := h2.asked
	h2.mu.Unlock()
	for _, p := range asked {
		if p != (exchange.Place{Service: "s", Backend: "b"}) {
			t.Errorf("asked for %v", p)
		}
	}
	if len(asked) != 20 {
		t.Errorf("%d sessions", len(asked))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := next.Shutdown(ctx, drain.Prompt); err != nil {
		t.Error(err)
	}
}

// A plan that takes the entrypoint away and is reverted leaves the session, and what has come meanwhile, as they were; one
// that is finished ends both.
func TestDatagramPlan(t *testing.T) {
	h := &toBackend{addr: echoUDP(t)}
	s := entrypoint.NewSet(entrypoint.Setup{})
	change := func(wanted map[string]*entrypoint.Options) *entrypoint.Plan {
		t.Helper()
		p, err := s.Prepare(t.Context(), wanted)
		if err != nil {
			t.Fatal(err)
		}
		p.Commit()
		return p
	}
	with := map[string]*entrypoint.Options{"u": {Address: "127.0.0.1:0", Datagrams: &entrypoint.Datagrams{Handler: h}}}
	change(with).Finish(0)
	at := s.Addr("u").String()
	c := udpClient(t, at, nil)
	defer c.Close()
	echo := func() {
		t.Helper()
		if n, err := c.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = c.Write([]byte("x"))
	echo()
	p := change(nil)
	_, _ = c.Write([]byte("y")) // waits
	p.Revert(0)
	echo()
	if st := s.Stats()[0]; st.Open != 1 || st.Accepted != 1 {
		t.Errorf("%+v", st)
	}
	// The same port at another address, one of which is all: the socket is another one, and so is the session.
	_, port, _ := net.SplitHostPort(at)
	change(map[string]*entrypoint.Options{"u": {Address: ":" + port, Datagrams: with["u"].Datagrams}}).Finish(0)
	_, _ = c.Write([]byte("z"))
	echo()
	change(nil).Finish(0)
	if n := len(s.Stats()); n != 0 {
		t.Errorf("%d entrypoints are left", n)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ends) != 2 {
		t.Errorf("sessions have ended with %v", h.ends)
	}
	for _, err := range h.ends {
		if !errors.Is(err, exchange.ErrForced) {
			t.Error(err)
		}
	}
}

// A drain comes to its end when the last session ends before all sockets of its entrypoint have been told of it.
func TestDatagramDrainOrder(t *testing.T) {
	for first := range 2 { // one of the two has the session
		h := &toBackend{addr: echoUDP(t)}
		s := entrypoint.NewSet(entrypoint.Setup{Sockets: 2})
		p, err := s.Prepare(t.Context(), map[string]*entrypoint.Options{"u": {
			Address: "127.0.0.1:0", Datagrams: &entrypoint.Datagrams{Handler: h, Timeout: 100 * time.Millisecond},
		}})
		if err != nil {
			t.Fatal(err)
		}
		p.Commit()
		p.Finish(0)
		c := udpClient(t, s.Addr("u").String(), nil)
		_, _ = c.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		_ = c.Close()
		entrypoint.DrainLoop(s, "u", first)
		until(t, func() bool { return s.Stats()[0].Open == 0 })
		entrypoint.DrainLoop(s, "u", 1-first)
		ctx, cancel := contextWithPatience()
		defer cancel()
		if err := s.Wait(ctx); err != nil {
			t.Errorf("the socket drained first, number %d, is still there: %v", first, err)
		}
		_, _ = s.Shutdown(ctx, drain.Prompt)
	}
}

// faulty panics where it is told to.
type faulty struct {
	toBackend
	open, stays, close atomic.Bool
}

func (h *faulty) OpenSession(x *exchange.Exchange, again exchange.Place, wake exchange.Waker) (exchange.Session, error) {
	if h.open.Load() {
		panic("open")
	}
	s, err := h.toBackend.OpenSession(x, again, wake)
	return &faultySession{s, h}, err
}

type faultySession struct {
	exchange.Session
	h *faulty
}

func (s *faultySession) Stays() error {
	if s.h.stays.Load() {
		panic("stays")
	}
	return nil
}

func (s *faultySession) Close(err error) {
	if s.h.close.Load() {
		panic("close")
	}
	s.Session.Close(err)
}

// A panic in a handler is counted, wherever it comes, and neither ends the process nor keeps a session's place.
func TestDatagramPanics(t *testing.T) {
	h := &faulty{toBackend: toBackend{addr: echoUDP(t)}}
	s, at := datagramSet(t, &entrypoint.Datagrams{Handler: h, MaxSessions: 1, Timeout: 3 * time.Second}) // twelve looks at all sessions
	c := udpClient(t, at, nil)
	defer c.Close()
	panics := func(n uint64) {
		t.Helper()
		until(t, func() bool { return s.Stats()[0].Panics >= n })
	}
	echo := func() {
		t.Helper()
		_, _ = c.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	h.open.Store(true)
	_, _ = c.Write([]byte("x"))
	panics(1)
	h.open.Store(false)
	echo() // the one place is free
	h.stays.Store(true)
	panics(2) // by the look at all sessions
	h.stays.Store(false)
	echo()
	h.close.Store(true)
	panics(3) // once it is idle
	until(t, func() bool { return s.Stats()[0].Open == 0 })
	echo() // the last one's end panics too
}
