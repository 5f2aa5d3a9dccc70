package peers_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// departureBound is how long after a client has left its backend connection may stay.
const departureBound = time.Second

// scripted is a backend that never ends a response: it does what the path of a request says and tells when the gateway
// has given it up.
type scripted struct {
	l       net.Listener
	reached chan struct{}  // a request is where the client may leave
	ended   chan time.Time // when the gateway's end was noticed
	running sync.WaitGroup
}

func script(t *testing.T) *scripted {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{l: l, reached: make(chan struct{}, 1024), ended: make(chan time.Time, 1024)}
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.running.Wait()
	})
	return s
}

func (s *scripted) serve(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	does, _, _ := strings.Cut(req.URL.Path[1:], "/")
	switch does {
	case "upload":
		if _, err := io.ReadFull(req.Body, make([]byte, 4)); err != nil {
			return
		}
	case "stream", "flow":
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n")
	}
	s.reached <- struct{}{}
	if does == "flow" {
		for err == nil {
			time.Sleep(10 * time.Millisecond) // the pace of the stream
			_, err = io.WriteString(c, "4\r\nmore\r\n")
		}
	}
	_, _ = io.Copy(io.Discard, r)
	s.ended <- time.Now()
}

// leaver is a client that leaves in the middle of something.
type leaver struct {
	c  net.Conn
	fr *http2.Framer // nil over HTTP/1.1
	// got delivers once when response bytes have come.
	got  chan struct{}
	once sync.Once
	done chan struct{} // the reader has ended
}

// departureMode is a way to reach the gateway.
type departureMode struct {
	name    string
	tls, h2 bool
}

var departureModes = []departureMode{{"clear", false, false}, {"tls", true, false}, {"h2 over tls", true, true}, {"h2c", false, true}}

// enter connects; the client reads all the time, as real ones do.
func enter(t *testing.T, s *site, m departureMode) *leaver {
	t.Helper()
	l := &leaver{got: make(chan struct{}), done: make(chan struct{})}
	var err error
	if m.tls {
		alpn := "http/1.1"
		if m.h2 {
			alpn = "h2"
		}
		l.c, err = tls.Dial("tcp", s.tls, clientTLS(alpn))
	} else {
		l.c, err = net.Dial("tcp", s.clear)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = l.c.SetDeadline(time.Now().Add(30 * time.Second))
	if m.h2 {
		if _, err := io.WriteString(l.c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		l.fr = http2.NewFramer(l.c, l.c)
		if err := l.fr.WriteSettings(); err != nil {
			t.Fatal(err)
		}
	}
	go l.read()
	t.Cleanup(func() {
		_ = l.c.Close()
		<-l.done
	})
	return l
}

func (l *leaver) read() {
	defer close(l.done)
	if l.fr != nil {
		for {
			f, err := l.fr.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := f.(*http2.DataFrame); ok {
				l.once.Do(func() { close(l.got) })
			}
		}
	}
	b := make([]byte, 4096)
	for {
		n, err := l.c.Read(b)
		if bytes.Contains(b[:n], []byte("some")) {
			l.once.Do(func() { close(l.got) })
		}
		if err != nil {
			return
		}
	}
}

// request sends the head of a request, and four bytes of an upload that goes on.
func (l *leaver) request(t *testing.T, stream uint32, path string) {
	t.Helper()
	method := "GET"
	if strings.HasPrefix(path, "/upload") {
		method = "POST"
	}
	var err error
	if l.fr == nil {
		text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: h\r\n\r\n", method, path)
		if strings.HasPrefix(path, "/upload") {
			text = strings.Replace(text, "\r\n\r\n", "\r\nContent-Length: 1000000\r\n\r\nsome", 1)
		}
		_, err = io.WriteString(l.c, text)
	} else {
		err = l.requestH2(stream, method, path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (l *leaver) requestH2(stream uint32, method, path string) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", method}, {":scheme", "http"}, {":authority", "h"}, {":path", path}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return err
		}
	}
	err := l.fr.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: method == "GET",
	})
	if err == nil && method == "POST" {
		err = l.fr.WriteData(stream, false, []byte("some"))
	}
	return err
}

// tcp is the socket below.
func (l *leaver) tcp() *net.TCPConn {
	if c, ok := l.c.(*tls.Conn); ok {
		return c.NetConn().(*net.TCPConn)
	}
	return l.c.(*net.TCPConn)
}

