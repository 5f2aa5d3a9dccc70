package http2_test

//lint:file-ignore SA1019 the foreign client is chosen for its own transport: it takes any connection and speaks without TLS

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// within fails the test if ch does not deliver in time.
func within[T any](t *testing.T, d time.Duration, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(d):
		t.Fatalf("%s did not happen within %v", what, d)
	}
	return v
}

// bell counts how often it is rung.
type bell struct {
	rung atomic.Int32
	ch   chan struct{}
}

func (b *bell) Interrupt() {
	if b.rung.Add(1) == 1 {
		close(b.ch)
	}
}

// A client that leaves, in whichever way, is told to the exchange, once.
func TestDeparture(t *testing.T) {
	leave := map[string]func(f *framer){
		"reset of the stream":     func(f *framer) { _ = f.fr.WriteRSTStream(1, xhttp2.ErrCodeCancel) },
		"end of the connection":   func(f *framer) { f.c.Close() },
		"reset of the connection": func(f *framer) { f.resetConn() },
	}
	wait := map[string]func(x *exchange.Exchange) error{
		"nothing": func(x *exchange.Exchange) error { <-x.Departed(); return nil },
		"a context": func(x *exchange.Exchange) error {
			<-x.Context().Done()
			return nil
		},
		"the guard": func(x *exchange.Exchange) error {
			b := &bell{ch: make(chan struct{})}
			x.Guard.Arm(b, 0)
			if x.Gone() { // before the guard was armed
				x.Guard.Ring(conn.CauseDeparted)
			}
			<-b.ch
			if c := x.Guard.Disarm(); c != conn.CauseDeparted || b.rung.Load() != 1 {
				return fmt.Errorf("guard: cause %d, rung %d times", c, b.rung.Load())
			}
			return nil
		},
		"the body": func(x *exchange.Exchange) error {
			_, err := readAll(x)
			if !errors.Is(err, exchange.ErrDeparted) {
				return err
			}
			<-x.Departed()
			return nil
		},
		"a write": func(x *exchange.Exchange) error {
			x.Response.Status = 200
			for {
				if err := x.Send(make([]byte, 64<<10), false); err != nil {
					if errors.Is(err, exchange.ErrDeparted) {
						x.Fail(err)
						return nil
					}
					return err
				}
			}
		},
	}
	each(t, func(t *testing.T, m mode) {
		for how, leave := range leave {
			for on, wait := range wait {
				t.Run(how+" while it waits on "+on, func(t *testing.T) {
					begun, ended := make(chan struct{}), make(chan error, 1)
					r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
						close(begun)
						err := wait(x)
						ended <- err
						if err == nil {
							x.Fail(exchange.ErrDeparted)
							if x.Record.Outcome != exchange.OutcomeDisconnected {
								t.Errorf("outcome %v", x.Record.Outcome)
							}
						}
						return err
					})))
					f := r.framer(t)
					f.headers(1, false, nil, ":method", "POST")
					f.data(1, false, "some")
					within(t, 5*time.Second, "the exchange", begun)
					leave(f)
					if err := within(t, 5*time.Second, "the departure", ended); err != nil {
						t.Error(err)
					}
				})
			}
		}
	})
}

// resetConn closes the TCP connection with RST.
func (f *framer) resetConn() {
	c := f.c
	if tc, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = tc.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// KF-CFG-12 and KF-CFG-13: a download survives the drain, later streams are not taken, then the connection ends.
func TestDrain(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		gate := make(chan struct{})
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			if err := x.Send([]byte("first"), false); err != nil {
				return err
			}
			if string(x.Request.Path) == "/long" {
				<-gate
			}
			return x.Send([]byte("second"), true)
		})))
		f := r.framer(t)
		f.headers(1, true, nil, ":path", "/long")
		f.want("HEADERS 1 200", "DATA 1 first")
		r.live.Drain(drain.Prompt)
		f.want(announcement, "GOAWAY 1 NO_ERROR")
		f.headers(3, true, nil)
		f.settle()
		close(gate)
		f.want("DATA 1 second END", "closed")
		within(t, 3*time.Second, "the end of the connection", r.connDone)
		if n := r.live.Len(); n != 0 {
			t.Errorf("%d connections open", n)
		}
	})
}

