// Package http1test holds the requests that two parsers may read differently, with what the one reading of this product
// is. The engine's tests run them, and so do the tests that put other people's servers behind it. It is imported by tests
// only and knows no engine.
package http1test

import (
	"strconv"
	"strings"
)

// Case is a request, or a few, and what a server makes of them. Next follows the bytes at once.
type Case struct {
	Name string
	In   string
	// Saw is what the handler saw, "" nothing; several requests are separated by " | ". Each is method, target, host,
	// version, declared length (-1 chunked) and the quoted body, or !code when the body turned out malformed.
	Saw  string
	Code int // the one status that refuses the connection; 0 all requests are answered with 200
}

// The limits of the server that the table is for.
const (
	MaxHeaderBytes = 512
	MaxHeaders     = 8
)

// Next is the well-formed request behind each case, and SawNext what the handler sees of it.
const (
	Next    = "GET /next HTTP/1.1\r\nHost: next\r\nConnection: close\r\n\r\n"
	SawNext = `GET /next next 1.1 len=0 ""`
)

// Chunked is the field that begins a chunked body.
const Chunked = "Transfer-Encoding: chunked"

// Get is a GET with more field lines, each without its CRLF.
func Get(lines ...string) string {
	return Head("GET /a HTTP/1.1", append([]string{"Host: h"}, lines...)...)
}

// Post is a POST with more field lines.
func Post(lines ...string) string {
	return Head("POST /a HTTP/1.1", append([]string{"Host: h"}, lines...)...)
}

// Head is a start line and field lines, with their line ends and the empty line.
func Head(start string, lines ...string) string {
	return strings.Join(append([]string{start}, lines...), "\r\n") + "\r\n\r\n"
}

// ChunkedPost is a chunked POST with a body as it goes over the wire.
func ChunkedPost(body string) string { return Post(Chunked) + body }

const sawGet = `GET /a h 1.1 len=0 ""`

func sized(body string) string {
	return `POST /a h 1.1 len=` + strconv.Itoa(len(body)) + ` ` + strconv.Quote(body)
}
func inChunks(body string) string { return `POST /a h 1.1 len=-1 ` + strconv.Quote(body) }

// badBody is a request whose body turned out malformed.
const badBody = `POST /a h 1.1 len=-1 !bad_request_body`

// pad is a head of exactly n bytes.
func pad(n int) string {
	empty := len(Get("X-Pad: "))
	return Get("X-Pad: " + strings.Repeat("p", n-empty))
}

// longTarget has a request line of exactly n bytes with its CRLF.
func longTarget(n int) string {
	line := "GET /" + strings.Repeat("t", n-len("GET / HTTP/1.1\r\n")) + " HTTP/1.1"
	return Head(line, "Host: h")
}

