package route_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

// fields is a list of name and value pairs, names lower-case, as Fields finds them.
type fields [][2]string

func (f fields) First(name string) ([]byte, bool) {
	if name != strings.ToLower(name) {
		panic("asked for a field name that is not lower-case: " + name)
	}
	for _, p := range f {
		if p[0] == name {
			return []byte(p[1]), true
		}
	}
	return nil, false
}

// request builds an Input from "METHOD host/path?query".
func request(line string) route.Input {
	method, target, _ := strings.Cut(line, " ")
	target, query, _ := strings.Cut(target, "?")
	host, path := target, ""
	if i := strings.IndexByte(target, '/'); i >= 0 {
		host, path = target[:i], target[i:]
	}
	return route.Input{Method: []byte(method), Host: []byte(host), Path: []byte(path), RawQuery: []byte(query)}
}

func matches(t *testing.T, rule string, in *route.Input) bool {
	t.Helper()
	table := route.Build([]route.Entry{{Name: "r", Rule: mustParse(t, rule)}}, "web")
	got := table.Match(in) == 0
	if v := table.Explain(in)[0]; got != (v.Reason == route.ReasonMatched) {
		t.Fatalf("%s: Match says %v, Explain says %s", rule, got, v.Reason)
	}
	return got
}

func TestMatchers(t *testing.T) {
	for _, tc := range []struct {
		rule, request string
		want          bool
	}{
		{"Host(`a.example`)", "GET a.example/", true},
		{"Host(`A.Example`)", "GET a.eXAMPLE/", true},
		{"Host(`a.example`)", "GET a.example:8443/", true},
		{"Host(`a.example`)", "GET a.example:/", true},
		{"Host(`a.example`)", "GET a.example./", true},
		{"Host(`a.example.`)", "GET A.example.:80/", true},
		{"Host(`a.example`)", "GET a.example:x/", false},
		{"Host(`a.example`)", "GET b.a.example/", false},
		{"Host(`a.example`)", "GET /", false},
		{"!Host(`a.example`)", "GET /", true},
		{"Host(`[2001:DB8::1]`)", "GET [2001:db8::1]/", true},
		{"Host(`[2001:db8::1]`)", "GET [2001:DB8::1]:443/", true},
		{"Host(`[2001:db8::1]`)", "GET [2001:db8::1]x/", false},
		{"Host(`[2001:db8::1]`)", "GET [2001:db8:/", false},
		{"Host(`127.0.0.1`)", "GET 127.0.0.1:80/", true},

		{"Host(`*.a.example`)", "GET x.a.example/", true},
		{"Host(`*.a.example`)", "GET X.A.example:80/", true},
		{"Host(`*.a.example`)", "GET a.example/", false},
		{"Host(`*.a.example`)", "GET .a.example/", false},
		{"Host(`*.a.example`)", "GET x.y.a.example/", false},
		{"Host(`*.a.example`)", "GET xa.example/", false},

		{"HostRegexp(`[a-z]+\\.a\\.example`)", "GET x.a.example:80/", true},
		{"HostRegexp(`[a-z]+\\.a\\.example`)", "GET X.a.example/", true},
		{"HostRegexp(`X\\.a`)", "GET x.a/", true},
		{"HostRegexp(`x\\.a`)", "GET x.ab/", false},
		{"HostRegexp(`x\\.a`)", "GET xx.a/", false},
		{"HostRegexp(`a|b`)", "GET ab/", false},
		{"HostRegexp(`a|b`)", "GET b/", true},
		{"HostRegexp(`\\D+`)", "GET abc/", true},
		{"HostRegexp(`(?m)^a$`)", "GET a\nb/", false},
		{"HostRegexp(`.*`)", "GET /", false},

		{"Path(`/a`)", "GET h/a?q", true},
		{"Path(`/a`)", "GET h/a/", false},
		{"Path(`/a`)", "GET h/A", false},
		{"Path(`/a//b/../%63`)", "GET h/a/c", true},
		{"Path(`/café`)", "GET h/caf%C3%A9", true},
		{"Path(`/a b`)", "GET h/a%20b", true},
		{"Path(`/a%2fb`)", "GET h/a%2Fb", true},
		{"PathPrefix(`/api`)", "GET h/api", true},
		{"PathPrefix(`/api`)", "GET h/apikey", true},
		{"PathPrefix(`/api/`)", "GET h/api", false},
		{"PathPrefix(`/api`)", "GET h/ap", false},
		{"PathPrefix(`//api`)", "GET h/api/x", true},
		{"PathPrefix(`/a/.`)", "GET h/a/.hidden", true},
		{"PathPrefix(`/a/.`)", "GET h/a/b", false},
		{"PathPrefix(`/`)", "OPTIONS *", false},
		{"PathRegexp(`/v[0-9]+/.*`)", "GET h/v1/x", true},
		{"PathRegexp(`/v[0-9]+`)", "GET h/v1/x", false},
		{"PathRegexp(`/v[0-9]+`)", "GET h/x/v1", false},

		{"Method(`get`)", "GET h/", true},
		{"Method(`GET`)", "gEt h/", true},
		{"Method(`GET`)", "GETS h/", false},
		{"Method(`TCP`)", "TCP /", true},

		{"Query(`k`)", "GET h/?k", true},
		{"Query(`k`)", "GET h/?a=1&&k=", true},
		{"Query(`k`)", "GET h/?K=1&kk=1", false},
		{"Query(`k`)", "GET h/", false},
		{"Query(`a b`)", "GET h/?a%20b=1", true},
		{"Query(`a b`)", "GET h/?a+b=1", true},
		{"Query(`k`, `v`)", "GET h/?k=x&k=v", true},
		{"Query(`k`, `v`)", "GET h/?k=%76", true},
		{"Query(`k`, `v`)", "GET h/?k=vv", false},
		{"Query(`k`, `v`)", "GET h/?k=", false},
		{"Query(`k`, `a=b`)", "GET h/?k=a=b", true},
		{"Query(`k`, `ü`)", "GET h/?k=%c3%bc", true},
		{"Query(`k`, `100%`)", "GET h/?k=100%", true},
		{"Query(`k`, ``)", "GET h/?k", true},
		{"Query(`k`, ``)", "GET h/?k=1", false},
		{"Query(`k`)", "GET h/?a;k=1", false},

		{"Host(`a`) || Host(`b`) && Path(`/x`)", "GET a/", true},
		{"Host(`a`) || Host(`b`) && Path(`/x`)", "GET b/", false},
		{"(Host(`a`) || Host(`b`)) && Path(`/x`)", "GET a/", false},
		{"(Host(`a`) || Host(`b`)) && Path(`/x`)", "GET b/x", true},
		{"!Host(`a`) && Path(`/x`)", "GET a/y", false},
		{"!(Host(`a`) && Path(`/x`))", "GET a/y", true},
		{"!!Host(`a`)", "GET a/y", true},
		{"Host(`a`) && Host(`b`)", "GET a/y", false},
		{"Host(`*.b`) && Host(`a.b`)", "GET a.b/", true},
		{"Host(`*.b`) && Host(`a.c`)", "GET a.c/", false},
		{"PathPrefix(`/a`) && PathPrefix(`/ab`) && Path(`/abc`)", "GET h/abc", true},
		{"HostSNI(`*`)", "GET a/", false},
		{"!HostSNI(`*`) || Path(`/x`)", "GET a/", true},
		{"HostSNI(`*`) || Path(`/x`)", "GET a/x", true},
	} {
		in := request(tc.request)
		if got := matches(t, tc.rule, &in); got != tc.want {
			t.Errorf("%s against %s: %v", tc.rule, tc.request, got)
		}
	}
}

