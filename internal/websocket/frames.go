package websocket

// Frames follows the frames that are sent one way, to know where the next one begins. It looks at lengths and at nothing
// else: that the frames make sense is for their receiver to judge. The zero value stands before the first frame.
type Frames struct {
	head   [10]byte // of the frame that has begun; the mask is counted as payload
	have   int      // bytes of head
	left   uint64   // payload bytes to come
	closed bool
	lost   bool
}

const opClose = 8

// Feed takes the bytes that follow.
func (f *Frames) Feed(p []byte) {
	for len(p) > 0 && !f.lost {
		if f.left > 0 {
			n := min(uint64(len(p)), f.left)
			f.left -= n
			p = p[n:]
			continue
		}
		f.head[f.have] = p[0]
		f.have++
		p = p[1:]
		if f.have >= 2 && f.have == headLen(f.head[1]) {
			f.begin()
		}
	}
}

// headLen is the length of a frame's head, given its second byte (RFC 6455 section 5.2), without the mask.
func headLen(second byte) int {
	switch second & 0x7f {
	case 126:
		return 4
	case 127:
		return 10
	}
	return 2
}

// begin takes in a head that is complete.
func (f *Frames) begin() {
	f.left = uint64(f.head[1] & 0x7f)
	if f.have > 2 {
		f.left = 0
		for _, b := range f.head[2:f.have] {
			f.left = f.left<<8 | uint64(b)
		}
	}
	if f.left>>63 != 0 {
		f.lost = true // no length; nobody knows where the next frame begins
		return
	}
	if f.head[1]&0x80 != 0 {
		f.left += 4
	}
	f.closed = f.closed || f.head[0]&0x0f == opClose
	f.have = 0
}

// Between reports whether a frame of one's own may be sent now: the last one is complete and was not a close frame.
func (f *Frames) Between() bool { return !f.lost && !f.closed && f.have == 0 && f.left == 0 }

// ended reports whether a close frame was the last.
func (f *Frames) ended() bool { return !f.lost && f.closed && f.have == 0 && f.left == 0 }

// closeFrame is a close frame from a server (RFC 6455 section 5.5.1).
func closeFrame(code uint16) []byte { return []byte{0x80 | opClose, 2, byte(code >> 8), byte(code)} }
