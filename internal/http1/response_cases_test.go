package http1_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// responded is one case of the client's table.
type responded struct {
	name    string
	in      string
	method  string // "" is GET
	fin     bool   // the backend closes behind the bytes
	upgrade bool
	status  int
	body    string
	more    string // trailers, as lines
	interim int    // number of 1xx heads
	err     error  // what the client says; then nothing of the response counts
	reuse   bool   // the connection serves the next request
}

func ok(lines ...string) string { return head("HTTP/1.1 200 OK", lines...) }

func okChunked(body string) string { return ok(te) + body }

var errBad, errCut = exchange.ErrBadResponse, io.ErrUnexpectedEOF

var responseCases = []responded{
	{name: "length", in: ok("Content-Length: 5") + "hello", status: 200, body: "hello", reuse: true},
	{name: "length zero", in: ok("Content-Length: 0"), status: 200, reuse: true},
	{name: "chunked", in: okChunked("5\r\nhello\r\n0\r\n\r\n"), status: 200, body: "hello", reuse: true},
	{name: "chunked with extension", in: okChunked("5;a=b\r\nhello\r\n0;x\r\n\r\n"), status: 200, body: "hello", reuse: true},
	{name: "chunked with trailer", in: okChunked("1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n"), status: 200, body: "x", more: "X-Sum: 1\r\n", reuse: true},
	{name: "to the end", in: ok() + "hello", fin: true, status: 200, body: "hello"},
	{name: "to the end, nothing", in: ok(), fin: true, status: 200},
	{name: "to the end in 1.0", in: head("HTTP/1.0 200 OK") + "hello", fin: true, status: 200, body: "hello"},
	{name: "1.0 with length", in: head("HTTP/1.0 200 OK", "Content-Length: 5") + "hello", status: 200, body: "hello"},
	{name: "1.0 with keep-alive", in: head("HTTP/1.0 200 OK", "Content-Length: 5", "Connection: keep-alive") + "hello", status: 200, body: "hello", reuse: true},
	{name: "Connection: close", in: ok("Content-Length: 5", "Connection: close") + "hello", status: 200, body: "hello"},
	{name: "Connection: foo, Close", in: ok("Content-Length: 5", "Connection: foo, Close") + "hello", status: 200, body: "hello"},
	{name: "close in a second line", in: ok("Content-Length: 5", "Connection:", "Connection: close") + "hello", status: 200, body: "hello"},
	{name: "no reason", in: head("HTTP/1.1 200 ", "Content-Length: 0"), status: 200, reuse: true},
	{name: "no reason and no blank", in: head("HTTP/1.1 200", "Content-Length: 0"), status: 200, reuse: true},
	{name: "odd reason", in: head("HTTP/1.1 200 caf\xc3\xa9 (x)", "Content-Length: 0"), status: 200, reuse: true},
	{name: "status 999", in: head("HTTP/1.1 999 X", "Content-Length: 0"), status: 999, reuse: true},

	{name: "HEAD with length", method: "HEAD", in: ok("Content-Length: 5"), status: 200, reuse: true},
	{name: "HEAD with chunked", method: "HEAD", in: ok(te), status: 200, reuse: true},
	{name: "HEAD with a body", method: "HEAD", in: ok("Content-Length: 5") + "hello", status: 200},
	{name: "HEAD with another response", method: "HEAD", in: ok("Content-Length: 5") + ok("Content-Length: 0"), status: 200},
	{name: "204", in: head("HTTP/1.1 204 No Content"), status: 204, reuse: true},
	{name: "204 with length", in: head("HTTP/1.1 204 No Content", "Content-Length: 5"), status: 204, reuse: true},
	{name: "204 with a body", in: head("HTTP/1.1 204 No Content", "Content-Length: 5") + "hello", status: 204},
	{name: "204 with chunked", in: head("HTTP/1.1 204 No Content", te) + "0\r\n\r\n", err: errBad},
	{name: "304", in: head("HTTP/1.1 304 Not Modified", "Content-Length: 5"), status: 304, reuse: true},
	{name: "304 with a body", in: head("HTTP/1.1 304 Not Modified", "Content-Length: 5") + "hello", status: 304},

	{name: "100 then 200", in: head("HTTP/1.1 100 Continue") + ok("Content-Length: 1") + "x", status: 200, body: "x", interim: 1, reuse: true},
	{name: "103 with fields", in: head("HTTP/1.1 103 Early Hints", "Link: </x>") + ok("Content-Length: 0"), status: 200, interim: 1, reuse: true},
	{name: "64 interim", in: strings.Repeat(head("HTTP/1.1 102 X"), 64) + ok("Content-Length: 0"), status: 200, interim: 64, reuse: true},
	{name: "65 interim", in: strings.Repeat(head("HTTP/1.1 102 X"), 65) + ok("Content-Length: 0"), err: errBad},
	{name: "100 with chunked", in: head("HTTP/1.1 100 Continue", te) + ok("Content-Length: 0"), err: errBad},
	{name: "100 then the end", in: head("HTTP/1.1 100 Continue"), fin: true, err: errCut},
	{name: "101 unexpected", in: head("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: upgrade"), err: errBad},
	{name: "101 without Upgrade", upgrade: true, in: head("HTTP/1.1 101 Switching Protocols"), err: errBad},
	{name: "101", upgrade: true, in: head("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: upgrade"), status: 101},
	{name: "100 then 101", upgrade: true, in: head("HTTP/1.1 100 X") + head("HTTP/1.1 101 X", "Upgrade: websocket", "Connection: upgrade"), status: 101, interim: 1},

	{name: "extra bytes behind length", in: ok("Content-Length: 5") + "hello!", status: 200, body: "hello"},
	{name: "extra response behind length", in: ok("Content-Length: 0") + ok("Content-Length: 0"), status: 200},
	{name: "extra response behind chunked", in: okChunked("0\r\n\r\n") + ok("Content-Length: 0"), status: 200},
	{name: "extra CRLF", in: ok("Content-Length: 5") + "hello\r\n", status: 200, body: "hello"},

	{name: "length and chunked", in: ok("Content-Length: 5", te) + "0\r\n\r\n", err: errBad},
	{name: "chunked and length", in: ok(te, "Content-Length: 5") + "0\r\n\r\n", err: errBad},
	{name: "two lengths differ", in: ok("Content-Length: 5", "Content-Length: 6") + "hello", err: errBad},
	{name: "two lengths equal", in: ok("Content-Length: 5", "Content-Length: 5") + "hello", err: errBad},
	{name: "length list", in: ok("Content-Length: 5, 5") + "hello", err: errBad},
	{name: "length plus", in: ok("Content-Length: +5") + "hello", err: errBad},
	{name: "length minus", in: ok("Content-Length: -5") + "hello", err: errBad},
	{name: "length empty", in: ok("Content-Length:") + "hello", err: errBad},
	{name: "length overflows", in: ok("Content-Length: 99999999999999999999") + "hello", err: errBad},
	{name: "chunked twice", in: ok(te, te) + "0\r\n\r\n", err: errBad},
	{name: "gzip, chunked", in: ok("Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", err: errBad},
	{name: "gzip", in: ok("Transfer-Encoding: gzip") + "xx", fin: true, err: errBad},
	{name: "identity", in: ok("Transfer-Encoding: identity") + "xx", fin: true, err: errBad},
	{name: "chunked in 1.0", in: head("HTTP/1.0 200 OK", te) + "0\r\n\r\n", err: errBad},

	{name: "bare LF in status line", in: "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", err: errBad},
	{name: "bare LF in head", in: "HTTP/1.1 200 OK\r\nContent-Length: 0\n\r\n", err: errBad},
	{name: "bare CR in value", in: ok("X: a\rb"), err: errBad},
	{name: "NUL in value", in: ok("X: a\x00b"), err: errBad},
	{name: "NUL in reason", in: head("HTTP/1.1 200 O\x00K", "Content-Length: 0"), err: errBad},
	{name: "folded", in: ok("X: a", " b"), err: errBad},
	{name: "blank before colon", in: ok("Content-Length : 5") + "hello", err: errBad},
	{name: "no colon", in: ok("X"), err: errBad},
	{name: "empty line first", in: "\r\n" + ok("Content-Length: 0"), err: errBad},
	{name: "HTTP/2 status line", in: head("HTTP/2.0 200 OK", "Content-Length: 0"), err: errBad},
	{name: "HTTP/1.2 status line", in: head("HTTP/1.2 200 OK", "Content-Length: 0"), err: errBad},
	{name: "lower-case protocol", in: head("http/1.1 200 OK", "Content-Length: 0"), err: errBad},
	{name: "status of two digits", in: head("HTTP/1.1 20 OK", "Content-Length: 0"), err: errBad},
	{name: "status of four digits", in: head("HTTP/1.1 2000 OK", "Content-Length: 0"), err: errBad},
	{name: "status below 100", in: head("HTTP/1.1 099 OK", "Content-Length: 0"), err: errBad},
	{name: "status with sign", in: head("HTTP/1.1 +20 OK", "Content-Length: 0"), err: errBad},
	{name: "two blanks before status", in: head("HTTP/1.1  200 OK", "Content-Length: 0"), err: errBad},
	{name: "no protocol", in: "hello world, this is no HTTP\r\n\r\n", err: errBad},
	{name: "short rubbish", in: "SSH-2\r\n", err: errBad},
	{name: "head too large", in: ok("X: " + strings.Repeat("x", 200<<10)), err: errBad},
	{name: "too many fields", in: ok(strings.Split(strings.Repeat("X: 1|", 513)+"X: 1", "|")...), err: errBad},

	{name: "chunk size bare LF", in: okChunked("5\nhello\r\n0\r\n\r\n"), err: errBad},
	{name: "chunk size 0x", in: okChunked("0x5\r\nhello\r\n0\r\n\r\n"), err: errBad},
	{name: "chunk size rubbish", in: okChunked("zz\r\n"), err: errBad},
	{name: "chunk without CRLF", in: okChunked("5\r\nhello0\r\n\r\n"), err: errBad},
	{name: "chunk size overflows", in: okChunked("fffffffffffffffff\r\nx"), err: errBad},
	{name: "trailer Content-Length", in: okChunked("0\r\nContent-Length: 5\r\n\r\n"), err: errBad},
	{name: "trailer bare LF", in: okChunked("0\r\nX: 1\n\r\n"), err: errBad},
	{name: "trailers huge", in: okChunked("0\r\nX: " + strings.Repeat("x", 17<<10) + "\r\n\r\n"), err: errBad},

	{name: "nothing", fin: true, err: io.EOF},
	{name: "end inside status line", in: "HTTP/1.1 20", fin: true, err: errCut},
	{name: "end inside head", in: "HTTP/1.1 200 OK\r\nX: 1\r\n", fin: true, err: errCut},
	{name: "end inside length", in: ok("Content-Length: 5") + "hel", fin: true, err: errCut},
	{name: "end before body", in: ok("Content-Length: 5"), fin: true, err: errCut},
	{name: "end inside chunk", in: okChunked("5\r\nhel"), fin: true, err: errCut},
	{name: "end before last chunk", in: okChunked("5\r\nhello\r\n"), fin: true, err: errCut},
	{name: "end inside last chunk", in: okChunked("5\r\nhello\r\n0\r\n"), fin: true, err: errCut},
	{name: "end inside trailer", in: okChunked("0\r\nX: 1\r\n"), fin: true, err: errCut},
}

func (r *responded) check(t *testing.T, d delivery, g got, raw bool) {
	t.Helper()
	if r.err != nil {
		if !errors.Is(g.err, r.err) {
			t.Errorf("%+v: status %d, error %v, want %v", d, g.head.Status, g.err, r.err)
		}
		return
	}
	if g.err != nil || g.head.Status != r.status || len(g.sink.interim) != r.interim || g.sink.lasts != 1 || g.sink.sent != 1 {
		t.Errorf("%+v: status %d, %d interim, %d ends, sent %d, error %v", d, g.head.Status, len(g.sink.interim), g.sink.lasts, g.sink.sent, g.err)
	}
	body := string(g.sink.body)
	if raw && len(g.sink.runs) > 0 {
		body = unchunk(t, g.sink, r.more)
	}
	if body != r.body || g.trailers != r.more {
		t.Errorf("%+v: body %q, trailers %q", d, body, g.trailers)
	}
	if r.status == 101 && string(g.head.Upgrade) != "websocket" {
		t.Errorf("%+v: upgrade to %q", d, g.head.Upgrade)
	}
}
