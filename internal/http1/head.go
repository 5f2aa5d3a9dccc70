package http1

import (
	"bytes"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Limits bound one message head.
type Limits struct {
	MaxHeaderBytes int // start line, fields and the closing empty line
	MaxHeaders     int // number of field lines
}

// maxNameBytes bounds one field name; real ones are below 100.
const maxNameBytes = 1024

// span is a range of the buffer that a head is parsed from.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }
func (s span) empty() bool        { return s.from == s.to }

// head is what the strict parser found in a request or response head (RFC 9112 §2–§6). Parsing is incremental: each
// complete line is looked at once, however the bytes arrive.
type head struct {
	method, target span // requests
	status         int  // responses
	proto          exchange.Protocol
	host           span
	length         int64 // Content-Length; -1 absent
	chunked        bool
	close, keep    bool // Connection: close, keep-alive
	upgradeOpt     bool // Connection: upgrade
	upgrade        span // value of Upgrade
	expect         bool
	hasHost        bool
	end            int // offset behind the head

	begin   int // offset of the start line: behind one skipped empty line
	at      int // offset of the line being parsed
	seen    int // bytes already searched for a line end
	lines   int
	options int  // elements of Connection fields
	inside  bool // the start line is done
}

func (h *head) reset() { *h = head{length: -1} }

// parse goes on with the head in b, which begins where it began at the last call. It reports whether the head is
// complete. Lines go to f, whose block is set when it is.
func (h *head) parse(b []byte, f *exchange.Fields, lim Limits, request bool) (bool, *exchange.Error) {
	if h.seen == 0 {
		f.Reset(nil)
	}
	for {
		feed := bytes.IndexByte(b[h.seen:], '\n')
		if feed < 0 {
			h.seen = len(b)
			return false, h.tooLong(len(b), lim, request)
		}
		if err := h.tooLong(h.seen+feed+1, lim, request); err != nil { // first, so that it does not matter how bytes arrive
			return false, err
		}
		var next int
		var err *exchange.Error
		switch {
		case h.inside:
			next, err = h.field(b, f, lim)
		case request:
			next, err = h.requestLine(b)
		default:
			next, err = h.statusLine(b)
		}
		if err != nil {
			return false, err
		}
		h.at, h.seen = next, next
		if h.end > 0 {
			f.Rebase(b)
			if request {
				return true, h.checkRequest(b)
			}
			return true, h.checkResponse()
		}
	}
}

// tooLong refuses a head that has outgrown its limit.
func (h *head) tooLong(have int, lim Limits, request bool) *exchange.Error {
	if have-h.begin <= lim.MaxHeaderBytes {
		return nil
	}
	if request && !h.inside {
		return over(414, exchange.CodeURITooLong, "Request target too long", "max_header_bytes")
	}
	return over(431, exchange.CodeHeaderTooLarge, "Request header fields too large", "max_header_bytes")
}

// over refuses what is beyond the limit of a key.
func over(status int, code exchange.Code, public, limit string) *exchange.Error {
	e := refuse(status, code, public)
	e.Limit = limit
	return e
}

func refuse(status int, code exchange.Code, public string) *exchange.Error {
	e := exchange.Reject(status, code, public)
	e.Close = true
	return e
}

// badHead is the answer to every malformed head; why is for the operator.
func badHead(why string) *exchange.Error {
	e := refuse(400, exchange.CodeBadRequest, "Malformed request")
	e.Err = exchange.Fault(why)
	return e
}

// tlsHandshake is the first byte of every TLS connection (RFC 8446 section 5.1).
const tlsHandshake = 0x16

// requestLine parses method SP target SP version CRLF, after at most one empty line (RFC 9112 §2.2).
func (h *head) requestLine(b []byte) (int, *exchange.Error) {
	i, n := h.at, len(b)
	if i == 0 && b[0] == '\r' {
		if n < 2 || b[1] != '\n' {
			return -1, badHead("stray carriage return before the request line")
		}
		h.begin = 2
		return 2, nil
	}
	for i < n && exchange.TokenByte(b[i]) {
		i++
	}
	if i == n || i == h.at || b[i] != ' ' {
		if b[h.at] == tlsHandshake {
			return -1, badHead("a TLS handshake, where clear text is spoken")
		}
		return -1, badHead("request line has no method")
	}
	h.method = span{h.at, i}
	i++
	s := i
	for i < n && targetByte[b[i]] {
		i++
	}
	if i == n || i == s || b[i] != ' ' {
		return -1, badHead("request target is empty or has a forbidden byte")
	}
	h.target = span{s, i}
	i++
	const version = "HTTP/1.x\r\n"
	if n-i < len(version) || string(b[i:i+7]) != version[:7] || b[i+7] != '0' && b[i+7] != '1' || b[i+8] != '\r' || b[i+9] != '\n' {
		return -1, h.versionError(b[i:])
	}
	h.proto = exchange.HTTP11
	if b[i+7] == '0' {
		h.proto = exchange.HTTP10
	}
	h.inside = true
	return i + len(version), nil
}

// versionError tells a version that is not ours from rubbish.
func (h *head) versionError(v []byte) *exchange.Error {
	if len(v) >= 10 && string(v[:5]) == "HTTP/" && digit(v[5]) && v[6] == '.' && digit(v[7]) && v[8] == '\r' && v[9] == '\n' {
		return refuse(505, exchange.CodeVersionUnsupported, "HTTP version not supported")
	}
	return badHead("request line does not end in an HTTP version")
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// statusLine parses version SP status [SP reason] CRLF.
func (h *head) statusLine(b []byte) (int, *exchange.Error) {
	i, n := h.at, len(b)
	const version = "HTTP/1."
	if n-i < 14 || string(b[i:i+len(version)]) != version {
		return -1, badHead("status line has no HTTP/1 version")
	}
	i += len(version)
	switch b[i] {
	case '1':
		h.proto = exchange.HTTP11
	case '0':
		h.proto = exchange.HTTP10
	default:
		return -1, badHead("status line has an unknown version")
	}
	if b[i+1] != ' ' || !digit(b[i+2]) || !digit(b[i+3]) || !digit(b[i+4]) || b[i+2] == '0' {
		return -1, badHead("status line has no three-digit status")
	}
	h.status = int(b[i+2]-'0')*100 + int(b[i+3]-'0')*10 + int(b[i+4]-'0')
	i += 5
	if b[i] != ' ' && b[i] != '\r' {
		return -1, badHead("status is not three digits")
	}
	for i < n && exchange.ValueByte(b[i]) {
		i++
	}
	if i+1 >= n || b[i] != '\r' || b[i+1] != '\n' {
		return -1, badHead("status line has a forbidden byte")
	}
	h.inside = true
	return i + 2, nil
}

// field parses one field line, or the empty line that closes the head.
func (h *head) field(b []byte, f *exchange.Fields, lim Limits) (int, *exchange.Error) {
	var l exchange.RawLine
	next, why := parseLine(b, h.at, &l)
	if why != "" {
		return -1, badHead(why)
	}
	if l.End == 0 {
		h.end = next
		return next, nil
	}
	if h.lines++; h.lines > lim.MaxHeaders {
		return -1, over(431, exchange.CodeHeaderTooLarge, "Too many request header fields", "max_headers")
	}
	f.AppendLine(l)
	return next, h.note(b, &l)
}

// parseLine parses the field line at offset at into l, which stays zero at the empty line. The line is known to be followed
// by a line feed somewhere. why is set when the line is malformed.
func parseLine(b []byte, at int, l *exchange.RawLine) (next int, why string) {
	i, n := at, len(b)
	if b[i] == '\r' {
		if i+1 < n && b[i+1] == '\n' {
			return i + 2, ""
		}
		return 0, "stray carriage return"
	}
	for i < n && exchange.TokenByte(b[i]) {
		i++
	}
	if i == n || i == at || b[i] != ':' || i-at > maxNameBytes {
		return 0, "field line has no valid name"
	}
	l.Start, l.NameEnd = at, i
	i++
	for i < n && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	l.Value = i
	for i < n && exchange.ValueByte(b[i]) {
		i++
	}
	if i+1 >= n || b[i] != '\r' || b[i+1] != '\n' {
		return 0, "field value has a forbidden byte"
	}
	l.ValueEnd = i
	for l.ValueEnd > l.Value && (b[l.ValueEnd-1] == ' ' || b[l.ValueEnd-1] == '\t') {
		l.ValueEnd--
	}
	l.End = i + 2
	l.ID = exchange.KnownField(b[l.Start:l.NameEnd])
	return l.End, ""
}

// note takes what matters for framing and connection handling out of one field.
func (h *head) note(b []byte, l *exchange.RawLine) *exchange.Error {
	v := b[l.Value:l.ValueEnd]
	switch l.ID {
	case exchange.FieldHost:
		if h.hasHost {
			return badHead("more than one Host")
		}
		h.hasHost, h.host = true, span{l.Value, l.ValueEnd}
	case exchange.FieldContentLength:
		n, ok := parseLength(v)
		if !ok || h.length >= 0 {
			return badHead("Content-Length is repeated or not a plain number")
		}
		h.length = n
	case exchange.FieldTransferEncoding:
		if h.chunked || !exchange.EqualFold(v, "chunked") {
			return badHead("Transfer-Encoding is not exactly chunked")
		}
		h.chunked = true
	case exchange.FieldConnection:
		for tok := range exchange.Tokens(v) {
			if h.options++; h.options > maxOptions {
				return badHead("too many connection options")
			}
			switch {
			case exchange.EqualFold(tok, "close"):
				h.close = true
			case exchange.EqualFold(tok, "keep-alive"):
				h.keep = true
			case exchange.EqualFold(tok, "upgrade"):
				h.upgradeOpt = true
			}
		}
	case exchange.FieldUpgrade:
		h.upgrade = span{l.Value, l.ValueEnd}
	case exchange.FieldExpect:
		if !exchange.EqualFold(v, "100-continue") {
			return refuse(417, exchange.CodeExpectationFailed, "Expectation not supported")
		}
		h.expect = true
	}
	return nil
}

// maxOptions bounds what Connection fields may name: each name is looked for in the whole head.
const maxOptions = 64

// maxLengthDigits keeps a Content-Length inside int64.
const maxLengthDigits = 18

func parseLength(v []byte) (int64, bool) {
	if len(v) == 0 || len(v) > maxLengthDigits {
		return 0, false
	}
	n := int64(0)
	for _, c := range v {
		if !digit(c) {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// checkRequest holds the parts of a complete request head against each other.
func (h *head) checkRequest(b []byte) *exchange.Error {
	switch {
	case h.chunked && h.length >= 0:
		return badHead("Content-Length together with Transfer-Encoding")
	case h.chunked && h.proto == exchange.HTTP10:
		return badHead("Transfer-Encoding in an HTTP/1.0 request")
	case !h.hasHost && h.proto != exchange.HTTP10:
		return badHead("no Host")
	case !validAuthority(h.host.of(b)):
		return badHead("Host is not an authority")
	case h.expect && h.proto == exchange.HTTP10:
		h.expect = false // RFC 9110 §10.1.1: ignored
	}
	return nil
}

// checkResponse does so for a response head.
func (h *head) checkResponse() *exchange.Error {
	switch {
	case h.chunked && h.length >= 0:
		return badHead("Content-Length together with Transfer-Encoding")
	case h.chunked && h.proto == exchange.HTTP10:
		return badHead("Transfer-Encoding in an HTTP/1.0 response")
	case h.chunked && (h.status < 200 || h.status == 204):
		return badHead("Transfer-Encoding in a response without a body")
	}
	return nil
}

var targetByte = targetBytes()

// targetBytes are the bytes that may stand in a request target: visible ASCII but the fragment mark.
func targetBytes() (t [256]bool) {
	for c := 0x21; c < 0x7f; c++ {
		t[c] = c != '#'
	}
	return t
}

var authorityByte = authorityBytes()

func authorityBytes() (t [256]bool) {
	for c := 0; c < 256; c++ {
		t[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	for _, c := range "-._~!$&'()*+;=:" {
		t[c] = true
	}
	return t
}

// validAuthority accepts host[:port] without user information (RFC 9110 §7.2, RFC 3986 §3.2.2); the empty host too. Of
// address literals it accepts IPv6 without a zone; escapes, which no name needs, are refused.
func validAuthority(a []byte) bool {
	if len(a) > 0 && a[0] == '[' {
		return validLiteral(a)
	}
	for i, c := range a {
		switch {
		case !authorityByte[c]:
			return false
		case c == ':':
			return validPort(a[i+1:]) && i > 0
		}
	}
	return true
}

// validLiteral accepts [IPv6] and [IPv6]:port.
func validLiteral(a []byte) bool {
	end := bytes.IndexByte(a, ']')
	if end < 0 {
		return false
	}
	ip, err := netip.ParseAddr(string(a[1:end]))
	if err != nil || !ip.Is6() || ip.Zone() != "" {
		return false
	}
	return end+1 == len(a) || a[end+1] == ':' && validPort(a[end+2:])
}

func validPort(p []byte) bool {
	if len(p) > 5 {
		return false
	}
	n := 0
	for _, c := range p {
		if !digit(c) {
			return false
		}
		n = n*10 + int(c-'0')
	}
	return n <= 65535
}
