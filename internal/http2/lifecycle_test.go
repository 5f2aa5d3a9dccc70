package http2_test

//lint:file-ignore SA1019 the foreign client is chosen for its own transport: it takes any connection and speaks without TLS

import (
	"errors"
	"fmt"
	"io"
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
func within[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("%s did not happen within %v", what, patience)
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
					within(t, "the exchange", begun)
					leave(f)
					if err := within(t, "the departure", ended); err != nil {
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
		within(t, "the end of the connection", r.connDone)
		if n := r.live.Len(); n != 0 {
			t.Errorf("%d connections open", n)
		}
	})
}

// settle waits for the answer to a PING and refuses anything else about streams.
func (f *framer) settle() {
	f.t.Helper()
	if f.reset() {
		f.t.Fatal("a stream was reset")
	}
}

// reset waits for the answer to a PING and tells whether a stream was reset before it; it refuses anything else about streams.
func (f *framer) reset() (was bool) {
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
			return was
		}
		if _, ok := fr.(*xhttp2.RSTStreamFrame); ok {
			was = true
		} else if fr.Header().StreamID != 0 {
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
			within(t, "an answer", asked)
		}
		r.live.Drain(drain.Prompt)
		within(t, "the end of the first connection", r.connDone)
		for range 20 {
			within(t, "an answer", asked)
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
					within(t, fmt.Sprintf("exchange %d", n), begun)
					_ = f.fr.WriteRSTStream(id, xhttp2.ErrCodeCancel)
					within(t, fmt.Sprintf("departure %d", n), ended)
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
		within(t, "the end of the connection", r.connDone)
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
		within(t, "the exchange", begun)
		r.live.Drain(drain.Prompt)
		f.want(announcement, "GOAWAY 1 NO_ERROR")
		r.live.Force()
		if c := within(t, "the interruption", cause); c != conn.CauseDrain {
			t.Errorf("cause %d", c)
		}
		within(t, "the end of the connection", r.connDone)
		if got := f.next(); got != "closed" {
			t.Errorf("got %q", got)
		}
		if c, err := r.dial(t.Context()); err == nil {
			defer c.Close()
			_, _ = io.WriteString(c, xhttp2.ClientPreface)
			_ = c.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a connection that came after the force stays open")
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
	within(t, "the end of the connection", done)
}
