package http1_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http1test"
)

// reading is how a server understood one request.
type reading struct {
	method, target, host string
	length               int64
	body                 string
	trailers             string
	failed               bool // the body was malformed
	cut                  bool // the input ended inside the body
	skipped              bool // an empty line went before
}

func (r reading) String() string {
	return fmt.Sprintf("%s %s host=%q len=%d %q trailers=%q failed=%v cut=%v", r.method, r.target, r.host, r.length, r.body, r.trailers, r.failed, r.cut)
}

// readings collects what a handler sees.
type readings struct {
	mu  sync.Mutex // guards all
	all []reading
}

func (r *readings) add(one reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, one)
}

// Serve records a request of our server.
func (r *readings) Serve(x *exchange.Exchange) error {
	q := &x.Request
	one := reading{
		method: string(q.Method), target: string(q.Target), host: string(q.Host), length: q.ContentLength,
		skipped: http1.SkippedLine(x.Down),
	}
	body, err := readBody(x)
	one.body = string(body)
	var e *exchange.Error
	one.failed, one.cut = errors.As(err, &e), errors.Is(err, exchange.ErrDeparted)
	if err == nil {
		for n, v := range q.Trailers.All() {
			one.trailers += http.CanonicalHeaderKey(string(n)) + "=" + string(v) + ";"
		}
	}
	r.add(one)
	if err != nil {
		return err
	}
	x.Response.Status = 200
	return x.Send([]byte("ok"), true)
}

// ServeHTTP records a request of the standard library's server.
func (r *readings) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	one := reading{method: q.Method, target: originForm(q), host: q.Host, length: q.ContentLength}
	body, err := io.ReadAll(q.Body)
	one.body, one.failed = string(body), err != nil
	r.add(one)
	_, _ = io.WriteString(w, "ok")
}

// originForm reduces an absolute target, as ours does.
func originForm(q *http.Request) string {
	t := q.RequestURI
	_, rest, ok := strings.Cut(t, "://")
	if t[0] == '/' || !ok {
		return t
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0 && q.Method == "OPTIONS":
		return "*"
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}

// exchangeBytes sends in to a server's end and returns what came back until the server closed.
func exchangeBytes(t *testing.T, near *conn.MemoryConn, in []byte) []byte {
	_ = near.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		_, _ = near.Write(in)
		_ = near.CloseWrite()
	}()
	out, err := io.ReadAll(near)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		t.Fatalf("server hangs after %q", out)
	}
	_ = near.Close()
	return out
}

// ours runs our server over in. Its clock stands still, so the client's FIN is not taken for departure.
func ours(t *testing.T, in []byte) []reading {
	var r readings
	set := settings(&r)
	set.Limits = http1.Limits{MaxHeaderBytes: 64 << 10, MaxHeaders: 1024}
	srv := http1.NewServer(set, conn.NewClock(), nil)
	near, far := conn.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); srv.ServeConn(far, nil) }()
	exchangeBytes(t, near, in)
	<-done
	return r.all
}

// oneConn is a listener with a single connection.
type oneConn struct {
	c    net.Conn
	once sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.c })
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.c.LocalAddr() }

// closing tells when its connection has been closed.
type closing struct {
	net.Conn // hides CloseWrite, after which the library waits half a second
	once     sync.Once
	done     chan struct{}
}

func (c *closing) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// theirs runs the standard library's server over in. hung tells that it closed the connection by its own choice after
// the last request it served.
func theirs(t *testing.T, in []byte) (all []reading, closed bool) {
	var r readings
	near, far := conn.Pipe()
	c := &closing{Conn: far, done: make(chan struct{})}
	l := &oneConn{c: c, done: make(chan struct{})}
	srv := &http.Server{Handler: &r, DisableGeneralOptionsHandler: true, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	out := exchangeBytes(t, near, in)
	<-c.done
	close(l.done)
	<-done
	_ = srv.Close()
	b := bufio.NewReader(bytes.NewReader(out))
	for {
		res, err := http.ReadResponse(b, nil)
		if err != nil {
			break
		}
		_, _ = io.Copy(io.Discard, res.Body)
		closed = res.StatusCode < 400 && res.StatusCode >= 200 && res.Close
	}
	return r.all, closed
}

// knownStricter are the points where the standard library refuses what we accept, on purpose.
func knownStricter(r reading, in []byte) string {
	if r.skipped {
		return "one empty line before a request is skipped (RFC 9112 §2.2); the library does so after POST only"
	}
	if u, err := url.ParseRequestURI(r.target); r.target != "*" && (err != nil || u == nil) {
		return "escapes in the target are judged by routing, not by the engine"
	}
	if bytes.Contains(bytes.ToLower(in), []byte("\ntrailer:")) {
		return "the Trailer field is dropped, so what it announces is not judged"
	}
	return ""
}

// disagreement compares two readings of the same bytes. Where we refuse, the other may accept.
func disagreement(we, they []reading, closed bool, in []byte) string {
	for i, w := range we {
		if w.failed {
			return "" // refused
		}
		if i >= len(they) {
			if why := knownStricter(w, in); why != "" || closed {
				return ""
			}
			return fmt.Sprintf("request %d is accepted by us alone: %v", i, w)
		}
		l := they[i]
		if w.cut {
			if l.failed {
				return "" // both wait for more
			}
			return fmt.Sprintf("request %d ends for the library but not for us:\nwe   %v\nthey %v", i, w, l)
		}
		w.trailers, w.skipped = "", false
		if w != l {
			return fmt.Sprintf("request %d is read differently:\nwe   %v\nthey %v", i, w, l)
		}
	}
	return ""
}

// FuzzDifferential gives the same bytes to our server and to the standard library's. It fails where we accept what the
// library refuses, or where both accept and read differently: method, target, host, framing, body, or where the next
// request begins.
func FuzzDifferential(f *testing.F) {
	for _, s := range http1test.Cases {
		if len(s.In) < 2000 {
			f.Add([]byte(s.In))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 16<<10 {
			return
		}
		in = append(append([]byte(nil), in...), nextRequest...)
		we := ours(t, in)
		they, closed := theirs(t, in)
		if d := disagreement(we, they, closed, in); d != "" {
			t.Errorf("%s\ninput %q", d, in)
		}
	})
}

// TestDifferentialSeesLeniency proves that the comparison can fail.
func TestDifferentialSeesLeniency(t *testing.T) {
	one := reading{method: "GET", target: "/a", host: "h"}
	other := one
	other.body = "x"
	for name, tc := range map[string]struct {
		we, they []reading
		closed   bool
		bad      bool
	}{
		"same":              {[]reading{one}, []reading{one}, false, false},
		"we alone":          {[]reading{one}, nil, false, true},
		"they alone":        {nil, []reading{one}, false, false},
		"other body":        {[]reading{one}, []reading{other}, false, true},
		"they closed":       {[]reading{one, one}, []reading{one}, true, false},
		"we wait, they not": {[]reading{{method: "GET", target: "/a", cut: true}}, []reading{one}, false, true},
		"they fail":         {[]reading{one}, []reading{{method: "GET", target: "/a", host: "h", failed: true}}, false, true},
		"we refuse body":    {[]reading{{method: "GET", target: "/a", failed: true}}, []reading{one, one}, false, false},
	} {
		if d := disagreement(tc.we, tc.they, tc.closed, nil); (d != "") != tc.bad {
			t.Errorf("%s: %q", name, d)
		}
	}
}
