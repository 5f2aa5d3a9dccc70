package egress_test

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/egress"
)

var (
	label63 = strings.Repeat("a", 63)
	name253 = strings.Repeat("a.", 126) + "b"
)

// nameVectors are names and their normal form, "" for what is none.
var nameVectors = []struct{ in, want string }{
	{"example.com", "example.com"},
	{"localhost", "localhost"},
	{"Example.COM", "example.com"},
	{"example.com.", "example.com"},
	{"xn--bcher-kva.example", "xn--bcher-kva.example"},
	{"_acme-challenge.example.com", "_acme-challenge.example.com"},
	{"-a-.example", "-a-.example"},
	{"1.2.3.example", "1.2.3.example"},
	{"0x7f.example", "0x7f.example"},
	{"a.0x7g", "a.0x7g"},
	{"a.1b", "a.1b"},
	{label63 + ".test", label63 + ".test"},
	{name253, name253},
	{name253 + ".", name253},

	{"", ""},
	{".", ""},
	{"..", ""},
	{"example.com..", ""},
	{".example.com", ""},
	{"a..b", ""},
	{"a.", "a"},
	{"example.com ", ""},
	{" example.com", ""},
	{"exa mple.com", ""},
	{"example.com:443", ""},
	{"http://example.com", ""},
	{"example.com/", ""},
	{"u@example.com", ""},
	{"example.com\x00", ""},
	{"example.com\n", ""},
	{"*.example.com", ""},
	{"*", ""},
	{"bücher.example", ""},
	{"\u212aube.example", ""}, // the Kelvin sign is no k
	{"\u017flack.example", ""},
	{"ｅxample.com", ""},
	{"example。com", ""},
	{"a%2eb", ""},
	{label63 + "a.test", ""},
	{"a" + name253, ""},

	{"1.2.3.4", ""},
	{"01.2.3.4", ""},
	{"1.2.3.4.", ""},
	{"1.2.3", ""},
	{"0x7f.1", ""},
	{"0x7f.0.0.0x1", ""},
	{"0X7F.1", ""},
	{"0x", ""},
	{"a.0xff", ""},
	{"2130706433", ""},
	{"017700000001", ""},
	{"127.1", ""},
	{"a.1", ""},
	{"::1", ""},
	{"[::1]", ""},
}

func TestParseName(t *testing.T) {
	for _, v := range nameVectors {
		h, err := egress.ParseName(v.in)
		if h.Name() != v.want || (err == nil) != (v.want != "") || err != nil && !errors.Is(err, egress.ErrHost) || h.Addr().IsValid() {
			t.Errorf("ParseName(%q) = %v, %v; want %q", v.in, h, err, v.want)
		}
	}
}

// authorityVectors are authorities that are not only names.
var authorityVectors = []struct{ in, want string }{
	{"example.com:443", "example.com"},
	{"api.example.com:9999", "api.example.com"},
	{"Example.com.:80", "example.com"},
	{"1.2.3.4", "1.2.3.4"},
	{"1.2.3.4:8080", "1.2.3.4"},
	{"[2001:DB8::1]", "2001:db8::1"},
	{"[2001:db8:0:0::1]:443", "2001:db8::1"},
	{"[::ffff:1.2.3.4]", "1.2.3.4"},
	{"[::ffff:102:304]:1", "1.2.3.4"},

	{":443", ""},
	{"example.com:", ""},
	{"example.com:0", ""},
	{"example.com:65536", ""},
	{"example.com:080", ""},
	{"example.com:+80", ""},
	{"example.com:http", ""},
	{"example.com:80:80", ""},
	{"example.com..:80", ""},
	{"2001:db8::1", ""},
	{"::1", ""},
	{"::ffff:1.2.3.4", ""},
	{"[1.2.3.4]", ""},
	{"[example.com]", ""},
	{"[::1", ""},
	{"::1]", ""},
	{"[::1]x", ""},
	{"[::1]:", ""},
	{"x[::1]", ""},
	{"[[::1]]", ""},
	{"[]", ""},
	{"[fe80::1%eth0]", ""},
	{"[fe80::1%25eth0]:80", ""},
	{"1.2.3.4%eth0", ""},
	{"01.2.3.4:80", ""},
	{"1.2.3.4.:80", ""},
	{"user@example.com", ""},
	{"example.com,example.com", ""},
	{"example.com, other.test", ""},
}

func TestParseAuthority(t *testing.T) {
	vectors := authorityVectors
	for _, v := range nameVectors {
		if v.in != "example.com:443" && v.in != "1.2.3.4" && v.in != "[::1]" { // these are authorities, but no names
			vectors = append(vectors, v)
		}
	}
	for _, v := range vectors {
		h, err := egress.ParseAuthority(v.in)
		if err != nil && (!errors.Is(err, egress.ErrHost) || h != egress.Host{}) || (err == nil) != (v.want != "") || err == nil && h.String() != v.want {
			t.Errorf("ParseAuthority(%q) = %v, %v; want %q", v.in, h, err, v.want)
		}
	}
}

