package http2

import (
	"bytes"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// requestFrame is what the head of a request says of what follows it.
type requestFrame struct {
	length  int64 // of the body; -1 unknown
	head    bool  // the response has no body
	connect bool
}

// Indices of the static table (RFC 7541 appendix A).
const (
	indexAuthority = 1
	indexMethod    = 2
	indexPath      = 4
	indexScheme    = 6
)

// appendRequest encodes a request head that the gateway has made for HTTP/1.1: whatever goes to a backend is decided once,
// for all protocols. Its first field is Host.
func appendRequest(b, head []byte, secure bool) ([]byte, requestFrame) {
	var q requestFrame
	first, rest, _ := bytes.Cut(head, lf)
	method, target, _ := bytes.Cut(first, blank)
	target, _, _ = bytes.Cut(target, blank)
	q.head, q.connect = string(method) == "HEAD", string(method) == "CONNECT"
	b = appendMethod(b, method)
	if !q.connect {
		b = appendScheme(b, secure)
		b = appendString(appendIndex(b, indexPath), target)
	}
	for authority := false; len(rest) > len(crlf); {
		var line []byte
		line, rest, _ = bytes.Cut(rest, lf) // no line has a bare one
		name, value, _ := bytes.Cut(line, colon)
		value = trimmed(value)
		id := exchange.KnownField(name)
		if id == exchange.FieldHost && !authority {
			authority = true
			b = appendString(appendIndex(b, indexAuthority), value)
			continue
		}
		b = q.appendField(b, id, name, value)
	}
	return b, q
}

var crlf, lf, colon, blank = []byte("\r\n"), []byte("\n"), []byte(":"), []byte(" ")

// trimmed is a value without the blanks around it and the CR of its line.
func trimmed(v []byte) []byte {
	for len(v) > 0 && (v[0] == ' ' || v[0] == '\t') {
		v = v[1:]
	}
	for n := len(v); n > 0 && (v[n-1] == '\r' || v[n-1] == ' ' || v[n-1] == '\t'); n-- {
		v = v[:n-1]
	}
	return v
}

// appendField encodes a field. Those of connection and framing do not exist (RFC 9113 §8.2.2); the length that framing told
// stays, and so does TE if it speaks of trailers.
func (q *requestFrame) appendField(b []byte, id exchange.FieldID, name, value []byte) []byte {
	switch {
	case id == exchange.FieldTransferEncoding:
		q.length = -1
		return b
	case id == exchange.FieldContentLength:
		q.length, _ = parseLength(string(value))
	case id == exchange.FieldTE && string(value) == "trailers":
	case unsent.Has(id) || id == exchange.FieldHost:
		return b
	}
	return appendField(b, name, value)
}

func appendMethod(b, method []byte) []byte {
	switch string(method) {
	case "GET":
		return append(b, 0x80|indexMethod)
	case "POST":
		return append(b, 0x80|indexMethod+1)
	}
	return appendString(appendIndex(b, indexMethod), method)
}

func appendScheme(b []byte, secure bool) []byte {
	if secure {
		return append(b, 0x80|indexScheme+1)
	}
	return append(b, 0x80|indexScheme)
}
