package http1_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http1test"
)

// decodeChunks is the plain form of the decoder: it looks at a whole body at once. used is where the body ends.
func decodeChunks(b []byte) (body []byte, used int, ok bool) {
	all, ext := len(b), 0
	for {
		i := bytes.Index(b, []byte("\r\n"))
		if i < 0 {
			return body, 0, false
		}
		size, more, found := strings.Cut(string(b[:i]), ";")
		if ext += len(more) + 1; found && (ext > 4<<10 || !exchange.ValidValue("x"+more+"x")) || len(size) > 15 || strings.ContainsAny(size, "+-_xX") {
			return body, 0, false
		}
		n, err := strconv.ParseUint(size, 16, 63)
		if err != nil {
			return body, 0, false
		}
		b = b[i+2:]
		if n == 0 {
			break
		}
		if uint64(len(b)) < n+2 || string(b[n:n+2]) != "\r\n" {
			return body, 0, false
		}
		body, b = append(body, b[:n]...), b[n+2:]
	}
	section := b
	for lines := 0; ; lines++ {
		i := bytes.IndexByte(b, '\n')
		if i < 1 || b[i-1] != '\r' || lines > 64 {
			return body, 0, false
		}
		line := string(b[:i-1])
		b = b[i+1:]
		if line == "" {
			break
		}
		name, value, found := strings.Cut(line, ":")
		if !found || !exchange.ValidName(name) || !exchange.ValidValue(strings.Trim(value, " \t")) || refusedTrailer(name) {
			return body, 0, false
		}
	}
	if len(section)-len(b) > 16<<10 {
		return body, 0, false
	}
	return body, all - len(b), true
}

// refusedTrailer names the trailers that a body must not have, written down a second time.
func refusedTrailer(name string) bool {
	name = strings.ToLower(name)
	dashed := strings.ReplaceAll(name, "_", "-")
	if strings.HasPrefix(dashed, "x-forwarded-") || dashed == "x-real-ip" {
		return true
	}
	return slices.Contains([]string{
		"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "trailers", "upgrade",
		"keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "expect", "forwarded", "content-type",
		"authorization", "cookie", "x-request-id", "http2-settings",
	}, name)
}

// FuzzChunked holds the incremental decoder, in both modes and cut anywhere, against the plain one.
func FuzzChunked(f *testing.F) {
	for _, s := range http1test.Cases {
		if _, body, found := strings.Cut(s.In, "\r\n\r\n"); found && body != "" && len(body) < 2000 {
			f.Add([]byte(body), uint16(3))
		}
	}
	f.Add([]byte("0\r\nX_Forwarded_:\r\n\r\n"), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		if len(in) > 8<<10 {
			return
		}
		want, end, valid := decodeChunks(in)
		at := min(int(cut), len(in))
		var dec http1.Chunks
		body, used, done, err := dec.Next(bytes.Clone(in[:at]))
		if err == nil && !done {
			var more []byte
			var n int
			more, n, done, err = dec.Next(bytes.Clone(in[at:]))
			body, used = append(body, more...), used+n
		}
		var trailers exchange.Fields
		if done && err == nil {
			err = dec.Trailers(&trailers)
		}
		if accepted := done && err == nil; accepted != valid {
			t.Fatalf("accepted %v (%v), the plain decoder %v", accepted, err, valid)
		}
		if valid && (string(body) != string(want) || used != end) {
			t.Fatalf("%q in %d bytes, want %q in %d", body, used, want, end)
		}
		checkRaw(t, in, at, valid, want, end)
	})
}

// checkRaw passes the body on verbatim, completes it, and decodes the result.
func checkRaw(t *testing.T, in []byte, at int, valid bool, want []byte, end int) {
	var dec http1.Chunks
	g, used, failed := gather{}, 0, false
	for _, piece := range [][]byte{bytes.Clone(in[:at]), bytes.Clone(in[at:])} {
		if len(piece) == 0 || g.lasts > 0 {
			continue
		}
		r, n, err := dec.Raw(piece)
		if used += n; err != nil {
			failed = true
			break
		}
		_ = g.Raw(r)
	}
	var trailers exchange.Fields
	if g.lasts == 0 || failed || dec.Trailers(&trailers) != nil {
		if valid {
			t.Fatal("verbatim mode refuses what the decoder accepts")
		}
		return
	}
	if !valid || used != end {
		t.Fatalf("verbatim mode accepts %v up to %d, want %v up to %d", true, used, valid, end)
	}
	if bytes.Contains(g.runs, []byte(";")) && !bytes.Contains(want, []byte(";")) {
		t.Fatalf("an extension went on: %q", g.runs)
	}
	all := g.runs
	if !g.closed {
		all = append(trailers.AppendHTTP1(all, 0), "\r\n"...)
	}
	body, n, ok := decodeChunks(all)
	if !ok || n != len(all) || string(body) != string(want) || g.payload != len(want) {
		t.Fatalf("passed on %q: decodes to %q, want %q", all, body, want)
	}
}

