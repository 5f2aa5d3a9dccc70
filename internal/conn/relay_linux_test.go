package conn_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// socketPair returns two connected kernel sockets, the second as a relay has it.
func socketPair(t testing.TB) (outer *net.TCPConn, inner *conn.Raw) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in := <-accepted
	inner, ok := conn.RawOf(in)
	if !ok {
		t.Fatal("no raw connection")
	}
	t.Cleanup(func() { c.Close(); inner.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn), inner
}

type interrupts []conn.Interrupter

func (all interrupts) Interrupt() {
	for _, i := range all {
		i.Interrupt()
	}
}

// relayedRaw starts a relay between two sockets with a clock behind it.
func relayedRaw(t testing.TB, pace conn.Pace) (a, b *net.TCPConn, guard *conn.Alarm, result func() conn.Relayed) {
	t.Helper()
	a, a2 := socketPair(t)
	b, b2 := socketPair(t)
	clock := conn.NewClock()
	guard = new(conn.Alarm)
	guard.Bind(clock)
	guard.Arm(interrupts{a2, b2}, pace.Idle)
	pace.Guard = guard
	done := make(chan conn.Relayed, 1)
	go func() { done <- conn.Relay(a2, b2, pace) }()
	return a, b, guard, func() conn.Relayed {
		t.Helper()
		select {
		case r := <-done:
			return r
		case <-time.After(20 * time.Second):
			t.Fatal("the relay goes on")
			return conn.Relayed{}
		}
	}
}

// What a has taken is told in its order, also by sockets that are full, and nothing of what b takes.
func TestRelayTells(t *testing.T) {
	var told bytes.Buffer
	a, b, _, result := relayedRaw(t, conn.Pace{ToA: func(p []byte) { told.Write(p) }})
	sent := make([]byte, 4<<20)
	for i := range sent {
		sent[i] = byte(i * i >> 7)
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = b.Write(sent); _ = b.CloseWrite() })
	both.Go(func() { _, _ = a.Write([]byte("not told")); _ = a.CloseWrite() })
	got, err := io.ReadAll(a)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	_, _ = io.Copy(io.Discard, b)
	both.Wait()
	if r := result(); r.Err != nil || !bytes.Equal(told.Bytes(), sent) {
		t.Errorf("told of %d bytes; %+v", told.Len(), r)
	}
}

// Every byte arrives, in order, whatever the sizes of reads and writes and however slow the receiver.
func TestRelayRaw(t *testing.T) {
	a, b, _, result := relayedRaw(t, conn.Pace{})
	send := func(to *net.TCPConn, seed uint64, total int) (sum [32]byte) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := sha256.New()
		for total > 0 {
			p := make([]byte, min(total, 1+r.IntN(200_000)))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			h.Write(p)
			if _, err := to.Write(p); err != nil {
				t.Error(err)
				return sum
			}
			total -= len(p)
		}
		_ = to.CloseWrite()
		return [32]byte(h.Sum(nil))
	}
	receive := func(from *net.TCPConn) [32]byte {
		h := sha256.New()
		if _, err := io.CopyBuffer(h, struct{ io.Reader }{from}, make([]byte, 1000)); err != nil {
			t.Error(err)
		}
		return [32]byte(h.Sum(nil))
	}
	const up, down = 5 << 20, 3 << 20
	var sent, got [2][32]byte
	var wg sync.WaitGroup
	wg.Go(func() { sent[0] = send(a, 1, up) })
	wg.Go(func() { sent[1] = send(b, 2, down) })
	wg.Go(func() { got[0] = receive(b) })
	wg.Go(func() { got[1] = receive(a) })
	wg.Wait()
	if sent != got {
		t.Error("other bytes arrived than were sent")
	}
	if r := result(); r.Err != nil || r.AtoB != up || r.BtoA != down || !r.AEnded || !r.BEnded {
		t.Errorf("%+v", r)
	}
}

