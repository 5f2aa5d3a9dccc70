package http3_test

import (
	"bytes"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http3"
)

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// TestMalformedRequests sends what is no request, what is one that nobody may serve, and what two parsers could read
// differently. None of it reaches the handler as something else than it is.
func TestMalformedRequests(t *testing.T) {
	served := new(atomic.Int64)
	set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		body, err := readAll(x)
		if err != nil {
			return err
		}
		served.Add(1)
		return answer(x, 200, string(body))
	}))
	r := start(t, set)
	data := func(s string) []byte { return frame(0, []byte(s)) }
	reset, refused, closed := func(code uint64) outcome { return outcome{stream: code} }, func(s string) outcome { return outcome{status: s} }, func(code uint64) outcome { return outcome{conn: code} }
	check := func(t *testing.T, in []byte, want ...outcome) {
		before := served.Load()
		p := dial(t, r)
		got := p.await(p.send(in, true))
		if got.body = ""; !slices.Contains(want, got) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if now := served.Load(); (now != before) != (got.status == "200") {
			t.Errorf("served %d", now-before)
		}
		if got.conn == 0 { // the connection is as good as before
			if got := p.await(p.send(get(), true)); got.status != "200" {
				t.Errorf("the next request: %+v", got)
			}
		}
	}
	const message, incomplete, unexpected, cut, decompression = 0x10e, 0x10d, 0x105, 0x106, 0x200
	for _, tc := range []struct {
		name string
		in   []byte
		want outcome
	}{
		{"well-formed", join(get()), refused("200")},
		{"with a body", join(head("POST", "content-length", "2"), data("a"), data("b")), refused("200")},
		{"unknown frames", join(frame(0x21, []byte("grease")), head("POST"), frame(0x40, nil), data("a"), frame(0x21, make([]byte, 20_000))), refused("200")},
		{"cookie crumbs", get("cookie", "a=b", "cookie", "c=d"), refused("200")},
		// heads that are none
		{"nothing", nil, reset(incomplete)},
		{"no method", frame(1, section(":scheme", "https", ":authority", "h", ":path", "/")), reset(message)},
		{"no scheme", frame(1, section(":method", "GET", ":authority", "h", ":path", "/")), reset(message)},
		{"no path", frame(1, section(":method", "GET", ":scheme", "https", ":authority", "h")), reset(message)},
		{"empty path", frame(1, section(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "")), reset(message)},
		{"path without a slash", frame(1, section(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "p")), reset(message)},
		{"bad escape", frame(1, section(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/%zz")), reset(message)},
		{"another scheme", frame(1, section(":method", "GET", ":scheme", "ftp", ":authority", "h", ":path", "/")), reset(message)},
		{"user information", frame(1, section(":method", "GET", ":scheme", "https", ":authority", "u@h", ":path", "/")), reset(message)},
		{"pseudo-header twice", get(":path", "/other"), reset(message)},
		{"pseudo-header behind a field", frame(1, section(":method", "GET", ":scheme", "https", ":path", "/", "a", "b", ":authority", "h")), reset(message)},
		{"unknown pseudo-header", get(":x", "y"), reset(message)},
		{"extended CONNECT", frame(1, section(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "h", ":path", "/")), reset(message)},
		{"status in a request", get(":status", "200"), reset(message)},
		{"name in upper case", get("X-A", "b"), reset(message)},
		{"name with a blank", get("x a", "b"), reset(message)},
		{"empty name", get("", "b"), reset(message)},
		{"line end in a value", get("x-a", "b\r\nx-b: c"), reset(message)},
		{"NUL in a value", get("x-a", "b\x00"), reset(message)},
		{"two lengths", head("POST", "content-length", "1", "content-length", "1"), reset(message)},
		// requests that are refused
		{"Transfer-Encoding", join(head("POST", "transfer-encoding", "chunked"), data("a")), refused("400")},
		{"Connection", get("connection", "close"), refused("400")},
		{"Upgrade", get("upgrade", "websocket"), refused("400")},
		{"TE with more", get("te", "gzip"), refused("400")},
		{"Host differs", get("host", "other"), refused("400")},
		{"no authority", frame(1, section(":method", "GET", ":scheme", "https", ":path", "/")), refused("400")},
		{"two hosts", frame(1, section(":method", "GET", ":scheme", "https", ":path", "/", "host", "a", "host", "a")), refused("400")},
		{"length that is no number", join(head("POST", "content-length", "+1"), data("a")), refused("400")},
		{"method that is no token", frame(1, section(":method", "G T", ":scheme", "https", ":authority", "h", ":path", "/")), refused("400")},
		{"blank at the end of a value", get("x-a", "b "), refused("400")},
		{"CONNECT", frame(1, section(":method", "CONNECT", ":authority", "h:1")), refused("501")},
		{"TRACE", head("TRACE"), refused("405")},
		{"expectation", get("expect", "more"), refused("417")},
		{"too many fields", get(strings.Split(strings.Repeat("x,y,", 40), ",")[:80]...), refused("431")},
		{"too large", get("x-a", strings.Repeat("a", 10_000)), refused("431")},
		{"far too large", get("x-a", strings.Repeat("a", 30_000)), refused("431")},
		{"far too large when it is decoded", frame(1, append(section(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/"), bytes.Repeat([]byte{0xc0 | 52}, 1_000)...)), refused("431")},
		{"long target", frame(1, section(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/"+strings.Repeat("a", 9_000))), refused("414")},
		// bodies
		{"body longer than its length", join(head("POST", "content-length", "1"), data("ab")), refused("400")},
		{"body shorter than its length", join(head("POST", "content-length", "3"), data("ab")), refused("400")},
		{"pseudo-header in trailers", join(head("POST"), data("a"), frame(1, section(":path", "/"))), reset(message)},
		{"trailer that frames", join(head("POST"), data("a"), frame(1, section("content-length", "1"))), reset(message)},
		{"trailer that authenticates", join(head("POST"), data("a"), frame(1, section("authorization", "x"))), reset(message)},
		{"trailer of ours", join(head("POST"), data("a"), frame(1, section("x-real-ip", "1.2.3.4"))), refused("400")},
		// what ends the connection
		{"DATA first", data("a"), closed(unexpected)},
		{"SETTINGS", join(frame(4, nil), get()), closed(unexpected)},
		{"HTTP/2's PING", join(get(), frame(6, nil)), closed(unexpected)},
		{"PUSH_PROMISE", join(head("POST"), data("a"), frame(5, []byte{0, 0, 0})), closed(unexpected)},
		{"DATA behind trailers", join(head("POST"), frame(1, section("x-a", "b")), data("a")), closed(unexpected)},
		{"HEADERS behind trailers", join(head("POST"), frame(1, section("x-a", "b")), frame(1, section("x-a", "b"))), closed(unexpected)},
		{"cut in a head", get()[:8], closed(cut)},
		{"cut in a frame's head", []byte{0x40}, closed(cut)},
		{"cut in a body", join(head("POST"), data("abc")[:3]), closed(cut)},
		{"empty section", frame(1, nil), closed(decompression)},
		{"dynamic table", frame(1, []byte{2, 0, 0x80}), closed(decompression)},
		{"static table's end", frame(1, []byte{0, 0, 0xff, 0x7f}), closed(decompression)},
		{"cut literal", frame(1, []byte{0, 0, 0x27, 0x7f, 0x7f}), closed(decompression)},
	} {
		t.Run(tc.name, func(t *testing.T) { check(t, tc.in, tc.want) })
	}
	t.Run("length of a body that does not come", func(t *testing.T) { // seen in the head if the end comes with it, in the body if later
		check(t, head("POST", "content-length", "5"), reset(message), refused("400"))
	})
}

// A GET that waits to be asked for its body is asked for it, instead of being waited for.
func TestGetExpects(t *testing.T) {
	p := dial(t, start(t, settings(echo)))
	st := p.send(get("expect", "100-continue"), false)
	_ = st.SetReadDeadline(time.Now().Add(10 * time.Second)) // less than the head's time limit
	b := make([]byte, 100)
	n, err := st.Read(b)
	if status, _ := parse(b[:n]); status != "100" {
		t.Fatalf("status %q: %v", status, err)
	}
	_, _ = st.Write(frame(0, []byte("abc")))
	_ = st.Close()
	if got := p.await(st); got.status != "200" || !strings.Contains(got.body, `"abc"`) {
		t.Errorf("%+v", got)
	}
}

// A section of some KiB may stand for MiB of fields. No more of them is looked at than the limit allows.
func TestSectionBomb(t *testing.T) {
	const limit = 10_000
	size := 0
	err := http3.Decode(append([]byte{0, 0}, bytes.Repeat([]byte{0xc0 | 52}, 10_000)...), limit, func(name, value string) { size += len(name) + len(value) + 32 })
	if err == nil || size > limit || size < limit-100 {
		t.Errorf("%d bytes of fields: %v", size, err)
	}
}

// TestControlStreams sends what may and may not be on the streams beside requests.
func TestControlStreams(t *testing.T) {
	r := start(t, settings(echo))
	settingsFrame := frame(4, []byte{0x06, 0x40, 0x64, 0x33, 1, 0x40, 0x7b, 2}) // one of them unknown
	const open = 0
	for _, tc := range []struct {
		name    string
		streams [][]byte
		end     bool
		want    uint64 // how the connection ends; open: it does not
	}{
		{"as it should be", [][]byte{join([]byte{0}, settingsFrame, frame(0xd, []byte{5}), frame(0xd, []byte{6}), frame(7, []byte{0}), frame(0x21, []byte("grease"))), {2, 0x20}, {3, 0x44, 0x7f, 1}, {0x40, 0x41, 1, 2, 3}}, false, open},
		{"ids not in their shortest form", [][]byte{join([]byte{0}, settingsFrame, frame(0xd, []byte{0x40, 5}), frame(0xd, []byte{0x80, 0, 0, 5}), frame(7, []byte{0xc0, 0, 0, 0, 0, 0, 0, 4}))}, false, open},
		{"ids that stay", [][]byte{join([]byte{0}, settingsFrame, frame(0xd, []byte{5}), frame(0xd, []byte{5}), frame(7, []byte{4}), frame(7, []byte{4}))}, false, open},
		{"no SETTINGS", [][]byte{join([]byte{0}, frame(7, []byte{0}))}, false, 0x10a},
		{"SETTINGS twice", [][]byte{join([]byte{0}, settingsFrame, settingsFrame)}, false, 0x105},
		{"a setting twice", [][]byte{join([]byte{0}, frame(4, []byte{6, 1, 6, 1}))}, false, 0x109},
		{"a setting of HTTP/2", [][]byte{join([]byte{0}, frame(4, []byte{3, 1}))}, false, 0x109},
		{"the first setting of HTTP/2", [][]byte{join([]byte{0}, frame(4, []byte{2, 1}))}, false, 0x109},
		{"the last setting of HTTP/2", [][]byte{join([]byte{0}, frame(4, []byte{5, 1}))}, false, 0x109},
		{"cut SETTINGS", [][]byte{join([]byte{0}, frame(4, []byte{6}))}, false, 0x106},
		{"huge SETTINGS", [][]byte{{0, 4, 0x7f, 0xff}}, false, 0x107},
		{"DATA", [][]byte{join([]byte{0}, settingsFrame, frame(0, nil))}, false, 0x105},
		{"HEADERS", [][]byte{join([]byte{0}, settingsFrame, get())}, false, 0x105},
		{"HTTP/2's PRIORITY", [][]byte{join([]byte{0}, settingsFrame, frame(2, nil))}, false, 0x105},
		{"HTTP/2's PING", [][]byte{join([]byte{0}, settingsFrame, frame(6, nil))}, false, 0x105},
		{"HTTP/2's WINDOW_UPDATE", [][]byte{join([]byte{0}, settingsFrame, frame(8, nil))}, false, 0x105},
		{"HTTP/2's CONTINUATION", [][]byte{join([]byte{0}, settingsFrame, frame(9, nil))}, false, 0x105},
		{"PUSH_PROMISE", [][]byte{join([]byte{0}, settingsFrame, frame(5, nil))}, false, 0x105},
		{"GOAWAY that grows", [][]byte{join([]byte{0}, settingsFrame, frame(7, []byte{1}), frame(7, []byte{2}))}, false, 0x108},
		{"MAX_PUSH_ID that shrinks", [][]byte{join([]byte{0}, settingsFrame, frame(0xd, []byte{2}), frame(0xd, []byte{1}))}, false, 0x108},
		{"CANCEL_PUSH of nothing", [][]byte{join([]byte{0}, settingsFrame, frame(3, []byte{0}))}, false, 0x108},
		{"GOAWAY with more", [][]byte{join([]byte{0}, settingsFrame, frame(7, []byte{0, 0}))}, false, 0x106},
		{"GOAWAY with less", [][]byte{join([]byte{0}, settingsFrame, frame(7, []byte{0x40}))}, false, 0x106},
		{"GOAWAY with nothing", [][]byte{join([]byte{0}, settingsFrame, frame(7, nil))}, false, 0x106},
		{"GOAWAY with too much for an id", [][]byte{join([]byte{0}, settingsFrame, frame(7, []byte{0xc0, 0, 0, 0, 0, 0, 0, 0, 0}))}, false, 0x106},
		{"two control streams", [][]byte{join([]byte{0}, settingsFrame), join([]byte{0}, settingsFrame)}, false, 0x103},
		{"a push stream", [][]byte{{1, 0}}, false, 0x103},
		{"end of the control stream", [][]byte{join([]byte{0}, settingsFrame)}, true, 0x104},
		{"end of the encoder stream", [][]byte{{2}}, true, 0x104},
		{"end of the decoder stream", [][]byte{{3}}, true, 0x104},
		{"insertion", [][]byte{{2, 0xc0, 0}}, false, 0x201},
		{"capacity", [][]byte{{2, 0x3f, 1}}, false, 0x201},
		{"acknowledgement", [][]byte{{3, 0x81}}, false, 0x202},
		{"increment", [][]byte{{3, 0x01}}, false, 0x202},
		{"cancellation of an endless id", [][]byte{append([]byte{3, 0x7f}, strings.Repeat("\xff", 100)...)}, false, 0x202},
		{"flood of frames", [][]byte{join([]byte{0}, settingsFrame, []byte(strings.Repeat("\x21\x00", 2_000)))}, false, 0x107},
		{"flood in one frame", [][]byte{join([]byte{0}, settingsFrame, []byte{0x21, 0x80, 0x10, 0, 0})}, false, 0x107},
		{"flood of capacities", [][]byte{append([]byte{2}, strings.Repeat("\x20", 2_000)...)}, false, 0x107},
		{"flood of instructions", [][]byte{append([]byte{3}, strings.Repeat("\x41", 2_000)...)}, false, 0x107},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := dial(t, r)
			for _, b := range tc.streams {
				if st := p.control(b); tc.end {
					_ = st.Close()
				}
			}
			if tc.want != open {
				if code := p.over(); code != tc.want {
					t.Errorf("ended with %#x, want %#x", code, tc.want)
				}
				return
			}
			for range 3 {
				if got := p.await(p.send(get(), true)); got.status != "200" {
					t.Errorf("%+v", got)
				}
			}
		})
	}
}
