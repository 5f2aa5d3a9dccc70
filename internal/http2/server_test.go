package http2_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// What a handler sees of a request, and a client of a response.
func TestEcho(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			q := &x.Request
			var b bytes.Buffer
			fmt.Fprintf(&b, "%v %s target=%s path=%s query=%s host=%s tls=%v length=%d\n", q.Protocol, q.Method, q.Target, q.Path, q.Query, q.Host, q.TLS, q.ContentLength)
			for n, v := range q.Fields.All() {
				fmt.Fprintf(&b, "%s: %s\n", n, v)
			}
			body, err := readAll(x)
			if err != nil {
				return err
			}
			b.Write(body)
			x.Response.Fields.Add("X-One", "1")
			x.Response.Fields.Add("x-one", "2")
			x.Response.Fields.Add("Connection", "keep-alive")
			return answer(x, 200, b.String())
		})))
		req, _ := http.NewRequest("POST", r.url("/a%2Fb//c/../%7e?q=%20&r"), strings.NewReader("hello"))
		req.Header = http.Header{"X-B": {"1", "2"}, "X-A": {"z"}, "Cookie": {"a=1", "b=2"}, "User-Agent": {"t"}, "Te": {"trailers"}}
		res, err := r.client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		lines := strings.Split(string(body), "\n") // the client mixes its fields
		slices.Sort(lines[2 : len(lines)-1])
		got := strings.Join(lines, "\n")
		want := fmt.Sprintf("HTTP/2.0 POST target=/a%%2Fb//c/../%%7e?q=%%20&r path=/a%%2Fb//c/../%%7e query=q=%%20&r host=h2.test tls=%v length=5\n"+
			"host: h2.test\naccept-encoding: gzip\ncontent-length: 5\ncookie: a=1; b=2\nte: trailers\nuser-agent: t\nx-a: z\nx-b: 1\nx-b: 2\nhello", m.tls)
		want = strings.Replace(want, "accept-encoding: gzip\n", "", 1)
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if v := res.Header["X-One"]; len(v) != 2 || v[0] != "1" || v[1] != "2" {
			t.Errorf("X-One = %q", v)
		}
		for _, name := range []string{"Connection", "Content-Type", "Date"} {
			if v, ok := res.Header[name]; ok {
				t.Errorf("%s: %q was made up", name, v)
			}
		}
		if res.ContentLength != int64(len(got)) {
			t.Errorf("Content-Length = %d", res.ContentLength)
		}
	})
}

// The response begins before the request has ended, and each piece arrives before the next is sent.
func TestStreamsBothWays(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			if err := x.Send(nil, false); err != nil {
				return err
			}
			for {
				b, err := x.Down.ReadBody()
				if err == io.EOF {
					return x.Send([]byte("end"), true)
				}
				if err != nil {
					return err
				}
				if err := x.Send(b, false); err != nil {
					return err
				}
			}
		})))
		pr, pw := io.Pipe()
		res, err := r.client(t).Post(r.url("/"), "text/plain", pr) // returns with the head, the body still open
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		buf := make([]byte, 16)
		for i := range 5 {
			piece := fmt.Sprintf("piece %d", i)
			if _, err := io.WriteString(pw, piece); err != nil {
				t.Fatal(err)
			}
			n, err := io.ReadAtLeast(res.Body, buf, len(piece))
			if err != nil || string(buf[:n]) != piece {
				t.Fatalf("got %q, %v", buf[:n], err)
			}
		}
		pw.Close()
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != "end" {
			t.Fatalf("got %q, %v", b, err)
		}
	})
}

// KF-H2G-01: response trailers arrive without having been announced, also when there is no body.
func TestTrailers(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if _, err := readAll(x); err != nil {
				return err
			}
			got, _ := x.Request.Trailers.First("x-sum")
			x.Response.Status = 200
			x.Response.Trailers.Add("grpc-status", "0")
			x.Response.Trailers.Add("X-T", string(got))
			if string(x.Request.Path) == "/only" {
				return x.Send(nil, true)
			}
			if err := x.Send([]byte("body"), false); err != nil {
				return err
			}
			return x.Send(nil, true)
		})))
		c := r.client(t)
		for _, path := range []string{"/only", "/body"} {
			req, _ := http.NewRequest("POST", r.url(path), struct{ io.Reader }{strings.NewReader("x")})
			req.Trailer = http.Header{"X-Sum": {"abc"}}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || (path == "/body") != (string(b) == "body") {
				t.Errorf("%s: body %q, %v", path, b, err)
			}
			if res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("X-T") != "abc" {
				t.Errorf("%s: trailers %v", path, res.Trailer)
			}
		}
	})
}

func TestInterim(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			var f exchange.Fields
			f.Add("Link", "</a.css>; rel=preload")
			if err := x.Interim(103, &f); err != nil {
				return err
			}
			return answer(x, 200, "ok")
		})))
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(code, h.Get("Link")))
				return nil
			},
		})
		req, _ := http.NewRequestWithContext(ctx, "GET", r.url("/"), nil)
		res, err := r.client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if len(hints) != 1 || hints[0] != "103</a.css>; rel=preload" {
			t.Errorf("hints %q", hints)
		}
		if res.Header.Get("Link") != "" {
			t.Error("the interim fields came again with the final head")
		}
	})
}

