package http1_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// serveFunc is a handler as a test writes it.
type serveFunc = exchange.HandlerFunc

// plainOK answers 200 with a body and leaves the request's body alone.
func plainOK(x *exchange.Exchange) error {
	x.Response.Status = 200
	return x.Send([]byte("ok"), true)
}

// ended fails the test unless the server ends the connection now.
func ended(t testing.TB, r io.Reader) {
	t.Helper()
	if n, err := io.Copy(io.Discard, r); n > 0 || err != nil && isDeadline(err) {
		t.Errorf("the connection goes on: %d bytes, %v", n, err)
	}
}

func isDeadline(err error) bool {
	var ne interface{ Timeout() bool }
	return errors.As(err, &ne) && ne.Timeout()
}

func TestExpect(t *testing.T) {
	const ask = "POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	eachMode(t, func(t *testing.T, m mode) {
		clock := testClock(t)
		t.Run("body is read", func(t *testing.T) {
			c := serve(t, m, clock, settings(serveFunc(echo))).dial()
			r := bufio.NewReader(c)
			for range 2 { // the second on the same connection
				io.WriteString(c, ask)
				if line, _ := r.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
					t.Fatalf("%q", line)
				}
				r.ReadString('\n')
				io.WriteString(c, "hello")
				if a := readAnswer(t, r, ""); a.body != "hello" || a.Close {
					t.Fatalf("%q %v", a.body, a.Header)
				}
			}
		})
		t.Run("early answer", func(t *testing.T) { // no 100, and no guess whether a body follows
			c := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
				return exchange.Reject(401, "denied", "no")
			}))).dial()
			io.WriteString(c, ask)
			r := bufio.NewReader(c)
			if a := readAnswer(t, r, ""); a.StatusCode != 401 || !a.Close {
				t.Fatalf("%d %v", a.StatusCode, a.Header)
			}
			ended(t, r)
		})
		t.Run("body came without waiting", func(t *testing.T) {
			c := serve(t, m, clock, settings(serveFunc(echo))).dial()
			io.WriteString(c, ask+"hello"+ask+"world")
			r := bufio.NewReader(c)
			for _, want := range []string{"hello", "world"} {
				res, err := http.ReadResponse(r, nil)
				if err == nil && res.StatusCode == 100 {
					res, err = http.ReadResponse(r, nil)
				}
				if err != nil {
					t.Fatal(err)
				}
				if b, _ := io.ReadAll(res.Body); string(b) != want {
					t.Fatalf("%q", b)
				}
			}
		})
		t.Run("forwarded", func(t *testing.T) { // the handler's 100, not the engine's
			c := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
				x.ForwardExpect()
				if err := x.Interim(100, nil); err != nil {
					return err
				}
				return echo(x)
			}))).dial()
			r := bufio.NewReader(c)
			io.WriteString(c, ask)
			if a := readAnswer(t, r, ""); a.StatusCode != 100 {
				t.Fatalf("%d", a.StatusCode)
			}
			io.WriteString(c, "hello")
			if a := readAnswer(t, r, ""); a.StatusCode != 200 || a.body != "hello" {
				t.Fatalf("%d %q", a.StatusCode, a.body)
			}
		})
		t.Run("read after the head", func(t *testing.T) { // 100 must not follow the final head
			c := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
				x.Response.Status = 200
				if err := x.Send([]byte("first "), false); err != nil {
					return err
				}
				body, err := readBody(x)
				if err != nil {
					return err
				}
				return x.Send(body, true)
			}))).dial()
			io.WriteString(c, ask)
			r := bufio.NewReader(c)
			res, err := http.ReadResponse(r, nil)
			if err != nil || res.StatusCode != 200 {
				t.Fatal(res, err)
			}
			io.WriteString(c, "hello")
			if b, err := io.ReadAll(res.Body); string(b) != "first hello" || err != nil {
				t.Fatalf("%q %v", b, err)
			}
		})
		t.Run("in 1.0 it is ignored", func(t *testing.T) {
			c := serve(t, m, clock, settings(serveFunc(echo))).dial()
			io.WriteString(c, "POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
			io.WriteString(c, "hello")
			r := bufio.NewReader(c)
			if a := readAnswer(t, r, ""); a.StatusCode != 200 || a.body != "hello" {
				t.Fatalf("%d %q", a.StatusCode, a.body)
			}
			ended(t, r)
		})
	})
}

