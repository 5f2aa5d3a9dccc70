package http1_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

func TestTimeouts(t *testing.T) {
	const short = 200 * time.Millisecond
	impatient := func() *http1.Settings {
		s := settings(serveFunc(plainOK))
		s.HeaderTimeout = short
		return s
	}
	eachMode(t, func(t *testing.T, m mode) {
		clock := testClock(t)
		t.Run("head", func(t *testing.T) {
			s := serve(t, m, clock, settings(serveFunc(plainOK)))
			c := s.dial()
			eventually(t, "the server knows the connection", func() bool { return s.live.Len() == 1 })
			s.srv.Update(impatient()) // not before: it holds for silence at the start, too
			stop := trickle(c, conn100ms, "GET /a HTTP/1.1\r\nHost: h\r\nX-Slow: "+strings.Repeat("x", 1000))
			defer stop()
			r := bufio.NewReader(c)
			if a := readAnswer(t, r, ""); a.StatusCode != 408 || !a.Close || !strings.Contains(a.body, "header_timeout") {
				t.Fatalf("%d %q", a.StatusCode, a.body)
			}
			ended(t, r)
		})
		t.Run("head of the second request", func(t *testing.T) {
			var s *site
			s = serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
				s.srv.Update(impatient()) // which the first request is not to feel
				return plainOK(x)
			})))
			c := s.dial()
			io.WriteString(c, get()+"GET /b HT")
			r := bufio.NewReader(c)
			readAnswer(t, r, "")
			if a := readAnswer(t, r, ""); a.StatusCode != 408 {
				t.Fatalf("%d", a.StatusCode)
			}
			ended(t, r)
		})
		t.Run("silence at the start", func(t *testing.T) {
			ended(t, serve(t, m, clock, impatient()).dial())
		})
		t.Run("keep-alive", func(t *testing.T) {
			s := settings(serveFunc(plainOK))
			s.KeepAliveTimeout = short
			c := serve(t, m, clock, s).dial()
			io.WriteString(c, get())
			r := bufio.NewReader(c)
			if a := readAnswer(t, r, ""); a.Close {
				t.Fatal("closed at once")
			}
			ended(t, r)
		})
		for name, request := range map[string]string{
			"body with a length": post("Content-Length: 100") + "some",
			"body in chunks":     chunkedPost("4\r\nsome\r\n5\r\nth"),
		} {
			t.Run(name, func(t *testing.T) {
				s := settings(serveFunc(echo))
				s.BodyIdleTimeout = short
				c := serve(t, m, clock, s).dial()
				io.WriteString(c, request)
				r := bufio.NewReader(c)
				if a := readAnswer(t, r, ""); a.StatusCode != 408 || !a.Close || !strings.Contains(a.body, "body_timeout") {
					t.Fatalf("%d %q", a.StatusCode, a.body)
				}
			})
		}
		t.Run("a slow body that moves is no idle one", func(t *testing.T) {
			s := settings(serveFunc(echo))
			s.BodyIdleTimeout = 3 * time.Second // which all of it outlasts, and no pause although the machine is busy
			c := serve(t, m, clock, s).dial()
			io.WriteString(c, post("Content-Length: 8"))
			stop := trickle(c, 6*conn100ms, "12345678")
			defer stop()
			if a := readAnswer(t, bufio.NewReader(c), ""); a.body != "12345678" {
				t.Fatalf("%d %q", a.StatusCode, a.body)
			}
		})
		t.Run("write", func(t *testing.T) {
			s := settings(nil)
			got := make(chan error, 1)
			s.Handler = serveFunc(func(x *exchange.Exchange) error {
				x.Response.Status = 200
				var err error
				for err == nil {
					err = x.Send(make([]byte, 64<<10), false)
				}
				got <- err
				return err
			})
			s.WriteIdleTimeout = short
			c := serve(t, m, clock, s).dial()
			io.WriteString(c, get())
			var e *exchange.Error
			if err := <-got; !errors.As(err, &e) || e.Code != exchange.CodeWriteTimeout {
				t.Fatalf("%v", err)
			}
			if n, err := io.Copy(io.Discard, c); err == nil && m.name != "tls" {
				t.Errorf("a broken stream ended properly after %d bytes", n)
			}
		})
	})
}

