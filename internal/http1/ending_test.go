package http1_test

import (
	"bufio"
	"io"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// TestTruncationShows: a body that ends with the connection must not look whole when its handler gave up.
func TestTruncationShows(t *testing.T) {
	for name, h := range map[string]serveFunc{
		"handler forgets the end": func(x *exchange.Exchange) error {
			x.Response.Status = 200
			return x.Send([]byte("part"), false)
		},
		"handler fails": func(x *exchange.Exchange) error {
			x.Response.Status = 200
			if err := x.Send([]byte("part"), false); err != nil {
				return err
			}
			return exchange.Reject(502, exchange.CodeBackendReset, "x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				c := serve(t, m, testClock(t), settings(h)).dial()
				io.WriteString(c, head("GET /a HTTP/1.0"))
				if b, err := io.ReadAll(c); err == nil {
					t.Errorf("%q ended properly", b)
				}
			})
		})
	}
}

// TestLeftAlready: what the client sent and its FIN are both there before the server looks, so no readiness is told for
// the FIN.
func TestLeftAlready(t *testing.T) {
	for name, request := range map[string]string{
		"nothing": "", "part of a head": "GET /a HT", "a request": get(), "a request and part of a head": get() + "GET /b",
		"part of a body": post("Content-Length: 10") + "hel", "part of a chunked body": chunkedPost("5\r\nhel"),
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				s := serve(t, m, testClock(t), settings(serveFunc(echo)))
				near, far := m.pair(t)
				defer near.Close()
				io.WriteString(near, request)
				near.CloseWrite()
				if m.name != "memory" {
					eventually(t, "the bytes are there", func() bool { return request == "" || unread(far) })
				}
				start := time.Now()
				s.srv.ServeConn(far, &s.live)
				if d := time.Since(start); d > 10*time.Second { // half of what the server would wait for more
					t.Errorf("served for %v", d)
				}
			})
		})
	}
}

// TestRefusedAtOnce: what cannot become valid is refused although the client sends nothing more.
func TestRefusedAtOnce(t *testing.T) {
	for name, request := range map[string]string{
		"bare LF in a trailer":    chunkedPost("0\r\nX: 1\n"),
		"rubbish for a size":      chunkedPost("x"),
		"no CRLF behind the data": chunkedPost("1\r\nab"),
		"bare LF in a head":       "GET /a HTTP/1.1\n",
		"a bad first field":       "GET /a HTTP/1.1\r\nX : y\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				c := serve(t, m, testClock(t), settings(serveFunc(echo))).dial()
				io.WriteString(c, request)
				start := time.Now()
				if a := readAnswer(t, bufio.NewReader(c), ""); a.StatusCode != 400 || time.Since(start) > 5*time.Second {
					t.Errorf("%d after %v", a.StatusCode, time.Since(start))
				}
			})
		})
	}
}
