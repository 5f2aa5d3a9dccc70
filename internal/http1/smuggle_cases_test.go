package http1_test

import (
	"strings"

	"github.com/sluice-proxy/sluice/internal/http1"
)

// smuggled is one case of the server's table. A well-formed request for /next follows the bytes at once.
type smuggled struct {
	name string
	in   string
	saw  string // what the handler saw of the request, "" nothing; several are separated by " | "
	code int    // the one status that refuses the connection; 0 all requests are answered with 200
}

// smuggleLimits are the limits of the table's server.
var smuggleLimits = http1.Limits{MaxHeaderBytes: 512, MaxHeaders: 8}

// get is a GET with more field lines, each without its CRLF.
func get(lines ...string) string {
	return head("GET /a HTTP/1.1", append([]string{"Host: h"}, lines...)...)
}

// post is a POST with more field lines.
func post(lines ...string) string {
	return head("POST /a HTTP/1.1", append([]string{"Host: h"}, lines...)...)
}

func head(start string, lines ...string) string {
	return strings.Join(append([]string{start}, lines...), "\r\n") + "\r\n\r\n"
}

const te = "Transfer-Encoding: chunked"

// chunkedPost is a chunked POST with a body.
func chunkedPost(body string) string { return post(te) + body }

const (
	sawGet  = `GET /a h 1.1 len=0 ""`
	sawNext = `GET /next next 1.1 len=0 ""`
)

func sized(body string) string    { return `POST /a h 1.1 len=` + itoa(len(body)) + ` ` + quote(body) }
func inChunks(body string) string { return `POST /a h 1.1 len=-1 ` + quote(body) }

// badBody is a request whose body turned out malformed.
const badBody = `POST /a h 1.1 len=-1 !bad_request_body`

// pad is a head of exactly n bytes.
func pad(n int) string {
	empty := len(get("X-Pad: "))
	return get("X-Pad: " + strings.Repeat("p", n-empty))
}

// longTarget has a request line of exactly n bytes with its CRLF.
func longTarget(n int) string {
	line := "GET /" + strings.Repeat("t", n-len("GET / HTTP/1.1\r\n")) + " HTTP/1.1"
	return head(line, "Host: h")
}