// TestResponseFraming looks at what goes out for each kind of request and answer.
func TestResponseFraming(t *testing.T) {
	stream := func(x *exchange.Exchange) error {
		x.Response.Status = 200
		for _, p := range []string{"one ", "two ", ""} {
			if err := x.Send([]byte(p), p == ""); err != nil {
				return err
			}
		}
		return nil
	}
	status := func(code int, length int64, body string) serveFunc {
		return func(x *exchange.Exchange) error {
			x.Response.Status, x.Response.ContentLength = code, length
			return x.Send([]byte(body), true)
		}
	}
	const r11, r10 = " / HTTP/1.1\r\nHost: a\r\n\r\n", " / HTTP/1.0\r\n\r\n"
	const keep10 = " / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
	ok := "HTTP/1.1 200 OK\r\n"
	for _, tc := range []struct {
		name, request string
		h             serveFunc
		want          string
		goes          bool // the connection goes on
	}{
		{"whole", "GET" + r11, status(200, -1, "ok"), ok + "Content-Length: 2\r\n\r\nok", true},
		{"streamed", "GET" + r11, stream, ok + "Transfer-Encoding: chunked\r\n\r\n4\r\none \r\n4\r\ntwo \r\n0\r\n\r\n", true},
		{"whole in 1.0", "GET" + r10, status(200, -1, "ok"), ok + "Content-Length: 2\r\nConnection: close\r\n\r\nok", false},
		{"kept in 1.0", "GET" + keep10, status(200, -1, "ok"), ok + "Content-Length: 2\r\nConnection: keep-alive\r\n\r\nok", true},
		{"streamed in 1.0", "GET" + keep10, stream, ok + "Connection: close\r\n\r\none two ", false},
		{"HEAD", "HEAD" + r11, status(200, 2, "ok"), ok + "Content-Length: 2\r\n\r\n", true},
		{"HEAD streamed", "HEAD" + r11, stream, ok + "\r\n", true},
		{"204 with body", "GET" + r11, status(204, 2, "ok"), "HTTP/1.1 204 No Content\r\n\r\n", true},
		{"304 with length", "GET" + r11, status(304, 2, ""), "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", true},
		{
			"close asked", "GET / HTTP/1.1\r\nHost: a\r\nConnection: foo , CLOSE\r\n\r\n", status(200, -1, "ok"),
			ok + "Content-Length: 2\r\nConnection: close\r\n\r\nok", false,
		},
		{
			"close and keep-alive", "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, close\r\n\r\n", status(200, -1, "ok"),
			ok + "Content-Length: 2\r\nConnection: close\r\n\r\nok", false,
		},
		{
			"handler closes", "GET" + r11, func(x *exchange.Exchange) error { x.Response.Close = true; return status(200, -1, "ok")(x) },
			ok + "Content-Length: 2\r\nConnection: close\r\n\r\nok", false,
		},
		{"trailers", "GET" + r11, func(x *exchange.Exchange) error {
			x.Response.Status = 200
			x.Response.Trailers.Add("X-Sum", "1")
			if err := x.Send([]byte("ab"), false); err != nil {
				return err
			}
			return x.Send(nil, true)
		}, ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 1\r\n\r\n", true},
		{"framing fields of the handler", "GET" + r11, func(x *exchange.Exchange) error {
			for _, n := range []string{"Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Upgrade", "TE"} {
				x.Response.Fields.Add(n, "9")
			}
			return status(200, -1, "ok")(x)
		}, ok + "Content-Length: 2\r\n\r\nok", true},
		{"too short", "GET" + r11, status(200, 5, "ok"), "", false},
		{"too long", "GET" + r11, status(200, 1, "ok"), "", false},
		{"nothing", "GET" + r11, func(*exchange.Exchange) error { return nil }, "", false},
		{"broken stream", "GET" + r11, func(x *exchange.Exchange) error {
			x.Response.Status = 200
			if err := x.Send([]byte("one "), false); err != nil {
				return err
			}
			return errors.New("broken")
		}, ok + "Transfer-Encoding: chunked\r\n\r\n4\r\none \r\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				var n atomic.Int32
				c := serve(t, m, testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
					if n.Add(1) > 1 {
						return plainOK(x)
					}
					err := tc.h(x)
					x.Fail(err)
					return nil
				}))).dial()
				io.WriteString(c, tc.request)
				got := make([]byte, len(tc.want))
				if k, err := io.ReadFull(c, got); err != nil && tc.want != "" && !strings.Contains(tc.name, "broken") || string(got[:k]) != tc.want[:k] {
					t.Fatalf("%q, %v\nwant %q", got[:k], err, tc.want)
				}
				r := bufio.NewReader(c)
				if !tc.goes {
					ended(t, r)
					return
				}
				io.WriteString(c, "GET"+r11)
				if a := readAnswer(t, r, "GET"); a.body != "ok" {
					t.Errorf("next answer %q", a.body)
				}
			})
		})
	}
}

