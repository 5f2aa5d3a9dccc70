package websocket_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/websocket"
)

// request is a handshake as an engine hands it over; lines are its fields.
func request(p exchange.Protocol, method string, length int64, lines ...string) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Begin(nil, new(conn.Alarm), new(conn.Info), time.Now())
	x.Request.Protocol, x.Request.Method, x.Request.ContentLength = p, []byte(method), length
	x.Request.Upgrade = []byte("websocket")
	fill(&x.Request.Fields, lines...)
	return x
}

func fill(f *exchange.Fields, lines ...string) {
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		f.Add(name, value)
	}
}

// What is no handshake is refused. Each row spoils one part of a good one.
func TestCheck(t *testing.T) {
	const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	good := []string{"Connection: keep-alive, Upgrade", "Sec-WebSocket-Version: 13", key}
	with := func(n int, lines ...string) []string {
		out := append([]string{}, good[:n]...)
		return append(append(out, lines...), good[n+1:]...)
	}
	for _, tt := range []struct {
		name     string
		protocol exchange.Protocol
		method   string
		length   int64
		lines    []string
		status   int // 0: accepted
	}{
		{"as it should be", exchange.HTTP11, "GET", 0, good, 0},
		{"in any case", exchange.HTTP11, "GET", 0, []string{"connection: UPGRADE", "SEC-WEBSOCKET-VERSION: 13", strings.ToLower(key[:17]) + key[17:]}, 0},
		{"option in a second line", exchange.HTTP11, "GET", 0, with(0, "Connection: keep-alive", "Connection: upgrade"), 0},
		{"POST", exchange.HTTP11, "POST", 0, good, 400},
		{"HEAD", exchange.HTTP11, "HEAD", 0, good, 400},
		{"HTTP/1.0", exchange.HTTP10, "GET", 0, good, 400},
		{"a body", exchange.HTTP11, "GET", 1, good, 400},
		{"a chunked body", exchange.HTTP11, "GET", -1, good, 400},
		{"no Connection", exchange.HTTP11, "GET", 0, with(0), 400},
		{"another option", exchange.HTTP11, "GET", 0, with(0, "Connection: keep-alive, x-upgrade"), 400},
		{"no version", exchange.HTTP11, "GET", 0, with(1), 400},
		{"two versions", exchange.HTTP11, "GET", 0, with(1, good[1], good[1]), 400},
		{"version 8", exchange.HTTP11, "GET", 0, with(1, "Sec-WebSocket-Version: 8"), 426},
		{"version 130", exchange.HTTP11, "GET", 0, with(1, "Sec-WebSocket-Version: 130"), 426},
		{"versions in one line", exchange.HTTP11, "GET", 0, with(1, "Sec-WebSocket-Version: 13, 8"), 426},
		{"no key", exchange.HTTP11, "GET", 0, with(2), 400},
		{"two keys", exchange.HTTP11, "GET", 0, with(2, key, key), 400},
		{"empty key", exchange.HTTP11, "GET", 0, with(2, "Sec-WebSocket-Key: "), 400},
		{"key of 15 bytes", exchange.HTTP11, "GET", 0, with(2, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j"), 400},
		{"key of 17 bytes", exchange.HTTP11, "GET", 0, with(2, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSE="), 400},
		{"key without padding", exchange.HTTP11, "GET", 0, with(2, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ"), 400},
		{"key with spare bits", exchange.HTTP11, "GET", 0, with(2, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR=="), 400},
		{"key in another alphabet", exchange.HTTP11, "GET", 0, with(2, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j-Q=="), 400},
		{"HTTP/2", exchange.HTTP2, "CONNECT", 0, good[1:2], 0},
		{"HTTP/2 without a version", exchange.HTTP2, "CONNECT", 0, nil, 400},
		{"HTTP/2 with version 12", exchange.HTTP2, "CONNECT", 0, []string{"Sec-WebSocket-Version: 12"}, 426},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := request(tt.protocol, tt.method, tt.length, tt.lines...)
			got, err := websocket.Check(x)
			if tt.status == 0 {
				want := "dGhlIHNhbXBsZSBub25jZQ=="
				if tt.protocol == exchange.HTTP2 {
					want = ""
				}
				if err != nil || string(got) != want {
					t.Errorf("key %q, %v; want %q", got, err, want)
				}
				return
			}
			var e *exchange.Error
			code := map[int]exchange.Code{400: exchange.CodeBadHandshake, 426: exchange.CodeUpgradeRequired}[tt.status]
			if !errors.As(err, &e) || e.Status != tt.status || e.Code != code || e.Outcome != exchange.OutcomeRejected || e.Err == nil {
				t.Errorf("refused with %+v, want %d %s", e, tt.status, code)
			}
		})
	}
}

// The example of RFC 6455 section 1.3.
func TestAccept(t *testing.T) {
	if got := string(websocket.AppendAccept(nil, []byte("dGhlIHNhbXBsZSBub25jZQ=="))); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Error(got)
	}
	a, b := websocket.AppendKey(nil), websocket.AppendKey(nil)
	if len(a) != websocket.KeyLen || string(a) == string(b) {
		t.Errorf("keys %q, %q", a, b)
	}
}

func TestVerify(t *testing.T) {
	const accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
	for _, tt := range []struct {
		name          string
		offer, answer []string
		ok            bool
	}{
		{"none offered", nil, []string{accept}, true},
		{"none chosen", []string{"Sec-WebSocket-Protocol: a, b"}, []string{accept}, true},
		{"second chosen", []string{"Sec-WebSocket-Protocol: a, b"}, []string{accept, "Sec-WebSocket-Protocol: b"}, true},
		{"offered in two lines", []string{"Sec-WebSocket-Protocol: a", "Sec-WebSocket-Protocol: b"}, []string{accept, "sec-websocket-protocol: b"}, true},
		{"not offered", []string{"Sec-WebSocket-Protocol: a, b"}, []string{accept, "Sec-WebSocket-Protocol: c"}, false},
		{"in another case", []string{"Sec-WebSocket-Protocol: a"}, []string{accept, "Sec-WebSocket-Protocol: A"}, false},
		{"chosen of none", nil, []string{accept, "Sec-WebSocket-Protocol: c"}, false},
		{"both", []string{"Sec-WebSocket-Protocol: a, b"}, []string{accept, "Sec-WebSocket-Protocol: a, b"}, false},
		{"both in two lines", []string{"Sec-WebSocket-Protocol: a, b"}, []string{accept, "Sec-WebSocket-Protocol: a", "Sec-WebSocket-Protocol: b"}, false},
		{"an extension is not looked at", nil, []string{accept, "Sec-WebSocket-Extensions: x"}, true},
		{"no accept", nil, nil, false},
		{"accept of another key", nil, []string{"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOp="}, false},
		{"accept in another case", nil, []string{"Sec-WebSocket-Accept: S3pPLMBiTxaQ9kYGzzhZRbK+xOo="}, false},
		{"two accepts", nil, []string{accept, accept}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var offer, answer exchange.Fields
			fill(&offer, tt.offer...)
			fill(&answer, tt.answer...)
			if err := websocket.Verify([]byte("dGhlIHNhbXBsZSBub25jZQ=="), &offer, &answer); (err == nil) != tt.ok {
				t.Errorf("%v, want accepted %t", err, tt.ok)
			}
		})
	}
}
