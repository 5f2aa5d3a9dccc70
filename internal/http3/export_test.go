package http3

import (
	"bufio"
	"io"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"

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

// OwnerOf opens what tells whose a packet is to tests.
func OwnerOf(p []byte) ([2]byte, bool) { return ownerOf(p) }

// Sift returns those of some packets that a process keeps whose own tag, and that of the one before it, are given.
func Sift(own, before [2]byte, ceded bool, packets ...string) (kept []string) {
	s := &socket{own: own, before: []tag{before}}
	ms := make([]ipv4.Message, len(packets))
	for i, p := range packets {
		ms[i] = ipv4.Message{Buffers: [][]byte{make([]byte, maxPacket)}, N: len(p), Addr: &net.UDPAddr{}}
		copy(ms[i].Buffers[0], p)
	}
	for _, m := range ms[:s.sift(ms, ceded)] {
		kept = append(kept, string(m.Buffers[0][:m.N]))
	}
	return kept
}
