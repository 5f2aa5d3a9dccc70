package http2

import (
	"io"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// responseHead is the head of a response while its fields are decoded, held against the rules and limits of HTTP/1.1. Its
// fields are written the way HTTP/1.1 would.
type responseHead struct {
	bad    string
	status int
	length int64 // -1: none was declared
	size   int
	count  int
	begun  bool // a field that is not a pseudo-header field has come
	block  []byte
	fields exchange.Fields
}

func (h *responseHead) reset() {
	h.fields.Reset(nil)
	*h = responseHead{length: -1, block: h.block[:0], fields: h.fields}
}

// field takes a field in. Blanks around its value mean nothing, as in HTTP/1.1: many a message of gRPC ends with one.
func (h *responseHead) field(f hpack.HeaderField, set *ClientSettings) {
	f.Value = strings.Trim(f.Value, " \t")
	switch {
	case h.bad != "":
	case f.IsPseudo():
		if f.Name != ":status" || h.begun || h.status != 0 || !h.setStatus(f.Value) {
			h.bad = "pseudo-header field is unknown, out of place, there twice or no status"
		}
	case !lowerName(f.Name):
		h.bad = "field name is not a token in lower case"
	case !exchange.ValidValue(f.Value):
		h.bad = "field value has a forbidden byte"
	default:
		h.begun = true
		h.regular(f, set)
	}
}

func (h *responseHead) setStatus(v string) bool {
	if len(v) != 3 || v[0] < '1' || !digit(v[0]) || !digit(v[1]) || !digit(v[2]) {
		return false
	}
	h.status = int(v[0]-'0')*100 + int(v[1]-'0')*10 + int(v[2]-'0')
	return true
}

// regular takes a field in that is not one of the pseudo-header fields.
func (h *responseHead) regular(f hpack.HeaderField, set *ClientSettings) {
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		h.bad = "field concerns a connection of HTTP/1" // RFC 9113 §8.2.2
		return
	case "content-length":
		n, ok := parseLength(f.Value)
		if !ok || h.length >= 0 {
			h.bad = "Content-Length is repeated or not a plain number"
			return
		}
		h.length = n
	}
	h.size += len(f.Name) + len(f.Value) + len(": \r\n")
	h.count++
	if h.size > set.MaxHeaderBytes || h.count > set.MaxHeaders {
		h.bad = "head too large"
		return
	}
	h.block = appendLine(h.block, &h.fields, f.Name, f.Value)
}

// finish completes the head.
func (h *responseHead) finish() {
	if h.bad == "" && h.status == 0 {
		h.bad = "no status"
	}
	h.fields.Rebase(h.block)
}

// setHead hands the final head over; why the response cannot be. The lock is held.
func (s *ClientStream) setHead(h *responseHead, end bool) (why string) {
	s.answered, s.headed, s.status, s.length = true, true, h.status, h.length
	s.block, h.block = h.block, s.block
	s.fields, h.fields = h.fields, s.fields
	switch {
	case s.connect && h.status < 300:
		s.through, s.length = true, -1
	case s.bodiless || h.status == 204 || h.status == 304:
		s.body.declared = 0
	default:
		s.body.declared = s.length
	}
	if end {
		s.endBody(false)
		if s.body.err != io.EOF {
			return "body is shorter than Content-Length"
		}
	}
	return ""
}

// maxInterims bounds the 1xx heads before a final one; together they are no larger than a head may be.
const maxInterims = 64

// interim is a 1xx head.
type interim struct {
	status int
	fields exchange.Fields
}

// addInterim hands a 1xx head over; why the response cannot be. The lock is held.
func (s *ClientStream) addInterim(h *responseHead, set *ClientSettings) (why string) {
	s.answered = true
	s.interimBytes += h.size
	if s.interimCount++; s.interimCount > maxInterims || s.interimBytes > set.MaxHeaderBytes {
		return "too many interim responses"
	}
	i := interim{status: h.status}
	i.fields.CopyFrom(&h.fields)
	s.interims = append(s.interims, i)
	return ""
}
