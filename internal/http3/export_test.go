package http3

import (
	"bufio"
	"io"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// Decode opens the decoding of field sections to tests.
func Decode(section []byte, limit int, field func(name, value string)) error {
	return decode(section, limit, field)
}

// AppendHead opens the encoding to tests.
func AppendHead(status int, f *exchange.Fields, length int64) []byte {
	return appendHead(nil, status, f, length)
}

// FrameHead opens the parsing of frames to tests.
func FrameHead(b []byte) (typ, length uint64, n int) { return frameHead(b) }

// ReadControl reads what a client sends on a unidirectional stream of one of the critical types, and returns the code of
// the error that it ends with; 0 for none.
func ReadControl(kind int, in io.Reader) uint64 {
	r := &control{c: &serverConn{idle: http2.NewBudget(idleBurst, idleRate)}, r: bufio.NewReaderSize(in, controlBuffer)}
	err := []func() error{r.frames, nil, r.encoder, r.decoder}[kind]()
	if fatal, ok := err.(*connError); ok {
		return uint64(fatal.code)
	}
	return 0
}

// AppendPassed opens the form of packets that are passed back to tests.
func AppendPassed(from netip.AddrPort, p []byte) []byte { return appendPassed(nil, from, p) }

// ParsePassed is its inverse.
func ParsePassed(b []byte) (from netip.AddrPort, p []byte, ok bool) { return parsePassed(b) }

// Foreign tells whether a packet is of a connection of another process, whose ids begin with a tag.
func Foreign(before [2]byte, p []byte) bool { return (&socket{before: []tag{before}}).foreign(p) }
