package conn_test

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// helloOf is the first flight of crypto/tls's client.
func helloOf(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_ = tls.Client(far, cfg).Handshake()
		_ = far.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(near, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(near, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// fixed gives the bytes of a hello, then an end.
type fixed struct {
	net.Conn
	b []byte
}

func (f *fixed) Read(p []byte) (int, error) {
	if len(f.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.b)
	f.b = f.b[n:]
	return n, nil
}
func (*fixed) Write(p []byte) (int, error)     { return len(p), nil }
func (*fixed) Close() error                    { return nil }
func (*fixed) SetDeadline(time.Time) error     { return nil }
func (*fixed) SetReadDeadline(time.Time) error { return nil }
func (*fixed) LocalAddr() net.Addr             { return &net.TCPAddr{} }
func (*fixed) RemoteAddr() net.Addr            { return &net.TCPAddr{} }

var errSeen = errors.New("seen")

// oracle is how crypto/tls reads a hello; false: it does not take it for one.
func oracle(b []byte) (name string, ok bool) {
	_ = tls.Server(&fixed{b: b}, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = i.ServerName, true
		return nil, errSeen
	}}).Handshake()
	return name, ok
}

// peek reads a hello that lies ready.
func peek(b []byte) (conn.Hello, error) {
	h, _, err := conn.PeekHello(conn.NewPlain(&fixed{b: b}, conn.Info{}), conn.MaxHello, time.Minute)
	return h, err
}

// record makes TLS records of at most size bytes out of handshake bytes.
func records(msg []byte, size int) []byte {
	var out []byte
	for len(msg) > 0 {
		n := min(size, len(msg))
		out = append(out, 22, 3, 1, byte(n>>8), byte(n))
		out = append(out, msg[:n]...)
		msg = msg[n:]
	}
	return out
}

// sized puts a big-endian length of n bytes before b.
func sized(n int, b ...byte) []byte {
	out := make([]byte, n, n+len(b))
	for i := range n {
		out[i] = byte(len(b) >> (8 * (n - 1 - i)))
	}
	return append(out, b...)
}

func ext(kind uint16, data []byte) []byte {
	return append([]byte{byte(kind >> 8), byte(kind)}, sized(2, data...)...)
}

// sni is a server name extension with a list of entries, each a kind and a name.
func sni(entries ...[]byte) []byte {
	var list []byte
	for _, e := range entries {
		list = append(list, e...)
	}
	return ext(0, sized(2, list...))
}

func host(name string) []byte { return append([]byte{0}, sized(2, []byte(name)...)...) }

// message is a ClientHello out of its parts; extensions nil leaves their block out.
func message(session, suites, compression []byte, extensions ...[]byte) []byte {
	b := append([]byte{3, 3}, make([]byte, 32)...)
	b = append(b, sized(1, session...)...)
	b = append(b, sized(2, suites...)...)
	b = append(b, sized(1, compression...)...)
	if extensions != nil {
		var all []byte
		for _, e := range extensions {
			all = append(all, e...)
		}
		b = append(b, sized(2, all...)...)
	}
	return append([]byte{1}, sized(3, b...)...)
}

var suites = []byte{0x13, 0x01, 0x0a, 0x0a} // the second is GREASE

func hello(extensions ...[]byte) []byte {
	return message(nil, suites, []byte{0}, extensions...)
}

func TestPeekHello(t *testing.T) {
	grease := ext(0x2a2a, nil)
	many := func(n int) (all [][]byte) {
		for i := range n {
			all = append(all, ext(uint16(0x1000+i), nil))
		}
		return all
	}
	for _, tc := range []struct {
		name string
		raw  []byte
		sni  string
		err  error
	}{
		{"one name", records(hello(sni(host("a.example"))), 16384), "a.example", nil},
		{"GREASE around", records(hello(grease, sni(host("a.example")), ext(0x3a3a, []byte{0})), 16384), "a.example", nil},
		{"no name", records(hello(grease), 16384), "", nil},
		{"no extensions", records(message(nil, suites, []byte{0}), 16384), "", nil},
		{"empty extensions", records(hello([]byte{}), 16384), "", nil},
		{"name of another kind", records(hello(sni([]byte{7, 0, 1, 'x'}, host("a.example"))), 16384), "a.example", nil},
		{"two names", records(hello(sni(host("a"), host("b"))), 16384), "", conn.ErrBadHello},
		{"two extensions", records(hello(sni(host("a")), sni(host("b"))), 16384), "", conn.ErrBadHello},
		{"trailing dot", records(hello(sni(host("a.example."))), 16384), "", conn.ErrBadHello},
		{"empty name", records(hello(sni(host(""))), 16384), "", conn.ErrBadHello},
		{"empty list", records(hello(sni()), 16384), "", conn.ErrBadHello},
		{"bytes behind the list", records(hello(ext(0, append(sized(2, host("a")...), 0))), 16384), "", conn.ErrBadHello},
		{"name cut off", records(hello(ext(0, []byte{0, 4, 0, 0, 9, 'a'})), 16384), "", conn.ErrBadHello},
		{"bytes behind the extensions", records(fixLength(append(hello(grease), 0)), 16384), "", conn.ErrBadHello},
		{"odd suites", records(message(nil, []byte{1, 2, 3}, []byte{0}), 16384), "", conn.ErrBadHello},
		{"long session", records(message(make([]byte, 33), suites, []byte{0}), 16384), "", conn.ErrBadHello},
		{"256 extensions", records(hello(many(256)...), 16384), "", nil},
		{"257 extensions", records(hello(many(257)...), 16384), "", conn.ErrBadHello},
		{"in records of one byte", records(hello(sni(host("a.example"))), 1), "a.example", nil},
		{"large", records(hello(ext(21, make([]byte, 60_000)), sni(host("a.example"))), 16384), "a.example", nil},
		{"too large", records(hello(ext(21, make([]byte, 65_000)), ext(35, make([]byte, 3000))), 16384), "", conn.ErrHelloTooLarge},
		{"says to be too large", []byte{22, 3, 1, 0, 4, 1, 1, 0, 1}, "", conn.ErrHelloTooLarge},
		{"another record inside", append(records(hello(sni(host("a")))[:10], 10), 21, 3, 1, 0, 2, 1, 0), "", conn.ErrBadHello},
		{"empty record", []byte{22, 3, 1, 0, 0}, "", conn.ErrNotTLS},
		{"record too large", []byte{22, 3, 1, 0x40, 1, 1}, "", conn.ErrNotTLS},
		{"SSL 2", []byte{0x80, 0x2e, 1, 3, 1}, "", conn.ErrNotTLS},
		{"another message", []byte{22, 3, 3, 0, 4, 2, 0, 0, 0}, "", conn.ErrNotTLS},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), "", conn.ErrNotTLS},
		{"cut off", records(hello(sni(host("a.example"))), 16384)[:40], "", io.EOF},
		{"nothing", nil, "", io.EOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, err := peek(tc.raw)
			if h.ServerName != tc.sni || !errors.Is(err, tc.err) {
				t.Errorf("%+v, %v", h, err)
			}
			agrees(t, tc.raw)
		})
	}
}