// TestFullDuplex answers each chunk before the next one is sent, with the body read by another goroutine.
func TestFullDuplex(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		c := serve(t, m, testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
			pieces, failed := make(chan string), make(chan error, 1)
			go func() {
				defer close(pieces)
				for {
					p, err := x.Down.ReadBody()
					if err != nil {
						failed <- err
						return
					}
					pieces <- string(p)
				}
			}()
			x.Response.Status = 200
			err := x.Send(nil, false)
			for p := range pieces {
				if err == nil {
					err = x.Send([]byte(p), false)
				}
			}
			if e := <-failed; e != io.EOF {
				return e
			}
			if err != nil {
				return err
			}
			return x.Send(nil, true)
		}))).dial()
		r := bufio.NewReader(c)
		for range 2 {
			io.WriteString(c, post(te))
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 50 {
				piece := fmt.Sprintf("piece %d", i)
				fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece)
				got := make([]byte, len(piece))
				if _, err := io.ReadFull(res.Body, got); string(got) != piece {
					t.Fatalf("%q %v", got, err)
				}
			}
			io.WriteString(c, "0\r\n\r\n")
			if rest, err := io.ReadAll(res.Body); len(rest) > 0 || err != nil {
				t.Fatal(rest, err)
			}
		}
	})
}

// TestEarlyAnswer refuses an upload of 20 MB that goes on: the client reads the answer nevertheless.
func TestEarlyAnswer(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for _, framing := range []string{"Content-Length: 20971520", te} {
			c := serve(t, m, testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
				if _, err := x.Down.ReadBody(); err != nil {
					return err
				}
				return exchange.Reject(413, "too_large", "too large")
			}))).dial()
			var wg sync.WaitGroup
			wg.Go(func() {
				io.WriteString(c, post(framing))
				piece := bytes.Repeat([]byte("x"), 64<<10)
				for range 320 {
					if framing == te {
						fmt.Fprintf(c, "%x\r\n", len(piece))
					}
					if _, err := c.Write(piece); err != nil {
						t.Errorf("upload: %v", err)
						return
					}
					if framing == te {
						io.WriteString(c, "\r\n")
					}
				}
			})
			r := bufio.NewReader(c)
			if a := readAnswer(t, r, ""); a.StatusCode != 413 || !a.Close || !strings.Contains(a.body, "too_large") {
				t.Errorf("%d %q", a.StatusCode, a.body)
			}
			wg.Wait()
			ended(t, r)
			c.Close()
		}
	})
}

// TestUnreadBody: a small body that the handler left is read away, a large one ends the connection.
func TestUnreadBody(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		c := serve(t, m, testClock(t), settings(serveFunc(plainOK))).dial()
		r := bufio.NewReader(c)
		for _, n := range []int{1, 5000, 60000} {
			fmt.Fprintf(c, "%s%s%s", post("Content-Length: "+itoa(n)), strings.Repeat("b", n), get())
			for range 2 {
				if a := readAnswer(t, r, ""); a.StatusCode != 200 || a.Close {
					t.Fatalf("%d bytes: %d %v", n, a.StatusCode, a.Header)
				}
			}
		}
		fmt.Fprintf(c, "%s%s%s", post("Content-Length: 70000"), strings.Repeat("b", 70000), get())
		if a := readAnswer(t, r, ""); !a.Close {
			t.Fatal("an unread large body is kept")
		}
		ended(t, r)
	})
}