const conn100ms = 100 * time.Millisecond

// trickle sends a byte at a time, with a pause behind each, until stopped.
func trickle(w io.Writer, pause time.Duration, s string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for i := range len(s) {
			if _, err := io.WriteString(w, s[i:i+1]); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// TestBackPressure has a client that does not read: the handler must wait, not the memory grow.
func TestBackPressure(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		var sent atomic.Int64
		c := serve(t, m, testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			piece := make([]byte, 64<<10)
			for range 512 { // 32 MB
				if err := x.Send(piece, false); err != nil {
					return err
				}
				sent.Add(int64(len(piece)))
			}
			return x.Send(nil, true)
		}))).dial()
		io.WriteString(c, get())
		last := int64(-1)
		eventually(t, "the handler stands still", func() bool {
			time.Sleep(50 * time.Millisecond)
			now := sent.Load()
			still := now == last
			last = now
			return still
		})
		if last >= 32<<20 {
			t.Fatalf("%d bytes went to a client that reads nothing", last)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != 32<<20 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
	})
}

// TestDeparture: FIN and RST end the exchange within a second, whatever it waits for.
func TestDeparture(t *testing.T) {
	leave := map[string]func(t *testing.T, m mode, c peer){
		"fin": func(t *testing.T, m mode, c peer) { c.Close() },
		"rst": func(t *testing.T, m mode, c peer) { abort(t, c) },
	}
	cases := map[string]string{
		"no body":                    get(),
		"body missing":               post("Content-Length: 100") + "some",
		"in chunks":                  chunkedPost("5\r\nhel"),
		"pipelined bytes behind":     get() + get() + get(),
		"body unread with all there": post("Content-Length: 50000") + strings.Repeat("b", 50000),
	}
	eachMode(t, func(t *testing.T, m mode) {
		clock, ticks := testClock(t), new(ticks)
		ticks.count(t, clock)
		for how, go_ := range leave {
			for name, request := range cases {
				t.Run(how+"/"+name, func(t *testing.T) {
					t.Parallel()
					started, noticed := make(chan struct{}, 4), make(chan int64, 4)
					c := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
						started <- struct{}{}
						select {
						case <-x.Departed():
						case <-time.After(20 * time.Second): // as the connection
						}
						if x.Context().Err() == nil || !x.Gone() {
							t.Error("not gone")
						}
						noticed <- ticks.n.Load()
						return nil
					}))).dial()
					io.WriteString(c, request)
					<-started
					go_(t, m, c)
					left := ticks.n.Load() // of the time that leaving takes nothing counts
					if d := <-noticed - left; d > ticksASecond {
						t.Errorf("noticed after %d ticks of the clock", d)
					}
				})
			}
			t.Run(how+"/while reading the body", func(t *testing.T) {
				t.Parallel()
				started, got := make(chan struct{}), make(chan error, 1)
				c := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
					close(started)
					_, err := readBody(x)
					got <- err
					return err
				}))).dial()
				io.WriteString(c, chunkedPost("5\r\nhel"))
				<-started
				go_(t, m, c)
				if err := <-got; !errors.Is(err, exchange.ErrDeparted) {
					t.Errorf("%v", err)
				}
			})
			for name, request := range map[string]string{"before a head": "", "inside a head": "GET /a HT", "idle": get()} {
				t.Run(how+"/"+name, func(t *testing.T) {
					t.Parallel()
					s := serve(t, m, clock, settings(serveFunc(plainOK)))
					c := s.dial()
					io.WriteString(c, request)
					if request == get() {
						readAnswer(t, bufio.NewReader(c), "")
					}
					eventually(t, "the server knows the connection", func() bool { return s.live.Len() == 1 })
					go_(t, m, c)
					left := ticks.n.Load()
					s.wg.Wait()
					if d := ticks.n.Load() - left; d > ticksASecond {
						t.Errorf("noticed after %d ticks of the clock", d)
					}
				})
			}
		}
	})
}

func readSome(t *testing.T, r io.Reader) {
	t.Helper()
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
}
