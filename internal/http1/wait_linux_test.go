package http1_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// waitingBytes is what a connection in the middle of a body may take while it waits, an exchange and two stacks of the
// test included; a buffer for bodies alone is 128 KiB.
const waitingBytes = 24 << 10

// TestWaitingUploads: clients that send slowly hold no large buffer.
func TestWaitingUploads(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has its own memory")
	}
	const n = 200
	var begun sync.WaitGroup
	begun.Add(n)
	site := serve(t, modes[0], testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
		_, err := x.Down.ReadBody()
		begun.Done()
		for err == nil {
			_, err = x.Down.ReadBody()
		}
		return plainOK(x)
	})))
	before := memory()
	clients := make([]peer, n)
	for i := range clients {
		clients[i] = site.dial()
		if _, err := io.WriteString(clients[i], post("Content-Length: 200000")+"b"); err != nil {
			t.Fatal(err)
		}
	}
	begun.Wait()
	wantMemory(t, before, n)
	rest := strings.Repeat("b", 199999)
	for _, c := range clients {
		go func() { _, _ = io.WriteString(c, rest) }()
		if answer, err := bufio.NewReader(c).ReadString('\n'); !strings.HasPrefix(answer, "HTTP/1.1 200") {
			t.Fatalf("%q %v", answer, err)
		}
	}
}

// wantMemory waits until n connections take no more than they may.
func wantMemory(t *testing.T, before uint64, n int) {
	t.Helper()
	each := 0
	eventually(t, "memory is given back", func() bool {
		each = int(int64(memory()-before)) / n
		return each < waitingBytes
	})
	t.Logf("%d bytes each", each)
}

// waits is a sink that tells when the first byte of the body has come.
type waits struct {
	gather
	first func()
}

func (w *waits) Body(p []byte, last bool) error {
	if w.first != nil {
		w.first()
		w.first = nil
	}
	return w.gather.Body(p, last)
}

// TestWaitingStreams: streams from backends that have nothing to say hold no large buffer, and the fields of their heads
// stay what they are, however the head came.
func TestWaitingStreams(t *testing.T) {
	const n = 200
	for name, pieces := range map[string][]string{
		"at once":      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\n\r\na"},
		"head in two":  {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Na", "me: value\r\n\r\na"},
		"body later":   {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\n\r\n", "a"},
		"interim head": {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\n\r\na"},
		"a large head": {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\nX-Pad: " + strings.Repeat("p", 50<<10) + "\r\n", "\r\na"},
	} {
		t.Run(name, func(t *testing.T) {
			more := make(chan struct{})
			var ends sync.Map // of each backend's end the other one
			mode := backendMode{name: "kernel", dial: func(t testing.TB) (net.Conn, peer) {
				near, far := tcpPair(t)
				ends.Store(far, near)
				return near, far.(*net.TCPConn)
			}}
			b := backends(t, mode, testClock(t), http1.PoolConfig{MaxIdle: n}, func(b peer, r *bufio.Reader, _ conn.Conn) {
				requestHead(r)
				for i, p := range pieces {
					if i > 0 {
						near, _ := ends.Load(b)
						settle(b.(*net.TCPConn), near.(*net.TCPConn))
					}
					_, _ = io.WriteString(b, p)
				}
				<-more
				_, _ = io.WriteString(b, "bcde")
				hold(r)
			})
			before := memory()
			var begun, done sync.WaitGroup
			begun.Add(n)
			for range n {
				done.Go(func() {
					c, err := b.Get(ask{t.Context()}, false)
					if err != nil {
						t.Error(err)
						begun.Done()
						return
					}
					defer c.Release(true)
					if err := stream(c, begun.Done); err != nil {
						t.Error(err)
					}
				})
			}
			begun.Wait()
			if !raceEnabled && name != "a large head" {
				wantMemory(t, before, n)
			}
			close(more)
			done.Wait()
		})
	}
}

// settle waits until the reader has taken what the writer wrote, so that the next piece comes by itself.
func settle(writer, reader *net.TCPConn) {
	for queued(writer, unix.SIOCOUTQ)+queued(reader, unix.SIOCINQ) > 0 {
		runtime.Gosched()
	}
}

// queued is how many bytes lie in a socket; 0 when it is closed.
func queued(c *net.TCPConn, what uint) (n int) {
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), what) })
	}
	return n
}

// stream reads a response that waits in its middle, and checks it at its end.
func stream(c *http1.ClientConn, begun func()) error {
	var f, trailers exchange.Fields
	sink := &waits{first: begun}
	if _, err := c.RoundTrip([]byte(plainGet), nil, []byte("GET"), false, &f, sink); err != nil {
		begun()
		return err
	}
	if err := c.CopyBody(sink, false, &trailers); err != nil {
		return err
	}
	if v, _ := f.First("x-name"); string(v) != "value" || string(sink.body) != "abcde" {
		return fmt.Errorf("X-Name %q, body %q", v, sink.body)
	}
	return nil
}