// FuzzHead parses heads whole and in pieces, with the same result; and what is accepted is clean: it parses again to the
// same from its own lines.
func FuzzHead(f *testing.F) {
	for _, s := range http1test.Cases {
		f.Add([]byte(s.In), uint16(7), uint16(20), true)
	}
	for _, r := range responseCases {
		if len(r.in) < 2000 {
			f.Add([]byte(r.in), uint16(7), uint16(20), false)
		}
	}
	lim := http1.Limits{MaxHeaderBytes: 400, MaxHeaders: 6}
	f.Fuzz(func(t *testing.T, in []byte, a, b uint16, request bool) {
		whole := http1.ParseHead(in, nil, lim, request)
		cuts := []int{min(int(a), len(in)), min(int(b), len(in))}
		slices.Sort(cuts)
		if pieces := http1.ParseHead(in, cuts, lim, request); pieces != whole {
			t.Fatalf("cut at %v: %+v\nwhole: %+v", cuts, pieces, whole)
		}
		if !whole.Done {
			return
		}
		if whole.End > lim.MaxHeaderBytes+2 || strings.Count(whole.Fields, "\r\n") > lim.MaxHeaders {
			t.Fatalf("limits: %+v", whole)
		}
		checkClean(t, whole, lim, request)
	})
}

func checkClean(t *testing.T, h http1.ParsedHead, lim http1.Limits, request bool) {
	for line := range strings.SplitSeq(strings.TrimSuffix(h.Fields, "\r\n"), "\r\n") {
		name, value, found := strings.Cut(line, ":")
		if h.Fields != "" && (!found || !exchange.ValidName(name) || !exchange.ValidValue(strings.Trim(value, " \t"))) {
			t.Fatalf("field line %q", line)
		}
	}
	start := "HTTP/1.1 " + strconv.Itoa(h.Code) + " X\r\n"
	if request {
		start = h.Method + " " + h.Target + " HTTP/1.1\r\n"
	}
	again := http1.ParseHead([]byte(start+h.Fields+"\r\n"), nil, http1.Limits{MaxHeaderBytes: 10_000, MaxHeaders: lim.MaxHeaders}, request)
	if h.Host == "" && !again.Done {
		return // it was HTTP/1.0 without Host
	}
	again.End = h.End
	if again != h {
		t.Fatalf("again: %+v\nfirst: %+v", again, h)
	}
}

// FuzzResponse reads a backend's bytes and compares with the standard library: what we accept it accepts too, with the
// same status, body and place where the response ends.
func FuzzResponse(f *testing.F) {
	for _, r := range responseCases {
		if len(r.in) < 2000 {
			f.Add([]byte(r.in), r.method == "HEAD")
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, isHead bool) {
		if len(in) > 8<<10 {
			return
		}
		method := "GET"
		if isHead {
			method = "HEAD"
		}
		clock := conn.NewClock()
		p := backends(t, backendModes[2], clock, http1.PoolConfig{}, func(b peer, r *bufio.Reader, _ conn.Conn) {
			if requestHead(r) != "" {
				_, _ = b.Write(in)
			}
		})
		c, err := p.Get(ask{t.Context()}, false)
		if err != nil {
			t.Fatal(err)
		}
		g := fetch(c, method, method+" / HTTP/1.1\r\nHost: b\r\n\r\n", false, false)
		c.Release(true)
		if g.err != nil {
			return
		}
		r := bufio.NewReader(bytes.NewReader(in))
		for range len(g.sink.interim) + 1 {
			res, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				t.Fatalf("accepted by us alone: %d, library: %v\n%q", g.head.Status, err, in)
			}
			if res.StatusCode < 200 {
				continue
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != g.head.Status || string(body) != string(g.sink.body) {
				t.Fatalf("we %d %q\nlibrary %d %q %v\n%q", g.head.Status, g.sink.body, res.StatusCode, body, err, in)
			}
		}
	})
}