// departures are the ways to leave. The socket stays open for reading after a FIN.
var departures = []struct {
	name  string
	h2    bool // exists there only
	leave func(l *leaver, streams uint32) error
}{
	{"FIN", false, func(l *leaver, _ uint32) error {
		if c, ok := l.c.(*tls.Conn); ok {
			if err := c.CloseWrite(); err != nil {
				return err
			}
		}
		err := l.tcp().CloseWrite()
		if errors.Is(err, syscall.ENOTCONN) { // the alert that TLS sent before was enough for the gateway to close
			return nil
		}
		return err
	}},
	{"RST", false, func(l *leaver, _ uint32) error {
		if err := l.tcp().SetLinger(0); err != nil {
			return err
		}
		return l.tcp().Close()
	}},
	{"RST_STREAM", true, func(l *leaver, streams uint32) error {
		for i := range streams {
			if err := l.fr.WriteRSTStream(1+2*i, http2.ErrCodeCancel); err != nil {
				return err
			}
		}
		return nil
	}},
}

// phases are what the exchange is in when the client leaves.
var phases = []struct {
	name, path string
	answered   bool // response bytes have come to the client
	behind     bool // another request stands behind, pipelined or multiplexed
}{
	{name: "before the head", path: "/silent"},
	{name: "in a response that rests", path: "/stream", answered: true},
	{name: "in a response that flows", path: "/flow", answered: true},
	{name: "in an upload", path: "/upload"},
	{name: "with a request behind", path: "/silent", behind: true},
}

// TestDeparture is the table of clients that leave: whatever the exchange waits for, the backend is let go within a
// second, everything is given back, and one line says that the client left.
func TestDeparture(t *testing.T) {
	for _, m := range departureModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			back := script(t)
			s := serve(t, "http://"+back.l.Addr().String())
			lines := make(map[string]int) // by path
			for _, d := range departures {
				for _, p := range phases {
					if d.h2 && !m.h2 {
						continue
					}
					path, n := fmt.Sprintf("%s/%d", p.path, len(lines)), 1
					if p.behind && m.h2 {
						n = 2
					}
					lines[path] = n
					t.Run(d.name+" "+p.name, func(t *testing.T) {
						l := enter(t, s, m)
						l.request(t, 1, path)
						if p.behind {
							l.request(t, 3, path)
						}
						back.await(t, n)
						if p.answered {
							<-l.got
						}
						left := time.Now()
						if err := d.leave(l, uint32(n)); err != nil {
							t.Fatal(err)
						}
						back.released(t, n, left)
						_ = l.c.Close()
						s.empty(t)
					})
				}
			}
			s.departed(t, lines)
		})
	}
}

func (s *scripted) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-s.reached:
		case <-time.After(patience):
			t.Fatal("the request does not come to the backend")
		}
	}
}

func (s *scripted) released(t *testing.T, n int, left time.Time) {
	t.Helper()
	for range n {
		select {
		case at := <-s.ended:
			d := at.Sub(left)
			t.Logf("let go after %v", d)
			if d > departureBound {
				t.Errorf("that is more than %v", departureBound)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("the backend is not let go")
		}
	}
}

// departed checks that the log has so many lines of each path and no other, each of which tells of a departure.
func (s *site) departed(t *testing.T, want map[string]int) {
	t.Helper()
	all := 0
	for _, n := range want {
		all += n
	}
	var es []entry
	eventually(t, patience, "the departures are logged", func() bool { es = s.entries(t); return len(es) >= all })
	got := make(map[string]int)
	for _, e := range es {
		got[e.Path]++
		if e.Outcome != "disconnected" {
			t.Errorf("logged %+v", e)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("lines by path\n%v, want\n%v", got, want)
	}
}

// empty waits until nothing is open or under way.
func (s *site) empty(t *testing.T) {
	t.Helper()
	var g map[string]float64
	eventually(t, patience, "all gauges are zero", func() bool {
		g = s.gauges(t, "gateway_open_connections", "gateway_active_connections", "gateway_service_active_requests",
			"gateway_backend_active_requests", `gateway_upstream_connections{service="backend",state="active"}`)
		for _, v := range g {
			if v != 0 {
				return false
			}
		}
		return true
	})
}
