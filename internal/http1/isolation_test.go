package http1_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// TestIsolation has 64 clients with bodies, paths and fields of their own. The handler copies everything out late, after
// others have run; each client must get back its own bytes only.
func TestIsolation(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		site := serve(t, m, testClock(t), settings(serveFunc(func(x *exchange.Exchange) error {
			whole, complete := x.Down.Buffered()
			var body []byte
			var err error
			if complete {
				body = whole // a view: it must stay until the exchange ends
			} else if body, err = readBody(x); err != nil {
				return err
			}
			time.Sleep(time.Microsecond)
			mark, _ := x.Request.Fields.First("x-mark")
			x.Response.Status = 200
			x.Response.Fields.AddBytes("X-Mark", mark)
			x.Response.Fields.AddBytes("X-Path", x.Request.Path)
			if len(body)%2 == 0 {
				return x.Send(body, true)
			}
			if err := x.Send(body[:len(body)/2], false); err != nil {
				return err
			}
			return x.Send(body[len(body)/2:], true)
		})))
		var wg sync.WaitGroup
		for i := range 64 {
			c := site.dial()
			wg.Go(func() { isolated(t, c, fmt.Sprintf("client%02d.", i)) })
		}
		wg.Wait()
	})
}

// isolated sends requests of many shapes that are full of the client's mark.
func isolated(t *testing.T, c peer, mark string) {
	r := bufio.NewReader(c)
	for n := range 20 {
		body := strings.Repeat(mark, n*n*4+n)
		request := fmt.Sprintf("POST /%s HTTP/1.1\r\nHost: h\r\nX-Mark: %s\r\n", mark, strings.Repeat(mark, 1+n*20))
		if n%3 == 0 {
			half := len(body) / 2
			request += te + "\r\n\r\n"
			for _, p := range []string{body[:half], body[half:]} {
				if p != "" {
					request += fmt.Sprintf("%x\r\n%s\r\n", len(p), p)
				}
			}
			request += "0\r\n\r\n"
		} else {
			request += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Errorf("%s: %v", mark, err)
			return
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Errorf("%s: %v", mark, err)
			return
		}
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != body || res.Header.Get("X-Mark") != strings.Repeat(mark, 1+n*20) || res.Header.Get("X-Path") != "/"+mark {
			t.Errorf("%s round %d: %d bytes for %d, %v, fields %.60q", mark, n, len(got), len(body), err, res.Header)
			return
		}
	}
}

// TestTakeover gives a connection up to its handler, with bytes that came behind the head, both ways and half-closed.
func TestTakeover(t *testing.T) {
	upgrade := head("GET /ws HTTP/1.1", "Host: h", "Connection: Upgrade", "Upgrade: websocket")
	h := func(x *exchange.Exchange) error {
		if string(x.Request.Upgrade) != "websocket" {
			return plainOK(x)
		}
		x.Response.Status, x.Response.Upgrade = 101, x.Request.Upgrade
		if err := x.Send(nil, true); err != nil {
			return err
		}
		c, err := x.Down.Takeover()
		if err != nil {
			return err
		}
		if _, err := x.Down.Takeover(); err == nil {
			return fmt.Errorf("taken over twice")
		}
		_, err = io.Copy(c, c)
		if w, ok := c.(conn.CloseWriter); ok && err == nil {
			_ = w.CloseWrite()
		}
		return nil
	}
	eachMode(t, func(t *testing.T, m mode) {
		s := serve(t, m, testClock(t), settings(serveFunc(h)))
		c := s.dial()
		io.WriteString(c, get()+upgrade+"early ")
		r := bufio.NewReader(c)
		readAnswer(t, r, "")
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 101 || res.Header.Get("Upgrade") != "websocket" {
			t.Fatal(res, err)
		}
		io.WriteString(c, "late")
		got := make([]byte, len("early late"))
		if _, err := io.ReadFull(r, got); string(got) != "early late" || err != nil {
			t.Fatalf("%q %v", got, err)
		}
		c.CloseWrite() // after a takeover FIN is the protocol's own affair
		if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
			t.Fatalf("%q %v", rest, err)
		}
		c.Close()
		s.wg.Wait()

		forced := serve(t, m, testClock(t), settings(serveFunc(h)))
		c = forced.dial()
		io.WriteString(c, upgrade)
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Fatal(err)
		}
		forced.live.Force()
		forced.wg.Wait()
	})
}
