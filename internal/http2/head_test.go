package http2_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// recorder answers 200 and keeps what reached it: requests, and those that the engine refused.
type recorder struct {
	mu  sync.Mutex
	log []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, s)
}

func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.log, ",")
	r.log = nil
	return s
}

func (r *recorder) Serve(x *exchange.Exchange) error {
	r.note("served " + string(x.Request.Host))
	return answer(x, 200, "ok")
}

func (r *recorder) Refuse(x *exchange.Exchange, err *exchange.Error) {
	r.note("refused " + string(err.Code))
	x.Fail(err)
}

// Malformed requests are answered 400, or their stream is reset; whatever happens, no handler serves them, and the
// connection goes on.
func TestHeads(t *testing.T) {
	many := func(n int) (f []string) {
		for i := range n {
			f = append(f, "x-"+strconv.Itoa(i), "v")
		}
		return f
	}
	seven := strings.Repeat("v", 7<<10)
	const reset = "RST_STREAM PROTOCOL_ERROR"
	cases := []struct {
		name   string
		fields []string
		pseudo []string
		want   string // the first frame
		log    string
	}{
		{"plain", nil, nil, "HEADERS 200", "served h2.test"},
		{"authority with port", nil, []string{":authority", "h2.test:8443"}, "HEADERS 200", "served h2.test:8443"},
		{"authority in brackets", nil, []string{":authority", "[::1]:8443"}, "HEADERS 200", "served [::1]:8443"},
		{"host alone", []string{"host", "other.test"}, []string{":authority", ""}, "HEADERS 200", "served other.test"},
		{"host equal", []string{"host", "h2.test"}, nil, "HEADERS 200", "served h2.test"},
		{"host differs", []string{"host", "other.test"}, nil, "HEADERS 400", "refused bad_request"},
		{"two hosts", []string{"host", "h2.test", "host", "h2.test"}, nil, "HEADERS 400", "refused bad_request"},
		{"no authority", nil, []string{":authority", ""}, "HEADERS 400", "refused bad_request"},
		{"user information", nil, []string{":authority", "u@h2.test"}, reset, ""},
		{"authority with a path", nil, []string{":authority", "h2.test/x"}, "HEADERS 400", "refused bad_request"},
		{"authority with a bad port", nil, []string{":authority", "h2.test:65536"}, "HEADERS 400", "refused bad_request"},
		{"authority with a blank", nil, []string{":authority", "h2 test"}, "HEADERS 400", "refused bad_request"},
		{"method with a blank", nil, []string{":method", "GET x"}, "HEADERS 400", "refused bad_request"},
		{"no method", nil, []string{":method", ""}, reset, ""},
		{"no path", nil, []string{":path", ""}, reset, ""},
		{"path without a slash", nil, []string{":path", "x"}, reset, ""},
		{"absolute path", nil, []string{":path", "http://h2.test/"}, reset, ""},
		{"path with a blank", nil, []string{":path", "/a b"}, "HEADERS 400", "refused bad_request"},
		{"path with a fragment", nil, []string{":path", "/a#b"}, "HEADERS 400", "refused bad_request"},
		{"path beyond ASCII", nil, []string{":path", "/\xc3\xa4"}, "HEADERS 400", "refused bad_request"},
		{"path with a control byte", nil, []string{":path", "/a\x01b"}, reset, ""},
		{"path with a bad escape", nil, []string{":path", "/%zz"}, reset, ""},
		{"asterisk", nil, []string{":path", "*"}, "HEADERS 400", "refused bad_request"},
		{"asterisk for OPTIONS", nil, []string{":method", "OPTIONS", ":path", "*"}, "HEADERS 200", "served h2.test"},
		{"scheme of another protocol", nil, []string{":scheme", "ftp"}, reset, ""},
		{"CONNECT", nil, []string{":method", "CONNECT", ":path", "", ":scheme", ""}, "HEADERS 501", "refused not_implemented"},
		{"CONNECT with a path", nil, []string{":method", "CONNECT"}, reset, ""},
		{"extended CONNECT", []string{}, []string{":method", "CONNECT", ":scheme", "https"}, reset, ""},
		{"TRACE", nil, []string{":method", "TRACE"}, "HEADERS 405", "refused method_not_allowed"},
		{"upper-case name", []string{"X-A", "1"}, nil, reset, ""},
		{"name with a blank", []string{"x a", "1"}, nil, reset, ""},
		{"name with a colon", []string{"x:a", "1"}, nil, reset, ""},
		{"empty name", []string{"", "1"}, nil, reset, ""},
		{"pseudo field among the fields", []string{"x-a", "1", ":path", "/evil"}, nil, reset, ""},
		{"unknown pseudo field", []string{":x", "1"}, nil, reset, ""},
		{"value with a line end", []string{"x-a", "1\r\nx-b: 2"}, nil, reset, ""},
		{"value with a zero byte", []string{"x-a", "1\x00"}, nil, reset, ""},
		{"value beyond ASCII", []string{"x-a", "\xe4"}, nil, "HEADERS 200", "served h2.test"},
		{"value with a blank in front", []string{"x-a", " 1"}, nil, "HEADERS 400", "refused bad_request"},
		{"value with a tab behind", []string{"x-a", "1\t"}, nil, "HEADERS 400", "refused bad_request"},
		{"connection", []string{"connection", "close"}, nil, "HEADERS 400", "refused bad_request"},
		{"transfer-encoding", []string{"transfer-encoding", "chunked"}, nil, "HEADERS 400", "refused bad_request"},
		{"upgrade", []string{"upgrade", "websocket"}, nil, "HEADERS 400", "refused bad_request"},
		{"keep-alive", []string{"keep-alive", "1"}, nil, "HEADERS 400", "refused bad_request"},
		{"proxy-connection", []string{"proxy-connection", "close"}, nil, "HEADERS 400", "refused bad_request"},
		{"te trailers", []string{"te", "trailers"}, nil, "HEADERS 200", "served h2.test"},
		{"te gzip", []string{"te", "gzip"}, nil, "HEADERS 400", "refused bad_request"},
		{"another expectation", []string{"expect", "200-ok"}, nil, "HEADERS 417", "refused expectation_failed"},
		{"length with a sign", []string{"content-length", "+0"}, nil, "HEADERS 400", "refused bad_request"},
		{"empty length", []string{"content-length", ""}, nil, "HEADERS 400", "refused bad_request"},
		{"lengths that differ", []string{"content-length", "0", "content-length", "1"}, nil, reset, ""},
		{"length of a body that does not come", []string{"content-length", "7"}, nil, reset, ""},
		{"as many fields as may be", many(31), nil, "HEADERS 200", "served h2.test"},
		{"too many fields", many(32), nil, "HEADERS 431", "refused header_too_large"},
		{"far too many fields", many(80), nil, "HEADERS 431", "refused header_too_large"},
		{"a long field", []string{"x-a", strings.Repeat("v", 8<<10-100)}, nil, "HEADERS 200", "served h2.test"},
		{"too long a field", []string{"x-a", strings.Repeat("v", 8<<10)}, nil, "HEADERS 431", "refused header_too_large"},
		{"far too long fields", []string{"x-a", seven, "x-b", seven, "x-c", seven}, nil, "HEADERS 431", "refused header_too_large"},
		{"too long a target", nil, []string{":path", "/" + strings.Repeat("v", 8<<10)}, "HEADERS 414", "refused uri_too_long"},
	}
	each(t, func(t *testing.T, m mode) {
		rec := &recorder{}
		f := start(t, m, settings(rec)).framer(t)
		id := uint32(1)
		for _, c := range cases {
			f.headers(id, true, c.fields, c.pseudo...)
			kind, rest, _ := strings.Cut(c.want, " ")
			want := fmt.Sprintf("%s %d %s", kind, id, rest)
			if got := f.first(id); got != want {
				t.Fatalf("%s: got %q, want %q", c.name, got, want)
			}
			if got := rec.take(); got != c.log {
				t.Errorf("%s: the handler saw %q, want %q", c.name, got, c.log)
			}
			id += 2
		}
	})
}

