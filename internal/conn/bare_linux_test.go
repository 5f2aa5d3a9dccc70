package conn_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// barePair returns a Raw as an accept loop makes it, which is not in the poller yet, and the connection at its other end.
func barePair(t *testing.T) (*conn.Raw, *net.TCPConn) {
	t.Helper()
	l, far := waiting(t)
	rc, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var r *conn.Raw
	eventually(t, "a connection is accepted", func() bool {
		err := rc.Control(func(fd uintptr) {
			if c, peer, errno := conn.Accept4(int(fd)); errno == 0 {
				r = conn.NewRaw(c, conn.Info{Remote: peer})
			}
		})
		return err == nil && r != nil
	})
	t.Cleanup(func() { r.Close(); far.Close() })
	return r, far
}

// open reports whether a descriptor is one.
func open(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// TestBareServesWhatIsThere: a request that has arrived is read and answered without the poller, and the descriptor goes
// back to the system with the connection.
func TestBareServesWhatIsThere(t *testing.T) {
	r, far := barePair(t)
	far.Write([]byte("request"))
	far.CloseWrite()
	eventually(t, "it has arrived", r.PeerGone)
	buf := make([]byte, 64)
	if n, err := r.Read(buf); string(buf[:n]) != "request" || err != nil {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	if _, err := r.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(buf); n != 0 || err != io.EOF {
		t.Fatalf("%d, %v at the end", n, err)
	}
	if r.Polled() {
		t.Error("it has joined the poller without a wait")
	}
	if err := r.Close(); err != nil || open(r.FD()) {
		t.Errorf("closing: %v; still open: %v", err, open(r.FD()))
	}
	if got, err := io.ReadAll(far); string(got) != "answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := r.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := r.Read(buf); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read when closed: %v", err)
	}
}

// TestBareWaits: what comes later is waited for in the poller, byte by byte, without a lost edge.
func TestBareWaits(t *testing.T) {
	r, far := barePair(t)
	sent := bytes.Repeat([]byte("0123456789"), 500)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range sent {
			far.Write(sent[i : i+1])
		}
		far.CloseWrite()
	})
	got, err := io.ReadAll(r)
	wg.Wait()
	if !bytes.Equal(got, sent) || err != nil {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

// TestBareDeadlines: those that were set before the poller knew the socket hold, the last one of each direction.
func TestBareDeadlines(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(r *conn.Raw)
		late bool
	}{
		{"read, to come", func(r *conn.Raw) { r.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) }, true},
		{"both, to come", func(r *conn.Raw) { r.SetDeadline(time.Now().Add(20 * time.Millisecond)) }, true},
		{"interrupted", func(r *conn.Raw) { r.Interrupt() }, true},
		{"interrupted in a wait", func(r *conn.Raw) { time.AfterFunc(20*time.Millisecond, r.Interrupt) }, true},
		{"lifted", func(r *conn.Raw) { r.Interrupt(); r.SetDeadline(time.Time{}) }, false},
		{"of writes", func(r *conn.Raw) { r.SetWriteDeadline(time.Unix(1, 0)) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, far := barePair(t)
			tc.set(r)
			if !tc.late {
				far.Write([]byte("x"))
			}
			n, err := r.Read(make([]byte, 8))
			if tc.late && !errors.Is(err, os.ErrDeadlineExceeded) || !tc.late && (n != 1 || err != nil) {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	t.Run("a write that waits", func(t *testing.T) {
		r, _ := barePair(t)
		r.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := r.Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("bytes are not read after one has passed", func(t *testing.T) {
		r, far := barePair(t)
		far.Write([]byte("x"))
		eventually(t, "it has arrived", func() bool { return !r.Quiet() })
		r.Interrupt()
		if n, err := r.Read(make([]byte, 8)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// TestBareInterruptedInside: an interruption that comes while the connection is served ends the wait that follows.
func TestBareInterruptedInside(t *testing.T) {
	r, _ := barePair(t)
	steps := 0
	err := r.Loop(func(int) bool {
		if steps++; steps == 1 {
			r.Interrupt()
		}
		return false
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) || steps != 1 {
		t.Errorf("%v after %d steps", err, steps)
	}
}

// TestBareClosedInside: who closes a connection that is being served takes the descriptor away only once it is not used any
// more, so that its number cannot come to mean another connection meanwhile.
func TestBareClosedInside(t *testing.T) {
	r, far := barePair(t)
	fd := r.FD()
	err := r.Loop(func(int) bool {
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		wg.Wait()
		if !open(fd) {
			t.Error("the descriptor is gone while it is used")
		}
		if n, e := r.TryWrite([]byte("bye")); n != 3 || e != 0 {
			t.Errorf("write: %d, %v", n, e)
		}
		return true
	})
	if err != nil || open(fd) {
		t.Errorf("%v; still open: %v", err, open(fd))
	}
	if got, err := io.ReadAll(far); string(got) != "bye" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestBareClosedInAWrite: the same when a write waits inside, which has joined the poller for that: it fails at once.
func TestBareClosedInAWrite(t *testing.T) {
	r, _ := barePair(t)
	fd := r.FD()
	var failed error
	err := r.Loop(func(int) bool {
		var wg sync.WaitGroup
		wg.Go(func() {
			eventually(t, "the write waits", r.Polled)
			r.Close()
		})
		_, failed = r.Write(make([]byte, 16<<20))
		wg.Wait()
		if !open(fd) {
			t.Error("the descriptor is gone while it is used")
		}
		return true
	})
	if err != nil || failed == nil || open(fd) {
		t.Errorf("loop: %v; write: %v; still open: %v", err, failed, open(fd))
	}
}

// TestBarePanic: a step that panics leaves nothing behind that would keep the descriptor.
func TestBarePanic(t *testing.T) {
	r, _ := barePair(t)
	func() {
		defer func() { _ = recover() }()
		_ = r.Loop(func(int) bool { panic("asked to") })
	}()
	if err := r.Close(); err != nil || open(r.FD()) {
		t.Errorf("%v; still open: %v", err, open(r.FD()))
	}
}

// TestBareFromAllSides lets everybody at a connection at once who may: for the race detector, and for a wait that nobody
// ends.
func TestBareFromAllSides(t *testing.T) {
	for range 200 {
		r, far := barePair(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			for buf := make([]byte, 8); ; {
				if _, err := r.Read(buf); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
			}
		})
		wg.Go(func() { r.WriteStall(make([]byte, 4<<10), time.Millisecond) })
		wg.Go(r.Interrupt)
		wg.Go(func() { r.SetReadDeadline(time.Time{}); far.Write([]byte("x")) })
		wg.Go(func() { r.PeerGone(); r.Close() })
		wg.Wait()
		far.Close()
	}
}