var dialedVectors = []struct{ in, want string }{
	{"93.184.216.34:443", "93.184.216.34:443"},
	{"[2001:db8::1]:8443", "[2001:db8::1]:8443"},
	{"[::ffff:93.184.216.34]:1", "93.184.216.34:1"},
	{"1.2.3.4:65535", "1.2.3.4:65535"},

	{"example.com:443", ""},
	{"1.2.3.4", ""},
	{"1.2.3.4:", ""},
	{"1.2.3.4:0", ""},
	{"1.2.3.4:65536", ""},
	{"1.2.3.4:99999999999", ""},
	{"1.2.3.4:abc", ""},
	{"1.2.3.4:-1", ""},
	{"1.2.3.4:0443", ""},
	{"1.2.3.4:443 ", ""},
	{" 1.2.3.4:443", ""},
	{"1.2.3.4:443:443", ""},
	{"[fe80::1%eth0]:80", ""},
	{"[2001:db8::1]", ""},
	{"2001:db8::1:80", ""},
	{"[1.2.3.4]:80", ""},
	{"01.2.3.4:80", ""},
	{"0x7f.1:80", ""},
	{"2130706433:80", ""},
	{"localhost:80", ""},
	{":80", ""},
	{"", ""},
}

func TestParseDialed(t *testing.T) {
	for _, v := range dialedVectors {
		a, err := egress.ParseDialed(v.in)
		if (err == nil) != (v.want != "") || err == nil && a.String() != v.want || err != nil && (!errors.Is(err, egress.ErrDialed) || a.IsValid()) {
			t.Errorf("ParseDialed(%q) = %v, %v; want %q", v.in, a, err, v.want)
		}
	}
}

// nameTwin normalizes in another way: label by label.
func nameTwin(s string) (string, bool) {
	labels := strings.Split(s, ".")
	if len(labels) > 1 && labels[len(labels)-1] == "" {
		labels = labels[:len(labels)-1]
	}
	const digits, letters = "0123456789", "abcdefghijklmnopqrstuvwxyz"
	for i, l := range labels {
		l = strings.Map(func(r rune) rune {
			if r >= 'A' && r <= 'Z' {
				return r - 'A' + 'a'
			}
			return r
		}, l)
		if l == "" || len(l) > 63 || strings.Trim(l, digits+letters+"-_") != "" || strings.ContainsFunc(l, func(r rune) bool { return !strings.ContainsRune(digits+letters+"-_", r) }) {
			return "", false
		}
		labels[i] = l
	}
	last := labels[len(labels)-1]
	name := strings.Join(labels, ".")
	if len(name) > 253 || strings.Trim(last, digits) == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], digits+"abcdef") == "" {
		return "", false
	}
	return name, true
}

func checkHost(t interface{ Fatalf(string, ...any) }, s string) {
	h, err := egress.ParseName(s)
	want, ok := nameTwin(s)
	if h.Name() != want || (err == nil) != ok {
		t.Fatalf("ParseName(%q) = %v, %v; the twin finds %q, %v", s, h, err, want, ok)
	}
	if err == nil {
		if again, err := egress.ParseName(h.Name()); again != h || err != nil {
			t.Fatalf("the normal form %q of %q becomes %v, %v", h, s, again, err)
		}
		// A name means the same wherever it is read.
		if a, err := egress.ParseAuthority(s); a != h || err != nil {
			t.Fatalf("the name %q is as an authority %v, %v", s, a, err)
		}
	}
	a, err := egress.ParseAuthority(s)
	if err != nil {
		if _, err := egress.ParseDialed(s); err == nil {
			t.Fatalf("%q can be dialed, and is no authority", s)
		}
		return
	}
	// What is accepted is the same host to the library that others use.
	u, uerr := url.Parse("http://" + s + "/")
	if uerr != nil || u.User != nil || u.Path != "/" {
		t.Fatalf("%q is accepted, and as part of a URL it is %v, %v", s, u, uerr)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); (err == nil) != a.Addr().IsValid() || err == nil && addr.Unmap() != a.Addr() {
		t.Fatalf("%q is %v, and as part of a URL %v, %v", s, a, addr, err)
	}
	if d, err := egress.ParseDialed(s); (err == nil) != (a.Addr().IsValid() && u.Port() != "") || err == nil && d.Addr() != a.Addr() {
		t.Fatalf("%q is the authority %v, and dialed %v, %v", s, a, d, err)
	}
}

func TestI28_HostTwin(t *testing.T) {
	near := rapid.OneOf(
		rapid.StringMatching(`[aB0-9x_.-]{0,12}\.?(:[0-9]{0,6})?`),
		rapid.StringMatching(`\[?[0-9a-f:.]{0,20}(%e)?\]?(:[0-9]{0,6})?`),
		rapid.StringMatching(`(0x)?[0-9a-f]{1,3}(\.(0x)?[0-9a-f]{1,3}){0,4}\.{0,2}`),
		rapid.StringMatching(`([a-z]{60,66}\.){0,5}[a-z]{0,3}`),
		rapid.String(),
	)
	rapid.Check(t, func(t *rapid.T) { checkHost(t, near.Draw(t, "host")) })
}

func FuzzHost(f *testing.F) {
	for _, v := range nameVectors {
		f.Add(v.in)
	}
	for _, v := range authorityVectors {
		f.Add(v.in)
	}
	for _, v := range dialedVectors {
		f.Add(v.in)
	}
	f.Fuzz(func(t *testing.T, s string) { checkHost(t, s) })
}
