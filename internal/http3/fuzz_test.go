package http3_test

import (
	"bytes"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http3"
)

// FuzzSection decodes field sections. What comes out is bounded by what went in, and comes out again when it is encoded.
func FuzzSection(f *testing.F) {
	f.Add(section(":method", "GET", ":path", "/", "x-a", "b"))
	f.Add([]byte{0, 0, 0xff, 0x00, 0x27, 0x00})
	f.Fuzz(func(t *testing.T, in []byte) {
		var fields []string
		size := 0
		if http3.Decode(in, math.MaxInt, func(name, value string) {
			fields = append(fields, name, value)
			size += len(name) + len(value)
		}) != nil {
			return
		}
		if size > 64*len(in) { // the longest line of the static table, for a byte
			t.Errorf("%d bytes out of %d", size, len(in))
		}
		var again []string
		if err := http3.Decode(section(fields...), math.MaxInt, func(name, value string) { again = append(again, name, value) }); len(fields) > 0 && (err != nil || strings.Join(again, "\n") != strings.Join(fields, "\n")) {
			t.Errorf("%v: %q behind %q", err, again, fields)
		}
	})
}

// FuzzHead encodes response heads, whatever their fields, so that quic-go's decoder reads the same.
func FuzzHead(f *testing.F) {
	f.Add(200, "X-A", "b", int64(3))
	f.Add(404, "Content-Type", strings.Repeat("long", 100), int64(-1))
	f.Fuzz(func(t *testing.T, status int, name, value string, length int64) {
		if status < 100 || status > 999 || !exchange.ValidName(name) || !exchange.ValidValue(value) {
			return
		}
		var fields exchange.Fields
		fields.Add(name, value)
		b := http3.AppendHead(status, &fields, length)
		typ, size, n := http3.FrameHead(b)
		if typ != 1 || int(size) != len(b)-n {
			t.Fatalf("a frame of type %d with %d of %d bytes", typ, size, len(b)-n)
		}
		next := qpack.NewDecoder().Decode(b[n:])
		got := map[string]string{}
		for field, err := next(); err == nil; field, err = next() {
			got[field.Name] = field.Value
		}
		lower := strings.ToLower(name)
		if v, sent := got[lower]; sent && v != value && lower != "content-length" {
			t.Errorf("%q is %q", lower, v)
		}
		if len(got[":status"]) != 3 {
			t.Errorf("status %q", got[":status"])
		}
	})
}

// FuzzControl reads the client's critical streams: they end, and with an error of theirs or none.
func FuzzControl(f *testing.F) {
	f.Add(byte(0), join(frame(4, []byte{6, 0x40, 0x64}), frame(7, []byte{0}), frame(0x21, []byte("grease"))))
	f.Add(byte(2), []byte{0x20, 0x20})
	f.Add(byte(3), []byte{0x41, 0x7f, 0x80, 0x01})
	f.Fuzz(func(t *testing.T, kind byte, in []byte) {
		code := http3.ReadControl([]int{0, 2, 3}[kind%3], bytes.NewReader(in))
		if code != 0 && (code < 0x100 || code > 0x202) {
			t.Errorf("code %#x", code)
		}
	})
}

// FuzzPassed takes apart what is passed back between processes, and looks at packets for whom they are.
func FuzzPassed(f *testing.F) {
	f.Add([]byte("packet"), []byte{192, 0, 2, 1}, uint16(443))
	f.Fuzz(func(t *testing.T, p, ip []byte, port uint16) {
		_, _, _ = http3.ParsePassed(p)
		short := len(p) > 10 && p[0]&0x80 == 0
		long := len(p) >= 16 && p[0]&0x80 != 0 && p[5] == 10
		switch owner, known := http3.OwnerOf(p); {
		case known != (short || long), short && string(owner[:]) != string(p[1:3]), long && string(owner[:]) != string(p[6:8]):
			t.Errorf("%x is of %x, %t", p, owner, known)
		}
		addr, ok := netip.AddrFromSlice(ip)
		if !ok {
			return
		}
		from := netip.AddrPortFrom(addr, port)
		if got, payload, ok := http3.ParsePassed(http3.AppendPassed(from, p)); !ok || got != from || !bytes.Equal(payload, p) {
			t.Errorf("%v %x became %v %x", from, p, got, payload)
		}
	})
}

// FuzzFrameHead parses the heads of frames as two numbers.
func FuzzFrameHead(f *testing.F) {
	f.Add([]byte{1, 0x40, 0x64})
	f.Fuzz(func(t *testing.T, in []byte) {
		typ, length, n := http3.FrameHead(in)
		r := bytes.NewReader(in)
		first, err1 := quicvarint.Read(r)
		second, err2 := quicvarint.Read(r)
		if (n > 0) != (err1 == nil && err2 == nil) || n > 0 && (typ != first || length != second || n != len(in)-r.Len()) {
			t.Errorf("%d %d %d, not %d %d (%v %v)", typ, length, n, first, second, err1, err2)
		}
	})
}
