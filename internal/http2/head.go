package http2

import (
	"bytes"
	"strings"
	"unsafe"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// badHead is the answer to a malformed head (RFC 9113 §8.1.1).
func badHead(why string) *exchange.Error {
	e := exchange.Reject(400, exchange.CodeBadRequest, "Malformed request")
	e.Err = exchange.Fault(why)
	return e
}

// Refusals of a head that is over a limit.
var (
	tooLarge = over(431, exchange.CodeHeaderTooLarge, "Request header fields too large", "max_header_bytes")
	tooMany  = over(431, exchange.CodeHeaderTooLarge, "Too many request header fields", "max_headers")
	tooLong  = over(414, exchange.CodeURITooLong, "Request target too long", "max_header_bytes")
)

func over(status int, code exchange.Code, public, limit string) *exchange.Error {
	e := exchange.Reject(status, code, public)
	e.Limit = limit
	return e
}

// Head reads the fields of a request, for HTTP/2 and whatever else sends heads as lists of fields. They are held against
// the rules and limits that HTTP/1.1 heads are held against, and written into a block the way HTTP/1.1 would: what forwards
// the request needs no second form. Two kinds of fault are told apart: what cannot be a request at all has its stream reset,
// the rest is answered. A Head belongs to one goroutine and is reused after Reset.
type Head struct {
	// Bad says why the stream is to be reset (RFC 9113 §8.1.1, RFC 9114 §4.1.2); "" it is not.
	Bad string
	// Refused is what the request is answered with at once; nil: it is served.
	Refused *exchange.Error
	// Malformed is set when the stream is to be reset behind the answer.
	Malformed bool
	// Bodiless is set by the caller, before Finish, when the stream ends with its head.
	Bodiless bool
	// Protocols is set by the caller, after Reset, where :protocol may be sent (RFC 8441 §3): elsewhere the field is unknown.
	Protocols bool
	// Length is the Content-Length; -1: none was declared.
	Length int64
	// Block is what the request's fields are views of once Finish has returned. The caller may take it.
	Block []byte

	q         *exchange.Request
	limits    HeadLimits
	seen      pseudo
	begun     bool // the request line has been written: what follows are fields
	size      int  // as HTTP/1.1 would spell it
	count     int
	host      string
	hosts     int
	cookie    []byte
	cookies   int
	method    string
	scheme    string
	authority string
	path      string
	protocol  string // of an extended CONNECT
}

// HeadLimits bound a request head.
type HeadLimits struct {
	Bytes  int // as HTTP/1.1 would spell it
	Fields int
}

// pseudo is a set of pseudo-header fields (RFC 9113 §8.3.1, RFC 8441 §4).
type pseudo uint8

const (
	hasMethod pseudo = 1 << iota
	hasScheme
	hasAuthority
	hasPath
	hasProtocol
)

// Reset makes h ready to fill q in. The block is written from its begin.
func (h *Head) Reset(q *exchange.Request, block []byte, limits HeadLimits) {
	h.Clear()
	h.q, h.Block, h.limits, h.Length = q, block[:0], limits, -1
}

// maxKeptCookie keeps a large cookie from staying with the connection.
const maxKeptCookie = 1 << 10

// Clear lets go of the request: the head stays with the connection, which may idle for long.
func (h *Head) Clear() {
	cookie := h.cookie[:0]
	if cap(cookie) > maxKeptCookie {
		cookie = nil
	}
	*h = Head{cookie: cookie}
}

// Method is the method as received.
func (h *Head) Method() string { return h.method }

// Refuse has the request answered with an error, unless it already is. Nothing more of it is kept.
func (h *Head) Refuse(err *exchange.Error) {
	if h.Refused == nil {
		h.Refused = err
	}
}

// TooLarge has the request answered with the error of a head that is over its limit.
func (h *Head) TooLarge() { h.Refuse(tooLarge) }

// Field takes a field in.
func (h *Head) Field(name, value string) {
	switch {
	case h.Bad != "":
	case !fieldValue(value):
		h.Bad = "field value has a forbidden byte"
	case strings.HasPrefix(name, ":"):
		h.pseudo(name, value)
	case !lowerName(name):
		h.Bad = "field name is not a token in lower case"
	default:
		h.begin()
		h.regular(name, value)
	}
}

// pseudo takes a pseudo-header field in: each at most once, before the others.
func (h *Head) pseudo(name, value string) {
	var which pseudo
	switch name {
	case ":method":
		which, h.method = hasMethod, value
	case ":scheme":
		which, h.scheme = hasScheme, value
	case ":authority":
		which, h.authority = hasAuthority, value
	case ":path":
		which, h.path = hasPath, value
	case ":protocol":
		if h.Protocols {
			which, h.protocol = hasProtocol, value
		}
	}
	if which == 0 || h.begun || h.seen&which != 0 {
		h.Bad = "pseudo-header field is unknown, out of place or there twice"
	}
	h.seen |= which
}

// requestLineExtra is what HTTP/1.1 has around method and target: two blanks, the version and the line end.
const requestLineExtra = 12

// begin writes what stands in front of the fields.
func (h *Head) begin() {
	if h.begun {
		return
	}
	h.begun = true
	if h.method == "CONNECT" || h.extended() {
		h.checkConnect()
	}
	h.size = requestLineExtra + len(h.method) + len(h.path) + len(h.protocol)
	if h.size > h.limits.Bytes {
		h.Refuse(tooLong)
		return
	}
	h.Block = append(append(append(h.Block, h.method...), h.path...), h.protocol...)
	if h.authority != "" {
		h.host = h.authority
		h.line("host", h.authority)
	}
}

// regular takes a field in that is not one of the pseudo-header fields. The values of some are looked at.
func (h *Head) regular(name, value string) {
	if !exchange.ValidValue(value) {
		h.Refuse(badHead("field value has a blank at an end"))
		return
	}
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		h.connectionField()
	case "te":
		if value != "trailers" {
			h.connectionField()
			return
		}
		h.line(name, value)
	case "host":
		h.hostField(value)
	case "content-length":
		h.lengthField(value)
		h.line(name, value)
	case "expect":
		if !exchange.EqualFold([]byte(value), "100-continue") {
			h.Refuse(exchange.Reject(417, exchange.CodeExpectationFailed, "Expectation not supported"))
		}
		h.q.Expect = true
		h.line(name, value)
	case "cookie": // put together again, which HTTP/1.1 wants (RFC 9113 §8.2.3); an empty piece adds nothing
		h.cookies++
		h.crumb(value)
	default:
		h.line(name, value)
	}
}