// Responses without a body end at once and keep the length of the body that they have not.
func TestBodiless(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			var status int
			_, _ = fmt.Sscanf(string(x.Request.Path), "/%d", &status)
			x.Response.Status, x.Response.ContentLength = status, 5
			if string(x.Request.Query) == "slow" {
				if err := x.Send(nil, false); err != nil {
					return err
				}
				if x.Gone() {
					return errors.New("departed by itself")
				}
				return x.Send([]byte("12345"), true)
			}
			return x.Send([]byte("12345"), true)
		})))
		c := r.client(t)
		for _, q := range []struct {
			method, path string
			length       int64
		}{
			{"HEAD", "/200", 5},
			{"HEAD", "/200?slow", 5},
			{"GET", "/204", 0},
			{"GET", "/304", 0},
			{"GET", "/304?slow", 0},
		} {
			req, _ := http.NewRequest(q.method, r.url(q.path), nil)
			res, err := c.Do(req)
			if err != nil {
				t.Errorf("%s %s: %v", q.method, q.path, err)
				continue
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if len(b) != 0 || err != nil {
				t.Errorf("%s %s: body %q, %v", q.method, q.path, b, err)
			}
			if v := res.Header.Get("Content-Length"); q.length > 0 && v != fmt.Sprint(q.length) || q.length == 0 && v != "" {
				t.Errorf("%s %s: Content-Length %q", q.method, q.path, v)
			}
		}
	})
}

// Expect: the client is asked to go on when the body is first read, and not when it never is.
func TestExpect(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if string(x.Request.Path) == "/refuse" {
				return answer(x, 403, "no")
			}
			b, err := readAll(x)
			if err != nil {
				return err
			}
			return answer(x, 200, string(b))
		})))
		c := r.client(t)
		for path, want := range map[string]string{"/read": "200 payload", "/refuse": "403 no"} {
			continued := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }})
			req, _ := http.NewRequestWithContext(ctx, "POST", r.url(path), strings.NewReader("payload"))
			req.Header.Set("Expect", "100-continue")
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if got := fmt.Sprint(res.StatusCode, " ", string(b)); got != want {
				t.Errorf("%s: got %q", path, got)
			}
			if continued != (path == "/read") {
				t.Errorf("%s: continued = %v", path, continued)
			}
		}
	})
}

// KF-H1-10 on h2: an answer that comes while the request body still does is read whole, and the stream ends with NO_ERROR.
func TestEarlyAnswer(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if _, err := x.Down.ReadBody(); err != nil {
				return err
			}
			return answer(x, 413, `{"too":"large"}`)
		})))
		res, err := r.client(t).Post(r.url("/"), "text/plain", io.LimitReader(zeros{}, 20<<20))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 413 || string(b) != `{"too":"large"}` {
			t.Errorf("%d %q %v", res.StatusCode, b, err)
		}
		f := r.framer(t)
		f.headers(1, false, nil, ":method", "POST")
		f.data(1, false, "x")
		f.want("HEADERS 1 413", "DATA 1 {\"too\":\"large\"} END", "RST_STREAM 1 NO_ERROR")
	})
}

// A small rest of a body may still come behind the answer: the stream is then not reset, since some clients lose an answer
// that a reset follows. One that does not come is not waited for long.
func TestEarlyAnswerToSmallBody(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 404, "none") })))
		f := r.framer(t)
		answered := func(id uint32, length string) {
			f.headers(id, false, []string{"content-length", length}, ":method", "POST")
			f.want(fmt.Sprintf("HEADERS %d 404", id), fmt.Sprintf("DATA %d none END", id))
		}
		id := uint32(1)
		for late := true; late; id += 2 { // the rest may be held up for longer than it is waited for, on a busy machine
			begun := time.Now()
			answered(id, "2")
			f.data(id, false, "a")
			f.data(id, true, "b")
			if late = f.reset(); late && time.Since(begun) < http2.RestTime {
				t.Fatal("the stream was reset")
			}
		}
		answered(id, "2")
		f.want(fmt.Sprintf("RST_STREAM %d NO_ERROR", id))
		id += 2
		answered(id, "100000000")
		f.want(fmt.Sprintf("RST_STREAM %d NO_ERROR", id))
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Bodies of many windows go through in both directions at once, unchanged in length.
func TestBigBodies(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status, x.Response.ContentLength = 200, x.Request.ContentLength
			for {
				b, err := x.Down.ReadBody()
				if err == io.EOF {
					return x.Send(nil, true)
				}
				if err != nil {
					return err
				}
				if err := x.Send(b, false); err != nil {
					return err
				}
			}
		})))
		const size = 8 << 20
		c := r.client(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				req, _ := http.NewRequest("POST", r.url("/"), io.LimitReader(zeros{}, size))
				req.ContentLength = size
				res, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				n, err := io.Copy(io.Discard, res.Body)
				if err != nil || n != size || res.ContentLength != size {
					t.Errorf("%d of %d bytes, %v", n, res.ContentLength, err)
				}
			})
		}
		wg.Wait()
	})
}