// An interruption ends a relay that never waits, and one whose receiver does not read.
func TestRelayRawInterrupted(t *testing.T) {
	for name, receives := range map[string]bool{"busy": true, "stalled": false} {
		t.Run(name, func(t *testing.T) {
			a, b, guard, result := relayedRaw(t, conn.Pace{})
			var wg sync.WaitGroup
			moved := make(chan struct{})
			wg.Go(func() {
				p := make([]byte, 64<<10)
				for n := 0; ; n++ {
					if n == 32 {
						close(moved)
					}
					_ = a.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
					if _, err := a.Write(p); err != nil {
						if n < 32 {
							close(moved)
						}
						return
					}
				}
			})
			if receives {
				wg.Go(func() { _, _ = io.Copy(io.Discard, b) })
			}
			<-moved
			guard.Ring(conn.CauseDrain)
			if r := result(); r.Err == nil {
				t.Errorf("%+v", r)
			}
			if c := guard.Disarm(); c != conn.CauseDrain {
				t.Errorf("cause %v", c)
			}
			a.Close()
			b.Close()
			wg.Wait()
		})
	}
}

// What has been read before the relay goes first, on either side, and over the fast path.
func TestRelayRawPrefix(t *testing.T) {
	a, a2 := socketPair(t)
	b, b2 := socketPair(t)
	done := make(chan conn.Relayed, 1)
	go func() {
		done <- conn.Relay(conn.WithPrefix(conn.WithPrefix(a2, []byte("two ")), []byte("one ")), conn.WithPrefix(b2, []byte("hello ")), conn.Pace{})
	}()
	_, _ = a.Write([]byte("three"))
	_, _ = b.Write([]byte("world"))
	a.CloseWrite()
	b.CloseWrite()
	if got, err := io.ReadAll(b); string(got) != "one two three" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := io.ReadAll(a); string(got) != "hello world" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if r := <-done; r.AtoB != 13 || r.BtoA != 11 || r.Err != nil {
		t.Errorf("%+v", r)
	}
}

// A reset that came in one batch with bytes is found by the clock.
func TestRelayRawLateReset(t *testing.T) {
	clock, stop := running()
	defer stop()
	a, a2 := socketPair(t)
	_, b2 := socketPair(t)
	guard := new(conn.Alarm)
	guard.Bind(clock)
	guard.Arm(interrupts{a2, b2}, 0)
	_, _ = a.Write([]byte("last"))
	_ = a.SetLinger(0)
	_ = a.Close()
	r := conn.Relay(a2, b2, conn.Pace{Guard: guard})
	if r.Err == nil || !r.AFailed {
		t.Errorf("%+v", r)
	}
	guard.Disarm()
}

// expiry lets a clock end what an alarm guards.
type expiry struct {
	*conn.Alarm
	slot conn.ClockSlot
}

func (e *expiry) OnTick(k *conn.Clock) int { k.Expire(e.Alarm); return -1 }
func (e *expiry) OnDeparted()              {}
func (e *expiry) Slot() *conn.ClockSlot    { return &e.slot }

// Without a bound for half-closed connections the one for open ones no longer holds either.
func TestRelayRawHalfClosedUnbounded(t *testing.T) {
	clock, stop := running()
	defer stop()
	a, a2 := socketPair(t)
	b, b2 := socketPair(t)
	guard := new(conn.Alarm)
	guard.Bind(clock)
	pace := conn.Pace{Guard: guard, Idle: 10 * conn.Tick} // in which the relay has to see the end of one side
	_ = a.CloseWrite()
	guard.Arm(interrupts{a2, b2}, pace.Idle)
	visited := &expiry{Alarm: guard}
	clock.Add(visited)
	defer clock.Remove(visited)
	done := make(chan conn.Relayed, 1)
	go func() { done <- conn.Relay(a2, b2, pace) }()
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(err)
	}
	select {
	case r := <-done:
		t.Fatalf("ended: %+v", r)
	case <-time.After(16 * conn.Tick):
	}
	_, _ = io.WriteString(b, "late")
	_ = b.CloseWrite()
	if got, err := io.ReadAll(a); string(got) != "late" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if r := <-done; r.Err != nil {
		t.Errorf("%+v", r)
	}
	guard.Disarm()
}

// A reset that a write has been told of is not taken for an end by who reads.
func TestRelayRawToldReset(t *testing.T) {
	a, a2 := socketPair(t)
	b, b2 := socketPair(t)
	_ = a.SetLinger(0)
	_ = a.Close()
	for {
		if _, err := a2.Write([]byte("x")); errors.Is(err, syscall.ECONNRESET) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	late := time.AfterFunc(5*time.Second, b2.Interrupt)
	defer late.Stop()
	if r := conn.Relay(a2, b2, conn.Pace{}); !errors.Is(r.Err, syscall.ECONNRESET) || !r.AFailed || r.AEnded {
		t.Errorf("%+v", r)
	}
	_ = b.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the other side sees %v", err)
	}
}
