package http2_test

import (
	"io"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// untilDeparted is a handler whose client has to leave.
func untilDeparted(x *exchange.Exchange) error {
	<-x.Departed()
	return exchange.ErrDeparted
}

// Streams that only wait for their turn are not cut off while their client takes from the others.
func TestSlowShare(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		const streams, size = 20, 64 << 10
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			return x.Send(make([]byte, size), true)
		}))
		set.WriteIdleTimeout = 1500 * time.Millisecond
		f := start(t, m, set).framer(t, widest)
		for i := range uint32(streams) {
			f.headers(2*i+1, true, nil)
		}
		for total := 0; total < streams*size; {
			fr, err := f.fr.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch fr := fr.(type) {
			case *xhttp2.DataFrame:
				total += len(fr.Data())
				if len(fr.Data()) > 0 {
					time.Sleep(20 * time.Millisecond) // a client that takes 32 KiB of each stream in 2 s
					_ = f.fr.WriteWindowUpdate(0, uint32(len(fr.Data())))
				}
			case *xhttp2.RSTStreamFrame:
				t.Fatalf("%v after %d bytes", fr, total)
			}
		}
	})
}

// A head that is begun and not ended ends the connection after HeaderTimeout, whatever else runs there.
func TestSlowHead(t *testing.T) {
	for name, first := range map[string]uint32{"alone": 0, "beside a stream": 1} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, m mode) {
				set := settings(exchange.HandlerFunc(untilDeparted))
				set.HeaderTimeout = 2 * time.Second // in which the preface has to come
				f := start(t, m, set).framer(t)
				if first > 0 {
					f.headers(first, true, nil)
				}
				f.settle()
				_ = f.fr.WriteRawFrame(xhttp2.FrameHeaders, 0, 3, []byte("\x82"))
				f.want("GOAWAY 3 ENHANCE_YOUR_CALM", "closed")
			})
		})
	}
}

// A head that arrives in pieces during a drain is among what the last GOAWAY promises.
func TestDrainInsideHead(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") }))
		r := start(t, m, set)
		f := r.framer(t)
		f.settle()
		_ = f.fr.WriteRawFrame(xhttp2.FrameHeaders, xhttp2.FlagHeadersEndStream, 1, []byte("\x82\x86\x84"))
		r.live.Drain(drain.Prompt)
		f.ack = xhttp2.NewFramer(io.Discard, nil) // an answer to the PING would interrupt the head
		f.want(announcement, "GOAWAY 1 NO_ERROR")
		_ = f.fr.WriteContinuation(1, true, []byte("\x41\x07h2.test"))
		f.want("HEADERS 1 200", "DATA 1 ok END", "closed")
	})
}

// A connection that is drained before it has spoken ends after its first stream, also when that is taken back.
func TestDrainBeforePreface(t *testing.T) {
	for _, m := range modes[1:] { // the first has its preface read by the test
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			set := settings(exchange.HandlerFunc(untilDeparted))
			set.KeepAliveTimeout = time.Minute
			r := start(t, m, set)
			c, err := r.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for r.live.Len() == 0 {
				<-tick.C
			}
			r.live.Drain(drain.Prompt)
			f := r.onto(t, c)
			f.headers(1, true, nil)
			f.settle()
			_ = f.fr.WriteRSTStream(1, xhttp2.ErrCodeCancel)
			f.want(announcement, "GOAWAY 1 NO_ERROR", "closed")
		})
	}
}

// Memory that the heads of as many streams hold as are allowed, each spelt with a few bytes.
func TestHeadMemory(t *testing.T) { // not in parallel: it measures the heap
	const (
		streams = 250
		bound   = 32 << 20 // docs/protocol/http2.md
	)
	begun := make(chan struct{}, streams)
	set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		begun <- struct{}{}
		return untilDeparted(x)
	}))
	set.MaxHeaderBytes, set.MaxHeaders, set.MaxStreams = 0, 0, 0
	f := start(t, modes[0], set).framer(t)
	f.settle()
	before := heapInUse()
	const get = "\x82\x86\x84\x01\x07h2.test"
	first := get + "\x40\x01a\x7f\xa1\x1e" + strings.Repeat("v", 4000) // in the table from here on
	for i := range uint32(streams) {
		head := get + strings.Repeat("\xbe", 15)
		if i == 0 {
			head = first
		}
		_ = f.fr.WriteRawFrame(xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders|xhttp2.FlagHeadersEndStream, 2*i+1, []byte(head))
	}
	for range streams {
		within(t, "an exchange", begun)
	}
	if grown := heapInUse() - before; grown > bound {
		t.Errorf("%d KiB, at most %d are allowed", grown>>10, bound>>10)
	} else {
		t.Logf("%d KiB", grown>>10)
	}
}

// What a handler that panics leaves behind does not wait for the body any longer.
func TestPanicWhileBodyIsRead(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		ended := make(chan error, 1)
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if _, err := x.Down.ReadBody(); err != nil {
				return err
			}
			go func() {
				_, err := x.Down.ReadBody()
				ended <- err
			}()
			panic("on purpose")
		}))
		set.BodyIdleTimeout = time.Minute
		f := start(t, m, set).framer(t)
		f.headers(1, false, nil, ":method", "POST")
		f.data(1, false, "some")
		f.want("RST_STREAM 1 INTERNAL_ERROR")
		if err := within(t, "the end of the read", ended); err == nil {
			t.Error("the body goes on")
		}
	})
}

// The client of a gRPC call may be silent for longer than other uploads: calls that last for hours have nothing to say in
// one direction.
func TestCallBodiesMayIdle(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			b, err := readAll(x)
			if err != nil {
				return err
			}
			return answer(x, 200, string(b))
		}))
		set.BodyIdleTimeout = 300 * time.Millisecond
		f := start(t, m, set).framer(t)
		f.headers(1, false, []string{"content-type", "application/grpc"}, ":method", "POST")
		f.data(1, false, "call")
		f.headers(3, false, []string{"content-type", "application/json"}, ":method", "POST")
		if got := f.first(3); got != "HEADERS 3 408" {
			t.Errorf("got %q", got)
		}
		f.data(1, true, "ed")
		if got := f.first(1); got != "HEADERS 1 200" {
			t.Errorf("got %q", got)
		}
	})
}
