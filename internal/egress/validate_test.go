package egress_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

func policy(rules ...egress.Rule) egress.Policy {
	return egress.Policy{Name: "default", Atespace: "demo", Rules: rules}
}

func http(ports *egress.Ports, names ...string) egress.Rule {
	return egress.Rule{HTTP: &egress.WebRule{Hostnames: names, Ports: ports}}
}

func https(ports *egress.Ports, names ...string) egress.Rule {
	return egress.Rule{HTTPS: &egress.WebRule{Hostnames: names, Ports: ports}}
}

func passthrough(ports *egress.Ports, names ...string) egress.Rule {
	return egress.Rule{Passthrough: &egress.PassthroughRule{Hostnames: names, Ports: ports}}
}

func on(numbers ...int32) *egress.Ports { return &egress.Ports{Numbers: numbers} }

var everywhere = &egress.Ports{All: true}

// replacing is a rule with headers to replace.
func replacing(headers ...egress.CredentialHeader) egress.Rule {
	return egress.Rule{HTTPS: &egress.WebRule{Hostnames: []string{"a.test"}, Effects: &egress.Effects{ReplaceHeaders: headers}}}
}

func secret(header string) egress.CredentialHeader {
	return egress.CredentialHeader{Header: header, CredentialURI: "ate-secret://k8s.io/default/ns/name/key"}
}

func token(seconds int64, audiences ...string) egress.CredentialHeader {
	return egress.CredentialHeader{Header: "Authorization", JWT: &egress.JWTSource{Audiences: audiences, ExpirationSeconds: seconds}}
}

// names makes n different names.
func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("n%d.test", i)
	}
	return all
}

func TestValidPatterns(t *testing.T) {
	for _, pattern := range []string{
		"*", "a", "localhost", "example.com", "*.example.com", "*.com", "xn--bcher-kva.example", "1.example", "a-b.c--d",
		label63 + ".test", name253, "*." + name253, "0x7f.example", "1.2.3.4.example",
	} {
		if err := policy(https(nil, pattern)).Validate("p", "demo"); err != nil {
			t.Errorf("%q is refused: %v", pattern, err)
		}
	}
}

func TestInvalidPatterns(t *testing.T) {
	for pattern, reason := range map[string]string{
		"":                    "is empty",
		"*.":                  "is empty",
		".":                   "must not end in a dot",
		"Example.com":         "must be in lower case",
		"*.Example.com":       "must be in lower case",
		"example.com.":        "must not end in a dot",
		"*.example.com.":      "must not end in a dot",
		".example.com":        "has an empty label",
		"a..b":                "has an empty label",
		"*..b":                "has an empty label",
		"bücher.example":      "must be in ASCII",
		"\u212aube.example":   "must be in lower case", // to Unicode the Kelvin sign is a capital K
		"a_b.example":         "must have letters, digits and hyphens only",
		"-a.example":          "no hyphen at an end",
		"a-.example":          "no hyphen at an end",
		"exa mple.com":        "must have letters",
		"a.test\n":            "must have letters",
		"a.test\x00":          "must have letters",
		label63 + "a.test":    "longer than 63",
		"a" + name253:         "longer than 253",
		"example.com:443":     "without scheme and port",
		"https://example.com": "without scheme and port",
		"example.com/x":       "not a URL",
		"u@example.com":       "not a URL",
		"example.com?x":       "not a URL",
		"example.com#x":       "not a URL",
		"1.2.3.4":             "ends in a number",
		"a.1":                 "ends in a number",
		"0x7f.1":              "ends in a number",
		"2130706433":          "ends in a number",
		"*.1":                 "ends in a number",
		"*.2.3.4":             "ends in a number",
		"::1":                 "not an address",
		"[::1]":               "not an address",
		"a*.example.com":      "has a wildcard",
		"*a.example.com":      "has a wildcard",
		"*.*.example.com":     "has a wildcard",
		"a.*.example.com":     "has a wildcard",
		"example.*":           "has a wildcard",
		"**":                  "has a wildcard",
		"**.example.com":      "has a wildcard",
		"*.*":                 "has a wildcard",
		"*example.com":        "has a wildcard",
	} {
		err := policy(https(nil, "good.test", pattern)).Validate("p", "demo")
		var f actor.Faults
		if !errors.As(err, &f) || len(f) != 1 || f[0].Field != "p.rules[0].https.hostnames[1]" || !strings.Contains(f[0].Reason, reason) {
			t.Errorf("%q: %v, want it to say %q", pattern, err, reason)
		}
		if _, err := egress.Compile(policy(https(nil, pattern)), "demo"); err == nil {
			t.Errorf("%q compiles", pattern)
		}
	}
}