// Cases is the table.
var Cases = []Case{
	// line ends
	{"plain", Get(), sawGet, 0},
	{"bare LF after request line", "GET /a HTTP/1.1\nHost: h\r\n\r\n", "", 400},
	{"bare LF after field", "GET /a HTTP/1.1\r\nHost: h\n\r\n", "", 400},
	{"bare LF everywhere", "GET /a HTTP/1.1\nHost: h\n\n", "", 400},
	{"bare LF as end of head", "GET /a HTTP/1.1\r\nHost: h\r\n\n", "", 400},
	{"CR CR LF after request line", "GET /a HTTP/1.1\r\r\nHost: h\r\n\r\n", "", 400},
	{"CR CR LF after field", "GET /a HTTP/1.1\r\nHost: h\r\r\n\r\n", "", 400},
	{"bare CR in request line", "GET /a\r HTTP/1.1\r\nHost: h\r\n\r\n", "", 400},
	{"bare CR as line end", "GET /a HTTP/1.1\rHost: h\r\n\r\n", "", 400},
	{"bare CR in value", Get("X: a\rb"), "", 400},
	{"bare CR before name", Get("\rX: a"), "", 400},
	{"bare CR then LF name", "GET /a HTTP/1.1\r\nHost: h\r\n\rX: a\r\n\r\n", "", 400},
	{"bare LF in value", Get("X: a\nTransfer-Encoding: chunked"), "", 400},
	{"LF CR for CR LF", "GET /a HTTP/1.1\r\nHost: h\n\r\r\n\r\n", "", 400},
	{"one empty line first", "\r\n" + Get(), sawGet, 0},
	{"two empty lines first", "\r\n\r\n" + Get(), "", 400},
	{"bare LF first", "\n" + Get(), "", 400},
	{"bare CR first", "\r" + Get(), "", 400},
	{"empty line between requests", Get() + "\r\n" + Get(), sawGet + " | " + sawGet, 0},

	// folding and blanks
	{"obs-fold with blank", Get("X: a", " b"), "", 400},
	{"obs-fold with tab", Get("X: a", "\tb"), "", 400},
	{"obs-fold before first field", "GET /a HTTP/1.1\r\n Host: h\r\n\r\n", "", 400},
	{"folded Transfer-Encoding", Post("Transfer-Encoding:", " chunked") + "0\r\n\r\n", "", 400},
	{"folded Content-Length", Post("Content-Length:", " 5") + "hello", "", 400},
	{"line of blanks", Get(" "), "", 400},
	{"blank before colon", Get("X : a"), "", 400},
	{"tab before colon", Get("X\t: a"), "", 400},
	{"blank before colon of Content-Length", Post("Content-Length : 5") + "hello", "", 400},
	{"blank before colon of Transfer-Encoding", Post("Transfer-Encoding : chunked") + "0\r\n\r\n", "", 400},
	{"blanks around value", Get("X: \t a \t"), sawGet, 0},
	{"empty value", Get("X:"), sawGet, 0},

	// names and values
	{"no colon", Get("X"), "", 400},
	{"empty name", Get(": a"), "", 400},
	{"NUL in name", Get("X\x00Y: a"), "", 400},
	{"blank in name", Get("X Y: a"), "", 400},
	{"colon-like byte in name", Get("X\xba: a"), "", 400},
	{"parenthesis in name", Get("X(Y): a"), "", 400},
	{"NUL in value", Get("X: a\x00b"), "", 400},
	{"DEL in value", Get("X: a\x7fb"), "", 400},
	{"bell in value", Get("X: a\ab"), "", 400},
	{"vertical tab in value", Get("X: a\vb"), "", 400},
	{"form feed in value", Get("X: a\fb"), "", 400},
	{"high bytes in value", Get("X: caf\xc3\xa9 \xff"), sawGet, 0},
	{"tab inside value", Get("X: a\tb"), sawGet, 0},
	{"name of 1025 bytes", Head("GET /a HTTP/1.1", "Host: h", strings.Repeat("n", 1025)+": v"), "", 431},

	// request line
	{"no version (HTTP/0.9)", "GET /a\r\n\r\n", "", 400},
	{"lower-case protocol", Head("GET /a http/1.1", "Host: h"), "", 400},
	{"HTTP/1.2", Head("GET /a HTTP/1.2", "Host: h"), "", 505},
	{"HTTP/2.0", Head("GET /a HTTP/2.0", "Host: h"), "", 505},
	{"HTTP/0.9 spelled out", Head("GET /a HTTP/0.9", "Host: h"), "", 505},
	{"HTTP/1.10", Head("GET /a HTTP/1.10", "Host: h"), "", 400},
	{"HTTP/11", Head("GET /a HTTP/11", "Host: h"), "", 400},
	{"HTTP/1.x", Head("GET /a HTTP/1.x", "Host: h"), "", 400},
	{"version with blank behind", Head("GET /a HTTP/1.1 ", "Host: h"), "", 400},
	{"two blanks before version", Head("GET /a  HTTP/1.1", "Host: h"), "", 400},
	{"two blanks before target", Head("GET  /a HTTP/1.1", "Host: h"), "", 400},
	{"tab for blank", Head("GET\t/a HTTP/1.1", "Host: h"), "", 400},
	{"blank before method", Head(" GET /a HTTP/1.1", "Host: h"), "", 400},
	{"method is no token", Head("GE(T /a HTTP/1.1", "Host: h"), "", 400},
	{"empty method", Head(" /a HTTP/1.1", "Host: h"), "", 400},
	{"unknown method", Head("FROB /a HTTP/1.1", "Host: h"), `FROB /a h 1.1 len=0 ""`, 0},
	{"lower-case method is another", Head("get /a HTTP/1.1", "Host: h"), `get /a h 1.1 len=0 ""`, 0},
	{"NUL in target", Head("GET /a\x00 HTTP/1.1", "Host: h"), "", 400},
	{"DEL in target", Head("GET /a\x7f HTTP/1.1", "Host: h"), "", 400},
	{"high byte in target", Head("GET /\xc3\xa9 HTTP/1.1", "Host: h"), "", 400},
	{"fragment in target", Head("GET /a#b HTTP/1.1", "Host: h"), "", 400},
	{"blank in target", Head("GET /a b HTTP/1.1", "Host: h"), "", 400},
	{"target without slash", Head("GET a HTTP/1.1", "Host: h"), "", 400},
	{"asterisk with OPTIONS", Head("OPTIONS * HTTP/1.1", "Host: h"), `OPTIONS * h 1.1 len=0 ""`, 0},
	{"asterisk with GET", Head("GET * HTTP/1.1", "Host: h"), "", 400},
	{"CONNECT", Head("CONNECT h:443 HTTP/1.1", "Host: h"), "", 501},
	{"CONNECT with body bytes", Head("CONNECT h:443 HTTP/1.1", "Host: h", "Content-Length: 5") + "hello", "", 501},
	{"TRACE", Head("TRACE /a HTTP/1.1", "Host: h"), "", 405},
	{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", 505},
	{"absolute form", Head("GET http://h/a?q HTTP/1.1", "Host: h"), `GET /a?q h 1.1 len=0 ""`, 0},
	{"absolute form with another Host", Head("GET http://other:8080/a HTTP/1.1", "Host: h"), `GET /a other:8080 1.1 len=0 ""`, 0},
	{"absolute form in upper case", Head("GET HTTP://h HTTP/1.1", "Host: h"), `GET / h 1.1 len=0 ""`, 0},
	{"absolute form with query only", Head("GET https://h?q HTTP/1.1", "Host: h"), `GET /?q h 1.1 len=0 ""`, 0},
	{"absolute form of OPTIONS", Head("OPTIONS http://h HTTP/1.1", "Host: h"), `OPTIONS * h 1.1 len=0 ""`, 0},
	{"absolute form with user", Head("GET http://u@h/a HTTP/1.1", "Host: h"), "", 400},
	{"absolute form without host", Head("GET http:///a HTTP/1.1", "Host: h"), "", 400},
	{"absolute form of another scheme", Head("GET ftp://h/a HTTP/1.1", "Host: h"), "", 400},
	{"absolute form without Host", Head("GET http://h/a HTTP/1.1"), "", 400},

	// Host
	{"no Host", Head("GET /a HTTP/1.1"), "", 400},
	{"no Host in 1.0", Head("GET /a HTTP/1.0", "Connection: keep-alive"), `GET /a  1.0 len=0 ""`, 0},
	{"two Hosts", Get("Host: h"), "", 400},
	{"two Hosts in two cases", Get("hOST: x"), "", 400},
	{"two Hosts in 1.0", Head("GET /a HTTP/1.0", "Host: h", "Host: h"), "", 400},
	{"empty Host", Head("GET /a HTTP/1.1", "Host:"), `GET /a  1.1 len=0 ""`, 0},
	{"Host with port", Head("GET /a HTTP/1.1", "Host: h:8080"), `GET /a h:8080 1.1 len=0 ""`, 0},
	{"Host with empty port", Head("GET /a HTTP/1.1", "Host: h:"), `GET /a h: 1.1 len=0 ""`, 0},
	{"Host with bad port", Head("GET /a HTTP/1.1", "Host: h:80x"), "", 400},
	{"Host with huge port", Head("GET /a HTTP/1.1", "Host: h:65536"), "", 400},
	{"Host with two ports", Head("GET /a HTTP/1.1", "Host: h:1:2"), "", 400},
	{"Host with user", Head("GET /a HTTP/1.1", "Host: u@h"), "", 400},
	{"Host with path", Head("GET /a HTTP/1.1", "Host: h/x"), "", 400},
	{"Host with blank", Head("GET /a HTTP/1.1", "Host: h x"), "", 400},
	{"Host with comma", Head("GET /a HTTP/1.1", "Host: h,x"), "", 400},
	{"Host is IPv6", Head("GET /a HTTP/1.1", "Host: [::1]:80"), `GET /a [::1]:80 1.1 len=0 ""`, 0},
	{"Host is half a bracket", Head("GET /a HTTP/1.1", "Host: [::1"), "", 400},
	{"Host with bracket inside", Head("GET /a HTTP/1.1", "Host: a[::1]"), "", 400},
	{"Host is no IPv6 in brackets", Head("GET /a HTTP/1.1", "Host: [abc]"), "", 400},
	{"Host with zone", Head("GET /a HTTP/1.1", "Host: [fe80::1%25eth0]"), "", 400},
	{"Host with escape", Head("GET /a HTTP/1.1", "Host: a%41"), "", 400},
	{"Host with high byte", Head("GET /a HTTP/1.1", "Host: h\xc3\xa9"), "", 400},

	// Content-Length
	{"Content-Length", Post("Content-Length: 5") + "hello", sized("hello"), 0},
	{"Content-Length zero", Post("Content-Length: 0"), sized(""), 0},
	{"Content-Length with zeros", Post("Content-Length: 005") + "hello", sized("hello"), 0},
	{"Content-Length on GET", Get("Content-Length: 5") + "hello", `GET /a h 1.1 len=5 "hello"`, 0},
	{
		"Content-Length holds a request", Post("Content-Length: 37") + "GET /secret HTTP/1.1\r\nHost: evil\r\n\r\nx",
		sized("GET /secret HTTP/1.1\r\nHost: evil\r\n\r\nx"), 0,
	},
	{"Content-Length plus", Post("Content-Length: +5") + "hello", "", 400},
	{"Content-Length minus", Post("Content-Length: -5") + "hello", "", 400},
	{"Content-Length minus zero", Post("Content-Length: -0"), "", 400},
	{"Content-Length hex", Post("Content-Length: 0x5") + "hello", "", 400},
	{"Content-Length list", Post("Content-Length: 5, 5") + "hello", "", 400},
	{"Content-Length inner blank", Post("Content-Length: 1 0") + "0123456789", "", 400},
	{"Content-Length empty", Post("Content-Length:") + "hello", "", 400},
	{"Content-Length decimal", Post("Content-Length: 5.0") + "hello", "", 400},
	{"Content-Length exponent", Post("Content-Length: 1e1") + "hello", "", 400},
	{"Content-Length fullwidth digit", Post("Content-Length: \xef\xbc\x95") + "hello", "", 400},
	{"Content-Length overflows 64 bits", Post("Content-Length: 18446744073709551621") + "hello", "", 400},
	{"Content-Length overflows int64", Post("Content-Length: 9223372036854775808") + "hello", "", 400},
	{"two Content-Lengths differ", Post("Content-Length: 5", "Content-Length: 6") + "hello", "", 400},
	{"two Content-Lengths equal", Post("Content-Length: 5", "content-length: 5") + "hello", "", 400},
	{"Content-Length quoted", Post(`Content-Length: "5"`) + "hello", "", 400},

	// Transfer-Encoding
	{"chunked", ChunkedPost("5\r\nhello\r\n0\r\n\r\n"), inChunks("hello"), 0},
	{"chunked in upper case", Post("TRANSFER-ENCODING: CHUNKED") + "5\r\nhello\r\n0\r\n\r\n", inChunks("hello"), 0},
	{"chunked with blanks around", Post("Transfer-Encoding: \t chunked \t") + "0\r\n\r\n", inChunks(""), 0},
	{"chunked then length", Post(Chunked, "Content-Length: 5") + "0\r\n\r\n", "", 400},
	{"length then chunked", Post("Content-Length: 5", Chunked) + "0\r\n\r\n", "", 400},
	{"length zero then chunked", Post("Content-Length: 0", Chunked) + "0\r\n\r\n", "", 400},
	{"length six then chunked", Post("Content-Length: 6", Chunked) + "0\r\n\r\nG", "", 400},
	{"chunked, chunked", Post("Transfer-Encoding: chunked, chunked") + "0\r\n\r\n", "", 400},
	{"chunked twice", Post(Chunked, Chunked) + "0\r\n\r\n", "", 400},
	{"chunked twice in two cases", Post(Chunked, "transfer-encoding: Chunked") + "0\r\n\r\n", "", 400},
	{"gzip, chunked", Post("Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", "", 400},
	{"gzip line then chunked line", Post("Transfer-Encoding: gzip", Chunked) + "0\r\n\r\n", "", 400},
	{"chunked, gzip", Post("Transfer-Encoding: chunked, gzip") + "0\r\n\r\n", "", 400},
	{"identity", Post("Transfer-Encoding: identity", "Content-Length: 5") + "hello", "", 400},
	{"identity alone", Post("Transfer-Encoding: identity"), "", 400},
	{"xchunked", Post("Transfer-Encoding: xchunked") + "0\r\n\r\n", "", 400},
	{"chunkedx", Post("Transfer-Encoding: chunkedx") + "0\r\n\r\n", "", 400},
	{"chunked with parameter", Post("Transfer-Encoding: chunked;q=1") + "0\r\n\r\n", "", 400},
	{"chunked with empty element", Post("Transfer-Encoding: ,chunked") + "0\r\n\r\n", "", 400},
	{"chunked quoted", Post(`Transfer-Encoding: "chunked"`) + "0\r\n\r\n", "", 400},
	{"chunked behind vertical tab", Post("Transfer-Encoding: \vchunked") + "0\r\n\r\n", "", 400},
	{"chunked before vertical tab", Post("Transfer-Encoding: chunked\v") + "0\r\n\r\n", "", 400},
	{"chunked before NUL", Post("Transfer-Encoding: chunked\x00") + "0\r\n\r\n", "", 400},
	{"chunked before NBSP", Post("Transfer-Encoding: chunked\xa0") + "0\r\n\r\n", "", 400},
	{"empty Transfer-Encoding", Post("Transfer-Encoding:") + "0\r\n\r\n", "", 400},
	{"empty Transfer-Encoding and length", Post("Transfer-Encoding:", "Content-Length: 5") + "hello", "", 400},
	{"chunked in 1.0", Head("POST /a HTTP/1.0", "Host: h", "Connection: keep-alive", Chunked) + "0\r\n\r\n", "", 400},
	{"Transfer_Encoding is another field", Post("Transfer_Encoding: chunked", "Content-Length: 5") + "hello", sized("hello"), 0},
	{"Connection names Content-Length", Post("Connection: Content-Length", "Content-Length: 5") + "hello", sized("hello"), 0},
	{"chunked on GET", Get(Chunked) + "1\r\nx\r\n0\r\n\r\n", `GET /a h 1.1 len=-1 "x"`, 0},

	// chunks
	{"several chunks", ChunkedPost("1\r\na\r\n2\r\nbc\r\n00\r\n\r\n"), inChunks("abc"), 0},
	{"chunk size with zeros", ChunkedPost("0005\r\nhello\r\n0\r\n\r\n"), inChunks("hello"), 0},
	{"chunk size in both cases", ChunkedPost("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"), inChunks("01234567890123456789"), 0},
	{"chunk size 0x", ChunkedPost("0x5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size plus", ChunkedPost("+5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size minus", ChunkedPost("-5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size blank behind", ChunkedPost("5 \r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size blank before", ChunkedPost(" 5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size tab behind", ChunkedPost("5\t\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size empty", ChunkedPost("\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size no hex", ChunkedPost("zz\r\n"), badBody, 400},
	{"chunk size underscore", ChunkedPost("1_0\r\n0123456789abcdef\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size overflows", ChunkedPost("10000000000000005\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size of 16 digits", ChunkedPost("0000000000000005\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size bare LF", ChunkedPost("5\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size bare CR", ChunkedPost("5\rhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size CR CR LF", ChunkedPost("5\r\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk data without CRLF", ChunkedPost("5\r\nhello0\r\n\r\n"), badBody, 400},
	{"chunk data before bare LF", ChunkedPost("5\r\nhello\n0\r\n\r\n"), badBody, 400},
	{"chunk data before bare CR", ChunkedPost("5\r\nhello\r0\r\n\r\n"), badBody, 400},
	{"chunk data before CR and another byte", ChunkedPost("5\r\nhello\rX0\r\n\r\n"), badBody, 400},
	{"chunk data before another byte and LF", ChunkedPost("5\r\nhelloX\n0\r\n\r\n"), badBody, 400},
	{"last chunk before CR and another byte", ChunkedPost("0\rX\r\n"), badBody, 400},
	{"chunk data too long", ChunkedPost("5\r\nhello!\r\n0\r\n\r\n"), badBody, 400},
	{"last chunk before bare LF", ChunkedPost("0\n\n"), badBody, 400},
	{"last chunk then bare LF", ChunkedPost("0\r\n\n"), badBody, 400},
	{"last chunk then bare CR", ChunkedPost("0\r\n\rX"), badBody, 400},
	{"extension is dropped", ChunkedPost("5;a=b\r\nhello\r\n0;c\r\n\r\n"), inChunks("hello"), 0},
	{"extension quoted", ChunkedPost("5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n"), inChunks("hello"), 0},
	{"extension bare LF", ChunkedPost("5;x\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"extension bare CR", ChunkedPost("5;x\rhello\r\n0\r\n\r\n"), badBody, 400},
	{"extension with NUL", ChunkedPost("5;\x00\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"extension too long", ChunkedPost("5;" + strings.Repeat("x", 5000) + "\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"extensions too long together", ChunkedPost(strings.Repeat("1;"+strings.Repeat("x", 600)+"\r\nx\r\n", 7) + "0\r\n\r\n"), badBody, 400},
	{
		"chunked body holds a request", ChunkedPost("26\r\nGET /secret HTTP/1.1\r\nHost: evil\r\n\r\nxx\r\n0\r\n\r\n"),
		inChunks("GET /secret HTTP/1.1\r\nHost: evil\r\n\r\nxx"), 0,
	},

	// trailers
	{"trailer", ChunkedPost("1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n"), inChunks("x") + " X-Sum=1", 0},
	{"two trailers", ChunkedPost("0\r\nX-A: 1\r\nX-B:2\r\n\r\n"), inChunks("") + " X-A=1 X-B=2", 0},
	{"trailer Content-Length", ChunkedPost("0\r\nContent-Length: 5\r\n\r\n"), badBody, 400},
	{"trailer Transfer-Encoding", ChunkedPost("0\r\ntransfer-encoding: chunked\r\n\r\n"), badBody, 400},
	{"trailer Host", ChunkedPost("0\r\nHost: evil\r\n\r\n"), badBody, 400},
	{"trailer Authorization", ChunkedPost("0\r\nAuthorization: x\r\n\r\n"), badBody, 400},
	{"trailer Cookie", ChunkedPost("0\r\nCookie: x\r\n\r\n"), badBody, 400},
	{"trailer Connection", ChunkedPost("0\r\nConnection: close\r\n\r\n"), badBody, 400},
	{"trailer X-Forwarded-For", ChunkedPost("0\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n"), badBody, 400},
	{"trailer X_Forwarded_For", ChunkedPost("0\r\nX_Forwarded_For: 1.1.1.1\r\n\r\n"), badBody, 400},
	{"trailer bare LF", ChunkedPost("0\r\nX: 1\n\r\n"), badBody, 400},
	{"trailer folded", ChunkedPost("0\r\nX: 1\r\n 2\r\n\r\n"), badBody, 400},
	{"trailer blank before colon", ChunkedPost("0\r\nX : 1\r\n\r\n"), badBody, 400},
	{"trailer without colon", ChunkedPost("0\r\nX\r\n\r\n"), badBody, 400},
	{"trailer with NUL", ChunkedPost("0\r\nX: \x00\r\n\r\n"), badBody, 400},
	{"trailer is a request line", ChunkedPost("0\r\nGET /secret HTTP/1.1\r\nHost: evil\r\n\r\n"), badBody, 400},
	{"trailers huge", ChunkedPost("0\r\nX: " + strings.Repeat("x", 17<<10) + "\r\n\r\n"), badBody, 400},
	{"64 trailers", ChunkedPost("0\r\n" + strings.Repeat("X: 1\r\n", 64) + "\r\n"), inChunks("") + strings.Repeat(" X=1", 64), 0},
	{"65 trailers", ChunkedPost("0\r\n" + strings.Repeat("X: 1\r\n", 65) + "\r\n"), badBody, 400},

	// limits
	{"head of the limit", pad(512), `GET /a h 1.1 len=0 ""`, 0},
	{"head over the limit", pad(513), "", 431},
	{"head far over the limit", pad(9000), "", 431},
	{"empty line before a head of the limit", "\r\n" + pad(512), `GET /a h 1.1 len=0 ""`, 0},
	{"request line over the limit", longTarget(513), "", 414},
	{"request line far over the limit", longTarget(9000), "", 414},
	{"request line of the limit", longTarget(512), "", 431},
	{"endless method", strings.Repeat("M", 600), "", 414},
	{"endless first field", "GET /a HTTP/1.1\r\n" + strings.Repeat("n", 600), "", 431},
	{"8 fields", Get(strings.Split(strings.Repeat("X: 1|", 6)+"X: 1", "|")...), sawGet, 0},
	{"9 fields", Get(strings.Split(strings.Repeat("X: 1|", 7)+"X: 1", "|")...), "", 431},

	// Expect and Connection
	{"Expect unknown", Post("Expect: tea", "Content-Length: 5") + "hello", "", 417},
	{"Expect unknown beside known", Post("Expect: 100-continue, tea", "Content-Length: 5") + "hello", "", 417},
	{"Expect without body", Get("Expect: 100-continue"), sawGet, 0},
	{"Upgrade h2c is dropped", Get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), sawGet, 0},
	{
		"1.0 with keep-alive and length", Head("POST /a HTTP/1.0", "Host: h", "Connection: Keep-Alive", "Content-Length: 5") + "hello",
		`POST /a h 1.0 len=5 "hello"`, 0,
	},
	{"64 connection options", Get("Connection: " + strings.Repeat("a,", 64)), sawGet, 0},
	{"65 connection options", Get("Connection: "+strings.Repeat("a,", 60), "Connection: a,b,c,d,e"), "", 400},
	{"rubbish", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "", 400},
	{"second request malformed", Get() + "GET /b HTTP/1.1\r\nHost : h\r\n\r\n", sawGet, 400},
}
