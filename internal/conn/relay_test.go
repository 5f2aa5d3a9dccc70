package conn_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// relayed starts a relay between two pipes and returns the outer ends and how it ended.
func relayed(t *testing.T) (a, b *conn.MemoryConn, result func() conn.Relayed) {
	a, a2 := conn.Pipe()
	b, b2 := conn.Pipe()
	done := make(chan conn.Relayed, 1)
	go func() { done <- conn.Relay(a2, b2, conn.Pace{}) }()
	t.Cleanup(func() { a.Close(); b.Close(); a2.Close(); b2.Close() })
	return a, b, func() conn.Relayed { return <-done }
}

func TestRelay(t *testing.T) {
	a, b, result := relayed(t)
	up, down := bytes.Repeat([]byte("up"), 100_000), bytes.Repeat([]byte("down"), 70_000)
	var wg sync.WaitGroup
	wg.Go(func() { a.Write(up); a.CloseWrite() })
	got, err := io.ReadAll(b) // the end of one direction comes through while the other is open
	if err != nil || !bytes.Equal(got, up) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	wg.Go(func() { b.Write(down); b.CloseWrite() })
	got, err = io.ReadAll(a)
	if err != nil || !bytes.Equal(got, down) {
		t.Fatalf("%d bytes back, %v", len(got), err)
	}
	wg.Wait()
	if r := result(); r.AtoB != int64(len(up)) || r.BtoA != int64(len(down)) || r.Err != nil {
		t.Fatalf("%+v", r)
	}
}

// What a has taken is told, what was read before and what was written in part included.
func TestRelayTellsPlain(t *testing.T) {
	a, a2 := conn.Pipe()
	b, b2 := conn.Pipe()
	var told bytes.Buffer
	done := make(chan conn.Relayed, 1)
	go func() {
		done <- conn.Relay(a2, conn.WithPrefix(b2, []byte("before, ")), conn.Pace{ToA: func(p []byte) { told.Write(p) }})
	}()
	b.Write([]byte("behind"))
	b.CloseWrite()
	got, err := io.ReadAll(a)
	a.Write([]byte("not told"))
	a.CloseWrite()
	if r := <-done; string(got) != "before, behind" || err != nil || told.String() != string(got) || r.Err != nil {
		t.Errorf("%q, %v; told %q; %+v", got, err, told.String(), r)
	}
}

func TestRelayEndsBothOnFailure(t *testing.T) {
	a, b, result := relayed(t)
	a.Write([]byte("hello"))
	io.ReadFull(b, make([]byte, 5))
	b.Abort()
	r := result() // though a has not ended
	if !errors.Is(r.Err, syscall.ECONNRESET) || r.AtoB != 5 {
		t.Fatalf("%+v", r)
	}
}

func TestWithPrefix(t *testing.T) {
	a, b := conn.Pipe()
	defer a.Close()
	if conn.WithPrefix(b, nil) != conn.Conn(b) {
		t.Fatal("an empty prefix wraps")
	}
	p := conn.WithPrefix(b, []byte("hello "))
	a.Write([]byte("world"))
	a.CloseWrite()
	got, err := io.ReadAll(p)
	if string(got) != "hello world" || err != nil {
		t.Fatalf("%q %v", got, err)
	}
	p.(conn.CloseWriter).CloseWrite()
	if _, err := a.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("half-close does not come through: %v", err)
	}
	p.(conn.Interrupter).Interrupt()
	if _, err := p.Read(make([]byte, 1)); err == nil {
		t.Fatal("read after Interrupt")
	}
	p.Close()
}

// Whether a connection is quiet may be asked while another goroutine reads it.
func TestPrefixQuiet(t *testing.T) {
	a, b := conn.Pipe()
	defer a.Close()
	defer b.Close()
	p := conn.WithPrefix(b, []byte("hello"))
	q := p.(interface{ Quiet() bool })
	if q.Quiet() {
		t.Error("quiet with bytes to be read")
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.ReadFull(p, make([]byte, 5)) })
	for !q.Quiet() {
		runtime.Gosched()
	}
	wg.Wait()
}