var smuggleCases = []smuggled{
	// line ends
	{"plain", get(), sawGet, 0},
	{"bare LF after request line", "GET /a HTTP/1.1\nHost: h\r\n\r\n", "", 400},
	{"bare LF after field", "GET /a HTTP/1.1\r\nHost: h\n\r\n", "", 400},
	{"bare LF everywhere", "GET /a HTTP/1.1\nHost: h\n\n", "", 400},
	{"bare LF as end of head", "GET /a HTTP/1.1\r\nHost: h\r\n\n", "", 400},
	{"CR CR LF after request line", "GET /a HTTP/1.1\r\r\nHost: h\r\n\r\n", "", 400},
	{"CR CR LF after field", "GET /a HTTP/1.1\r\nHost: h\r\r\n\r\n", "", 400},
	{"bare CR in request line", "GET /a\r HTTP/1.1\r\nHost: h\r\n\r\n", "", 400},
	{"bare CR as line end", "GET /a HTTP/1.1\rHost: h\r\n\r\n", "", 400},
	{"bare CR in value", get("X: a\rb"), "", 400},
	{"bare CR before name", get("\rX: a"), "", 400},
	{"bare CR then LF name", "GET /a HTTP/1.1\r\nHost: h\r\n\rX: a\r\n\r\n", "", 400},
	{"bare LF in value", get("X: a\nTransfer-Encoding: chunked"), "", 400},
	{"LF CR for CR LF", "GET /a HTTP/1.1\r\nHost: h\n\r\r\n\r\n", "", 400},
	{"one empty line first", "\r\n" + get(), sawGet, 0},
	{"two empty lines first", "\r\n\r\n" + get(), "", 400},
	{"bare LF first", "\n" + get(), "", 400},
	{"bare CR first", "\r" + get(), "", 400},
	{"empty line between requests", get() + "\r\n" + get(), sawGet + " | " + sawGet, 0},

	// folding and blanks
	{"obs-fold with blank", get("X: a", " b"), "", 400},
	{"obs-fold with tab", get("X: a", "\tb"), "", 400},
	{"obs-fold before first field", "GET /a HTTP/1.1\r\n Host: h\r\n\r\n", "", 400},
	{"folded Transfer-Encoding", post("Transfer-Encoding:", " chunked") + "0\r\n\r\n", "", 400},
	{"folded Content-Length", post("Content-Length:", " 5") + "hello", "", 400},
	{"line of blanks", get(" "), "", 400},
	{"blank before colon", get("X : a"), "", 400},
	{"tab before colon", get("X\t: a"), "", 400},
	{"blank before colon of Content-Length", post("Content-Length : 5") + "hello", "", 400},
	{"blank before colon of Transfer-Encoding", post("Transfer-Encoding : chunked") + "0\r\n\r\n", "", 400},
	{"blanks around value", get("X: \t a \t"), sawGet, 0},
	{"empty value", get("X:"), sawGet, 0},

	// names and values
	{"no colon", get("X"), "", 400},
	{"empty name", get(": a"), "", 400},
	{"NUL in name", get("X\x00Y: a"), "", 400},
	{"blank in name", get("X Y: a"), "", 400},
	{"colon-like byte in name", get("X\xba: a"), "", 400},
	{"parenthesis in name", get("X(Y): a"), "", 400},
	{"NUL in value", get("X: a\x00b"), "", 400},
	{"DEL in value", get("X: a\x7fb"), "", 400},
	{"bell in value", get("X: a\ab"), "", 400},
	{"vertical tab in value", get("X: a\vb"), "", 400},
	{"form feed in value", get("X: a\fb"), "", 400},
	{"high bytes in value", get("X: caf\xc3\xa9 \xff"), sawGet, 0},
	{"tab inside value", get("X: a\tb"), sawGet, 0},
	{"name of 1025 bytes", head("GET /a HTTP/1.1", "Host: h", strings.Repeat("n", 1025)+": v"), "", 431},

	// request line
	{"no version (HTTP/0.9)", "GET /a\r\n\r\n", "", 400},
	{"lower-case protocol", head("GET /a http/1.1", "Host: h"), "", 400},
	{"HTTP/1.2", head("GET /a HTTP/1.2", "Host: h"), "", 505},
	{"HTTP/2.0", head("GET /a HTTP/2.0", "Host: h"), "", 505},
	{"HTTP/0.9 spelled out", head("GET /a HTTP/0.9", "Host: h"), "", 505},
	{"HTTP/1.10", head("GET /a HTTP/1.10", "Host: h"), "", 400},
	{"HTTP/11", head("GET /a HTTP/11", "Host: h"), "", 400},
	{"HTTP/1.x", head("GET /a HTTP/1.x", "Host: h"), "", 400},
	{"version with blank behind", head("GET /a HTTP/1.1 ", "Host: h"), "", 400},
	{"two blanks before version", head("GET /a  HTTP/1.1", "Host: h"), "", 400},
	{"two blanks before target", head("GET  /a HTTP/1.1", "Host: h"), "", 400},
	{"tab for blank", head("GET\t/a HTTP/1.1", "Host: h"), "", 400},
	{"blank before method", head(" GET /a HTTP/1.1", "Host: h"), "", 400},
	{"method is no token", head("GE(T /a HTTP/1.1", "Host: h"), "", 400},
	{"empty method", head(" /a HTTP/1.1", "Host: h"), "", 400},
	{"unknown method", head("FROB /a HTTP/1.1", "Host: h"), `FROB /a h 1.1 len=0 ""`, 0},
	{"lower-case method is another", head("get /a HTTP/1.1", "Host: h"), `get /a h 1.1 len=0 ""`, 0},
	{"NUL in target", head("GET /a\x00 HTTP/1.1", "Host: h"), "", 400},
	{"DEL in target", head("GET /a\x7f HTTP/1.1", "Host: h"), "", 400},
	{"high byte in target", head("GET /\xc3\xa9 HTTP/1.1", "Host: h"), "", 400},
	{"fragment in target", head("GET /a#b HTTP/1.1", "Host: h"), "", 400},
	{"blank in target", head("GET /a b HTTP/1.1", "Host: h"), "", 400},
	{"target without slash", head("GET a HTTP/1.1", "Host: h"), "", 400},
	{"asterisk with OPTIONS", head("OPTIONS * HTTP/1.1", "Host: h"), `OPTIONS * h 1.1 len=0 ""`, 0},
	{"asterisk with GET", head("GET * HTTP/1.1", "Host: h"), "", 400},
	{"CONNECT", head("CONNECT h:443 HTTP/1.1", "Host: h"), "", 501},
	{"CONNECT with body bytes", head("CONNECT h:443 HTTP/1.1", "Host: h", "Content-Length: 5") + "hello", "", 501},
	{"TRACE", head("TRACE /a HTTP/1.1", "Host: h"), "", 405},
	{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", 505},
	{"absolute form", head("GET http://h/a?q HTTP/1.1", "Host: h"), `GET /a?q h 1.1 len=0 ""`, 0},
	{"absolute form with another Host", head("GET http://other:8080/a HTTP/1.1", "Host: h"), `GET /a other:8080 1.1 len=0 ""`, 0},
	{"absolute form in upper case", head("GET HTTP://h HTTP/1.1", "Host: h"), `GET / h 1.1 len=0 ""`, 0},
	{"absolute form with query only", head("GET https://h?q HTTP/1.1", "Host: h"), `GET /?q h 1.1 len=0 ""`, 0},
	{"absolute form of OPTIONS", head("OPTIONS http://h HTTP/1.1", "Host: h"), `OPTIONS * h 1.1 len=0 ""`, 0},
	{"absolute form with user", head("GET http://u@h/a HTTP/1.1", "Host: h"), "", 400},
	{"absolute form without host", head("GET http:///a HTTP/1.1", "Host: h"), "", 400},
	{"absolute form of another scheme", head("GET ftp://h/a HTTP/1.1", "Host: h"), "", 400},
	{"absolute form without Host", head("GET http://h/a HTTP/1.1"), "", 400},

	// Host
	{"no Host", head("GET /a HTTP/1.1"), "", 400},
	{"no Host in 1.0", head("GET /a HTTP/1.0", "Connection: keep-alive"), `GET /a  1.0 len=0 ""`, 0},
	{"two Hosts", get("Host: h"), "", 400},
	{"two Hosts in two cases", get("hOST: x"), "", 400},
	{"two Hosts in 1.0", head("GET /a HTTP/1.0", "Host: h", "Host: h"), "", 400},
	{"empty Host", head("GET /a HTTP/1.1", "Host:"), `GET /a  1.1 len=0 ""`, 0},
	{"Host with port", head("GET /a HTTP/1.1", "Host: h:8080"), `GET /a h:8080 1.1 len=0 ""`, 0},
	{"Host with empty port", head("GET /a HTTP/1.1", "Host: h:"), `GET /a h: 1.1 len=0 ""`, 0},
	{"Host with bad port", head("GET /a HTTP/1.1", "Host: h:80x"), "", 400},
	{"Host with huge port", head("GET /a HTTP/1.1", "Host: h:65536"), "", 400},
	{"Host with two ports", head("GET /a HTTP/1.1", "Host: h:1:2"), "", 400},
	{"Host with user", head("GET /a HTTP/1.1", "Host: u@h"), "", 400},
	{"Host with path", head("GET /a HTTP/1.1", "Host: h/x"), "", 400},
	{"Host with blank", head("GET /a HTTP/1.1", "Host: h x"), "", 400},
	{"Host with comma", head("GET /a HTTP/1.1", "Host: h,x"), "", 400},
	{"Host is IPv6", head("GET /a HTTP/1.1", "Host: [::1]:80"), `GET /a [::1]:80 1.1 len=0 ""`, 0},
	{"Host is half a bracket", head("GET /a HTTP/1.1", "Host: [::1"), "", 400},
	{"Host with bracket inside", head("GET /a HTTP/1.1", "Host: a[::1]"), "", 400},
	{"Host is no IPv6 in brackets", head("GET /a HTTP/1.1", "Host: [abc]"), "", 400},
	{"Host with zone", head("GET /a HTTP/1.1", "Host: [fe80::1%25eth0]"), "", 400},
	{"Host with escape", head("GET /a HTTP/1.1", "Host: a%41"), "", 400},
	{"Host with high byte", head("GET /a HTTP/1.1", "Host: h\xc3\xa9"), "", 400},

	// Content-Length
	{"Content-Length", post("Content-Length: 5") + "hello", sized("hello"), 0},
	{"Content-Length zero", post("Content-Length: 0"), sized(""), 0},
	{"Content-Length with zeros", post("Content-Length: 005") + "hello", sized("hello"), 0},
	{"Content-Length on GET", get("Content-Length: 5") + "hello", `GET /a h 1.1 len=5 "hello"`, 0},
	{
		"Content-Length holds a request", post("Content-Length: 37") + "GET /secret HTTP/1.1\r\nHost: evil\r\n\r\nx",
		sized("GET /secret HTTP/1.1\r\nHost: evil\r\n\r\nx"), 0,
	},
	{"Content-Length plus", post("Content-Length: +5") + "hello", "", 400},
	{"Content-Length minus", post("Content-Length: -5") + "hello", "", 400},
	{"Content-Length minus zero", post("Content-Length: -0"), "", 400},
	{"Content-Length hex", post("Content-Length: 0x5") + "hello", "", 400},
	{"Content-Length list", post("Content-Length: 5, 5") + "hello", "", 400},
	{"Content-Length inner blank", post("Content-Length: 1 0") + "0123456789", "", 400},
	{"Content-Length empty", post("Content-Length:") + "hello", "", 400},
	{"Content-Length decimal", post("Content-Length: 5.0") + "hello", "", 400},
	{"Content-Length exponent", post("Content-Length: 1e1") + "hello", "", 400},
	{"Content-Length fullwidth digit", post("Content-Length: \xef\xbc\x95") + "hello", "", 400},
	{"Content-Length overflows 64 bits", post("Content-Length: 18446744073709551621") + "hello", "", 400},
	{"Content-Length overflows int64", post("Content-Length: 9223372036854775808") + "hello", "", 400},
	{"two Content-Lengths differ", post("Content-Length: 5", "Content-Length: 6") + "hello", "", 400},
	{"two Content-Lengths equal", post("Content-Length: 5", "content-length: 5") + "hello", "", 400},
	{"Content-Length quoted", post(`Content-Length: "5"`) + "hello", "", 400},

	// Transfer-Encoding
	{"chunked", chunkedPost("5\r\nhello\r\n0\r\n\r\n"), inChunks("hello"), 0},
	{"chunked in upper case", post("TRANSFER-ENCODING: CHUNKED") + "5\r\nhello\r\n0\r\n\r\n", inChunks("hello"), 0},
	{"chunked with blanks around", post("Transfer-Encoding: \t chunked \t") + "0\r\n\r\n", inChunks(""), 0},
	{"chunked then length", post(te, "Content-Length: 5") + "0\r\n\r\n", "", 400},
	{"length then chunked", post("Content-Length: 5", te) + "0\r\n\r\n", "", 400},
	{"length zero then chunked", post("Content-Length: 0", te) + "0\r\n\r\n", "", 400},
	{"length six then chunked", post("Content-Length: 6", te) + "0\r\n\r\nG", "", 400},
	{"chunked, chunked", post("Transfer-Encoding: chunked, chunked") + "0\r\n\r\n", "", 400},
	{"chunked twice", post(te, te) + "0\r\n\r\n", "", 400},
	{"chunked twice in two cases", post(te, "transfer-encoding: Chunked") + "0\r\n\r\n", "", 400},
	{"gzip, chunked", post("Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", "", 400},
	{"gzip line then chunked line", post("Transfer-Encoding: gzip", te) + "0\r\n\r\n", "", 400},
	{"chunked, gzip", post("Transfer-Encoding: chunked, gzip") + "0\r\n\r\n", "", 400},
	{"identity", post("Transfer-Encoding: identity", "Content-Length: 5") + "hello", "", 400},
	{"identity alone", post("Transfer-Encoding: identity"), "", 400},
	{"xchunked", post("Transfer-Encoding: xchunked") + "0\r\n\r\n", "", 400},
	{"chunkedx", post("Transfer-Encoding: chunkedx") + "0\r\n\r\n", "", 400},
	{"chunked with parameter", post("Transfer-Encoding: chunked;q=1") + "0\r\n\r\n", "", 400},
	{"chunked with empty element", post("Transfer-Encoding: ,chunked") + "0\r\n\r\n", "", 400},
	{"chunked quoted", post(`Transfer-Encoding: "chunked"`) + "0\r\n\r\n", "", 400},
	{"chunked behind vertical tab", post("Transfer-Encoding: \vchunked") + "0\r\n\r\n", "", 400},
	{"chunked before vertical tab", post("Transfer-Encoding: chunked\v") + "0\r\n\r\n", "", 400},
	{"chunked before NUL", post("Transfer-Encoding: chunked\x00") + "0\r\n\r\n", "", 400},
	{"chunked before NBSP", post("Transfer-Encoding: chunked\xa0") + "0\r\n\r\n", "", 400},
	{"empty Transfer-Encoding", post("Transfer-Encoding:") + "0\r\n\r\n", "", 400},
	{"empty Transfer-Encoding and length", post("Transfer-Encoding:", "Content-Length: 5") + "hello", "", 400},
	{"chunked in 1.0", head("POST /a HTTP/1.0", "Host: h", "Connection: keep-alive", te) + "0\r\n\r\n", "", 400},
	{"Transfer_Encoding is another field", post("Transfer_Encoding: chunked", "Content-Length: 5") + "hello", sized("hello"), 0},
	{"Connection names Content-Length", post("Connection: Content-Length", "Content-Length: 5") + "hello", sized("hello"), 0},
	{"chunked on GET", get(te) + "1\r\nx\r\n0\r\n\r\n", `GET /a h 1.1 len=-1 "x"`, 0},

	// chunks
	{"several chunks", chunkedPost("1\r\na\r\n2\r\nbc\r\n00\r\n\r\n"), inChunks("abc"), 0},
	{"chunk size with zeros", chunkedPost("0005\r\nhello\r\n0\r\n\r\n"), inChunks("hello"), 0},
	{"chunk size in both cases", chunkedPost("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"), inChunks("01234567890123456789"), 0},
	{"chunk size 0x", chunkedPost("0x5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size plus", chunkedPost("+5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size minus", chunkedPost("-5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size blank behind", chunkedPost("5 \r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size blank before", chunkedPost(" 5\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size tab behind", chunkedPost("5\t\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size empty", chunkedPost("\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size no hex", chunkedPost("zz\r\n"), badBody, 400},
	{"chunk size underscore", chunkedPost("1_0\r\n0123456789abcdef\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size overflows", chunkedPost("10000000000000005\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size of 16 digits", chunkedPost("0000000000000005\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size bare LF", chunkedPost("5\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size bare CR", chunkedPost("5\rhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk size CR CR LF", chunkedPost("5\r\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"chunk data without CRLF", chunkedPost("5\r\nhello0\r\n\r\n"), badBody, 400},
	{"chunk data before bare LF", chunkedPost("5\r\nhello\n0\r\n\r\n"), badBody, 400},
	{"chunk data before bare CR", chunkedPost("5\r\nhello\r0\r\n\r\n"), badBody, 400},
	{"chunk data too long", chunkedPost("5\r\nhello!\r\n0\r\n\r\n"), badBody, 400},
	{"last chunk before bare LF", chunkedPost("0\n\n"), badBody, 400},
	{"last chunk then bare LF", chunkedPost("0\r\n\n"), badBody, 400},
	{"last chunk then bare CR", chunkedPost("0\r\n\rX"), badBody, 400},
	{"extension is dropped", chunkedPost("5;a=b\r\nhello\r\n0;c\r\n\r\n"), inChunks("hello"), 0},
	{"extension quoted", chunkedPost("5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n"), inChunks("hello"), 0},
	{"extension bare LF", chunkedPost("5;x\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"extension bare CR", chunkedPost("5;x\rhello\r\n0\r\n\r\n"), badBody, 400},
	{"extension with NUL", chunkedPost("5;\x00\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"extension too long", chunkedPost("5;" + strings.Repeat("x", 5000) + "\r\nhello\r\n0\r\n\r\n"), badBody, 400},
	{"extensions too long together", chunkedPost(strings.Repeat("1;"+strings.Repeat("x", 600)+"\r\nx\r\n", 7) + "0\r\n\r\n"), badBody, 400},
	{
		"chunked body holds a request", chunkedPost("26\r\nGET /secret HTTP/1.1\r\nHost: evil\r\n\r\nxx\r\n0\r\n\r\n"),
		inChunks("GET /secret HTTP/1.1\r\nHost: evil\r\n\r\nxx"), 0,
	},

	// trailers
	{"trailer", chunkedPost("1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n"), inChunks("x") + " X-Sum=1", 0},
	{"two trailers", chunkedPost("0\r\nX-A: 1\r\nX-B:2\r\n\r\n"), inChunks("") + " X-A=1 X-B=2", 0},
	{"trailer Content-Length", chunkedPost("0\r\nContent-Length: 5\r\n\r\n"), badBody, 400},
	{"trailer Transfer-Encoding", chunkedPost("0\r\ntransfer-encoding: chunked\r\n\r\n"), badBody, 400},
	{"trailer Host", chunkedPost("0\r\nHost: evil\r\n\r\n"), badBody, 400},
	{"trailer Authorization", chunkedPost("0\r\nAuthorization: x\r\n\r\n"), badBody, 400},
	{"trailer Cookie", chunkedPost("0\r\nCookie: x\r\n\r\n"), badBody, 400},
	{"trailer Connection", chunkedPost("0\r\nConnection: close\r\n\r\n"), badBody, 400},
	{"trailer X-Forwarded-For", chunkedPost("0\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n"), badBody, 400},
	{"trailer X_Forwarded_For", chunkedPost("0\r\nX_Forwarded_For: 1.1.1.1\r\n\r\n"), badBody, 400},
	{"trailer bare LF", chunkedPost("0\r\nX: 1\n\r\n"), badBody, 400},
	{"trailer folded", chunkedPost("0\r\nX: 1\r\n 2\r\n\r\n"), badBody, 400},
	{"trailer blank before colon", chunkedPost("0\r\nX : 1\r\n\r\n"), badBody, 400},
	{"trailer without colon", chunkedPost("0\r\nX\r\n\r\n"), badBody, 400},
	{"trailer with NUL", chunkedPost("0\r\nX: \x00\r\n\r\n"), badBody, 400},
	{"trailer is a request line", chunkedPost("0\r\nGET /secret HTTP/1.1\r\nHost: evil\r\n\r\n"), badBody, 400},
	{"trailers huge", chunkedPost("0\r\nX: " + strings.Repeat("x", 17<<10) + "\r\n\r\n"), badBody, 400},
	{"64 trailers", chunkedPost("0\r\n" + strings.Repeat("X: 1\r\n", 64) + "\r\n"), inChunks("") + strings.Repeat(" X=1", 64), 0},
	{"65 trailers", chunkedPost("0\r\n" + strings.Repeat("X: 1\r\n", 65) + "\r\n"), badBody, 400},

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
	{"8 fields", get(strings.Split(strings.Repeat("X: 1|", 6)+"X: 1", "|")...), sawGet, 0},
	{"9 fields", get(strings.Split(strings.Repeat("X: 1|", 7)+"X: 1", "|")...), "", 431},

	// Expect and Connection
	{"Expect unknown", post("Expect: tea", "Content-Length: 5") + "hello", "", 417},
	{"Expect unknown beside known", post("Expect: 100-continue, tea", "Content-Length: 5") + "hello", "", 417},
	{"Expect without body", get("Expect: 100-continue"), sawGet, 0},
	{"Upgrade h2c is dropped", get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), sawGet, 0},
	{
		"1.0 with keep-alive and length", head("POST /a HTTP/1.0", "Host: h", "Connection: Keep-Alive", "Content-Length: 5") + "hello",
		`POST /a h 1.0 len=5 "hello"`, 0,
	},
	{"64 connection options", get("Connection: " + strings.Repeat("a,", 64)), sawGet, 0},
	{"65 connection options", get("Connection: "+strings.Repeat("a,", 60), "Connection: a,b,c,d,e"), "", 400},
	{"rubbish", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "", 400},
	{"second request malformed", get() + "GET /b HTTP/1.1\r\nHost : h\r\n\r\n", sawGet, 400},
}
