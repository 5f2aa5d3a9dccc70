package websocket_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/sluice-proxy/sluice/internal/websocket"
)

// frame is one with a payload of zeros.
func frame(first byte, masked bool, n int) []byte {
	mask := byte(0)
	if masked {
		mask = 0x80
	}
	var b []byte
	switch {
	case n < 126:
		b = []byte{first, mask | byte(n)}
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16([]byte{first, mask | 126}, uint16(n))
	default:
		b = binary.BigEndian.AppendUint64([]byte{first, mask | 127}, uint64(n))
	}
	if masked {
		n += 4
	}
	return append(b, make([]byte, n)...)
}

// ends lists the offsets at which the whole reader finds the end of a frame; closed is behind which one no other may
// follow, lost where its length cannot be one; -1 none.
func ends(b []byte) (at map[int]bool, closed, lost int) {
	at, closed, lost = map[int]bool{0: true}, -1, -1
	for i := 0; i < len(b); {
		if i+2 > len(b) {
			return at, closed, lost
		}
		head, n := 2, uint64(b[i+1]&0x7f)
		switch {
		case n == 126:
			head = 4
		case n == 127:
			head = 10
		}
		if i+head > len(b) {
			return at, closed, lost
		}
		switch head {
		case 4:
			n = uint64(binary.BigEndian.Uint16(b[i+2:]))
		case 10:
			n = binary.BigEndian.Uint64(b[i+2:])
		}
		if n >= 1<<63 {
			return at, closed, i + head
		}
		if b[i+1]&0x80 != 0 {
			n += 4
		}
		if b[i]&0xf == 8 && closed < 0 {
			closed = i + head
		}
		if n > uint64(len(b)-i-head) {
			return at, closed, lost
		}
		i += head + int(n)
		at[i] = true
	}
	return at, closed, lost
}

// follow holds Frames against the whole reader at every offset, whatever the pieces.
func follow(t *testing.T, b []byte, piece int) {
	t.Helper()
	at, closed, lost := ends(b)
	var f websocket.Frames
	for i := 0; ; {
		want := at[i] && (closed < 0 || i < closed) && (lost < 0 || i < lost)
		if f.Between() != want {
			t.Fatalf("at %d of %x in pieces of %d: between %t, want %t", i, b, piece, f.Between(), want)
		}
		if i == len(b) {
			return
		}
		n := min(piece, len(b)-i)
		f.Feed(b[i : i+n])
		i += n
	}
}

func TestFrames(t *testing.T) {
	for _, masked := range []bool{false, true} {
		var all []byte
		for _, n := range []int{0, 1, 125, 126, 127, 300, 65535, 65536, 0} {
			all = append(all, frame(0x82, masked, n)...)
			all = append(all, frame(0x89, masked, 3)...)
		}
		for _, piece := range []int{1, 2, 3, 7, 100, 4096, 1 << 20} {
			follow(t, all, piece)
		}
	}
	small := bytes.Join([][]byte{frame(1, false, 2), frame(0x89, false, 0), frame(0x80, false, 126), frame(0x88, false, 2), frame(0x81, false, 1)}, nil)
	for piece := 1; piece < len(small); piece++ {
		follow(t, small, piece)
	}
	follow(t, append([]byte{0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0}, small...), 1)
	follow(t, append([]byte{0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, small...), 3)

	var f websocket.Frames
	f.Feed([]byte{0x88, 2, 3, 0xe9})
	if f.Between() {
		t.Error("a frame may follow a close frame")
	}
	if n := testing.AllocsPerRun(100, func() { f = websocket.Frames{}; f.Feed(small) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{0x81, 2, 'h', 'i', 0x88, 2, 3, 0xe8}, uint8(1))
	f.Add([]byte{0x82, 126, 0, 3, 1, 2, 3, 0x82, 127, 0, 0, 0, 0, 0, 0, 0, 1, 9}, uint8(3))
	f.Add([]byte{0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1}, uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) { follow(t, b, int(piece)+1) })
}
