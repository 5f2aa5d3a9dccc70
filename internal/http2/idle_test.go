package http2_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

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
	for late := time.After(patience); running() > 0; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d goroutines stay", running())
		}
	}
	f.headers(101, true, nil)
	f.want("HEADERS 101 200", "DATA 101 ok END")
}

// head spells out a request that is answered at once, of one more literal, in as many frames as it takes.
func head(id uint32, name, value string) string {
	literal := func(b []byte, s string) []byte {
		if len(s) < 0x7f {
			return append(append(b, byte(len(s))), s...)
		}
		return append(binary.AppendUvarint(append(b, 0x7f), uint64(len(s)-0x7f)), s...)
	}
	block := literal(literal([]byte("\x02\x05TRACE\x86\x84\x01\x07h2.test\x00"), name), value)
	var b []byte
	flags, kind := xhttp2.FlagHeadersEndStream, xhttp2.FrameHeaders
	for len(block) > 0 {
		n := min(len(block), 16<<10)
		if n == len(block) {
			flags |= xhttp2.FlagHeadersEndHeaders
		}
		b = binary.BigEndian.AppendUint32(b, uint32(n)<<8|uint32(kind))
		b = binary.BigEndian.AppendUint32(append(b, byte(flags)), id)
		b, block = append(b, block[:n]...), block[n:]
		flags, kind = 0, xhttp2.FrameContinuation
	}
	return string(b)
}

// A connection that idles holds what docs/protocol/http2.md says, whatever it has sent.
func TestIdleMemory(t *testing.T) { // not in parallel: it measures the heap
	const (
		conns = 40
		bound = 32 << 10 // with its client
	)
	set := settings(&flooded{got: make(chan struct{})})
	set.MaxHeaderBytes, set.MaxHeaders, set.KeepAliveTimeout = 0, 0, time.Minute
	r := start(t, modes[0], set)
	empty := heapInUse()
	var all []*framer
	for range conns {
		f := r.framer(t)
		f.headers(1, true, nil, ":path", "/quick")
		f.want("HEADERS 1 200", "DATA 1 ok END")
		all = append(all, f)
	}
	check := func(sent string) {
		t.Helper()
		if got := (heapInUse() - empty) / conns; got > bound {
			t.Errorf("%d bytes a connection that has sent %s, at most %d are allowed", got, sent, bound)
		} else {
			t.Logf("%d KiB a connection that has sent %s", got>>10, sent)
		}
	}
	check("little")
	for _, f := range all {
		for _, large := range []struct{ head, want string }{
			{head(3, strings.Repeat("a", 60<<10), strings.Repeat("b", 60<<10)), "RST_STREAM 3 PROTOCOL_ERROR"},
			{head(5, "x-a", strings.Repeat("b", 120<<10)), "HEADERS 5 431"},
			{head(7, "cookie", strings.Repeat("c", 60<<10)), "HEADERS 7 405"},
			{head(9, "cookie", strings.Repeat("c", 100<<10)), "HEADERS 9 431"},
		} {
			_, _ = io.WriteString(f.c, large.head)
			f.want(large.want)
			if strings.HasPrefix(large.want, "HEADERS") {
				_ = f.next() // the answer's body
			}
		}
		f.settle()
	}
	check("much")
}

// The table of the client's encoder is kept over a large head.
func TestTableAfterLargeHead(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			var b strings.Builder
			for n, v := range x.Request.Fields.All() {
				fmt.Fprintf(&b, "%s:%.9s|", n, v)
			}
			return answer(x, 200, b.String())
		}))
		set.MaxHeaderBytes, set.MaxHeaders = 64<<10, 200
		f := start(t, m, set).framer(t)
		var fields []string
		want := "host:h2.test|"
		for i := range 90 { // some more than fit
			fields = append(fields, fmt.Sprintf("x-%d", i), fmt.Sprint("value ", i))
			want += fmt.Sprintf("x-%d:value %d|", i, i)
		}
		f.headers(1, true, fields)
		f.want("HEADERS 1 200", "DATA 1 "+want+" END")
		f.headers(3, true, append(fields[:90:90], "x-large", strings.Repeat("v", 40<<10)))
		f.want("HEADERS 3 200")
		_ = f.next()
		f.headers(5, true, fields)
		f.want("HEADERS 5 200", "DATA 5 "+want+" END")
	})
}