// first returns the first frame about stream id, without its end mark.
func (f *framer) first(id uint32) string {
	for {
		got := f.next()
		if p := strings.Fields(got); len(p) < 2 || p[1] == fmt.Sprint(id) {
			return strings.TrimSuffix(got, " END")
		}
	}
}

// The authority check against a regular expression.
func TestValidAuthority(t *testing.T) {
	ok := func(s string) bool { return authority.MatchString(s) && portInRange(s) }
	alphabet := []byte("a1-:[]@,%/.")
	var buf []byte
	var all func(n int)
	all = func(n int) {
		if got := http2.ValidAuthority(string(buf)); got != ok(string(buf)) {
			t.Errorf("%q: %v", buf, got)
		}
		if n == 0 {
			return
		}
		for _, c := range alphabet {
			buf = append(buf, c)
			all(n - 1)
			buf = buf[:len(buf)-1]
		}
	}
	all(4)
	for _, s := range []string{"h:65535", "h:65536", "h:00080", "h:000080", "h:99999999999999999999", "[::1]:65536"} {
		if got := http2.ValidAuthority(s); got != ok(s) {
			t.Errorf("%q: %v", s, got)
		}
	}
}

var authority = regexp.MustCompile(`^([-a-zA-Z0-9._~%!$&'()*+;=]+|\[[-a-zA-Z0-9._~%!$&'()*+;=:]+\])(:[0-9]{0,5})?$`)

