package peers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/http1test"
)

// What the peers answer by themselves.
var (
	nginxRefuses = map[string]int{
		"lower-case method is another": 400, "asterisk with OPTIONS": 400, "absolute form of OPTIONS": 400,
	}
	apacheRefuses = map[string]int{
		"Host with empty port": 400, "asterisk with OPTIONS": 200, "absolute form of OPTIONS": 200,
	}
	nodeRefuses = map[string]int{"unknown method": 400, "lower-case method is another": 400}
)

// elsewhere tells whether a case is not for the gateway as a whole: limits of another size, what no backend gets to see,
// and the other protocol of the entrypoint.
func elsewhere(c http1test.Case) bool {
	return c.Code == 414 || c.Code == 431 || strings.HasPrefix(c.Name, "Expect") || c.Name == "HTTP/2 preface"
}

// seen is one request as the table says a handler sees it.
var seen = regexp.MustCompile(`^(\S+) (\S+) (\S*) 1\.\d len=(-?\d+) (?:("(?:[^"\\]|\\.)*")|!bad_request_body)`)

// expectation is one request that must, or may, come to the peer.
type expectation struct {
	echoed
	broken  bool // its body ends before it is whole
	refused bool // by the peer
}

func expectations(t *testing.T, c http1test.Case) (all []expectation, statuses []int) {
	t.Helper()
	saw := c.Saw
	if c.Code == 0 {
		saw += " | " + http1test.SawNext
	}
	for one := range strings.SplitSeq(strings.TrimPrefix(saw, " | "), " | ") {
		if one == "" {
			continue
		}
		m := seen.FindStringSubmatch(one)
		if m == nil {
			t.Fatalf("the table says %q", one)
		}
		e := expectation{echoed: echoed{Method: m[1], URI: m[2], Host: m[3]}, broken: m[5] == ""}
		if !e.broken {
			body, err := strconv.Unquote(m[5])
			if err != nil {
				t.Fatal(err)
			}
			e.Body = body
			statuses = append(statuses, 200)
		}
		all = append(all, e)
	}
	if c.Code != 0 {
		statuses = append(statuses, c.Code)
	}
	return all, statuses
}

// answer is one response to a case.
type answer struct {
	status int
	id     string
	body   []byte
}

// ask sends bytes over a connection of their own and reads all answers until the gateway closes it.
func ask(t *testing.T, address, in string) []answer {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, in); err != nil {
		t.Logf("writing: %v", err) // the gateway may have closed already
	}
	var all []answer
	for r := bufio.NewReader(c); ; {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Errorf("after %d answers: %v", len(all), err)
			}
			return all
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Errorf("body of answer %d: %v", len(all)+1, err)
		}
		all = append(all, answer{res.StatusCode, res.Header.Get("X-Request-Id"), body})
	}
}

// TestSmuggling sends the requests that two parsers may read differently to servers that others wrote, through the
// gateway. Each sees what the gateway sees and nothing else: no request more, no other method, target, host or body.
func TestSmuggling(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			peer := p.start(t)
			s := serve(t, peer.url)
			ledger := &ledger{peer: peer, site: s, want: make(map[string]expectation)}
			ran := 0
			for i, c := range http1test.Cases {
				if elsewhere(c) {
					continue
				}
				ran++
				t.Run(c.Name, func(t *testing.T) {
					ledger.run(t, c)
					ledger.canary(t, i)
				})
			}
			if ran < 200 {
				t.Errorf("%d cases ran", ran)
			}
			ledger.close(t)
		})
	}
}

// ledger is what must have come to the peer, by request id.
type ledger struct {
	peer *peer
	site *site
	want map[string]expectation
}

func (l *ledger) run(t *testing.T, c http1test.Case) {
	all, statuses := expectations(t, c)
	refused, isRefused := l.peer.refuses[c.Name]
	answers := ask(t, l.site.clear, c.In+http1test.Next)
	var got []int
	for _, a := range answers {
		got = append(got, a.status)
	}
	if isRefused {
		statuses[0] = refused
	}
	if fmt.Sprint(got) != fmt.Sprint(statuses) {
		t.Errorf("statuses %v, want %v", got, statuses)
		return
	}
	for i, want := range all {
		a := answers[i]
		if a.id == "" {
			t.Errorf("answer %d carries no request id", i+1)
		}
		want.refused = i == 0 && isRefused
		if want.Host == "" {
			want.Host = strings.TrimPrefix(l.peer.url, "http://") // a host that the client did not name
		}
		l.want[a.id] = want
		if want.broken || want.refused {
			continue
		}
		var saw echoed
		if err := json.Unmarshal(a.body, &saw); err != nil {
			t.Errorf("answer %d: %v: %q", i+1, err, a.body)
		} else if saw != want.echoed {
			t.Errorf("the peer saw\n%+v, want\n%+v", saw, want.echoed)
		}
	}
}

// canary asks for something of its own on another connection, which must be what is answered.
func (l *ledger) canary(t *testing.T, i int) {
	target := "/canary/" + strconv.Itoa(i)
	answers := ask(t, l.site.clear, http1test.Head("POST "+target+" HTTP/1.1", "Host: canary", "Content-Length: 4", "Connection: close")+"bird")
	if len(answers) != 1 {
		t.Fatalf("canary: %d answers", len(answers))
	}
	want := echoed{"POST", target, "canary", "bird"}
	l.want[answers[0].id] = expectation{echoed: want}
	var saw echoed
	if err := json.Unmarshal(answers[0].body, &saw); err != nil || saw != want {
		t.Errorf("canary: %d %v, the peer saw %+v", answers[0].status, err, saw)
	}
}

// close compares the peer's own log with what was sent: every request once, none besides.
func (l *ledger) close(t *testing.T) {
	whole := 0
	for _, e := range l.want {
		if !e.broken && !e.refused {
			whole++
		}
	}
	// No request is on its way any more once the last whole one, a canary, is in the log; a broken one may come a little
	// later, when the peer notices.
	eventually(t, patience, "the peer has logged every whole request", func() bool {
		n := 0
		for _, line := range l.peer.lines(t) {
			id, _, _ := strings.Cut(line, " ")
			if e, known := l.want[id]; known && !e.broken && !e.refused {
				n++
			}
		}
		return n >= whole
	})
	times, nameless := make(map[string]int), 0
	for _, line := range l.peer.lines(t) {
		id, rest, _ := strings.Cut(line, " ")
		status, request, _ := strings.Cut(rest, " ")
		if id == "-" && status == "400" {
			nameless++
			continue
		}
		e, known := l.want[id]
		if !known {
			t.Errorf("the peer got a request that nobody sent: %q", line)
			continue
		}
		times[id]++
		if want := e.Method + " " + e.URI + " HTTP/1.1"; request != want {
			t.Errorf("the peer logged %q, want %q", request, want)
		}
		if e.broken && status == "200" {
			t.Errorf("the peer took a broken body for a whole one: %q", line)
		}
	}
	if nameless > len(l.peer.refuses) {
		t.Errorf("the peer could not read %d requests, %d are known", nameless, len(l.peer.refuses))
	}
	for id, e := range l.want {
		if n := times[id]; n > 1 || n == 0 && !e.broken && !e.refused {
			t.Errorf("the peer got %d times: %+v", n, e)
		}
	}
	for _, e := range l.site.entries(t) {
		if _, known := l.want[e.RequestID]; !known && e.Outcome != "rejected" {
			t.Errorf("the gateway logged a request that nobody sent: %+v", e)
		}
	}
}
