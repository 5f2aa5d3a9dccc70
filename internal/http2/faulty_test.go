package http2_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Limits of the request body: one that does not go on, and one that is not as long as it said.
func TestBrokenBodies(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			b, err := readAll(x)
			if err != nil {
				var e *exchange.Error
				if errors.As(err, &e) && e.Code == exchange.CodeBodyTimeout && e.Limit != "body_idle_timeout" {
					t.Errorf("limit %q", e.Limit)
				}
				return err
			}
			return answer(x, 200, string(b))
		}))
		impatient := *set
		impatient.BodyIdleTimeout = 300 * time.Millisecond
		r := start(t, m, &impatient)
		f := r.framer(t)
		f.headers(1, false, nil, ":method", "POST")
		f.data(1, false, "half")
		if got := f.first(1); got != "HEADERS 1 408" {
			t.Errorf("got %q", got)
		}
		for got := ""; got != "RST_STREAM 1 NO_ERROR"; {
			if got = f.next(); got == "closed" {
				t.Fatal(got)
			}
		}
		r.Update(set)
		f.headers(3, false, []string{"content-length", "9"}, ":method", "POST")
		f.data(3, true, "short")
		if got := f.first(3); got != "HEADERS 3 400" {
			t.Errorf("got %q", got)
		}
		f.headers(5, false, []string{"content-length", "2"}, ":method", "POST")
		f.data(5, true, "long")
		if got := f.first(5); got != "RST_STREAM 5 PROTOCOL_ERROR" {
			t.Errorf("got %q", got)
		}
		f.headers(7, false, []string{"content-length", "4"}, ":method", "POST")
		f.data(7, true, "good")
		if got := f.first(7); got != "HEADERS 7 200" {
			t.Errorf("got %q", got)
		}
	})
}

// Trailers that frame, route or authenticate are refused.
func TestBadTrailers(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if _, err := readAll(x); err != nil {
				return err
			}
			return answer(x, 200, "ok")
		}))).framer(t)
		for i, c := range []struct{ name, want string }{
			{"x-ok", "HEADERS %d 200"},
			{"x-forwarded-for", "HEADERS %d 400"},
			{"cookie", "HEADERS %d 400"},
			{"authorization", "RST_STREAM %d PROTOCOL_ERROR"},
		} {
			id := uint32(2*i + 1)
			f.headers(id, false, []string{"trailer", c.name}, ":method", "POST")
			f.data(id, false, "body")
			f.trailers(id, c.name, "v")
			if got := f.first(id); got != fmt.Sprintf(c.want, id) {
				t.Errorf("%s: got %q", c.name, got)
			}
		}
	})
}

// InterruptBody ends a pending read and every later one, and the exchange can still answer.
func TestInterruptBody(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			reading, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := x.Down.ReadBody()
				x.Down.ReleaseBody()
				close(reading)
				if err == nil {
					_, err = x.Down.ReadBody()
				}
				ended <- err
			}()
			<-reading
			x.Down.InterruptBody()
			if err := <-ended; err == nil || err == io.EOF || errors.Is(err, exchange.ErrDeparted) {
				return fmt.Errorf("interrupted read: %v", err)
			}
			if _, err := x.Down.ReadBody(); err == nil || err == io.EOF {
				return fmt.Errorf("later read: %v", err)
			}
			return answer(x, 200, "ok")
		}))).framer(t)
		f.headers(1, false, nil, ":method", "POST")
		f.data(1, false, "some")
		f.want("HEADERS 1 200", "DATA 1 ok END", "RST_STREAM 1 NO_ERROR")
	})
}