func portInRange(s string) bool {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") {
		return true
	}
	n, err := strconv.Atoi(s[i+1:])
	return err != nil || n <= 65535
}

// Every request that is accepted reads the same as an HTTP/1.1 head: nothing in it can end a line or a field early.
func FuzzHead(f *testing.F) {
	f.Add("GET", "/a?b=c", "h2.test", "x-a", "1", "x-b", "2")
	f.Add("OPTIONS", "*", "[::1]:80", "cookie", "a=1", "cookie", "b=2")
	f.Add("POST", "/%41//../", "h2.test:8443", "host", "H2.TEST", "x", "\xe4")
	f.Add("PUT", "/", "h2.test", "content-length", "7", "expect", "100-continue")
	f.Add("CONNECT", "", "h2.test:443", "x-a", "1\r\nx-c: 1", "x-b\r\n", "2")
	f.Fuzz(func(t *testing.T, method, target, host, n1, v1, n2, v2 string) {
		list := []hpack.HeaderField{{Name: ":method", Value: method}, {Name: ":authority", Value: host}}
		if method != "CONNECT" {
			list = append(list, hpack.HeaderField{Name: ":path", Value: target}, hpack.HeaderField{Name: ":scheme", Value: "https"})
		} else {
			target = host
		}
		want := http.Header{}
		for _, nv := range [][2]string{{n1, v1}, {n2, v2}} {
			list = append(list, hpack.HeaderField{Name: nv[0], Value: nv[1]})
			name := textproto.CanonicalMIMEHeaderKey(nv[0])
			if c := want["Cookie"]; name == "Cookie" && len(c) > 0 {
				if c[0] != "" && nv[1] != "" {
					c[0] += "; "
				}
				c[0] += nv[1]
				continue
			}
			want[name] = append(want[name], nv[1])
		}
		head, err := http2.Spell(settings(nil), list...)
		if err != nil {
			return
		}
		br := bufio.NewReader(bytes.NewReader(head))
		got, err := http.ReadRequest(br)
		if err != nil {
			t.Fatalf("%q: %v", head, err)
		}
		if br.Buffered() != 0 {
			t.Errorf("%q goes on after its head", head)
		}
		if got.Method != method || got.RequestURI != target || host != "" && got.Host != host {
			t.Errorf("%q became %s %s %s", head, got.Method, got.RequestURI, got.Host)
		}
		for name, values := range want {
			switch name {
			case "Host", "Trailer", "Pragma", "Cache-Control": // net/http takes them away, or adds one
				continue
			}
			if fmt.Sprintf("%q", got.Header[name]) != fmt.Sprintf("%q", values) {
				t.Errorf("%s: %q became %q", name, values, got.Header[name])
			}
		}
	})
}
