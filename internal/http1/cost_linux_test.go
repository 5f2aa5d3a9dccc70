package http1_test

import (
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// exchangeOnce sends a request over an ordinary connection and reads an answer of known length without allocating.
func exchangeOnce(t testing.TB, c net.Conn, request, buf []byte, size int) {
	if _, err := c.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf[:size]); err != nil {
		t.Fatal(err)
	}
}

// TestAllocations: a GET on a kept kernel connection allocates nothing, a POST with its body neither.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	site := serve(t, modes[0], testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
		body, _ := x.Down.Buffered()
		x.Response.Status = 200
		x.Response.Fields.Add("Content-Type", "text/plain")
		return x.Send(body, true)
	})))
	c := site.dial()
	buf := make([]byte, 64<<10)
	for name, request := range map[string]string{
		"GET":           get("User-Agent: test", "Accept: */*", "Authorization: Bearer x", "Cookie: a=b"),
		"POST":          post("Content-Length: 1000") + strings.Repeat("b", 1000),
		"absolute form": head("GET http://h/a/b?c HTTP/1.1", "Host: h"),
	} {
		first := []byte(request)
		if _, err := c.Write(first); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		size := n
		got := testing.AllocsPerRun(500, func() { exchangeOnce(t, c, first, buf, size) })
		t.Logf("%s: %.2f allocations", name, got)
		if got >= 1 {
			t.Errorf("%s: %.2f allocations a request", name, got)
		}
	}
}

// idleBytes is what an idle kernel connection may cost on the heap and in stacks, both ends of the test not counted.
const idleBytes = 8 << 10

// TestIdleCost parks connections after one request each: none may hold a buffer.
func TestIdleCost(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has its own memory")
	}
	const n = 2000
	srv := http1.NewServer(settings(serveFunc(plainOK)), testClock(t), nil)
	var live drain.Tracker
	done := make(chan struct{}, n)
	far := make([]conn.Conn, n)
	near := make([]*net.TCPConn, n)
	for i := range n {
		var f net.Conn
		near[i], f = tcpPair(t)
		far[i] = kernelConn(f)
	}
	defer func() {
		live.Force()
		for i := range n {
			<-done
			near[i].Close()
		}
	}()
	before := memory()
	buf := make([]byte, 4096)
	request := []byte(get("X-Pad: " + strings.Repeat("p", 3000)))
	for i := range n {
		go func() { srv.ServeConn(far[i], &live); done <- struct{}{} }()
		exchangeOnce(t, near[i], request, buf, len("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	}
	each := int64(memory()-before) / n
	t.Logf("%d bytes an idle connection", each)
	if each > idleBytes {
		t.Errorf("an idle connection costs %d bytes, more than %d", each, idleBytes)
	}
}

// memory is what the heap and the stacks take, after collection; pools are emptied.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// BenchmarkGet measures a request on a kept connection, the client's part included.
func BenchmarkGet(b *testing.B) {
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			c := serve(b, m, testClock(b), settings(serveFunc(plainOK))).dial()
			request, buf := []byte(get("User-Agent: bench")), make([]byte, 4096)
			size := len("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			b.ReportAllocs()
			for b.Loop() {
				exchangeOnce(b, c, request, buf, size)
			}
		})
	}
}

// BenchmarkHead measures the parser.
func BenchmarkHead(b *testing.B) {
	in := []byte(get("User-Agent: Mozilla/5.0 (X11; Linux x86_64)", "Accept: text/html,application/xhtml+xml", "Accept-Encoding: gzip",
		"Cookie: session=0123456789abcdef", "Authorization: Bearer 0123456789abcdef0123456789abcdef"))
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if h := http1.ParseHead(in, nil, http1.Limits{MaxHeaderBytes: 8192, MaxHeaders: 32}, true); !h.Done {
			b.Fatal("not parsed")
		}
	}
}
