package http3

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
)

// Types of unidirectional streams (RFC 9114 §6.2, RFC 9204 §4.2). The first, and those of QPACK, are critical: there is one
// of each, and it does not end before the connection.
const (
	controlStream = 0x0
	pushStream    = 0x1
	encoderStream = 0x2
	decoderStream = 0x3
)

const (
	// maxControl is how many unidirectional streams a client has at once: the three and a few that are not known here.
	maxControl = 8
	// maxSettings bounds the payload of SETTINGS.
	maxSettings = 4 << 10
	// maxIntegerBytes holds 62 bits behind the prefix of an integer of QPACK (RFC 9204 §4.1.1).
	maxIntegerBytes = 9
	// controlBuffer is what is read of such a stream at once.
	controlBuffer = 64
)

// acceptControl takes the client's unidirectional streams until the connection ends.
func (c *serverConn) acceptControl() {
	for {
		q, err := c.q.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		c.running.Go(func() {
			defer q.ReleaseStreamCredit()
			var fatal *connError
			if err := c.readControl(q); errors.As(err, &fatal) {
				c.fail(fatal)
			}
		})
	}
}

// readControl reads a unidirectional stream to its end.
func (c *serverConn) readControl(q *quic.ReceiveStream) error {
	r := &control{c: c, r: bufio.NewReaderSize(q, controlBuffer)}
	kind, err := quicvarint.Read(r.r)
	if err != nil {
		q.CancelRead(codeStreamCreation)
		return nil // gone before it told what it is
	}
	switch {
	case kind == pushStream:
		return &connError{codeStreamCreation, "a push stream of a client"}
	case kind > decoderStream:
		q.CancelRead(codeStreamCreation)
		if !c.spend(1) {
			return &connError{codeExcessiveLoad, "too many streams of unknown types"}
		}
		return nil
	case c.kinds[kind].Swap(true):
		return &connError{codeStreamCreation, "a critical stream is there twice"}
	}
	switch kind {
	case controlStream:
		err = r.frames()
	case encoderStream:
		err = r.encoder()
	case decoderStream:
		err = r.decoder()
	}
	var fatal *connError
	if errors.As(err, &fatal) || c.q.Context().Err() != nil {
		return err
	}
	return &connError{codeClosedCritical, "a critical stream has ended"}
}

var errLength = &connError{codeFrame, "a frame of a wrong length"}

// control reads one of the client's critical streams.
type control struct {
	c    *serverConn
	r    *bufio.Reader
	push uint64 // highest MAX_PUSH_ID
	away uint64 // lowest id of GOAWAY
}

// frames reads the control stream (RFC 9114 §6.2.1).
func (r *control) frames() error {
	r.away = quicvarint.Max
	for first := true; ; first = false {
		typ, err := quicvarint.Read(r.r)
		if err != nil {
			return err
		}
		length, err := quicvarint.Read(r.r)
		if err != nil {
			return err
		}
		switch {
		case first && typ != frameSettings:
			return &connError{codeMissingSettings, "the first frame is not SETTINGS"}
		case first:
			err = r.settings(length)
		default:
			err = r.frame(typ, length)
		}
		if err != nil {
			return err
		}
	}
}

// frame reads a frame behind SETTINGS.
func (r *control) frame(typ, length uint64) error {
	if !r.c.spend(1 + int(min(length, 1<<20)>>10)) {
		return &connError{codeExcessiveLoad, "too many frames on the control stream"}
	}
	switch {
	case typ == frameData, typ == frameHeaders, typ == framePushPromise, typ == frameSettings, onlyHTTP2(typ):
		return &connError{codeFrameUnexpected, "a frame that a control stream does not have"}
	case typ == frameGoAway, typ == frameMaxPushID, typ == frameCancelPush:
		id, err := r.id(length)
		if err != nil {
			return err
		}
		return r.judge(typ, id)
	}
	_, err := io.CopyN(io.Discard, r.r, int64(length))
	return err
}

// id reads a payload that is an id and nothing else. It need not have its shortest form (RFC 9000 §16).
func (r *control) id(length uint64) (uint64, error) {
	var b [8]byte
	if length > uint64(len(b)) {
		return 0, errLength
	}
	if _, err := io.ReadFull(r.r, b[:length]); err != nil {
		return 0, err
	}
	id, n, err := quicvarint.Parse(b[:length])
	if err != nil || uint64(n) != length {
		return 0, errLength
	}
	return id, nil
}

// judge checks the id of a frame. Nothing is pushed, so that most of them mean nothing here.
func (r *control) judge(typ, id uint64) error {
	switch {
	case typ == frameCancelPush, typ == frameGoAway && id > r.away, typ == frameMaxPushID && id < r.push:
		return &connError{codeID, "an id that cannot be"}
	case typ == frameGoAway:
		r.away = id
	default:
		r.push = id
	}
	return nil
}

// settings reads SETTINGS (RFC 9114 §7.2.4). What the client wishes has no effect on us, as nothing of it is used.
func (r *control) settings(length uint64) error {
	if length > maxSettings {
		return &connError{codeExcessiveLoad, "SETTINGS too large"}
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return err
	}
	seen := make(map[uint64]bool)
	for len(b) > 0 {
		id, n, err := quicvarint.Parse(b)
		if err != nil {
			return &connError{codeFrame, "SETTINGS are cut"}
		}
		_, m, err := quicvarint.Parse(b[n:])
		if err != nil {
			return &connError{codeFrame, "SETTINGS are cut"}
		}
		if seen[id] || id >= 0x2 && id <= 0x5 { // the latter are HTTP/2's
			return &connError{codeSettings, "a setting that is there twice or must not be"}
		}
		seen[id] = true
		b = b[n+m:]
	}
	return nil
}

// encoder reads instructions to our dynamic table, whose capacity is 0 (RFC 9204 §4.3): it may be set to 0 again.
func (r *control) encoder() error {
	const setCapacity0 = 0x20
	for {
		b, err := r.r.ReadByte()
		switch {
		case err != nil:
			return err
		case b != setCapacity0:
			return &connError{codeEncoderStream, "there is no dynamic table"}
		case !r.c.spend(1):
			return &connError{codeExcessiveLoad, "too many instructions"}
		}
	}
}

// decoder reads what the client's decoder tells (RFC 9204 §4.4). Without a dynamic table it can only give up streams.
func (r *control) decoder() error {
	for {
		b, err := r.r.ReadByte()
		switch {
		case err != nil:
			return err
		case b&0xc0 != 0x40:
			return &connError{codeDecoderStream, "nothing was inserted or referred to"}
		case !r.c.spend(1):
			return &connError{codeExcessiveLoad, "too many instructions"}
		}
		more := b&0x3f == 0x3f
		for n := 0; more; n++ {
			if n == maxIntegerBytes {
				return &connError{codeDecoderStream, "an integer is too long"}
			}
			if b, err = r.r.ReadByte(); err != nil {
				return err
			}
			more = b&0x80 != 0
		}
	}
}
