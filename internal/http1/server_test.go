package http1_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// answer is one response as a test looks at it.
type answer struct {
	*http.Response
	body string
}

func readAnswer(t testing.TB, r *bufio.Reader, method string) answer {
	t.Helper()
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("response body after %d bytes: %v", len(body), err)
	}
	return answer{res, string(body)}
}

func TestKeepAlive(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		c := serve(t, m, testClock(t), settings(exchange.HandlerFunc(echo))).dial()
		r := bufio.NewReader(c)
		for i := range 5 {
			body := strings.Repeat("x", i*50_000)
			fmt.Fprintf(c, "POST /%d?q HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", i, len(body), body)
			if a := readAnswer(t, r, "POST"); a.body != body || a.Header.Get("X-Seen") != fmt.Sprintf("POST /%d?q", i) || a.Close {
				t.Fatalf("round %d: %d bytes, %v", i, len(a.body), a.Header)
			}
			fmt.Fprintf(c, "PUT /c%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n3\r\nabc\r\n0\r\n\r\n", i, len(body)+1, body+"y")
			if a := readAnswer(t, r, "PUT"); a.body != body+"yabc" || a.Close {
				t.Fatalf("chunked round %d: %d bytes, %v", i, len(a.body), a.Header)
			}
		}
	})
}

func TestPipelining(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		c := serve(t, m, testClock(t), settings(exchange.HandlerFunc(echo))).dial()
		var all bytes.Buffer
		const n = 100
		for i := range n {
			switch i % 4 {
			case 0:
				fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", i)
			case 1:
				fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab%d\r\n0\r\n\r\n", i, i%10)
			case 2:
				body := strings.Repeat(fmt.Sprint(i), 1+i*20)
				fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", i, len(body), body)
			case 3:
				fmt.Fprintf(&all, "\r\nGET /%d HTTP/1.1\r\nHost: a\r\nX-Pad: %s\r\n\r\n", i, strings.Repeat("p", i*10))
			}
		}
		go func() { _, _ = c.Write(all.Bytes()) }()
		r := bufio.NewReader(c)
		for i := range n {
			a := readAnswer(t, r, "")
			if seen := a.Header.Get("X-Seen"); !strings.HasSuffix(seen, fmt.Sprintf(" /%d", i)) {
				t.Fatalf("answer %d is for %q", i, seen)
			}
			if i%4 == 2 && a.body != strings.Repeat(fmt.Sprint(i), 1+i*20) || i%4 == 1 && a.body != fmt.Sprintf("ab%d", i%10) {
				t.Fatalf("answer %d has body %.40q", i, a.body)
			}
		}
	})
}

// TestFieldsStay has a body behind the head that makes the buffer move between parsing and serving: the fields must
// still be those of this request, while other connections use the buffers that were given back.
func TestFieldsStay(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		clock := testClock(t)
		site := serve(t, m, clock, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			body, err := readBody(x)
			if err != nil {
				return err
			}
			mark := string(body[:1])
			for name, v := range x.Request.Fields.All() {
				if strings.HasPrefix(string(name), "X-") && strings.Trim(string(v), mark) != "" {
					return exchange.Reject(500, "leak", fmt.Sprintf("field %s of %s is %.30s", name, mark, v))
				}
			}
			if strings.Trim(string(body), mark) != "" || string(x.Request.Path) != "/"+mark {
				return exchange.Reject(500, "leak", "body or path of another request")
			}
			x.Response.Status = 204
			return x.Send(nil, true)
		})))
		done := make(chan error, 16)
		for i := range cap(done) {
			mark := string(rune('a' + i))
			c := site.dial()
			go func() {
				r := bufio.NewReader(c)
				for n := range 30 {
					pad := 100 * n
					body := strings.Repeat(mark, 5000+n)
					_, _ = fmt.Fprintf(c, "POST /%s HTTP/1.1\r\nHost: a\r\nX-Pad: %s\r\nX-Mark: %s\r\nContent-Length: %d\r\n\r\n%s", mark,
						strings.Repeat(mark, pad), mark, len(body), body)
					res, err := http.ReadResponse(r, nil)
					if err == nil && res.StatusCode != 204 {
						b, _ := io.ReadAll(res.Body)
						err = fmt.Errorf("%s: %s", mark, b)
					}
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPartialPreface has a connection that begins like HTTP/2 and then falls silent.
func TestPartialPreface(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		near, far := m.pair(t)
		defer near.Close()
		srv := http1.NewServer(settings(exchange.HandlerFunc(echo)), testClock(t), func(conn.Conn, []byte, *drain.Tracker) { t.Error("handed over") })
		done := make(chan struct{})
		var live drain.Tracker
		go func() { defer close(done); srv.ServeConn(far, &live) }()
		eventually(t, "the server knows the connection", func() bool { return live.Len() == 1 })
		s := settings(exchange.HandlerFunc(echo))
		s.HeaderTimeout = 200 * time.Millisecond // from the first byte on
		srv.Update(s)
		io.WriteString(near, "PRI * HT")
		near.SetDeadline(time.Now().Add(10 * time.Second))
		if a := readAnswer(t, bufio.NewReader(near), ""); a.StatusCode != 408 {
			t.Errorf("status %d", a.StatusCode)
		}
		near.Close()
		<-done
	})
}

// TestBodyBehindGrownBuffer has the rest of a body come after the buffer has grown for it: the connection must be ready
// for the next request, also when that comes only after it was idle.
func TestBodyBehindGrownBuffer(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		site := serve(t, m, testClock(t), settings(exchange.HandlerFunc(echo)))
		c := site.dial()
		r := bufio.NewReader(c)
		for i := range 3 {
			head := fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 6000\r\n\r\n", i)
			fmt.Fprintf(c, "%s%s", head, strings.Repeat("x", 4600-len(head))) // more than the first buffer
			time.Sleep(20 * time.Millisecond)                                 // the rest is to come in a read of its own
			fmt.Fprint(c, strings.Repeat("x", 6000-(4600-len(head))))
			if a := readAnswer(t, r, ""); len(a.body) != 6000 {
				t.Fatalf("round %d: %d bytes", i, len(a.body))
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}