func TestAdmission(t *testing.T) {
	many := make([]egress.Rule, 257)
	for i := range many {
		many[i] = http(nil, fmt.Sprintf("n%d.test", i))
	}
	var headers []egress.CredentialHeader
	for i := range 17 {
		headers = append(headers, secret(fmt.Sprintf("X-%d", i)))
	}
	sixteen := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	long := strings.Repeat("é", 512)
	for _, tc := range []struct {
		name string
		in   egress.Policy
		want []string // "field: reason" without the field of the policy; none: admitted
	}{
		{"no rules", policy(), nil},
		{"another name", egress.Policy{Name: "other", Atespace: "demo"}, []string{`metadata.name: must be "default"`}},
		{"no name", egress.Policy{Atespace: "demo"}, []string{`metadata.name: must be "default"`}},
		{"another atespace", egress.Policy{Name: "default", Atespace: "x"}, []string{`metadata.atespace: must be the actor's, "demo"`}},

		{"256 rules", policy(many[:256]...), nil},
		{"257 rules", policy(many...), []string{"rules: has 257 rules, at most 256 are allowed"}},
		{"a rule without a member", policy(egress.Rule{}), []string{"rules[0]: must have exactly one of http, https and tls_passthrough, has 0"}},
		{
			"a rule with two members",
			policy(egress.Rule{HTTP: http(nil, "a.test").HTTP, HTTPS: https(nil, "b.test").HTTPS}),
			[]string{"rules[0]: must have exactly one of http, https and tls_passthrough, has 2"},
		},

		{"no host names", policy(http(nil)), []string{"rules[0].http.hostnames: must have 1 to 256 entries, has 0"}},
		{"256 host names", policy(http(nil, names(256)...)), nil},
		{"257 host names", policy(http(nil, names(257)...)), []string{"rules[0].http.hostnames: must have 1 to 256 entries, has 257"}},
		{"a name twice in a rule", policy(http(nil, "a.test", "b.test", "a.test")), []string{`rules[0].http.hostnames[2]: "a.test" is listed twice`}},

		{"no ports of http", policy(http(nil, "a.test")), nil},
		{"all ports", policy(http(everywhere, "a.test")), nil},
		{"no ports of passthrough", policy(passthrough(nil, "a.test")), []string{"rules[0].tls_passthrough.ports: must be given"}},
		{"empty ports", policy(http(&egress.Ports{}, "a.test")), []string{"rules[0].http.ports: must have exactly one of all and numbers"}},
		{
			"both kinds of ports",
			policy(http(&egress.Ports{All: true, Numbers: []int32{80}}, "a.test")),
			[]string{"rules[0].http.ports: must have exactly one of all and numbers"},
		},
		{"16 ports", policy(http(on(sixteen...), "a.test")), nil},
		{"17 ports", policy(http(on(append(sixteen, 17)...), "a.test")), []string{"rules[0].http.ports.numbers: has 17 entries, at most 16 are allowed"}},
		{"the first and the last port", policy(http(on(1, 65535), "a.test")), nil},
		{
			"ports that are none, and one twice",
			policy(http(on(0, -1, 65536, 80, 80, 65536+80), "a.test")),
			[]string{
				"rules[0].http.ports.numbers[0]: 0 is not a port from 1 to 65535",
				"rules[0].http.ports.numbers[1]: -1 is not a port from 1 to 65535",
				"rules[0].http.ports.numbers[2]: 65536 is not a port from 1 to 65535",
				"rules[0].http.ports.numbers[4]: 80 is listed twice",
				"rules[0].http.ports.numbers[5]: 65616 is not a port from 1 to 65535",
			},
		},

		{"the same pattern for clear text and TLS", policy(http(everywhere, "*"), https(everywhere, "*")), nil},
		{"the same pattern on other ports", policy(https(on(443), "a.test"), https(on(8443), "a.test"), https(everywhere, "a.test")), nil},
		{"another pattern on the same port", policy(https(nil, "a.test"), https(nil, "*.test"), https(nil, "*")), nil},
		{"a tie", policy(http(nil, "a.test"), http(nil, "b.test", "a.test")), []string{`rules[1].http.hostnames[1]: "a.test" on port 80 is decided by rules[0] already`}},
		{
			"a tie with a default port",
			policy(https(nil, "a.test"), https(on(8443, 443), "a.test")),
			[]string{`rules[1].https.hostnames[0]: "a.test" on port 443 is decided by rules[0] already`},
		},
		{
			"a tie of https and passthrough",
			policy(passthrough(on(443), "*.a.test"), http(nil, "*.a.test"), https(nil, "*.a.test")),
			[]string{`rules[2].https.hostnames[0]: "*.a.test" on port 443 is decided by rules[0] already`},
		},
		{
			"a tie on all ports",
			policy(https(everywhere, "*"), passthrough(everywhere, "*")),
			[]string{`rules[1].tls_passthrough.hostnames[0]: "*" on all ports is decided by rules[0] already`},
		},
		{
			"a tie of three",
			policy(http(nil, "a.test"), http(nil, "a.test"), http(nil, "a.test")),
			[]string{
				`rules[1].http.hostnames[0]: "a.test" on port 80 is decided by rules[0] already`,
				`rules[2].http.hostnames[0]: "a.test" on port 80 is decided by rules[0] already`,
			},
		},

		{"a secret", policy(replacing(secret("Authorization"))), nil},
		{"a token", policy(replacing(token(300, "a"))), nil},
		{"effects without an effect", policy(replacing()), []string{"rules[0].https.effects.replace_headers: must have 1 to 16 entries, has 0"}},
		{"16 headers", policy(replacing(headers[:16]...)), nil},
		{"17 headers", policy(replacing(headers...)), []string{"rules[0].https.effects.replace_headers: must have 1 to 16 entries, has 17"}},
		{
			"a header twice but for case",
			policy(replacing(secret("X-Key"), secret("x-kEY"))),
			[]string{`rules[0].https.effects.replace_headers[1].header: "x-kEY" is replaced twice`},
		},
		{"a header without a source", policy(replacing(egress.CredentialHeader{Header: "A"})), []string{"rules[0].https.effects.replace_headers[0]: must have exactly one of credential_uri and actor_jwt"}},
		{
			"a header with two sources",
			policy(replacing(egress.CredentialHeader{Header: "A", CredentialURI: secret("A").CredentialURI, JWT: token(300, "a").JWT})),
			[]string{"rules[0].https.effects.replace_headers[0]: must have exactly one of credential_uri and actor_jwt"},
		},
		{"16 audiences", policy(replacing(token(3600, names(16)...))), nil},
		{"17 audiences", policy(replacing(token(3600, names(17)...))), []string{"rules[0].https.effects.replace_headers[0].actor_jwt.audiences: must have 1 to 16 entries, has 17"}},
		{"no audience", policy(replacing(token(3600))), []string{"rules[0].https.effects.replace_headers[0].actor_jwt.audiences: must have 1 to 16 entries, has 0"}},
		{"an audience of 512 characters", policy(replacing(token(3600, long))), nil},
		{
			"audiences of 0 and of 513 characters",
			policy(replacing(token(3600, "", long+"é"))),
			[]string{
				"rules[0].https.effects.replace_headers[0].actor_jwt.audiences[0]: must have 1 to 512 characters, has 0",
				"rules[0].https.effects.replace_headers[0].actor_jwt.audiences[1]: must have 1 to 512 characters, has 513",
			},
		},
		{"a token for too short", policy(replacing(token(299, "a"))), []string{"rules[0].https.effects.replace_headers[0].actor_jwt.expiration_seconds: must be from 300 to 3600, is 299"}},
		{"a token for too long", policy(replacing(token(3601, "a"))), []string{"rules[0].https.effects.replace_headers[0].actor_jwt.expiration_seconds: must be from 300 to 3600, is 3601"}},

		{
			"everything at once",
			egress.Policy{Rules: []egress.Rule{{}, https(on(0), "a.test", "B"), passthrough(nil), replacing(secret("Host"), secret("a b"))}},
			[]string{
				`metadata.name: must be "default"`,
				`metadata.atespace: must be the actor's, "demo"`,
				"rules[0]: must have exactly one of http, https and tls_passthrough, has 0",
				`rules[1].https.hostnames[1]: "B" must be in lower case`,
				"rules[1].https.ports.numbers[0]: 0 is not a port from 1 to 65535",
				"rules[2].tls_passthrough.hostnames: must have 1 to 256 entries, has 0",
				"rules[2].tls_passthrough.ports: must be given",
				`rules[3].https.effects.replace_headers[0].header: "Host" can not be replaced: it belongs to the connection`,
				`rules[3].https.effects.replace_headers[1].header: "a b" is not a field name`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			var f actor.Faults
			if err := tc.in.Validate("p", "demo"); errors.As(err, &f) {
				for _, fault := range f {
					got = append(got, strings.TrimPrefix(fault.Field, "p.")+": "+fault.Reason)
				}
			} else if err != nil {
				t.Fatalf("%v is no list of faults", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if _, err := egress.Compile(tc.in, "demo"); tc.want == nil && err != nil {
				t.Errorf("it does not compile: %v", err)
			}
		})
	}
}

func TestHeaderNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"Authorization": true, "x-api-key": true, "!#$%&'*+-.^_`|~09azAZ": true, "Cookie": true,
		"": false, ":authority": false, "a:": false, "a b": false, "a\r\nb": false, "a\x00": false, "é": false, "a/b": false,
		"Host": false, "CONTENT-LENGTH": false, "connection": false, "Keep-Alive": false, "proxy-authenticate": false,
		"Proxy-Authorization": false, "proxy-connection": false, "TE": false, "trailer": false, "Transfer-Encoding": false, "upgrade": false,
	} {
		if err := policy(replacing(secret(name))).Validate("p", "demo"); (err == nil) != ok {
			t.Errorf("replacing %q: %v, want ok %v", name, err, ok)
		}
	}
}

