package http1_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http1test"
)

func itoa(n int) string { return strconv.Itoa(n) }

// observer is a handler that writes down what it sees. It answers 200.
type observer struct {
	mu  sync.Mutex // guards saw
	saw []string
}

func (o *observer) Serve(x *exchange.Exchange) error {
	r := &x.Request
	proto := strings.TrimPrefix(r.Protocol.String(), "HTTP/")
	s := fmt.Sprintf("%s %s %s %s len=%d ", r.Method, r.Target, r.Host, proto, r.ContentLength)
	body, err := readBody(x)
	if err != nil {
		var e *exchange.Error
		code := exchange.Code(err.Error())
		if errors.As(err, &e) {
			code = e.Code
		}
		o.note(s + "!" + string(code))
		return err
	}
	s += strconv.Quote(string(body))
	for n, v := range r.Trailers.All() {
		s += fmt.Sprintf(" %s=%s", n, v)
	}
	o.note(s)
	x.Response.Status = 200
	return x.Send([]byte("ok"), true)
}

func (o *observer) note(s string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.saw = append(o.saw, s)
}

func (o *observer) seen() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.saw, " | ")
}

// What other tests of the package say requests with.
var (
	get, post, head, chunkedPost = http1test.Get, http1test.Post, http1test.Head, http1test.ChunkedPost

	smuggleLimits = http1.Limits{MaxHeaderBytes: http1test.MaxHeaderBytes, MaxHeaders: http1test.MaxHeaders}
)

const (
	te          = http1test.Chunked
	nextRequest = http1test.Next
)

// smuggled is a case of the table as a test of the server.
type smuggled http1test.Case

// want returns what the handler sees in all and the statuses that the client reads.
func (s *smuggled) want() (saw string, statuses []int) {
	saw = s.Saw
	n := 0
	if s.Saw != "" {
		n = 1 + strings.Count(s.Saw, " | ")
	}
	if strings.HasSuffix(s.Saw, "!bad_request_body") {
		n--
	}
	for range n {
		statuses = append(statuses, 200)
	}
	if s.Code != 0 {
		return saw, append(statuses, s.Code)
	}
	if saw != "" {
		saw += " | "
	}
	return saw + http1test.SawNext, append(statuses, 200)
}

// delivery says how the bytes are sent.
type delivery struct {
	cut  int  // first write; 0 all at once
	each bool // byte by byte
}

// run sends the case's bytes to a new server and checks everything.
func (s *smuggled) run(t *testing.T, m mode, clock *conn.Clock, d delivery) {
	o := new(observer)
	set := settings(o)
	set.Limits = smuggleLimits
	st := serve(t, m, clock, set)
	c := st.dial()
	send(c, st.far, s.In+nextRequest, d)
	r := bufio.NewReader(c)
	var got []int
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Errorf("%+v: after %v: %v", d, got, err)
			}
			break
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Errorf("%+v: body of %d: %v", d, res.StatusCode, err)
		}
		if res.StatusCode >= 400 && (!res.Close || !strings.HasPrefix(string(body), `{"error":"`) || res.ContentLength != int64(len(body))) {
			t.Errorf("%+v: answer %d %v %q", d, res.StatusCode, res.Header, body)
		}
		got = append(got, res.StatusCode)
	}
	c.Close()
	st.wg.Wait()
	saw, statuses := s.want()
	if o.seen() != saw {
		t.Errorf("%+v: the handler saw\n%s\nwant\n%s", d, o.seen(), saw)
	}
	if fmt.Sprint(got) != fmt.Sprint(statuses) {
		t.Errorf("%+v: statuses %v, want %v", d, got, statuses)
	}
}

// send writes the bytes as told, giving the server time to take one part before it gets the next.
func send(c io.Writer, far conn.Conn, in string, d delivery) {
	switch {
	case d.each:
		for i := range len(in) {
			if _, err := io.WriteString(c, in[i:i+1]); err != nil {
				return
			}
			taken(far)
		}
	case d.cut > 0:
		if _, err := io.WriteString(c, in[:d.cut]); err != nil {
			return
		}
		taken(far)
		_, _ = io.WriteString(c, in[d.cut:])
	default:
		_, _ = io.WriteString(c, in)
	}
}

// taken waits a moment until the server has read what was sent.
func taken(far conn.Conn) {
	for range 200 {
		runtime.Gosched()
		if !unread(far) {
			return
		}
	}
}

// longCase is from how many bytes a case is split at some places only.
const longCase = 300

// TestSmuggling is the table of requests that may be read in two ways, on every kind of connection, in one piece, byte by
// byte, and cut at every byte.
func TestSmuggling(t *testing.T) {
	if len(http1test.Cases) < 120 {
		t.Fatalf("%d cases", len(http1test.Cases))
	}
	names := make(map[string]bool)
	for _, s := range http1test.Cases {
		if names[s.Name] {
			t.Errorf("two cases are called %s", s.Name)
		}
		names[s.Name] = true
	}
	eachMode(t, func(t *testing.T, m mode) {
		clock := testClock(t)
		for _, c := range http1test.Cases {
			s := smuggled(c)
			t.Run(s.Name, func(t *testing.T) {
				s.run(t, m, clock, delivery{})
				if len(s.In) < longCase {
					s.run(t, m, clock, delivery{each: true})
				}
				for cut := 1; cut <= len(s.In); cut += step(m, len(s.In)) {
					s.run(t, m, clock, delivery{cut: cut})
				}
			})
		}
	})
}

// step is the distance of two cuts: a handshake for each is dear, and so are long cases.
func step(m mode, n int) int {
	switch {
	case n >= longCase:
		return n/3 + 1
	case m.tls:
		return 31
	case m.name == "plain":
		return 7
	case m.name == "kernel" && raceEnabled:
		return 3
	}
	return 1
}
