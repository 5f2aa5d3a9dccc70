package http2_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// A client that opens no window: the write ends with its stream after the time limit, nothing is piled up, and other
// streams go on.
func TestZeroWindow(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		type result struct {
			err  error
			sent int
			rec  exchange.Record
		}
		results := make(chan result, 2)
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if string(x.Request.Path) == "/head" {
				x.Response.Status = 204
				return x.Send(nil, true)
			}
			x.Response.Status = 200
			r := result{}
			for r.err == nil {
				if r.err = x.Send(make([]byte, 16<<10), false); r.err == nil {
					r.sent += 16 << 10
				}
			}
			x.Fail(r.err)
			r.rec = x.Record
			results <- r
			return nil
		}))
		set.WriteIdleTimeout = 2 * time.Second // in which the other stream is served
		f := start(t, m, set).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
		f.headers(1, true, nil)
		f.want("HEADERS 1 200")
		f.headers(3, true, nil, ":path", "/head")
		f.want("HEADERS 3 204 END", "RST_STREAM 1 INTERNAL_ERROR")
		r := within(t, "the end of the exchange", results)
		var e *exchange.Error
		if !errors.As(r.err, &e) || e.Code != exchange.CodeWriteTimeout || r.sent != 0 {
			t.Errorf("error %v after %d bytes", r.err, r.sent)
		}
		if r.rec.Outcome != exchange.OutcomeTimeout || r.rec.Limit != "write_idle_timeout" {
			t.Errorf("outcome %v by %q", r.rec.Outcome, r.rec.Limit)
		}
		f.headers(5, true, nil, ":path", "/head")
		f.want("HEADERS 5 204 END")
	})
}

// The same with a small response, all of which is handed over at once.
func TestZeroWindowSmall(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "small") }))
		set.WriteIdleTimeout = 300 * time.Millisecond
		f := start(t, m, set).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
		f.headers(1, true, nil)
		f.want("HEADERS 1 200", "RST_STREAM 1 INTERNAL_ERROR")
	})
}

// A slow client that does take something within the limit is not cut off.
func TestSlowWindow(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, strings.Repeat("x", 128<<10)) }))
		set.WriteIdleTimeout = 2 * time.Second
		f := start(t, m, set).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
		f.headers(1, true, nil)
		f.want("HEADERS 1 200")
		total := 0
		for total < 128<<10 {
			time.Sleep(600 * time.Millisecond) // four of them outlast the limit, which is one piece of 32 KiB each
			_ = f.fr.WriteWindowUpdate(1, 32<<10)
			_ = f.fr.WriteWindowUpdate(0, 32<<10)
			for had := total; total < had+32<<10; {
				fr, err := f.fr.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				switch fr := fr.(type) {
				case *xhttp2.DataFrame:
					total += len(fr.Data())
				case *xhttp2.RSTStreamFrame:
					t.Fatalf("reset after %d bytes: %v", total, fr)
				}
			}
		}
	})
}

// widest lets a server send as much as it likes.
var widest = xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1<<31 - 1}

// A client that reads nothing at all loses its connection.
func TestStalledConnection(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		sent := make(chan int, 1)
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			n := 0
			for {
				if err := x.Send(make([]byte, 64<<10), false); err != nil {
					sent <- n
					return err
				}
				n += 64 << 10
			}
		}))
		set.WriteIdleTimeout = 300 * time.Millisecond
		r := start(t, m, set)
		f := r.framer(t, widest)
		_ = f.fr.WriteWindowUpdate(0, 1<<31-1-65535)
		f.headers(1, true, nil)
		if n := within(t, "the end of the exchange", sent); n > 32<<20 {
			t.Errorf("%d bytes were taken from the exchange", n)
		}
		within(t, "the end of the connection", r.connDone)
	})
}

// Connections on which nothing happens end: before the preface by HeaderTimeout, between streams by KeepAliveTimeout.
func TestIdleTimeouts(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") }))
		set.HeaderTimeout, set.KeepAliveTimeout = 2*time.Second, 2*time.Second // in which the client begins
		r := start(t, m, set)
		f := r.framer(t)
		f.headers(1, true, nil)
		f.want("HEADERS 1 200", "DATA 1 ok END", announcement, "GOAWAY 1 NO_ERROR", "closed")
		if m.prefixed {
			return // the preface has been read already
		}
		c, err := r.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a silent connection stays open")
		}
	})
}