func TestPrefixesAndURIs(t *testing.T) {
	for prefix, ok := range map[string]bool{
		"": true, "Bearer ": true, "Bearer\t": false, "a\u0080": false, "a\u0085b": false, "\u009f": false, "\u00a0é": true, "a\r\nX: b": false, "\x00": false, "\x7f": false, "\x1b": false,
	} {
		h := secret("A")
		h.Prefix = prefix
		if err := policy(replacing(h)).Validate("p", "demo"); (err == nil) != ok {
			t.Errorf("prefix %q: %v, want ok %v", prefix, err, ok)
		}
	}
	for uri, ok := range map[string]bool{
		"ate-secret://k8s.io/default/ns/secret/key": true,
		"ate-secret://file/demo_1/x":                true,
		"ate-secret://c/p/a b":                      false,
		"ate-secret://c/p":                          false,
		"ate-secret://c/p/":                         false,
		"ate-secret://c//t":                         false,
		"ate-secret:///p/t":                         false,
		"ate-secret://c/p/a//b":                     false,
		"ate-secret://c/p/../../q":                  false,
		"ate-secret://c/p/./b":                      false,
		"ate-secret://../p/b":                       false,
		"ate-secret://c/p/é":                        false,
		"ate-secret://c/p/a\x00":                    false,
		"ate-secret://u@c/p/t":                      false,
		"ate-secret://c:1/p/t":                      false,
		"ate-secret://c/p?/t":                       false,
		"substrate-secret://c/p/t":                  false,
		"ATE-SECRET://c/p/t":                        false,
		"c/p/t":                                     false,
		"https://c/p/t":                             false,
	} {
		err := policy(replacing(egress.CredentialHeader{Header: "A", CredentialURI: uri})).Validate("p", "demo")
		if (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", uri, err, ok)
		}
		if err != nil && strings.Contains(err.Error(), uri) {
			t.Errorf("the error repeats the URI, which may hold a secret: %v", err)
		}
	}
}