// crumb appends a piece of the cookie.
func (h *Head) crumb(v string) {
	if h.size+len(h.cookie)+len(v) > h.limits.Bytes {
		h.Refuse(tooLarge)
	}
	if h.Refused != nil || v == "" {
		return
	}
	if len(h.cookie) > 0 {
		h.cookie = append(h.cookie, "; "...)
	}
	h.cookie = append(h.cookie, v...)
}

// connectionField refuses what HTTP/2 has no place for. The answer is not the end: the request is malformed and so its
// stream is reset as well (RFC 9113 §8.2.2).
func (h *Head) connectionField() {
	h.Malformed = true
	h.Refuse(badHead("field concerns a connection of HTTP/1"))
}

// hostField wants one authority, whether it came as :authority, as Host, or the same in both (RFC 9113 §8.3.1).
func (h *Head) hostField(v string) {
	h.hosts++
	switch {
	case h.hosts > 1:
		h.Refuse(badHead("more than one Host"))
	case h.authority == "":
		h.host = v
		h.line("host", v)
	case !strings.EqualFold(v, h.authority):
		h.Refuse(badHead("Host differs from :authority"))
	}
}

// lengthField wants one plain number.
func (h *Head) lengthField(v string) {
	if h.Length >= 0 {
		h.Bad = "more than one Content-Length"
		return
	}
	n, ok := parseLength(v)
	if !ok {
		h.Refuse(badHead("Content-Length is not a plain number"))
		return
	}
	h.Length = n
}

// line writes a field line.
func (h *Head) line(name, value string) {
	h.size += len(name) + len(value) + len(": \r\n")
	h.count++
	switch {
	case h.Refused != nil:
		return
	case h.size > h.limits.Bytes:
		h.Refuse(tooLarge)
		return
	case h.count > h.limits.Fields:
		h.Refuse(tooMany)
		return
	}
	h.Block = appendLine(h.Block, &h.q.Fields, name, value)
}

