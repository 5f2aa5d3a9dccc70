package http1_test

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// verbatim is a sink that passes chunks on to a client as they are.
type verbatim struct {
	x  *exchange.Exchange
	to exchange.RawBody
}

func (verbatim) Sent()                               {}
func (verbatim) Interim(int, *exchange.Fields) error { return nil }

func (v verbatim) Body(p []byte, last bool) error { return v.x.Send(p, last) }

func (v verbatim) Raw(r exchange.RawRun) error { return v.x.SendRaw(v.to, r) }

// TestVerbatim passes a backend's chunks on to a client with their framing, for each way that they can be cut, and with
// clients that cannot take them so.
func TestVerbatim(t *testing.T) {
	const fields = "X-Backend: b\r\n"
	big := strings.Repeat("0123456789abcdef", 700)
	for _, tc := range []struct{ name, in, want string }{
		{"chunks", "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"},
		{"extensions", "5;a=b\r\nhello\r\n0;c\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"},
		{"trailers", "1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n", "1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n"},
		{"nothing", "0\r\n\r\n", "0\r\n\r\n"},
		{"large", "2bc0\r\n" + big + "\r\n0\r\n\r\n", "2bc0\r\n" + big + "\r\n0\r\n\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := testClock(t)
			for cut := 0; cut < len(tc.in); cut += 1 + len(tc.in)/50 {
				p := backends(t, backendModes[0], clock, http1.PoolConfig{}, func(b peer, r *bufio.Reader, far conn.Conn) {
					for requestHead(r) != "" {
						send(b, far, ok(te, "X-Backend: b")+tc.in, delivery{cut: len(ok(te, "X-Backend: b")) + cut})
					}
				})
				site := serve(t, modes[0], clock, settings(serveFunc(func(x *exchange.Exchange) error {
					return relay(x, p.Pool)
				})))
				c := site.dial()
				io.WriteString(c, get())
				want := "HTTP/1.1 200 OK\r\n" + fields + "Transfer-Encoding: chunked\r\n\r\n" + tc.want
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c, got); string(got) != want || err != nil {
					t.Fatalf("cut %d: %q, %v\nwant %q", cut, got, err, want)
				}
				old := site.dial()
				io.WriteString(old, head("GET /a HTTP/1.0"))
				all, err := io.ReadAll(old)
				body, _, _ := decodeChunks([]byte(tc.in))
				if _, got, _ := strings.Cut(string(all), "\r\n\r\n"); got != string(body) || err != nil {
					t.Fatalf("cut %d in 1.0: %q, %v", cut, got, err)
				}
				c.Close()
			}
		})
	}
}

// relay forwards a GET to a pool and its answer back, chunks verbatim where the client can take them.
func relay(x *exchange.Exchange, p *http1.Pool) error {
	c, err := p.Get(ask{x.Context()}, false)
	if err != nil {
		return err
	}
	defer func() { c.Release(err == nil) }()
	v := verbatim{x: x}
	h, err := c.RoundTrip([]byte(plainGet), nil, []byte("GET"), false, &x.Response.Fields, v)
	if err != nil {
		return err
	}
	x.Response.Status, x.Response.ContentLength = h.Status, h.Length
	x.Response.Fields.StripHopByHop()
	raw := false
	v.to, raw = x.Raw()
	err = c.CopyBody(v, raw && c.Chunked(), &x.Response.Trailers)
	return err
}
