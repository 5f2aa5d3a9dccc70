package http2_test

//lint:file-ignore SA1019 the foreign server is chosen because it takes any connection

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// runningClock ticks until the test ends.
func runningClock(t testing.TB) *conn.Clock {
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = clock.Run(ctx) })
	t.Cleanup(func() {
		if n := clock.Len(); n != 0 {
			t.Errorf("%d clock entries left over", n)
		}
		cancel()
		running.Wait()
	})
	return clock
}

// begin has the client speak over c, and ends that with the test.
func begin(t testing.TB, c conn.Conn, set *http2.ClientSettings) *http2.ClientConn {
	t.Helper()
	cc := http2.NewClientConn(c, set, runningClock(t))
	t.Cleanup(func() {
		cc.Close()
		select {
		case <-cc.Done():
		case <-time.After(patience):
			t.Error("the connection does not end")
		}
	})
	return cc
}

// foreign is a server of golang.org/x/net, reached over the kind of connection that m is.
func foreign(t testing.TB, m mode, set *http2.ClientSettings, h http.Handler) *http2.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if m.tls {
			tc := tls.Server(c, serverTLS())
			if err := tc.Handshake(); err != nil {
				t.Error(err)
			}
			c = tc
		}
		(&xhttp2.Server{MaxConcurrentStreams: 100}).ServeConn(c, &xhttp2.ServeConnOpts{Handler: h})
		c.Close()
	})
	t.Cleanup(func() { l.Close(); served.Wait() })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if !m.tls {
		return begin(t, m.wrap(c), set)
	}
	tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "h2.test", NextProtos: []string{"h2"}})
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	state := tc.ConnectionState()
	return begin(t, conn.NewPlain(tc, conn.Info{TLS: &state}), set)
}

// open opens a stream once the server's settings have come.
func open(t testing.TB, cc *http2.ClientConn) *http2.ClientStream {
	t.Helper()
	select {
	case <-cc.Ready():
	case <-time.After(patience):
		t.Fatal("no settings came")
	}
	s, ok := cc.Open()
	if !ok {
		t.Fatalf("no stream: %v", cc.Err())
	}
	return s
}

// reply is a response as its sink has seen it.
type reply struct {
	exchange.Head
	interims []int
	fields   exchange.Fields
	trailers exchange.Fields
	body     bytes.Buffer
	sent     func() // called when the head is out
	each     func() error
	pieces   int
}

func (a *reply) Sent() {
	if a.sent != nil {
		a.sent()
	}
}

func (a *reply) Body(p []byte, _ bool) error {
	a.body.Write(p)
	a.pieces++
	if a.each != nil {
		return a.each()
	}
	return nil
}

func (a *reply) Raw(exchange.RawRun) error { return nil }

func (a *reply) Interim(status int, _ *exchange.Fields) error {
	a.interims = append(a.interims, status)
	return nil
}

// do makes a request of the head, without the Host, and reads the whole response.
func (a *reply) do(s *http2.ClientStream, head, body string) (err error) {
	first, fields, _ := strings.Cut(head, "\r\n")
	if fields != "" {
		fields += "\r\n"
	}
	if a.Head, err = s.RoundTrip([]byte(first+" HTTP/1.1\r\nHost: h2.test\r\n"+fields+"\r\n"), []byte(body), nil, false, &a.fields, a); err != nil {
		return err
	}
	return s.CopyBody(a, false, &a.trailers)
}

// scripted is a server made of frames.
type scripted struct {
	t   testing.TB
	c   net.Conn
	fr  *xhttp2.Framer
	enc *hpack.Encoder
	buf bytes.Buffer
}

// scriptServer connects a client to a server that has sent its settings and read the client's.
func scriptServer(t testing.TB, set *http2.ClientSettings, settings ...xhttp2.Setting) (*http2.ClientConn, *scripted) {
	t.Helper()
	near, far := conn.Pipe()
	return scriptOver(t, near, far, set, settings...)
}

// scriptOver is scriptServer over the ends of a connection.
func scriptOver(t testing.TB, near, far conn.Conn, set *http2.ClientSettings, settings ...xhttp2.Setting) (*http2.ClientConn, *scripted) {
	t.Helper()
	cc := begin(t, near, set)
	s := &scripted{t: t, c: far, fr: xhttp2.NewFramer(far, far)}
	s.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.enc = hpack.NewEncoder(&s.buf)
	t.Cleanup(func() { far.Close() })
	_ = far.SetDeadline(time.Now().Add(20 * time.Second))
	pre := make([]byte, len(xhttp2.ClientPreface))
	if _, err := io.ReadFull(far, pre); err != nil || string(pre) != xhttp2.ClientPreface {
		t.Fatalf("preface %q, %v", pre, err)
	}
	if err := s.fr.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return cc, s
}

// head sends a field block.
func (s *scripted) head(id uint32, end bool, fields ...string) {
	s.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = s.fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: s.buf.Bytes(), EndStream: end, EndHeaders: true})
}

// await reads frames until one is of the kind, and returns it.
func (s *scripted) await(kind xhttp2.FrameType) xhttp2.Frame {
	s.t.Helper()
	for {
		f, err := s.fr.ReadFrame()
		if err != nil {
			s.t.Errorf("waiting for %v: %v", kind, err)
			return nil
		}
		if f.Header().Type == kind {
			if sf, ok := f.(*xhttp2.SettingsFrame); ok && sf.IsAck() {
				continue
			}
			return f
		}
	}
}
