package http3

import (
	"errors"
	"io"
	"sync"
	"time"
)

// inputSize is what is read of a stream at once.
const inputSize = 16 << 10

var inputPool = sync.Pool{New: func() any { b := make([]byte, inputSize); return &b }}

// input is what has been read of a stream and not handled yet. It belongs to the goroutine that reads.
type input struct {
	buf  *[]byte // nil while nothing is in it
	r, w int
	err  error // what ends the stream behind that; io.EOF
}

func (in *input) here() int { return in.w - in.r }

// ended reports whether the client's end of the stream has been read.
func (in *input) ended() bool { return in.here() == 0 && in.err == io.EOF }

func (in *input) free() {
	if in.buf != nil {
		inputPool.Put(in.buf)
	}
	*in = input{}
}

// fill waits for more of the stream, at most for limit; 0 is for ever. What was handed out of the buffer before is gone.
func (st *stream) fill(limit time.Duration) error {
	in := &st.in
	if in.err != nil {
		return in.err
	}
	if in.buf == nil {
		in.buf = inputPool.Get().(*[]byte)
	}
	if in.r > 0 {
		in.w = copy(*in.buf, (*in.buf)[in.r:in.w])
		in.r = 0
	}
	if limit > 0 {
		st.read.Arm((*readSide)(st), limit)
		defer func() {
			if cause := st.read.Disarm(); cause != 0 {
				st.late = true
			}
		}()
	}
	n, err := st.receive((*in.buf)[in.w:])
	in.w, in.err = in.w+n, err
	if n > 0 {
		return nil
	}
	return err
}

// receive reads from QUIC. Meanwhile the clock leaves the stream's receiving side alone.
func (st *stream) receive(b []byte) (int, error) {
	st.reading.Lock()
	defer st.reading.Unlock()
	return st.q.Read(b)
}

// readSide is the stream as what interrupts its reading.
type readSide stream

// Interrupt ends a pending wait.
func (s *readSide) Interrupt() { _ = s.q.SetReadDeadline(longAgo) }

var longAgo = time.Unix(1, 0)

// next reads the head of the next frame that is not of an unknown type; io.EOF when the stream ends in front of it.
func (st *stream) next(limit time.Duration) (typ, length uint64, err error) {
	for {
		typ, length, err = st.anyNext(limit)
		if err != nil || typ == frameData || typ == frameHeaders {
			return typ, length, err
		}
		if onlyControl(typ) {
			return 0, 0, &connError{codeFrameUnexpected, "a frame that requests do not have"}
		}
		if err := st.skip(length, limit); err != nil {
			return 0, 0, err
		}
	}
}

// anyNext reads the head of the next frame.
func (st *stream) anyNext(limit time.Duration) (typ, length uint64, err error) {
	in := &st.in
	for {
		if in.here() > 0 {
			var n int
			if typ, length, n = frameHead((*in.buf)[in.r:in.w]); n > 0 {
				in.r += n
				return typ, length, nil
			}
		}
		if err := st.fill(limit); err != nil {
			if err == io.EOF && in.here() > 0 {
				err = errCut
			}
			return 0, 0, err
		}
	}
}

var errCut = &connError{codeFrame, "the stream ends inside a frame"}

// skip reads over the payload of a frame of an unknown type (RFC 9114 §9).
func (st *stream) skip(length uint64, limit time.Duration) error {
	if !st.c.spend(1 + int(min(length, 1<<20)>>10)) {
		return &connError{codeExcessiveLoad, "too many frames of unknown types"}
	}
	for in := &st.in; ; {
		n := min(length, uint64(in.here()))
		in.r += int(n)
		if length -= n; length == 0 {
			return nil
		}
		if err := st.fill(limit); err != nil {
			return cut(err)
		}
	}
}

// cut turns the end of the stream into the error of one that comes too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return errCut
	}
	return err
}

// payload reads all of a frame. It is valid until the next read.
func (st *stream) payload(length int, limit time.Duration) ([]byte, error) {
	in := &st.in
	if length > inputSize {
		return st.longPayload(length, limit)
	}
	for in.here() < length {
		if err := st.fill(limit); err != nil {
			return nil, cut(err)
		}
	}
	if length == 0 {
		return nil, nil
	}
	p := (*in.buf)[in.r : in.r+length]
	in.r += length
	return p, nil
}

// longPayload is payload for what the buffer has no room for. Memory is taken for what has arrived, not for what is
// promised.
func (st *stream) longPayload(length int, limit time.Duration) ([]byte, error) {
	in := &st.in
	var p []byte
	for {
		n := min(length-len(p), in.here())
		if n > 0 {
			p = append(p, (*in.buf)[in.r:in.r+n]...)
			in.r += n
		}
		if len(p) == length {
			return p, nil
		}
		if err := st.fill(limit); err != nil {
			return nil, cut(err)
		}
	}
}
