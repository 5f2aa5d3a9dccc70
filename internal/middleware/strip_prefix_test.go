package middleware_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/route"
)

func strip(prefixes ...string) *config.Middleware {
	return &config.Middleware{Name: "s", Type: "strip-prefix", StripPrefix: &config.StripPrefix{Prefixes: prefixes}}
}

func TestStripPrefix(t *testing.T) {
	for _, c := range []struct {
		name     string
		prefixes []string
		path     string
		want     string // "" unchanged
	}{
		{"plain", []string{"/api/v1"}, "/api/v1/users", "/users"},
		{"all of it", []string{"/api"}, "/api", "/"},
		{"all but a slash", []string{"/api"}, "/api/", "/"},
		{"no boundary", []string{"/api"}, "/apix", "/x"},
		{"ends in a slash", []string{"/api/"}, "/api/x", "/x"},
		{"ends in a slash, all of it", []string{"/api/"}, "/api/", "/"},
		{"ends in a slash, path does not", []string{"/api/"}, "/api", ""},
		{"root", []string{"/"}, "/a", ""},
		{"root of root", []string{"/"}, "/", ""},
		{"no match", []string{"/api"}, "/web", ""},
		{"capital letters differ", []string{"/api"}, "/API/x", ""},
		{"first match wins", []string{"/web", "/api", "/api/v1"}, "/api/v1/x", "/v1/x"},
		{"first match wins although it changes nothing", []string{"/", "/api"}, "/api/x", ""},
		{"wildcard", []string{"/apps/*"}, "/apps/x1/p/q", "/p/q"},
		{"wildcard, all of it", []string{"/apps/*"}, "/apps/x1", "/"},
		{"wildcard, nothing to match", []string{"/apps/*"}, "/apps", ""},
		{"wildcard, empty segment", []string{"/apps/*"}, "/apps/", "/"},
		{"wildcard of the root", []string{"/*"}, "/a/b", "/b"},
		{"wildcard of the root, all of it", []string{"/*"}, "/a", "/"},
		{"wildcard with a boundary", []string{"/apps/*"}, "/appsx/a/b", ""},
		{"none", nil, "/a", ""},
		{"asterisk", []string{"/"}, "*", ""},
		{"encoded slash", []string{"/api"}, "/api/a%2Fb", "/a%2Fb"},
		{"encoded slash in the wild segment", []string{"/apps/*"}, "/apps/a%2Fb/c", "/c"},
		{"inside an escape", []string{"/a%2"}, "/a%2Fb", ""},
		{"behind an escape", []string{"/a%2F"}, "/a%2Fb", "/b"},
		// Cuts that would make a dot segment of something that is none.
		{"dots behind the prefix", []string{"/api"}, "/api../secret", ""},
		{"dot behind the prefix", []string{"/api"}, "/api./secret", ""},
		{"dots at the end", []string{"/api"}, "/api..", ""},
		{"dots with a parameter", []string{"/api"}, "/api..;/secret", ""},
		{"dots with an escape", []string{"/api"}, "/api..%2Fsecret", ""},
		{"three dots", []string{"/api"}, "/api.../x", "/.../x"},
		{"a hidden file", []string{"/api"}, "/api.git", "/.git"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, _ := request(c.path, "a=1&b=/api")
			before := string(x.Request.Normal)
			reached := false
			serve(t, strip(c.prefixes...), x, func(x *exchange.Exchange) error {
				reached = true
				want := c.want
				if want == "" {
					want = c.path
				}
				if got := string(x.Request.Path); got != want {
					t.Errorf("path is %s, want %s", got, want)
				}
				if got := string(x.Request.Normal); got != want {
					t.Errorf("normal form is %s, want %s", got, want)
				}
				if x.Request.Rewritten != (c.want != "") {
					t.Errorf("rewritten: %v", x.Request.Rewritten)
				}
				if got := string(x.Request.Query); got != "a=1&b=/api" {
					t.Errorf("query is %s", got)
				}
				return nil
			})
			if !reached {
				t.Fatal("the next handler was not reached")
			}
			if got := string(x.Request.Target); got != before+"?a=1&b=/api" {
				t.Errorf("the target as received is now %s", got)
			}
		})
	}
}

// TestStripPrefixNormalForm: another spelling of the path is cut like the normal one.
func TestStripPrefixNormalForm(t *testing.T) {
	x, _ := request("/api/users", "")
	x.Request.Path = []byte("/%61pi//x/../users")
	serve(t, strip("/api"), x, func(x *exchange.Exchange) error {
		if got := string(x.Request.Path); got != "/users" {
			t.Errorf("path is %s", got)
		}
		return nil
	})
	x, _ = request("/other", "")
	x.Request.Path = []byte("/./other")
	serve(t, strip("/api"), x, func(x *exchange.Exchange) error {
		if got := string(x.Request.Path); got != "/./other" || x.Request.Rewritten {
			t.Errorf("an unmatched path became %s", got)
		}
		return nil
	})
}

// TestStripPrefixTwice: the second in a chain sees what the first has left.
func TestStripPrefixTwice(t *testing.T) {
	x, _ := request("/a/b/c", "")
	inner := build(t, strip("/b"), func(x *exchange.Exchange) error {
		if got := string(x.Request.Path); got != "/c" {
			t.Errorf("path is %s", got)
		}
		return nil
	})
	serve(t, strip("/a"), x, inner.Serve)
}

// FuzzStripPrefix: whatever the prefix, the result of a path in normal form is in normal form, and no longer.
func FuzzStripPrefix(f *testing.F) {
	for _, s := range [][2]string{
		{"/api", "/api/x"},
		{"/api", "/api../x"},
		{"/apps/*", "/apps/x/y"},
		{"/*", "/.."},
		{"/a%2", "/a%2F.."},
		{"/a", "/a..;/x"},
		{"/a/", "/a/%2F"},
		{"/a%", "/a%41"},
		{"/", "//"},
		{"/a", "/a.%2Fb"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, prefix, path string) {
		if !strings.HasPrefix(prefix, "/") {
			return
		}
		norm, _, err := route.NormalPath(nil, []byte(path), true)
		if err != nil {
			return
		}
		x, _ := request(string(norm), "")
		serve(t, strip(prefix), x, nothing)
		got := x.Request.Path
		again, _, err := route.NormalPath(nil, got, true)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("%q off %q is %q, whose normal form is %q (%v)", prefix, norm, got, again, err)
		}
		if len(got) > len(norm)+1 || x.Request.Rewritten == bytes.Equal(got, norm) {
			t.Errorf("%q off %q is %q, rewritten %v", prefix, norm, got, x.Request.Rewritten)
		}
	})
}