// settle waits for the answer to a PING and refuses anything else about streams.
func (f *framer) settle() {
	f.t.Helper()
	if err := f.fr.WritePing(false, [8]byte{1}); err != nil {
		f.t.Fatal(err)
	}
	for {
		fr, err := f.fr.ReadFrame()
		if err != nil {
			f.t.Fatal(err)
		}
		if p, ok := fr.(*xhttp2.PingFrame); ok && p.IsAck() {
			return
		}
		if fr.Header().StreamID != 0 {
			f.t.Fatalf("got %v", fr)
		}
	}
}

// A client that keeps asking while its connection drains loses nothing: what was refused goes over a new connection,
// which is served and then ends too.
func TestDrainLosesNothing(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") })))
		c := r.client(t)
		asked := make(chan struct{}, 1000)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					res, err := c.Get(r.url("/"))
					if err != nil {
						t.Error(err)
						return
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || string(b) != "ok" {
						t.Errorf("%q, %v", b, err)
						return
					}
					select {
					case asked <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 20 {
			within(t, 5*time.Second, "an answer", asked)
		}
		r.live.Drain(drain.Prompt)
		within(t, 5*time.Second, "the end of the first connection", r.connDone)
		for range 20 {
			within(t, 5*time.Second, "an answer", asked)
		}
		close(stop)
		wg.Wait()
	})
}

// Idle connections end at once, those that have yet to speak soon after they may have.
func TestDrainIdle(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") }))
		set.KeepAliveTimeout = time.Minute
		r := start(t, m, set)
		f := r.framer(t)
		f.headers(1, true, nil)
		f.want("HEADERS 1 200", "DATA 1 ok END")
		r.live.Drain(drain.Prompt)
		f.want(announcement, "GOAWAY 1 NO_ERROR", "closed")

		late := r.framer(t)
		late.want(announcement, "GOAWAY 0 NO_ERROR", "closed")
		asks := r.framer(t)
		asks.headers(1, true, nil)
		asks.want(announcement, "HEADERS 1 200", "DATA 1 ok END", "GOAWAY 1 NO_ERROR", "closed")
	})
}

// A client that takes back nearly everything it asks for has to come again; one that sees most of it through has not.
func TestResetBudget(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		for name, c := range map[string]struct {
			each   int // is taken back
			method string
			status string
			again  bool // has to come again
		}{
			"all":                         {1, "GET", "200", true},
			"every third":                 {3, "GET", "200", false},
			"every third, others refused": {3, "TRACE", "405", true},
		} {
			each := c.each
			t.Run(name, func(t *testing.T) {
				begun := make(chan struct{}, 1)
				ended := make(chan struct{}, 1)
				set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
					if string(x.Request.Path) == "/quick" {
						return answer(x, 200, "ok")
					}
					begun <- struct{}{}
					<-x.Departed()
					ended <- struct{}{}
					return exchange.ErrDeparted
				}))
				set.MaxStreams = 2
				f := start(t, m, set).framer(t)
				id := uint32(1)
				for n := range 4 * set.MaxStreams {
					for range each - 1 {
						f.headers(id, true, nil, ":path", "/quick", ":method", c.method)
						f.want(fmt.Sprintf("HEADERS %d %s", id, c.status))
						_ = f.next()
						id += 2
					}
					f.headers(id, true, nil)
					within(t, 5*time.Second, fmt.Sprintf("exchange %d", n), begun)
					_ = f.fr.WriteRSTStream(id, xhttp2.ErrCodeCancel)
					within(t, 5*time.Second, fmt.Sprintf("departure %d", n), ended)
					id += 2
				}
				if c.again {
					f.want(fmt.Sprintf("GOAWAY %d NO_ERROR", id-2), "closed")
					return
				}
				f.headers(id, true, nil, ":path", "/quick")
				f.want(fmt.Sprintf("HEADERS %d 200", id), fmt.Sprintf("DATA %d ok END", id))
			})
		}
	})
}

