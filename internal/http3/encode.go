package http3

import (
	"strconv"
	"unsafe"

	"github.com/quic-go/qpack"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// section is a field section being encoded: static table and literals only, so that streams share no state.
type section struct {
	to  *[]byte
	enc *qpack.Encoder
}

// sectionRoom is left in front of a section for the head of its frame: a byte of type and up to four of length.
const sectionRoom = 5

func newSection(b *[]byte) section {
	*b = append(*b, make([]byte, sectionRoom)...)
	s := section{to: b}
	s.enc = qpack.NewEncoder(s)
	return s
}

// Write appends what the encoder has made.
func (s section) Write(p []byte) (int, error) {
	*s.to = append(*s.to, p...)
	return len(p), nil
}

// field encodes a field whose name is in lower case. The encoder keeps neither of them.
func (s section) field(name, value []byte) {
	_ = s.enc.WriteField(qpack.HeaderField{Name: view(name), Value: view(value)})
}

func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// fields encodes all that HTTP/3 has a place for.
func (s section) fields(f *exchange.Fields) {
	var lower [64]byte
	for name, value := range f.All() {
		if http2.Unsent(exchange.KnownField(name)) {
			continue
		}
		n := append(lower[:0], name...)
		for i, c := range n {
			if 'A' <= c && c <= 'Z' {
				n[i] = c | 0x20
			}
		}
		s.field(n, value)
	}
}

// frame puts the head of a HEADERS frame in front of what begins at start. The section moves up to it.
func (s section) frame(start int) []byte {
	b := *s.to
	if len(b) == start+sectionRoom { // no field: the prefix that the encoder writes in front of the first one
		b = append(b, 0, 0)
	}
	body := b[start+sectionRoom:]
	n := len(appendFrameHead(b[start:start], frameHeaders, uint64(len(body))))
	return b[:start+n+copy(b[start+n:], body)]
}

// appendHead appends a HEADERS frame with a response head. A length below 0 is not told.
func appendHead(b []byte, status int, f *exchange.Fields, length int64) []byte {
	start := len(b)
	s := newSection(&b)
	var digits [20]byte
	s.field([]byte(":status"), strconv.AppendInt(digits[:0], int64(status), 10))
	if f != nil {
		s.fields(f)
	}
	if length >= 0 {
		s.field([]byte("content-length"), strconv.AppendInt(digits[:0], length, 10))
	}
	return s.frame(start)
}

// appendFields appends a HEADERS frame with trailers.
func appendFields(b []byte, f *exchange.Fields) []byte {
	start := len(b)
	s := newSection(&b)
	s.fields(f)
	return s.frame(start)
}
