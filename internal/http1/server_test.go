package http1_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mode is a kind of connection that every test of the server runs on.
type mode struct {
	name string
	wrap func(net.Conn) conn.Conn
}

// kernelConn takes an accepted connection over the way the accept path does.
func kernelConn(c net.Conn) conn.Conn {
	if r, ok := rawOf(c); ok {
		return r
	}
	return conn.NewPlain(c, conn.Info{})
}

var modes = []mode{
	{"kernel", kernelConn},
	{"plain", func(c net.Conn) conn.Conn { return conn.NewPlain(c, conn.Info{}) }},
}

// testServer serves h on a loopback port and is stopped with the test.
func testServer(t *testing.T, m mode, h exchange.HandlerFunc) (addr string, live *drain.Tracker) {
	t.Helper()
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { _ = clock.Run(ctx); close(stopped) }()
	live = new(drain.Tracker)
	srv := http1.NewServer(&http1.Settings{
		Limits:        http1.Limits{MaxHeaderBytes: 8 << 10, MaxHeaders: 32},
		Handler:       h,
		HeaderTimeout: 5 * time.Second, BodyIdleTimeout: 5 * time.Second, WriteIdleTimeout: 5 * time.Second, KeepAliveTimeout: 5 * time.Second,
	}, clock, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var n []chan struct{}
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			d := make(chan struct{})
			n = append(n, d)
			go func() { srv.ServeConn(m.wrap(c), live); close(d) }()
		}
		for _, d := range n {
			<-d
		}
	}()
	t.Cleanup(func() { l.Close(); live.Force(); <-done; cancel(); <-stopped })
	return l.Addr().String(), live
}

// echo answers with the method, the target and the body.
func echo(x *exchange.Exchange) error {
	var body []byte
	for {
		p, err := x.Down.ReadBody()
		body = append(body, p...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	x.Response.Status = 200
	x.Response.ContentLength = -1
	x.Response.Fields.Add("X-Seen", string(x.Request.Method)+" "+string(x.Request.Target))
	return x.Send(body, true)
}

func TestServerEcho(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			addr, _ := testServer(t, m, echo)
			for i := range 3 {
				body := strings.Repeat("x", i*100_000)
				req, _ := http.NewRequest("POST", "http://"+addr+"/a?b=c", strings.NewReader(body))
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(res.Body)
				if err != nil || string(got) != body || res.Header.Get("X-Seen") != "POST /a?b=c" {
					t.Fatalf("round %d: %d bytes, %v, %q", i, len(got), err, res.Header)
				}
				res.Body.Close()
			}
			req, _ := http.NewRequest("PUT", "http://"+addr+"/", io.MultiReader(strings.NewReader("abc"), strings.NewReader("def")))
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := io.ReadAll(res.Body); string(got) != "abcdef" {
				t.Fatalf("chunked: %q", got)
			}
			res.Body.Close()
			http.DefaultClient.CloseIdleConnections()
		})
	}
}

func TestServerPipelining(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			addr, _ := testServer(t, m, echo)
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			r := bufio.NewReader(c)
			for _, want := range []string{"GET /1", "POST /2", "GET /3"} {
				res, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if res.Header.Get("X-Seen") != want {
					t.Fatalf("got %q, want %q", res.Header.Get("X-Seen"), want)
				}
				_, _ = io.Copy(io.Discard, res.Body)
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Fatalf("after close: %v", err)
			}
		})
	}
}
