package conn_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// waiting returns a listener with a connection that it has not accepted, and that at its other end.
func waiting(t *testing.T) (*net.TCPListener, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.TCPListener), far.(*net.TCPConn)
}

// rawPair returns a Raw and the ordinary connection at its other end.
func rawPair(t *testing.T) (*conn.Raw, *net.TCPConn) {
	t.Helper()
	l, far := waiting(t)
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r, ok := conn.RawOf(near)
	if !ok {
		t.Fatal("no raw form of a TCP connection")
	}
	t.Cleanup(func() { r.Close(); far.Close() })
	return r, far
}

func TestRawReadWrite(t *testing.T) {
	r, far := rawPair(t)
	if r.Info().Remote.String() != far.LocalAddr().String() || r.LocalAddr().String() != far.RemoteAddr().String() {
		t.Fatalf("addresses %v", r.Info())
	}
	sent := bytes.Repeat([]byte("0123456789"), 300_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := io.ReadAll(far)
		if !bytes.Equal(got, append([]byte("head"), sent...)) || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	if err := r.WriteStall2([]byte("head"), sent, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := r.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	far.Write([]byte("abc"))
	far.CloseWrite()
	got, err := io.ReadAll(r)
	if string(got) != "abc" || err != nil {
		t.Fatalf("%q %v", got, err)
	}
}

func TestRawStalls(t *testing.T) {
	r, _ := rawPair(t)
	start := time.Now()
	err := r.WriteStall2(make([]byte, 8<<20), make([]byte, 8<<20), 200*time.Millisecond)
	if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) < 200*time.Millisecond {
		t.Fatalf("%v after %v", err, time.Since(start))
	}
	go func() { r.Interrupt() }()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("interrupted read: %v", err)
	}
	if err := r.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// TestRawLoop sends byte by byte: every byte must wake the loop, however it falls between two calls.
func TestRawLoop(t *testing.T) {
	r, far := rawPair(t)
	const n = 2000
	go func() {
		for range n {
			far.Write([]byte("x"))
		}
		far.CloseWrite()
	}()
	got := 0
	buf := make([]byte, 64)
	end := false
	err := r.Loop(func(fd int) bool {
		for {
			k, e := conn.TryRead(fd, buf)
			if e == syscall.EAGAIN {
				return false
			}
			got += k
			if k == 0 || e != 0 {
				end = e == 0
				return true
			}
		}
	})
	if err != nil || got != n || !end {
		t.Fatalf("%d bytes, end %v, %v", got, end, err)
	}
}

func TestRawPeer(t *testing.T) {
	r, far := rawPair(t)
	if !r.Quiet() || r.PeerGone() {
		t.Fatal("a new connection is not quiet")
	}
	far.Write([]byte("x"))
	eventually(t, "bytes make it unquiet", func() bool { return !r.Quiet() })
	if r.PeerGone() {
		t.Fatal("gone while bytes are unread")
	}
	far.CloseWrite()
	eventually(t, "FIN behind unread bytes is seen", r.PeerGone)
	if p := conn.NewPlain(far, conn.Info{}); p.FD() <= 0 || p.PeerGone() {
		t.Fatalf("descriptor %d of a plain connection", p.FD())
	}
	r.Abort()
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("after abort: %v", err)
	}
}

func TestPlainAbort(t *testing.T) {
	r, far := rawPair(t)
	conn.NewPlain(far, conn.Info{}).Abort()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("after abort: %v", err)
	}
}

func TestClockProbes(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"fin": func(c *net.TCPConn) { c.Write([]byte("unread")); c.CloseWrite() },
		"rst": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r, far := rawPair(t)
			stay, _ := rawPair(t)
			clock, stop := running()
			defer stop()
			gone, other := &entry{probe: r.FD}, &entry{probe: stay.FD}
			clock.Add(gone)
			clock.Add(other)
			eventually(t, "both are visited", func() bool { return gone.visits.Load() > 0 && other.visits.Load() > 0 })
			if gone.departed.Load() != 0 {
				t.Fatal("departed before it left")
			}
			leave(far)
			eventually(t, "departure", func() bool { return gone.departed.Load() > 0 })
			if other.departed.Load() != 0 {
				t.Error("the one that stayed was told")
			}
			clock.Remove(gone)
			clock.Remove(other)
		})
	}
}

// eventually waits for something that another goroutine or the kernel brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within 5 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
