package route_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

func TestNormalPath(t *testing.T) {
	for _, tc := range []struct {
		in, want string // want equal to in: unchanged
		err      error
	}{
		{"/", "/", nil},
		{"", "/", nil},
		{"*", "*", nil},
		{"/a/b/", "/a/b/", nil},
		{"/a/.b/..c/...", "/a/.b/..c/...", nil},
		{"/a;x=1/b@c:d!$&'()*+,=", "/a;x=1/b@c:d!$&'()*+,=", nil},
		{"/caf%C3%A9/%20%25/%3B", "/caf%C3%A9/%20%25/%3B", nil},

		{"//admin", "/admin", nil},
		{"/a///b//", "/a/b/", nil},
		{"/./admin", "/admin", nil},
		{"/a/.", "/a/", nil},
		{"/a/./", "/a/", nil},
		{"/a/..", "/", nil},
		{"/a/b/..", "/a/", nil},
		{"/a/b/../", "/a/", nil},
		{"/a//../b", "/b", nil},
		{"/..", "/", nil},
		{"/../../a", "/a", nil},
		{"/a/../../../b/./c/..", "/b/", nil},
		{"/a;/../admin", "/admin", nil},
		{"/public/%2e%2e/admin", "/admin", nil},
		{"/public/.%2E/admin", "/admin", nil},
		{"/%2e", "/", nil},
		{"/%61dmin", "/admin", nil},
		{"/%7euser/%5F%2D", "/~user/_-", nil},
		{"/caf%c3%a9", "/caf%C3%A9", nil},
		{"/café", "/caf%C3%A9", nil},
		{"/a|b{\"c\"}[^`<>", "/a%7Cb%7B%22c%22%7D%5B%5E%60%3C%3E", nil},
		{"/%252e%252e/%2541", "/%252e%252e/%2541", nil}, // never decoded twice

		{"/a%", "", route.ErrPathEscape},
		{"/a%2", "", route.ErrPathEscape},
		{"/a%2/b", "", route.ErrPathEscape},
		{"/%zz", "", route.ErrPathEscape},
		{"/%%36%31", "", route.ErrPathEscape},
		{"/%2%35", "", route.ErrPathEscape},
		{"/a%00", "", route.ErrPathEscape},
		{"/admin%2F", "", route.ErrPathSlash},
		{"/admin%2fx", "", route.ErrPathSlash},
		{"/admin%5c", "", route.ErrPathSlash},
		{"/admin%5C", "", route.ErrPathSlash},
		{`/a\b`, "", route.ErrPathByte},
		{`/..\admin`, "", route.ErrPathByte},
		{"/a b", "", route.ErrPathByte},
		{"/a\x00", "", route.ErrPathByte},
		{"/a\r\nb", "", route.ErrPathByte},
		{"/a\x7f", "", route.ErrPathByte},
		{"/a?b", "", route.ErrPathByte},
		{"/a#b", "", route.ErrPathByte},
		{"/public/..;/admin", "", route.ErrPathDots},
		{"/public/%2e%2e;x=1/admin", "", route.ErrPathDots},
		{"/public/.;", "", route.ErrPathDots},
		{"a/b", "", route.ErrPathForm},
		{"**", "", route.ErrPathForm},
	} {
		t.Run(tc.in, func(t *testing.T) { checkPath(t, tc.in, tc.want, tc.err, false) })
	}
	for _, tc := range []struct {
		in, want string
		err      error
	}{
		{"/a%2Fb", "/a%2Fb", nil},
		{"/a%2fb%5cc", "/a%2Fb%5Cc", nil},
		{"/a%2F%2Fb/../c", "/c", nil},
		{"/.a%2F..b%2F...", "/.a%2F..b%2F...", nil},
		{"/a%2F../b", "", route.ErrPathDots},
		{"/a/..%2fb", "", route.ErrPathDots},
		{"/a%2F%2e%2E%5Cb", "", route.ErrPathDots},
		{"/a%2F.", "", route.ErrPathDots},
		{"/a%2F..;x", "", route.ErrPathDots},
		{`/a\b`, "", route.ErrPathByte},
		{"/a%00", "", route.ErrPathEscape},
	} {
		t.Run("allowed "+tc.in, func(t *testing.T) { checkPath(t, tc.in, tc.want, tc.err, true) })
	}
}

func checkPath(t *testing.T, in, want string, wantErr error, allow bool) {
	t.Helper()
	norm, changed, err := route.NormalPath(make([]byte, 0, 4), []byte(in), allow)
	if !errors.Is(err, wantErr) || (err == nil) != (wantErr == nil) {
		t.Fatalf("error %v, want %v", err, wantErr)
	}
	if err == nil && (string(norm) != want || changed != (in != want)) {
		t.Errorf("%q, changed %v; want %q", norm, changed, want)
	}
}

func TestNormalPathKeepsUnchangedInput(t *testing.T) {
	for _, s := range []string{"/", "*", "/v1/chat/completions", "/.well-known/a", "/..a/.b;c", "/caf%C3%A9/%3B", "/x/"} {
		in := []byte(s)
		n := testing.AllocsPerRun(100, func() {
			if out, changed, err := route.NormalPath(nil, in, false); err != nil || changed || &out[0] != &in[0] {
				t.Fatalf("%s: not the input itself", s)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", s, n)
		}
	}
	in, buf := []byte("/a/../b//%63"), make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = route.NormalPath(buf, in, false) }); n != 0 {
		t.Errorf("with a buffer: %v allocations", n)
	}
}

func FuzzNormalPath(f *testing.F) {
	for _, s := range []string{"/a/../b", "//", "/%2e%2e/", "/a;/../b", "/..;/", "/%2F..%5c", "/\xff", "/a%00", "*", "", "/a/./b/.."} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, path []byte, allow bool) {
		before := bytes.Clone(path)
		norm, changed, err := route.NormalPath(nil, path, allow)
		if !bytes.Equal(path, before) {
			t.Fatal("input was written to")
		}
		if err != nil {
			return
		}
		if changed == bytes.Equal(norm, path) {
			t.Fatalf("%q -> %q, changed %v", path, norm, changed)
		}
		s := string(norm)
		if s == "*" {
			return
		}
		if s[0] != '/' || strings.Contains(s, "//") || strings.Contains(s+"/", "/../") || strings.Contains(s+"/", "/./") {
			t.Fatalf("%q -> %q is not normal", path, s)
		}
		for _, bad := range []string{"/..;", "/.;", "%00", "\\", "?", "#", " "} {
			if strings.Contains(s, bad) {
				t.Fatalf("%q -> %q contains %q", path, s, bad)
			}
		}
		if up := strings.ToUpper(s); !allow && (strings.Contains(up, "%2F") || strings.Contains(up, "%5C")) {
			t.Fatalf("%q -> %q has an encoded slash", path, s)
		}
		for _, c := range norm {
			if c <= ' ' || c > '~' {
				t.Fatalf("%q -> %q has byte %#x", path, s, c)
			}
		}
		again, changed, err := route.NormalPath(nil, norm, allow)
		if err != nil || changed || !bytes.Equal(again, norm) {
			t.Fatalf("%q -> %q -> %q, %v: not idempotent", path, norm, again, err)
		}
	})
}
