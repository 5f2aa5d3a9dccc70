package gatewaytest

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Backend is an HTTP server that a test speaks through the gateway with. Its paths: /sse streams an event at each Tick
// until the client leaves or Finish; /upload answers with the length of the body; /upgrade accepts a WebSocket handshake
// and echoes bytes; /hang answers nothing until the request is given up; /health follows SetHealthy; every other path
// answers with the backend's name.
type Backend struct {
	Name string
	URL  string
	// Seen are the requests that have come to paths other than /health.
	Seen atomic.Int64
	// Last is the last such request.
	Last atomic.Pointer[http.Request]

	sick   atomic.Bool
	tick   atomic.Pointer[chan struct{}]
	finish chan struct{}
	once   sync.Once
}

// NewBackend starts one on a free port; it ends with the test.
func NewBackend(t testing.TB, name string) *Backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return NewBackendOn(t, name, l)
}

// NewBackendOn starts one on a listener of any network.
func NewBackendOn(t testing.TB, name string, l net.Listener) *Backend {
	t.Helper()
	b := &Backend{Name: name, URL: "http://" + l.Addr().String(), finish: make(chan struct{})}
	first := make(chan struct{})
	b.tick.Store(&first)
	s := &http.Server{Handler: http.HandlerFunc(b.serve), ReadHeaderTimeout: Patience}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		b.Finish()
		_ = s.Close()
		serving.Wait()
	})
	return b
}

// SetHealthy makes /health answer 200 or 500.
func (b *Backend) SetHealthy(ok bool) { b.sick.Store(!ok) }

// Tick sends one event on every stream that is open.
func (b *Backend) Tick() {
	next := make(chan struct{})
	close(*b.tick.Swap(&next))
}

// Finish ends all streams, as a backend that has said all.
func (b *Backend) Finish() { b.once.Do(func() { close(b.finish) }) }

func (b *Backend) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		if b.sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return
	}
	b.Seen.Add(1)
	b.Last.Store(r)
	w.Header().Set("X-Backend", b.Name)
	switch {
	case strings.HasPrefix(r.URL.Path, "/sse"):
		b.stream(w, r)
	case r.URL.Path == "/upload":
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			fmt.Fprint(w, n)
		}
	case r.URL.Path == "/upgrade":
		b.upgrade(w, r)
	case r.URL.Path == "/hang":
		<-r.Context().Done()
	default:
		fmt.Fprint(w, b.Name)
	}
}

func (b *Backend) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 0; ; n++ {
		wait := b.tick.Load()
		fmt.Fprintf(w, "data: %s %d\n\n", b.Name, n)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-*wait:
		case <-b.finish:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (b *Backend) upgrade(w http.ResponseWriter, r *http.Request) {
	accept := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455 section 1.3
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+
		base64.StdEncoding.EncodeToString(accept[:])+"\r\n\r\n")
	_, _ = io.Copy(c, rw)
}

// Client is one raw connection of a client.
type Client struct {
	net.Conn
	R *bufio.Reader
	t testing.TB
}

// Dial opens one; it is closed when the test ends.
func Dial(t testing.TB, addr string) *Client {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(t, c)
}

// NewClient wraps a connection of any network.
func NewClient(t testing.TB, c net.Conn) *Client {
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(5 * Patience)) // for all that it is used for
	return &Client{Conn: c, R: bufio.NewReader(c), t: t}
}

// Send writes text as it is.
func (c *Client) Send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatalf("sending %.40q: %v", text, err)
	}
}

// Response reads a response head; the body can be read from it.
func (c *Client) Response() *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.R, nil)
	if err != nil {
		c.t.Fatalf("reading the response: %v", err)
	}
	return resp
}

// Get asks for a path on the connection and returns the response with its body read.
func (c *Client) Get(path string, fields ...string) (*http.Response, string) {
	c.t.Helper()
	resp, body, err := c.TryGet(path, fields...)
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	return resp, body
}

// TryGet is Get for connections that may be closed.
func (c *Client) TryGet(path string, fields ...string) (*http.Response, string, error) {
	head := "GET " + path + " HTTP/1.1\r\nHost: gateway.test\r\n"
	for _, f := range fields {
		head += f + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return nil, "", err
	}
	resp, err := http.ReadResponse(c.R, nil)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// Closed fails the test unless the gateway closes the connection, in order, without another byte.
func (c *Client) Closed() {
	c.t.Helper()
	if b, err := c.R.ReadByte(); !errors.Is(err, io.EOF) {
		c.t.Errorf("expected the end of the connection, got %q, %v", b, err)
	}
}
