package conn_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/sluice-proxy/sluice/internal/conn"
)

const (
	v2start = "\r\n\r\n\x00\r\nQUIT\n"
	v2tcp4  = v2start + "\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x03\xe8\x01\xbb"
	v1long  = "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"
)

// headerCases are headers with whom they tell of; "" the peer itself, "!" nobody: they are refused.
var headerCases = []struct{ name, header, client, local string }{
	{"v1 IPv4", "PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n", "192.0.2.1:1000", "192.0.2.2:443"},
	{"v1 shortest IPv4", "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "1.2.3.4:1", "1.2.3.4:2"},
	{"v1 IPv6", "PROXY TCP6 2001:db8::1 2001:db8::2 1000 443\r\n", "[2001:db8::1]:1000", "[2001:db8::2]:443"},
	{"v1 shortest IPv6", "PROXY TCP6 :: :: 1 2\r\n", "[::]:1", "[::]:2"},
	{"v1 mapped", "PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.2 1000 443\r\n", "192.0.2.1:1000", "192.0.2.2:443"},
	{"v1 unknown", "PROXY UNKNOWN\r\n", "", ""},
	{"v1 longest", v1long, "", ""},
	{"v2 IPv4", v2tcp4, "192.0.2.1:1000", "192.0.2.2:443"},
	{"v2 with extensions", v2start + "\x21\x11\x00\x13\xc0\x00\x02\x01\xc0\x00\x02\x02\x03\xe8\x01\xbb\x02\x00\x04a.bc", "192.0.2.1:1000", "192.0.2.2:443"},
	{"v2 IPv6", v2start + "\x21\x21\x00\x24" + strings.Repeat("\x00", 15) + "\x01" + strings.Repeat("\x00", 15) + "\x02\x03\xe8\x01\xbb", "[::1]:1000", "[::2]:443"},
	{"v2 local", v2start + "\x20\x00\x00\x00", "", ""},
	{"v2 unix", v2start + "\x21\x31\x00\xd8" + strings.Repeat("a", 216), "", ""},
	{"v2 datagram", v2start + "\x21\x12\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x03\xe8\x01\xbb", "!", ""},
	{"v2 of another version", v2start + "\x31\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x03\xe8\x01\xbb", "!", ""},
	{"v2 too short for its family", v2start + "\x21\x11\x00\x04\xc0\x00\x02\x01", "!", ""},
	{"v2 too long", v2start + "\x21\x11\xff\xff" + strings.Repeat("x", 0xffff), "!", ""},
	{"v1 port", "PROXY TCP4 192.0.2.1 192.0.2.2 1000 65536\r\n", "!", ""},
	{"v1 name", "PROXY TCP4 a.example 192.0.2.2 1000 443\r\n", "!", ""},
	{"v1 wrong family", "PROXY TCP4 2001:db8::1 2001:db8::2 1000 443\r\n", "!", ""},
	{"v1 line end", "PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\n", "!", ""},
	{"v1 endless", "PROXY UNKNOWN " + strings.Repeat("x", 200) + "\r\n", "!", ""},
	{"v1 blank too many", "PROXY  TCP4 192.0.2.1 192.0.2.2 1000 443\r\n", "!", ""},
	{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "!", ""},
	{"cut off", "PROXY TCP4 192.0", "!", ""},
	{"nothing", "", "!", ""},
}

func TestReadProxyHeader(t *testing.T) {
	for _, tc := range headerCases {
		for _, rest := range []string{"", "x", "PROXY TCP4 192.0.2.9 192.0.2.9 9 9\r\n"} {
			if tc.client == "!" && rest != "" {
				continue
			}
			t.Run(tc.name+"/"+rest[:min(len(rest), 5)], func(t *testing.T) {
				c := conn.NewPlain(&fixed{b: []byte(tc.header + rest)}, conn.Info{Remote: netip.MustParseAddrPort("10.0.0.1:1"), Local: netip.MustParseAddrPort("10.0.0.2:2")})
				err := conn.ReadProxyHeader(c, time.Minute)
				if tc.client == "!" {
					if !errors.Is(err, conn.ErrProxyHeader) || c.Info().Via.IsValid() || c.Info().Remote.String() != "10.0.0.1:1" {
						t.Errorf("%+v, %v", c.Info(), err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				want := conn.Info{Remote: netip.MustParseAddrPort("10.0.0.1:1"), Local: netip.MustParseAddrPort("10.0.0.2:2")}
				if tc.client != "" {
					want.Via, want.Remote, want.Local = want.Remote, netip.MustParseAddrPort(tc.client), netip.MustParseAddrPort(tc.local)
				}
				if *c.Info() != want {
					t.Errorf("%+v", c.Info())
				}
				if got, err := io.ReadAll(c); string(got) != rest || err != nil {
					t.Errorf("%q is left, want %q", got, rest)
				}
			})
		}
	}
}

// A peer that is silent is not waited for.
func TestReadProxyHeaderTimeout(t *testing.T) {
	a, b := conn.Pipe()
	defer a.Close()
	defer b.Close()
	_, _ = io.WriteString(a, "PROXY TCP4 ")
	c := conn.NewPlain(b, conn.Info{})
	if err := conn.ReadProxyHeader(c, 20*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, conn.ErrProxyHeader) {
		t.Error(err)
	}
}

func TestProxyHeader(t *testing.T) {
	client, local := netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("192.0.2.2:443")
	six := netip.MustParseAddrPort("[2001:db8::1]:1000")
	for _, tc := range []struct {
		version int
		info    conn.Info
		want    string
	}{
		{1, conn.Info{Remote: client, Local: local}, "PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n"},
		{1, conn.Info{Remote: six, Local: local}, "PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 1000 443\r\n"},
		{1, conn.Info{}, "PROXY UNKNOWN\r\n"},
		{2, conn.Info{Remote: client, Local: local}, v2tcp4},
		{2, conn.Info{}, v2start + "\x20\x00\x00\x00"},
	} {
		got, err := conn.ProxyHeader(tc.version, &tc.info)
		if string(got) != tc.want || err != nil {
			t.Errorf("version %d of %+v: %q, %v", tc.version, tc.info, got, err)
		}
	}
}

// Whatever is sent, what is taken for a header is exactly what the library reads of it.
func FuzzReadProxyHeader(f *testing.F) {
	for _, tc := range headerCases {
		f.Add([]byte(tc.header + "rest"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := conn.NewPlain(&fixed{b: b}, conn.Info{Remote: netip.MustParseAddrPort("10.0.0.1:1")})
		if conn.ReadProxyHeader(c, time.Minute) != nil {
			return
		}
		left, _ := io.ReadAll(c)
		r := bufio.NewReaderSize(bytes.NewReader(b), 1<<17)
		h, err := proxyproto.Read(r)
		if err != nil {
			t.Fatalf("the library refuses it: %v", err)
		}
		if want, _ := io.ReadAll(r); !bytes.Equal(left, want) {
			t.Fatalf("%d bytes left, by the library %d", len(left), len(want))
		}
		if src, _, ok := h.TCPAddrs(); ok && !h.Command.IsLocal() {
			if got := c.Info().Remote; got.Port() != uint16(src.Port) || got.Addr() != src.AddrPort().Addr().Unmap() {
				t.Fatalf("client %v, by the library %v", got, src)
			}
		}
	})
}
