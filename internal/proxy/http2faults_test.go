package proxy_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// KF-STR-05, KF-STR-06: a client that leaves takes its stream along within a second, and nothing else: the connection serves on.
func TestKF_STR_05_HTTP2(t *testing.T) {
	t.Parallel()
	for name, begun := range map[string]bool{"before the head": false, "inside the body": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, reset := make(chan struct{}), make(chan xhttp2.ErrCode, 1)
			g := newGateway(t, kernelMode, options{}, framed(t, func(f *frames) {
				id := f.request()
				if begun {
					f.head(id, false, ":status", "200")
					_ = f.WriteData(id, false, []byte("some"))
				}
				close(asked)
				if fr, ok := f.next(xhttp2.FrameRSTStream).(*xhttp2.RSTStreamFrame); ok && fr.StreamID == id {
					reset <- fr.ErrCode
				}
				f.answer()
			}))
			c := g.dial(t)
			c.send(get)
			<-asked
			if begun {
				c.head()
			}
			left := time.Now()
			c.Close()
			select {
			case code := <-reset:
				if d := time.Since(left); d > time.Second || code != xhttp2.ErrCodeCancel {
					t.Errorf("%v after %v", code, d)
				}
			case <-time.After(patience):
				t.Fatal("the stream was not reset")
			}
			g.ended(0, exchange.OutcomeDisconnected, exchange.CodeClientGone, "")
			c = g.dial(t)
			c.send(get)
			if m := c.message(false); m.status() != "200" {
				t.Errorf("%+v", m)
			}
			if s := g.backends()[0].Pool.Stats(); s.Open != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// What goes wrong has the status, the code and the limit that it has over HTTP/1.1.
func TestHTTP2Failures(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		serve  func(f *frames)
		status string // "" the response is cut
		code   exchange.Code
		limit  string
	}{
		"no answer": {func(f *frames) { f.request() }, "504", exchange.CodeResponseTimeout, "request_timeout"},
		"bad head":  {func(f *frames) { f.head(f.request(), true, ":status", "200", "connection", "close") }, "502", exchange.CodeBadResponse, ""},
		"end":       {func(f *frames) { f.request(); f.c.Close() }, "502", exchange.CodeBackendReset, ""},
		"reset":     {func(f *frames) { _ = f.WriteRSTStream(f.request(), xhttp2.ErrCodeInternal) }, "502", exchange.CodeBackendReset, ""},
		"cut body": {func(f *frames) {
			id := f.request()
			f.head(id, false, ":status", "200")
			_ = f.WriteRSTStream(id, xhttp2.ErrCodeInternal)
		}, "", exchange.CodeBackendReset, ""},
		"short body": {func(f *frames) {
			id := f.request()
			f.head(id, false, ":status", "200", "content-length", "9")
			_ = f.WriteData(id, true, []byte("x"))
		}, "", exchange.CodeBadResponse, ""},
		"silent stream": {func(f *frames) { f.head(f.request(), false, ":status", "200") }, "", exchange.CodeStreamIdle, "stream_idle_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, kernelMode, options{service: func(lb *config.LoadBalancer) {
				switch tc.limit { // which one alone may be short
				case "request_timeout":
					lb.RequestTimeout = time.Second
				case "stream_idle_timeout":
					lb.StreamIdleTimeout = time.Second
				}
			}}, framed(t, tc.serve))
			c := g.dial(t)
			c.send(get)
			outcome := exchange.OutcomeFailed
			if tc.status != "" {
				if m := c.message(false); m.status() != tc.status {
					t.Errorf("%+v", m)
				}
			} else {
				outcome = exchange.OutcomeAborted
				if tc.limit != "" {
					outcome = exchange.OutcomeTimeout
				}
				if _, err := c.read(false); err == nil {
					t.Error("a cut response looks whole")
				}
			}
			g.ended(0, outcome, tc.code, tc.limit)
		})
	}
}

// A backend that has left a request without an answer, and its connection without a byte, is asked for a sign of life; the
// next request does not wait for a connection that is dead.
func TestHTTP2DeadConnection(t *testing.T) {
	t.Parallel()
	pinged := make(chan struct{})
	g := newGateway(t, kernelMode, options{service: func(lb *config.LoadBalancer) { lb.RequestTimeout = 2 * time.Second }},
		framed(t, func(f *frames) { f.request(); f.next(xhttp2.FramePing); close(pinged) }, func(f *frames) { f.answer() }))
	c := g.dial(t)
	c.send(get)
	if m := c.message(false); m.status() != "504" {
		t.Errorf("%+v", m)
	}
	<-pinged
	c.send(get)
	if m := c.message(false); m.status() != "200" {
		t.Errorf("%+v", m)
	}
}

// A backend that may serve few streams gets more connections, up to the limit of the service; then it is busy.
func TestHTTP2StreamLimit(t *testing.T) {
	t.Parallel()
	var limited atomic.Int64 // connections whose limit is known; it is told behind the beginning, with which they may be used
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	g := newGateway(t, kernelMode, options{service: func(lb *config.LoadBalancer) { lb.Transport.MaxConnections = 2 }},
		framed(t, func(f *frames) {
			_ = f.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingMaxConcurrentStreams, Val: 1})
			id := f.acknowledged(2)
			limited.Add(1)
			<-hold
			f.head(id, true, ":status", "200")
			f.answer()
		}))
	var cs []*wire
	for i := range 2 {
		c := g.dial(t)
		c.send(get)
		cs = append(cs, c)
		eventually(t, patience, "a connection each", func() bool {
			s := g.backends()[0].Pool.Stats()
			return s.Open == i+1 && s.Streams == i+1 && limited.Load() == int64(i+1)
		})
	}
	third := g.dial(t)
	third.send(get)
	if m := third.message(false); m.status() != "503" {
		t.Errorf("%+v", m)
	}
	g.ended(0, exchange.OutcomeFailed, exchange.CodeBackendBusy, "")
	release()
	for _, c := range cs {
		if m := c.message(false); m.status() != "200" {
			t.Errorf("%+v", m)
		}
	}
}

// quickH2C is a backend that allocates nothing.
func quickH2C(t testing.TB) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { defer c.Close(); answerFrames(c) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return "h2c://" + l.Addr().String()
}

// answerFrames answers each stream that ends with the same two bytes.
func answerFrames(c net.Conn) {
	in := make([]byte, 64<<10)
	if _, err := io.ReadFull(c, in[:len(xhttp2.ClientPreface)]); err != nil {
		return
	}
	if _, err := c.Write([]byte{0, 0, 0, byte(xhttp2.FrameSettings), 0, 0, 0, 0, 0}); err != nil {
		return
	}
	answer := []byte("\x00\x00\x05\x01\x04....\x88\x0f\x0d\x012\x00\x00\x02\x00\x01....ok") // 200, content-length 2, the body
	for r, w := 0, 0; ; {
		for w-r >= 9 {
			size := 9 + int(in[r])<<16 + int(in[r+1])<<8 + int(in[r+2])
			if w-r < size {
				break
			}
			if kind := xhttp2.FrameType(in[r+3]); in[r+4]&1 != 0 && (kind == xhttp2.FrameHeaders || kind == xhttp2.FrameData) {
				copy(answer[5:9], in[r+5:r+9])
				copy(answer[19:23], in[r+5:r+9])
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
			r += size
		}
		r, w = 0, copy(in, in[r:w])
		n, err := c.Read(in[w:])
		if err != nil {
			return
		}
		w += n
	}
}