// What the schema has no bounds for has ours, and no fault repeats more than a part of a value.
func TestLongValues(t *testing.T) {
	huge := strings.Repeat("a", 1<<20)
	header := func(name, prefix, tail string) egress.CredentialHeader {
		return egress.CredentialHeader{Header: name, Prefix: prefix, CredentialURI: "ate-secret://c/p/" + tail}
	}
	for _, tc := range []struct {
		name string
		rule egress.Rule
		want string
	}{
		{"the longest", replacing(header(huge[:256], huge[:1024], huge[:2048-17])), ""},
		{"a name too long", replacing(header(huge[:257], "", "a")), "p.rules[0].https.effects.replace_headers[0].header: is longer than 256 bytes"},
		{"a prefix too long", replacing(header("A", huge[:1025], "a")), "p.rules[0].https.effects.replace_headers[0].prefix: is longer than 1024 bytes"},
		{"a URI too long", replacing(header("A", "", huge[:2049-17])), "p.rules[0].https.effects.replace_headers[0].credential_uri: is longer than 2048 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if err := policy(tc.rule).Validate("p", "demo"); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("Validate = %.300q, want %q", got, tc.want)
			}
		})
	}
	long := name253
	for name, p := range map[string]egress.Policy{
		"names":      policy(http(nil, huge, huge+".test", long, long)),
		"ties":       policy(http(nil, long), http(nil, long)),
		"headers":    policy(replacing(header(huge, huge, huge), header(huge[:256], "", "a"), header(huge[:256], "", "a"), header(huge[:200]+" ", "", "a"))),
		"atespaces":  {Name: "default", Atespace: "x"},
		"everything": policy(https(nil, long, long, huge), https(nil, long)),
	} {
		var f actor.Faults
		if err := p.Validate("p", huge); !errors.As(err, &f) {
			t.Errorf("%s: %v", name, err)
		}
		for _, fault := range f {
			if len(fault.Reason) > 80+80 {
				t.Errorf("%s: a fault of %d bytes: %.200q", name, len(fault.Reason), fault.Reason)
			}
		}
	}
}

