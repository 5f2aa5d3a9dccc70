package http3

import (
	"fmt"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
)

// Types of frames (RFC 9114 §7.2, §11.2.1).
const (
	frameData        = 0x0
	frameHeaders     = 0x1
	frameCancelPush  = 0x3
	frameSettings    = 0x4
	framePushPromise = 0x5
	frameGoAway      = 0x7
	frameMaxPushID   = 0xd
)

// Codes of errors (RFC 9114 §8.1, RFC 9204 §6).
const (
	codeNo               = 0x100
	codeInternal         = 0x102
	codeStreamCreation   = 0x103
	codeClosedCritical   = 0x104
	codeFrameUnexpected  = 0x105
	codeFrame            = 0x106
	codeExcessiveLoad    = 0x107
	codeID               = 0x108
	codeSettings         = 0x109
	codeMissingSettings  = 0x10a
	codeRequestRejected  = 0x10b
	codeRequestCancelled = 0x10c
	codeIncomplete       = 0x10d
	codeMessage          = 0x10e
	codeDecompression    = 0x200
	codeEncoderStream    = 0x201
	codeDecoderStream    = 0x202
)

// connError ends a connection for what its client did.
type connError struct {
	code quic.ApplicationErrorCode
	why  string
}

func (e *connError) Error() string { return fmt.Sprintf("HTTP/3 error %#x: %s", uint64(e.code), e.why) }

// streamError resets a stream for what its client did on it.
type streamError struct {
	code quic.StreamErrorCode
	why  string
}

func (e *streamError) Error() string {
	return fmt.Sprintf("HTTP/3 stream error %#x: %s", uint64(e.code), e.why)
}

// onlyHTTP2 tells types of frames that HTTP/2 has and HTTP/3 must not (RFC 9114 §7.2.8).
func onlyHTTP2(t uint64) bool { return t == 0x2 || t == 0x6 || t == 0x8 || t == 0x9 }

// onlyControl tells types of frames that have no place on a request's stream.
func onlyControl(t uint64) bool {
	switch t {
	case frameCancelPush, frameSettings, framePushPromise, frameGoAway, frameMaxPushID:
		return true
	}
	return onlyHTTP2(t)
}

// frameHead parses the type and length of a frame; n is 0 when they are not all there.
func frameHead(b []byte) (typ, length uint64, n int) {
	typ, t, err := quicvarint.Parse(b)
	if err != nil {
		return 0, 0, 0
	}
	length, l, err := quicvarint.Parse(b[t:])
	if err != nil {
		return 0, 0, 0
	}
	return typ, length, t + l
}

func appendFrameHead(b []byte, typ, length uint64) []byte {
	return quicvarint.Append(quicvarint.Append(b, typ), length)
}