// Whatever a handler does wrong, its stream is reset, the connection goes on, and nothing is printed.
func TestBadHandlers(t *testing.T) { // not in parallel: the standard log is everybody's
	var printed bytes.Buffer
	log.SetOutput(&printed)
	defer log.SetOutput(os.Stderr)
	inEachMode(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			r := &x.Response
			r.Status = 200
			switch string(x.Request.Path) {
			case "/panic":
				panic("no")
			case "/silent":
				return nil
			case "/abort":
				if err := x.Send([]byte("part"), false); err != nil {
					return err
				}
				return errors.New("broken")
			case "/short":
				r.ContentLength = 9
				return x.Send([]byte("part"), true)
			case "/long":
				r.ContentLength = 2
				return x.Send([]byte("long"), true)
			case "/status":
				r.Status = 101
				return x.Send(nil, true)
			case "/takeover":
				if _, err := x.Down.Takeover(); err == nil {
					t.Error("a stream was given away")
				}
			}
			return answer(x, 200, "ok")
		}))).framer(t)
		for i, c := range [][]string{
			{"/panic", "RST_STREAM %d INTERNAL_ERROR"},
			{"/silent", "RST_STREAM %d INTERNAL_ERROR"},
			{"/abort", "HEADERS %d 200", "DATA %d part", "RST_STREAM %d INTERNAL_ERROR"},
			{"/short", "HEADERS %d 200", "RST_STREAM %d INTERNAL_ERROR"},
			{"/long", "RST_STREAM %d INTERNAL_ERROR"},
			{"/status", "RST_STREAM %d INTERNAL_ERROR"},
			{"/takeover", "HEADERS %d 200", "DATA %d ok END"},
		} {
			id := uint32(2*i + 1)
			f.headers(id, true, nil, ":path", c[0])
			for _, want := range c[1:] {
				if got := f.next(); got != fmt.Sprintf(want, id) {
					if c[0] == "/short" && got == fmt.Sprintf("RST_STREAM %d INTERNAL_ERROR", id) {
						break // the head need not have been sent
					}
					t.Errorf("%s: got %q, want %q", c[0], got, fmt.Sprintf(want, id))
				}
			}
		}
	})
	if printed.Len() > 0 {
		t.Errorf("printed: %s", printed.String())
	}
}

// KF-H2G-08: however many streams are opened and reset, no more exchanges run than streams are allowed; other clients
// are served.
func TestManyResets(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		var running, most atomic.Int32
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if string(x.Request.Path) == "/good" {
				return answer(x, 200, "ok")
			}
			n := running.Add(1)
			defer running.Add(-1)
			for {
				if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
					break
				}
			}
			<-x.Departed()
			return exchange.ErrDeparted
		}))
		r := start(t, m, set)
		f := r.framer(t)
		f.settle() // from here on next only reads
		calm := make(chan string, 1)
		go func() {
			last := ""
			for got := f.next(); got != "closed"; got = f.next() {
				last = got
			}
			calm <- last
		}()
		var err error
		for i := 0; i < 10000 && err == nil; i++ {
			id := uint32(2*i + 1)
			if err = f.tryHeaders(id, true, nil); err == nil {
				err = f.fr.WriteRSTStream(id, xhttp2.ErrCodeCancel)
			}
		}
		if _, body := get(t, r.client(t), r.url("/good")); body != "ok" {
			t.Errorf("another client got %q", body)
		}
		if got := within(t, "the end of the connection", calm); !strings.HasSuffix(got, "ENHANCE_YOUR_CALM") {
			t.Errorf("the connection ended with %q", got)
		}
		if n := most.Load(); n > int32(set.MaxStreams) {
			t.Errorf("%d exchanges at once", n)
		}
	})
}

// Over more than MaxHeaderBytes twice in one field nothing is decoded any more: the connection ends.
func TestHugeField(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") }))).framer(t)
		_ = f.tryHeaders(1, true, []string{"x-a", strings.Repeat("v", 256<<10)})
		for got := ""; got != "closed"; {
			if got = f.next(); strings.HasPrefix(got, "HEADERS") {
				t.Fatalf("got %q", got)
			}
		}
	})
}