func TestHostSNIMatcher(t *testing.T) {
	for _, tc := range []struct {
		rule, name string
		want       bool
	}{
		{"HostSNI(`*`)", "", true},
		{"HostSNI(`*`)", "a.example", true},
		{"HostSNI(`a.example`)", "a.example", true},
		{"HostSNI(`A.Example`)", "a.eXample", true},
		{"HostSNI(`a.example`)", "b.a.example", false},
		{"HostSNI(`a.example`)", "", false},
		{"HostSNI(`*.example`)", "a.example", true},
		{"HostSNI(`*.example`)", "b.a.example", true}, // any depth
		{"HostSNI(`*.example`)", "example", false},
		{"HostSNI(`*.example`)", ".example", false},
		{"HostSNI(`*.example`)", "anexample", false},
		{"HostSNI(`a`) || HostSNI(`b`) && ClientIP(`192.0.2.0/24`)", "b", false},
		{"!HostSNI(`a`)", "", true},
		{"Method(`tcp`) && PathPrefix(`/`)", "", true},
	} {
		in := route.Input{TCP: true, Host: []byte(tc.name), Path: []byte("/"), Method: []byte("TCP")}
		rule, errs := route.Parse(tc.rule)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		table := route.BuildFor(route.Connections, []route.Entry{{Name: "x", Rule: rule, Kind: route.Connections}, {Name: "request", Rule: rule}}, "e")
		if got := table.Match(&in); (got == 0) != tc.want || got > 0 {
			t.Errorf("%s against %q: %d", tc.rule, tc.name, got)
		}
		if verdicts := table.Explain(&in); (verdicts[0].Reason == route.ReasonMatched || verdicts[1].Reason == route.ReasonMatched) != tc.want {
			t.Errorf("%s against %q is explained as %+v", tc.rule, tc.name, verdicts)
		}
	}
}