// A policy that is wrong everywhere costs no more than one that is right.
func TestFaultsEndTheSearch(t *testing.T) {
	sixteen := on(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
	wrong := names(256)
	for i := range wrong {
		wrong[i] += "_"
	}
	bound := map[string]float64{"ties": 20000, "names": 3000} // of a million and of 65536 things that are wrong
	for name, of := range map[string][]string{"ties": names(256), "names": wrong} {
		var rules []egress.Rule
		for range 256 {
			rules = append(rules, https(sixteen, of...))
		}
		p := policy(rules...)
		var f actor.Faults
		if err := p.Validate("p", "demo"); !errors.As(err, &f) || !f.Full() {
			t.Fatalf("%s: %d faults, %v", name, len(f), err)
		}
		if n := testing.AllocsPerRun(1, func() { f = nil; errors.As(p.Validate("p", "demo"), &f) }); n > bound[name] {
			t.Errorf("%s: %v allocations for 100 faults", name, n)
		}
	}
}

// A policy decides for the actors of one atespace, and one of no atespace for nobody.
func TestCompileForOneAtespace(t *testing.T) {
	for _, tc := range []struct {
		of, asked string
		ok        bool
	}{{"demo", "demo", true}, {"demo", "other", false}, {"other", "demo", false}, {"", "demo", false}, {"demo", "", false}, {"", "", false}} {
		p := policy(https(nil, "a.test"))
		p.Atespace = tc.of
		if r, err := egress.Compile(p, tc.asked); (err == nil) != tc.ok || (r != nil) != tc.ok {
			t.Errorf("a policy of %q for %q: %v", tc.of, tc.asked, err)
		}
	}
}

func TestWithDefaults(t *testing.T) {
	in := policy(http(nil, "a.test"), https(nil, "a.test"), https(on(8443), "a.test"), http(everywhere, "b.test"), passthrough(on(1), "c.test"), replacing(secret("A")))
	got := in.WithDefaults()
	last := replacing(secret("A"))
	last.HTTPS.Ports = on(443)
	want := policy(http(on(80), "a.test"), https(on(443), "a.test"), https(on(8443), "a.test"), http(everywhere, "b.test"), passthrough(on(1), "c.test"), last)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if in.Rules[0].HTTP.Ports != nil {
		t.Error("the policy itself was changed")
	}
}
