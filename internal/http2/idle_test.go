package http2_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// A connection that idles has one goroutine, its reader, however many streams it has had at once.
func TestIdleGoroutines(t *testing.T) { // not in parallel: it counts everybody's
	release := make(chan struct{})
	r := start(t, modes[0], settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		<-release
		return answer(x, 200, "ok")
	})))
	f := r.framer(t)
	for i := range uint32(10) {
		f.headers(2*i+1, true, nil)
	}
	f.settle()
	close(release)
	for ended := 0; ended < 10; {
		if got := f.next(); strings.HasSuffix(got, "END") {
			ended++
		}
	}
	running := func() (n int) {
		buf := make([]byte, 1<<20)
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "http2.(*worker).run") || strings.Contains(g, "http2.(*serverConn).write") {
				n++
			}
		}
		return n
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(5 * time.Second); running() > 0; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d goroutines stay", running())
		}
	}
	f.headers(101, true, nil)
	f.want("HEADERS 101 200", "DATA 101 ok END")
}
