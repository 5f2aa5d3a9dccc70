package conn_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func TestMemoryDial(t *testing.T) {
	m := conn.NewMemory()
	if _, err := m.Dial(t.Context(), "127.0.0.1:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("nobody listens: %v", err)
	}
	l, err := m.Listen("127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Listen(":80"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("second listener: %v", err)
	}
	a, err := m.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	if b.Info().Remote != a.Info().Local || a.RemoteAddr().String() != "127.0.0.1:80" || !b.Info().Remote.IsValid() {
		t.Fatalf("addresses: %v %v", b.Info(), a.Info())
	}
	queued, err := m.Dial(t.Context(), "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := queued.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("queued connection of a closed listener: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("accept after close: %v", err)
	}
	again, err := m.Listen("127.0.0.1:80")
	if err != nil {
		t.Fatalf("the address is not free again: %v", err)
	}
	again.Close()
	a.Close()
	b.Close()
}

func TestMemoryDialWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := conn.NewMemory()
		l, _ := m.Listen("svc:0")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n := 0
		for {
			if _, err := m.Dial(ctx, l.Addr().String()); err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				break
			}
			n++
		}
		if n < 16 || n > 1024 {
			t.Fatalf("%d connections were queued", n)
		}
		l.Close()
	})
}

func TestMemoryStream(t *testing.T) {
	a, b := conn.Pipe()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := a.Write(sent); n != len(sent) || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
		a.CloseWrite()
	})
	got, err := io.ReadAll(b)
	wg.Wait()
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	if !b.PeerGone() || a.PeerGone() {
		t.Fatal("half-close is seen on the wrong side")
	}
	if _, err := b.Write([]byte("back")); err != nil { // the other direction goes on
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("write after the end: %v", err)
	}
	buf := make([]byte, 10)
	if n, err := a.Read(buf); string(buf[:n]) != "back" || err != nil {
		t.Fatalf("%q %v", buf[:n], err)
	}
	b.Close()
	if _, err := a.Read(buf); err != io.EOF {
		t.Fatalf("after close: %v", err)
	}
	a.Close()
	if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("own close: %v", err)
	}
	if err := a.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("deadline after close: %v", err)
	}
}

func TestMemoryResets(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(c *conn.MemoryConn)
		want error
	}{
		{"close", func(c *conn.MemoryConn) { io.ReadFull(c, make([]byte, 5)); c.Close() }, io.EOF},
		{"close with unread bytes", func(c *conn.MemoryConn) { c.Close() }, syscall.ECONNRESET},
		{"abort", func(c *conn.MemoryConn) { c.Abort() }, syscall.ECONNRESET},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := conn.Pipe()
			a.Write([]byte("hello"))
			if b.Quiet() || !a.Quiet() {
				t.Fatal("quiet tells the wrong side")
			}
			tc.end(b)
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, tc.want) {
				t.Fatalf("read: %v, want %v", err, tc.want)
			}
			if _, err := a.Write([]byte("x")); err == nil {
				t.Fatal("write to a closed peer went through")
			}
			if !a.PeerGone() || a.Quiet() {
				t.Fatal("departure unseen")
			}
			a.Close()
		})
	}
}

func TestMemoryDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := conn.Pipe()
		defer a.Close()
		defer b.Close()
		start := time.Now()
		a.SetReadDeadline(start.Add(3 * time.Second))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Fatalf("read: %v after %v", err, time.Since(start))
		}
		a.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := a.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == 1<<20 {
			t.Fatalf("write: %d %v", n, err)
		}
		var ne net.Error
		a.SetDeadline(time.Time{})
		go func() { time.Sleep(time.Second); a.Interrupt() }()
		if _, err := a.Read(make([]byte, 1)); !errors.As(err, &ne) || !ne.Timeout() {
			t.Fatalf("interrupted read: %v", err)
		}
		a.SetDeadline(time.Time{})
		go func() { time.Sleep(time.Second); b.Write([]byte("x")) }()
		if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatalf("read after the deadline was removed: %v", err)
		}
	})
}