// A server that drains gently announces the end with the next response, not before.
func TestDrainGently(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") })))
		f := r.framer(t)
		f.headers(1, true, nil)
		f.want("HEADERS 1 200", "DATA 1 ok END")
		r.live.Drain(drain.Gentle)
		f.settle()
		f.headers(3, true, nil)
		got := map[string]bool{}
		for range 4 { // GOAWAY may come before the head
			got[f.next()] = true
		}
		for _, want := range []string{announcement, "HEADERS 3 200", "DATA 3 ok END", "GOAWAY 3 NO_ERROR"} {
			if !got[want] {
				t.Errorf("%q is missing: %v", want, got)
			}
		}
		f.want("closed")
		within(t, 3*time.Second, "the end of the connection", r.connDone)
	})
}

// Force ends what a drain waits for, and what comes later.
func TestForce(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		begun := make(chan struct{})
		cause := make(chan conn.Cause, 1)
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			b := &bell{ch: make(chan struct{})}
			x.Guard.Arm(b, 0)
			close(begun)
			<-b.ch
			cause <- x.Guard.Disarm()
			return errors.New("drained")
		})))
		f := r.framer(t)
		f.headers(1, true, nil)
		within(t, 5*time.Second, "the exchange", begun)
		r.live.Drain(drain.Prompt)
		f.want(announcement, "GOAWAY 1 NO_ERROR")
		r.live.Force()
		if c := within(t, time.Second, "the interruption", cause); c != conn.CauseDrain {
			t.Errorf("cause %d", c)
		}
		within(t, time.Second, "the end of the connection", r.connDone)
		if got := f.next(); got != "closed" {
			t.Errorf("got %q", got)
		}
		if c, err := r.dial(t.Context()); err == nil {
			defer c.Close()
			_, _ = io.WriteString(c, xhttp2.ClientPreface)
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a connection that came after the force stays open")
			}
		}
	})
}

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
		set.WriteIdleTimeout = 300 * time.Millisecond
		f := start(t, m, set).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
		f.headers(1, true, nil)
		f.want("HEADERS 1 200")
		f.headers(3, true, nil, ":path", "/head")
		f.want("HEADERS 3 204 END", "RST_STREAM 1 INTERNAL_ERROR")
		r := within(t, 5*time.Second, "the end of the exchange", results)
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
		if n := within(t, 10*time.Second, "the end of the exchange", sent); n > 32<<20 {
			t.Errorf("%d bytes were taken from the exchange", n)
		}
		within(t, 10*time.Second, "the end of the connection", r.connDone)
	})
}

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
		set.BodyIdleTimeout = 300 * time.Millisecond
		f := start(t, m, set).framer(t)
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
		if got := within(t, 5*time.Second, "the end of the connection", calm); !strings.HasSuffix(got, "ENHANCE_YOUR_CALM") {
			t.Errorf("the connection ended with %q", got)
		}
		if n := most.Load(); n > int32(set.MaxStreams) {
			t.Errorf("%d exchanges at once", n)
		}
	})
}

// Connections on which nothing happens end: before the preface by HeaderTimeout, between streams by KeepAliveTimeout.
func TestIdleTimeouts(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 200, "ok") }))
		set.HeaderTimeout, set.KeepAliveTimeout = 300*time.Millisecond, 300*time.Millisecond
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
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a silent connection stays open")
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

// New settings hold for the next stream of an open connection.
func TestUpdate(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		say := func(s string) exchange.HandlerFunc {
			return func(x *exchange.Exchange) error { return answer(x, 200, s) }
		}
		r := start(t, m, settings(say("old")))
		c := r.client(t)
		if _, body := get(t, c, r.url("/")); body != "old" {
			t.Errorf("got %q", body)
		}
		r.Update(settings(say("new")))
		if _, body := get(t, c, r.url("/")); body != "new" {
			t.Errorf("got %q", body)
		}
		if n := r.live.Len(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// An in-memory connection, whose ends have no addresses worth the name, is served like any other.
func TestPipe(t *testing.T) {
	r := start(t, modes[1], settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		b, err := readAll(x)
		if err != nil {
			return err
		}
		return answer(x, 200, strings.ToUpper(string(b)))
	})))
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() { r.ServeConn(plainConn(theirs), nil); close(done) }()
	cc, err := (&xhttp2.Transport{AllowHTTP: true}).NewClientConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		req, _ := http.NewRequest("POST", "http://h2.test/", strings.NewReader("abc"))
		res, err := cc.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != "ABC" {
			t.Errorf("got %q", b)
		}
	}
	cc.Close()
	within(t, 5*time.Second, "the end of the connection", done)
}