// appendLine writes a field line as HTTP/1.1 does, and adds it to f.
func appendLine(b []byte, f *exchange.Fields, name, value string) []byte {
	l := exchange.RawLine{Start: len(b)}
	b = append(b, name...)
	l.NameEnd = len(b)
	l.ID = exchange.KnownField(b[l.Start:])
	b = append(b, ": "...)
	l.Value = len(b)
	b = append(b, value...)
	l.ValueEnd = len(b)
	b = append(b, "\r\n"...)
	l.End = len(b)
	f.AppendLine(l)
	return b
}

// Finish completes the head. Unless it is bad, the request is filled in; if it is refused, with nothing but its protocol.
func (h *Head) Finish() {
	h.begin()
	if h.cookies > 0 {
		h.line("cookie", unsafe.String(unsafe.SliceData(h.cookie), len(h.cookie)))
	}
	if h.Bad == "" {
		h.Bad = h.fault()
	}
	if h.Bad != "" {
		return
	}
	if h.Refused == nil {
		h.Refused = h.check()
	}
	q := h.q
	if h.Refused != nil {
		q.Fields.Reset(nil)
		q.Expect = false
		if !h.Bodiless {
			q.ContentLength = -1
		}
		return
	}
	h.fill(q)
}

// fill places the parts of the request in the block, which does not move any more.
func (h *Head) fill(q *exchange.Request) {
	b := h.Block
	q.Fields.Rebase(b)
	m, t := len(h.method), len(h.path)
	q.Method, q.Target = b[:m:m], b[m:m+t:m+t]
	q.Path = q.Target
	if i := bytes.IndexByte(q.Target, '?'); i >= 0 {
		q.Path, q.Query = q.Target[:i], q.Target[i+1:]
	}
	q.Host, _ = q.Fields.Known(exchange.FieldHost)
	if h.extended() {
		q.Upgrade = b[m+t : m+t+len(h.protocol) : m+t+len(h.protocol)]
	}
	switch {
	case h.Bodiless, h.method == "CONNECT": // what follows is the tunnel's, and no body
		q.ContentLength = 0
	default:
		q.ContentLength = h.Length
	}
}

// fault says why the stream is to be reset; "" it is not.
func (h *Head) fault() string {
	const needed = hasMethod | hasScheme | hasPath
	switch {
	case h.method == "CONNECT" && !h.extended(): // has been checked
	case h.seen&needed != needed || h.method == "":
		return "pseudo-header field is missing"
	case h.scheme != "http" && h.scheme != "https":
		return "scheme is not HTTP's"
	case h.path != "*" && (h.path == "" || h.path[0] != '/'):
		return "path is not absolute"
	case !validEscapes(h.path):
		return "path has a bad escape"
	}
	switch {
	case strings.IndexByte(h.authority, '@') >= 0:
		return "authority has user information"
	case h.Bodiless && h.Length > 0:
		return "Content-Length of a body that does not come"
	}
	return ""
}

// check refuses what a request may not be, although it is one.
func (h *Head) check() *exchange.Error {
	switch {
	case !validToken(h.method):
		return badHead("method is not a token")
	case !h.validTarget():
		return badHead("request target has a forbidden byte or is of no known form")
	case h.host == "":
		return badHead("no authority")
	case !validAuthority(h.host):
		return badHead("authority is malformed")
	case h.method == "CONNECT" && h.Length >= 0: // RFC 9110 §9.3.6
		return badHead("CONNECT with a Content-Length")
	case h.extended() && !validToken(h.protocol):
		return badHead(":protocol is not a token")
	}
	return nil
}

// validTarget accepts a path with its query, * for OPTIONS, and an authority for CONNECT.
func (h *Head) validTarget() bool {
	t := h.path
	switch {
	case t == "":
		return false
	case h.method == "CONNECT" && !h.extended():
		return validAuthority(t)
	case t == "*":
		return h.method == "OPTIONS"
	case t[0] != '/':
		return false
	}
	for i := range len(t) {
		if c := t[i]; c <= 0x20 || c >= 0x7f || c == '#' {
			return false
		}
	}
	return true
}