// fixLength repairs the length of a message whose body was changed.
func fixLength(msg []byte) []byte {
	n := len(msg) - 4
	msg[1], msg[2], msg[3] = byte(n>>16), byte(n>>8), byte(n)
	return msg
}

// agrees compares with crypto/tls: where both read a hello they read the same name, and what crypto/tls reads is read
// here, unless it is one of the few things in which we are stricter.
func agrees(t testing.TB, raw []byte) {
	t.Helper()
	want, ok := oracle(raw)
	h, err := peek(raw)
	switch {
	case err == nil && ok && h.ServerName != want:
		t.Errorf("read as %q, by crypto/tls as %q", h.ServerName, want)
	case err != nil && ok && !stricter(raw, err):
		t.Errorf("refused with %v what crypto/tls reads as %q\n%s", err, want, hex.EncodeToString(raw))
	}
}

// stricter recognises what RFC 8446 forbids and crypto/tls lets pass: a session id over 32 bytes, no cipher suite, no
// compression method, hundreds of extensions, and a record of another major version. Above our limit on raw bytes it
// also reads on, and it skips alerts between records.
func stricter(raw []byte, err error) bool {
	if len(raw) >= conn.MaxHello || errors.Is(err, conn.ErrHelloTooLarge) {
		return true
	}
	var msg []byte
	for len(raw) >= 5 {
		if raw[0] != 22 || raw[1] != 3 {
			return true
		}
		n := min(int(binary.BigEndian.Uint16(raw[3:])), len(raw)-5)
		msg, raw = append(msg, raw[5:5+n]...), raw[5+n:]
	}
	if len(msg) < 4+2+32+1 {
		return false
	}
	b := msg[4+2+32:]
	session := int(b[0])
	if session > 32 {
		return true
	}
	if b = b[1+session:]; len(b) < 2 {
		return false
	}
	n := int(binary.BigEndian.Uint16(b))
	if n == 0 {
		return true
	}
	if b = b[2+n:]; len(b) < 1 || b[0] == 0 {
		return true
	}
	return len(b) > 4*256
}

