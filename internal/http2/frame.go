package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frame is a frame as it lies in the read buffer (RFC 9113 §4.1), its padding not yet taken away.
type frame struct {
	kind    http2.FrameType
	flags   http2.Flags
	id      uint32
	payload []byte
}

const (
	frameHead   = 9
	maxStreamID = 1<<31 - 1
	maxWindow   = 1<<31 - 1
)

// Flags. END_STREAM and ACK are the same bit on different frames.
const (
	flagEnd        http2.Flags = 0x1
	flagAck        http2.Flags = 0x1
	flagEndHeaders http2.Flags = 0x4
	flagPadded     http2.Flags = 0x8
	flagPriority   http2.Flags = 0x20
)

// connError ends the connection with GOAWAY (RFC 9113 §5.4.1).
type connError struct {
	code http2.ErrCode
	why  string // sent along, for whoever debugs the client
}

func (e *connError) Error() string { return e.code.String() + ": " + e.why }

func protocolError(why string) *connError { return &connError{http2.ErrCodeProtocol, why} }

func sizeError(why string) *connError { return &connError{http2.ErrCodeFrameSize, why} }

// parseFrame takes the first frame out of b; size is 0 while it is not whole, and need is then how long b must become.
func parseFrame(b []byte) (f frame, size, need int, err *connError) {
	if len(b) < frameHead {
		return f, 0, frameHead, nil
	}
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if n > frameSize {
		return f, 0, 0, sizeError("frame longer than SETTINGS_MAX_FRAME_SIZE")
	}
	if len(b) < frameHead+n {
		return f, 0, frameHead + n, nil
	}
	f.kind, f.flags = http2.FrameType(b[3]), http2.Flags(b[4])
	f.id = binary.BigEndian.Uint32(b[5:]) & maxStreamID
	f.payload = b[frameHead : frameHead+n : frameHead+n]
	return f, frameHead + n, 0, nil
}

// unpad takes the padding of a DATA or HEADERS frame away (RFC 9113 §6.1).
func (f *frame) unpad() *connError {
	if f.flags&flagPadded == 0 {
		return nil
	}
	if len(f.payload) == 0 {
		return sizeError("no room for the length of the padding")
	}
	pad := int(f.payload[0])
	if f.payload = f.payload[1:]; pad > len(f.payload) {
		return protocolError("padding longer than the frame")
	}
	f.payload = f.payload[:len(f.payload)-pad]
	return nil
}

// unprioritize takes the priority of a HEADERS frame away, which is ignored (RFC 9113 §5.3.2).
func (f *frame) unprioritize() *connError {
	if f.flags&flagPriority == 0 {
		return nil
	}
	if len(f.payload) < 5 {
		return sizeError("no room for the priority")
	}
	err := checkPriority(f.id, f.payload)
	f.payload = f.payload[5:]
	return err
}

// checkPriority refuses a stream that depends on itself (RFC 7540 §5.3.1), which no client sends by design.
func checkPriority(id uint32, p []byte) *connError {
	if binary.BigEndian.Uint32(p)&maxStreamID == id {
		return protocolError("stream depends on itself")
	}
	return nil
}

func appendFrameHead(b []byte, n int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	return append(b, byte(n>>16), byte(n>>8), byte(n), byte(kind), byte(flags), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// append4 appends a frame whose payload is one number.
func append4(b []byte, kind http2.FrameType, id, payload uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHead(b, 4, kind, 0, id), payload)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return append4(b, http2.FrameRSTStream, id, uint32(code))
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, why string) []byte {
	b = appendFrameHead(b, 8+len(why), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	return append(binary.BigEndian.AppendUint32(b, uint32(code)), why...)
}

func appendSettings(b []byte, list ...http2.Setting) []byte {
	b = appendFrameHead(b, 6*len(list), http2.FrameSettings, 0, 0)
	for _, s := range list {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(s.ID)), s.Val)
	}
	return b
}

// appendBlock appends a field block, in as many frames as it needs: every peer takes frames of frameSize.
func appendBlock(b []byte, id uint32, block []byte, end bool) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = flagEnd
	}
	for len(block) > frameSize {
		b = append(appendFrameHead(b, frameSize, kind, flags, id), block[:frameSize]...)
		block, kind, flags = block[frameSize:], http2.FrameContinuation, 0
	}
	return append(appendFrameHead(b, len(block), kind, flags|flagEndHeaders, id), block...)
}
