package exchange_test

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

func TestParseAuthority(t *testing.T) {
	good := map[string]string{
		"example.com:443": "", "EXAMPLE.com.:1": "example.com:1", "a_b-c.d:65535": "", "93.184.216.34:443": "", "[2001:db8::1]:8443": "",
		"[::ffff:10.0.0.1]:80": "10.0.0.1:80", "localhost:80": "", strings.Repeat("a", 63) + ".b:1": "", "h:00080": "h:80",
	}
	for in, want := range good {
		if want == "" {
			want = in
		}
		if a, err := exchange.ParseAuthority([]byte(in)); err != nil || a.String() != want {
			t.Errorf("%s: %v, %v", in, a, err)
		}
	}
	for _, in := range []string{
		"", ":", ":443", "h", "h:", "h:0", "h:65536", "h:+1", "h:-1", "h:1a", "h:000080", "1.2.3.4", "1.2.3.4:0", "1.2.3.4:65536", "01.2.3.4:80", "0x7f.1:80",
		"127.1:80", "2130706433:80", "[fe80::1%eth0]:80", "[1.2.3.4]:80", "::1:80", "[::1]", "[::1:80", "::1]:80", "h:80:80", "u@h:80", "h /:80", "-a:80",
		"a-:80", "a..b:80", ".a:80", "a..:80", ".:80", "ä:80", "h\x00:80", "h%41:80", strings.Repeat("a", 64) + ":1", strings.Repeat("a.", 127) + "bb:1",
	} {
		if a, err := exchange.ParseAuthority([]byte(in)); err == nil {
			t.Errorf("%q: %v", in, a)
		}
	}
}

// What is accepted reads back as itself, and is what the standard library would dial.
func FuzzParseAuthority(f *testing.F) {
	for _, s := range []string{"example.com:443", "[2001:db8::1]:1", "1.2.3.4:5", "a:1", "[::ffff:1.2.3.4]:80", "A.:9", "0x7f.1:80"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := exchange.ParseAuthority(b)
		if err != nil {
			return
		}
		text := a.String()
		again, err := exchange.ParseAuthority([]byte(text))
		if err != nil || again != a {
			t.Fatalf("%q is %v, which reads as %v, %v", b, a, again, err)
		}
		host, port, err := net.SplitHostPort(text)
		if n, perr := strconv.Atoi(port); err != nil || perr != nil || n != int(a.Port) || n == 0 {
			t.Fatalf("%q: port %q, %v", text, port, err)
		}
		if ip, err := netip.ParseAddr(host); (err == nil) != a.Addr.IsValid() || err == nil && ip != a.Addr {
			t.Fatalf("%q: host %q", text, host)
		}
	})
}