// The hellos of real clients, cut at every byte and in records of every size, are read the same as whole.
func TestPeekHelloInPieces(t *testing.T) {
	for name, cfg := range map[string]*tls.Config{
		"1.3":    {ServerName: "models.example"},
		"1.2":    {ServerName: "models.example", MaxVersion: tls.VersionTLS12},
		"alpn":   {ServerName: "a.b.c.example", NextProtos: []string{"h2", "http/1.1"}},
		"no sni": {InsecureSkipVerify: true},
	} {
		t.Run(name, func(t *testing.T) {
			raw := helloOf(t, cfg)
			if h, err := peek(raw); err != nil || h.ServerName != cfg.ServerName || h.ECH {
				t.Fatalf("%+v, %v", h, err)
			}
			agrees(t, raw)
			for cut := 1; cut < len(raw); cut++ {
				h, c, err := peekPieces(raw[:cut], raw[cut:])
				if err != nil || h.ServerName != cfg.ServerName {
					t.Fatalf("cut at %d: %+v, %v", cut, h, err)
				}
				if again, err := io.ReadAll(c); string(again) != string(raw) || err != nil {
					t.Fatalf("cut at %d: %d of %d bytes can be read again, %v", cut, len(again), len(raw), err)
				}
			}
			for size := 1; size < len(raw); size++ {
				again := records(raw[5:], size)
				if h, err := peek(again); err != nil || h.ServerName != cfg.ServerName {
					t.Fatalf("in records of %d: %+v, %v", size, h, err)
				}
				if size%97 == 1 {
					agrees(t, again)
				}
			}
		})
	}
}

// pieces gives one piece a read.
type pieces struct {
	fixed
	all [][]byte
}

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.b) == 0 && len(p.all) > 0 {
		p.b, p.all = p.all[0], p.all[1:]
	}
	return p.fixed.Read(b)
}

func peekPieces(all ...[]byte) (conn.Hello, conn.Conn, error) {
	return conn.PeekHello(conn.NewPlain(&pieces{all: all}, conn.Info{}), conn.MaxHello, time.Minute)
}

// A client that uses ECH is known by it; the name is the outer one.
func TestPeekHelloECH(t *testing.T) {
	h, err := peek(records(hello(sni(host("outer.example")), ext(0xfe0d, []byte{0, 0, 1, 0, 1, 7, 0, 0, 0, 0})), 16384))
	if err != nil || h.ServerName != "outer.example" || !h.ECH {
		t.Errorf("%+v, %v", h, err)
	}
}

// A client that is silent, or stops, is waited for no longer than asked, and the connection is usable afterwards.
func TestPeekHelloTimeout(t *testing.T) {
	for _, sent := range []string{"", "\x16\x03\x01\x02"} {
		t.Run(fmt.Sprint(len(sent)), func(t *testing.T) {
			a, b := conn.Pipe()
			defer a.Close()
			defer b.Close()
			_, _ = io.WriteString(a, sent)
			_, c, err := conn.PeekHello(b, conn.MaxHello, 30*time.Millisecond)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			_, _ = io.WriteString(a, "later")
			a.CloseWrite()
			if got, err := io.ReadAll(c); string(got) != sent+"later" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// The limit is the caller's.
func TestPeekHelloLimit(t *testing.T) {
	raw := records(hello(sni(host(strings.Repeat("a", 200)))), 16384)
	_, _, err := conn.PeekHello(conn.NewPlain(&fixed{b: raw}, conn.Info{}), 100, time.Minute)
	if !errors.Is(err, conn.ErrHelloTooLarge) {
		t.Error(err)
	}
}

func FuzzPeekHello(f *testing.F) {
	for _, cfg := range []*tls.Config{{ServerName: "models.example"}, {ServerName: "x.example", MaxVersion: tls.VersionTLS12}} {
		raw := helloOf(f, cfg)
		f.Add(raw, 0)
		f.Add(records(raw[5:], 50), 7)
	}
	f.Add(records(hello(sni(host("a"), host("b"))), 16384), 3)
	f.Add(records(hello(ext(0x2a2a, nil), sni([]byte{7, 0, 1, 'x'}, host("a"))), 9), 12)
	f.Fuzz(func(t *testing.T, raw []byte, cut int) {
		agrees(t, raw)
		whole, err := peek(raw)
		cut = max(0, min(cut, len(raw)))
		parts, c, perr := peekPieces(raw[:cut], raw[cut:])
		if parts != whole || (err == nil) != (perr == nil) {
			t.Fatalf("whole %+v, %v; cut at %d %+v, %v", whole, err, cut, parts, perr)
		}
		if again, _ := io.ReadAll(c); string(again) != string(raw) {
			t.Fatal("other bytes can be read again")
		}
	})
}