func TestHeadersMatcher(t *testing.T) {
	in := request("GET API.example:8080/")
	in.Fields = fields{{"x-env", "prod"}, {"x-env", "test"}, {"x-empty", ""}, {"x-bytes", "caf\xe9"}}
	for rule, want := range map[string]bool{
		"Headers(`X-Env`, `prod`)":               true,
		"Headers(`x-ENV`, `prod`)":               true,
		"Headers(`X-Env`, `Prod`)":               false,
		"Headers(`X-Env`, `test`)":               false, // only the first value counts
		"Headers(`X-Empty`, ``)":                 true,
		"Headers(`X-None`, ``)":                  false,
		"Headers(`X-Bytes`, `caf`)":              false,
		"Headers(`Host`, `API.example:8080`)":    true,
		"Headers(`Host`, `api.example:8080`)":    false,
		"!Headers(`X-Env`, `test`) && Path(`/`)": true,
	} {
		if got := matches(t, rule, &in); got != want {
			t.Errorf("%s: %v", rule, got)
		}
	}
	in.Fields = nil
	if matches(t, "Headers(`X-Empty`, ``)", &in) {
		t.Error("matched without fields")
	}
}

func TestClientIPMatcher(t *testing.T) {
	for _, tc := range []struct {
		rule, ip string
		want     bool
	}{
		{"ClientIP(`10.0.0.0/8`)", "10.1.2.3", true},
		{"ClientIP(`10.1.2.3/8`)", "10.200.0.1", true},
		{"ClientIP(`10.0.0.0/8`)", "11.0.0.1", false},
		{"ClientIP(`10.0.0.0/8`)", "::ffff:10.1.2.3", true},
		{"ClientIP(`::ffff:10.0.0.0/104`)", "10.1.2.3", true},
		{"ClientIP(`::ffff:10.0.0.1`)", "10.0.0.1", true},
		{"ClientIP(`192.0.2.1`)", "192.0.2.1", true},
		{"ClientIP(`192.0.2.1`)", "192.0.2.2", false},
		{"ClientIP(`192.0.2.1` `2001:db8::/32`)", "2001:db8::9", true},
		{"ClientIP(`fe80::/10`)", "fe80::1%eth0", true},
		{"ClientIP(`::/0`)", "10.0.0.1", false},
		{"ClientIP(`0.0.0.0/0`, `::/0`)", "", false},
		{"!ClientIP(`0.0.0.0/0`)", "", true},
	} {
		in := request("GET h/")
		if tc.ip != "" {
			in.ClientIP = netip.MustParseAddr(tc.ip)
		}
		if got := matches(t, tc.rule, &in); got != tc.want {
			t.Errorf("%s against %q: %v", tc.rule, tc.ip, got)
		}
	}
}

func TestHostKey(t *testing.T) {
	buf := make([]byte, 0, 64)
	for in, want := range map[string]string{
		"a.b": "a.b", "A.b:80": "a.b", "a.b.": "a.b", "A.B.:": "a.b", "[::A]:1": "[::a]", "[::a]": "[::a]",
		"": "", ":80": "", ".": "", "a:b": "a:b", "[::A": "[::a", "[::1]:x": "[::1]:x",
	} {
		if got := string(route.HostKey(buf, []byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
