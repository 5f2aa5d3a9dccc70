package route_test

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

// mustParse parses a rule that the test relies on.
func mustParse(t testing.TB, text string) *route.Rule {
	t.Helper()
	r, errs := route.Parse(text)
	if len(errs) > 0 {
		t.Fatalf("parse %s: %v", text, errs[0])
	}
	return r
}

func TestParseAccepts(t *testing.T) {
	for _, tc := range []struct{ name, text, canonical string }{
		{"one matcher", "Host(`a.b`)", "Host(`a.b`)"},
		{"blanks everywhere", " \t Host ( `a.b` ) \n&&\r\n Path( `/x` ) ", "Host(`a.b`) && Path(`/x`)"},
		{"no blanks", "Host(`a`)&&Path(`/x`)||!Method(`GET`)", "Host(`a`) && Path(`/x`) || !Method(`GET`)"},
		{"and binds tighter than or", "Host(`a`) || Host(`b`) && Host(`c`)", "Host(`a`) || Host(`b`) && Host(`c`)"},
		{"parentheses kept where needed", "(Host(`a`) || Host(`b`)) && (Host(`c`))", "(Host(`a`) || Host(`b`)) && Host(`c`)"},
		{"associative groups flatten", "Host(`a`) && (Host(`b`) && Host(`c`))", "Host(`a`) && Host(`b`) && Host(`c`)"},
		{"not binds tightest", "!Host(`a`) && !(Host(`b`) || Host(`c`))", "!Host(`a`) && !(Host(`b`) || Host(`c`))"},
		{"not of and", "!(Host(`b`) && Host(`c`))", "!(Host(`b`) && Host(`c`))"},
		{"double not", "!!Host(`a`)", "!!Host(`a`)"},
		{"blank as separator", "Headers(`X-A` `v`)", "Headers(`X-A`, `v`)"},
		{"no separator", "Headers(`X-A``v`)", "Headers(`X-A`, `v`)"},
		{"operator inside an argument", "Headers(`X-A`, `a && b || !(c)`)", "Headers(`X-A`, `a && b || !(c)`)"},
		{"parenthesis inside an argument", "PathRegexp(`/(a|b))?`) || PathRegexp(`/(a|b)`)", ""},
		{"double quotes", `Host("a.b") && Query("a\x60b")`, "Host(`a.b`) && Query(\"a`b\")"},
		{"empty header value", "Headers(`X-A`, ``)", "Headers(`X-A`, ``)"},
		{"query with and without value", "Query(`k`) || Query(`k`, `v`)", "Query(`k`) || Query(`k`, `v`)"},
		{"many addresses", "ClientIP(`10.0.0.0/8`, `::1`)", "ClientIP(`10.0.0.0/8`, `::1`)"},
		{"IPv6 host", "Host(`[2001:DB8::1]`)", "Host(`[2001:DB8::1]`)"},
		{"server name", "HostSNI(`*`) || HostSNI(`*.a.b`) || HostSNI(`a.b`)", "HostSNI(`*`) || HostSNI(`*.a.b`) || HostSNI(`a.b`)"},
		{"underscore and dot at the end", "Host(`_x.a.b.`)", "Host(`_x.a.b.`)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.canonical == "" {
				if _, errs := route.Parse(tc.text); len(errs) != 1 || errs[0].Code != route.CodeBadArgument {
					t.Fatalf("errors: %v", errs)
				}
				return
			}
			r := mustParse(t, tc.text)
			if got := r.String(); got != tc.canonical {
				t.Errorf("String() = %s, want %s", got, tc.canonical)
			}
			if r.Text() != tc.text || r.DefaultPriority() != len(tc.text) {
				t.Errorf("Text() = %q, DefaultPriority() = %d", r.Text(), r.DefaultPriority())
			}
			if again := mustParse(t, r.String()); again.String() != tc.canonical {
				t.Errorf("second round: %s", again)
			}
		})
	}
}

// Each wanted error is its code, the part of the text it points at, and a part of its message.
type wantError struct {
	code route.ErrorCode
	at   string
	msg  string
}

func TestParseErrors(t *testing.T) {
	syntax, arg, count := route.CodeSyntax, route.CodeBadArgument, route.CodeArgumentCount
	for _, tc := range []struct {
		name, text string
		want       []wantError
	}{
		{"empty", "", []wantError{{syntax, "", "rule is empty"}}},
		{"blank", "  ", []wantError{{syntax, "  ", "rule is empty"}}},
		{"close before open", "Host)`a`(", []wantError{
			{syntax, "Host", "needs its arguments"}, {syntax, ")", "closes nothing"}, {syntax, "`", "expected a matcher"},
		}},
		{"close alone", ")(", []wantError{
			{syntax, ")", "expected a matcher"}, {syntax, ")", "closes nothing"}, {syntax, "", "ends where"}, {syntax, "(", "never closed"},
		}},
		{"missing backtick at the end", "Host(`a.b)", []wantError{{syntax, "`a.b)", "never closed"}}},
		{"missing backtick at the start", "Host(a.b`)", []wantError{{syntax, "a.b", "backticks"}, {syntax, "`)", "never closed"}}},
		{"leading and", "&& Host(`a`)", []wantError{{syntax, "&&", "expected a matcher before &&"}}},
		{"trailing and", "Host(`a`) &&", []wantError{{syntax, "", "rule ends"}}},
		{"doubled and", "Host(`a`) && && Host(`b`)", []wantError{{syntax, "&&", "expected a matcher before &&"}}},
		{"leading or", "|| Host(`a`)", []wantError{{syntax, "||", "expected a matcher before ||"}}},
		{"single ampersand", "Host(`a`) & Path(`/`)", []wantError{{syntax, "&", "write &&"}}},
		{"spelt out", "Host(`a`) and Path(`/`) OR Path(`/b`)", []wantError{{syntax, "and", "&&"}, {syntax, "OR", "OR is written ||"}}},
		{"missing operator", "Host(`a`) Pth(`/`)", []wantError{{syntax, "P", "operator"}, {route.CodeUnknownMatcher, "Pth", "did you mean Path?"}}},
		{"junk behind a matcher", "Host(`a`) ;;; && Pth(`/`)", []wantError{
			{syntax, ";", "expected && or ||"}, {route.CodeUnknownMatcher, "Pth", "did you mean Path?"},
		}},
		{"junk behind an argument", "Host(`a` x)", []wantError{{syntax, "x", "backticks"}}},
		{"single quotes", "Host('a b')", []wantError{{syntax, "'a b'", "backticks"}}},
		{"bare", "Host(example.com) && Method(`G T`)", []wantError{{syntax, "example.com", "backticks"}, {arg, " ", "method"}}},
		{"bad escape", `Host("a\q")`, []wantError{{syntax, `"a\q"`, "escapes"}}},
		{"never closed group", "(Host(`a`) && Host(`b`)", []wantError{{syntax, "(", "never closed"}}},
		{"never closed matcher", "Host(`a` && Host(`b`)", []wantError{{syntax, "&&", "parenthesis of Host"}}},
		{"never closed matcher at end", "Host(`a`", []wantError{{syntax, "Host", "parenthesis of Host"}}},
		{"no parentheses", "Host && Path", []wantError{{syntax, "Host", "parentheses"}, {syntax, "Path", "parentheses"}}},
		{"not of nothing", "!", []wantError{{syntax, "", "rule ends"}}},
		{"comma first", "Headers(, `a`)", []wantError{{syntax, ",", "before this comma"}}},
		{"comma twice", "Headers(`a`,, `a`)", []wantError{{syntax, ",", "before this comma"}}},
		{"comma last", "Host(`a`,)", []wantError{{syntax, ",", "behind this comma"}}},
		{"unknown by case", "host(`a`)", []wantError{{route.CodeUnknownMatcher, "host", "did you mean Host?"}}},
		{"unknown by typo", "PathPrefx(`/`) || Hots(`a`) || Header(`a`,`b`)", []wantError{
			{route.CodeUnknownMatcher, "PathPrefx", "mean PathPrefix?"},
			{route.CodeUnknownMatcher, "Hots", "mean Host?"},
			{route.CodeUnknownMatcher, "Header", "mean Headers?"},
		}},
		{"unknown without likeness", "Cookie(`a`)", []wantError{{route.CodeUnknownMatcher, "Cookie", `unknown matcher "Cookie"`}}},
		{"too few", "Headers(`a`) || Host()", []wantError{{count, "Headers(`a`)", "2 arguments, not 1"}, {count, "Host()", "1 argument, not 0"}}},
		{"too many", "Host(`a`, `b`) || Query(`a`,`b`,`c`)", []wantError{
			{count, "Host(`a`, `b`)", "1 argument, not 2"}, {count, "Query(`a`,`b`,`c`)", "1 or 2 arguments, not 3"},
		}},
		{"no address", "ClientIP()", []wantError{{count, "ClientIP()", "at least 1"}}},
		{"empty host", "Host(``)", []wantError{{arg, "``", "empty"}}},
		{"host with port", "Host(`a.b:80`)", []wantError{{arg, ":80", "port"}}},
		{"IPv6 with port", "Host(`[::1]:80`)", []wantError{{arg, ":80", "port"}}},
		{"IPv6 bare", "Host(`::1`)", []wantError{{arg, "`::1`", "brackets"}}},
		{"IPv6 broken", "Host(`[::1`) || Host(`[::x]`)", []wantError{{arg, "`[::1`", "never closed"}, {arg, "`[::x]`", "no IPv6"}}},
		{"host with path", "Host(`a.b/c`)", []wantError{{arg, "/", "byte"}}},
		{"inner wildcard", "Host(`a.*.b`) || Host(`*`) || Host(`*a.b`)", []wantError{
			{arg, "*", "first label"}, {arg, "*", "first label"}, {arg, "*", "first label"},
		}},
		{"wildcard of nothing", "Host(`*.`)", []wantError{{arg, "`*.`", "empty"}}},
		{"empty label", "Host(`a..b`)", []wantError{{arg, "`a..b`", "empty"}}},
		{"unicode host", "Host(`bücher.example`)", []wantError{{arg, "`bücher.example`", "xn--"}}},
		{"path without slash", "Path(`a`) || PathPrefix(`a`)", []wantError{{arg, "`a`", "slash"}, {arg, "`a`", "slash"}}},
		{"path with bad escape", "PathPrefix(`/a%2`) || Path(`/%zz`)", []wantError{{arg, "`/a%2`", "escape"}, {arg, "`/%zz`", "escape"}}},
		{"path with query", "Path(`/a?b`)", []wantError{{arg, "`/a?b`", "forbidden"}}},
		{"regexp", "PathRegexp(`/(a`) && HostRegexp(`a[`) && PathRegexp(`a)|(b`)", []wantError{
			{arg, "/(a", "missing closing )"}, {arg, "[", "missing closing ]"}, {arg, "a)|(b", "unexpected )"},
		}},
		{"backreference is not RE2", "PathRegexp(`(a)\\1`)", []wantError{{arg, "\\1", "invalid escape"}}},
		{"header name", "Headers(`a b`, `v`)", []wantError{{arg, " ", "field name"}}},
		{"header value", "Headers(`a`, `sécret`) || Headers(`a`, ` v`)", []wantError{{arg, "`sécret`", "visible ASCII"}, {arg, "` v`", "blank"}}},
		{"address", "ClientIP(`10.0.0.0/8`, `10.0.0.256`) || ClientIP(`fe80::1%eth0`)", []wantError{
			{arg, "`10.0.0.256`", "neither"}, {arg, "`fe80::1%eth0`", "neither"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, errs := route.Parse(tc.text)
			if r != nil {
				t.Fatalf("accepted as %s", r)
			}
			for i := range max(len(errs), len(tc.want)) {
				if i >= len(errs) {
					t.Fatalf("missing error %d: %+v", i, tc.want[i])
				}
				e := errs[i]
				if i >= len(tc.want) {
					t.Fatalf("extra error %d at %d+%d: %v", i, e.Pos, e.Len, e)
				}
				at := tc.text[e.Pos : e.Pos+e.Len]
				if w := tc.want[i]; e.Code != w.code || at != w.at || !strings.Contains(e.Error(), w.msg) {
					t.Errorf("error %d: %s at %q (%d): %v\nwant %+v", i, e.Code, at, e.Pos, e, w)
				}
			}
		})
	}
}

func TestParseBounds(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		ok         bool
	}{
		{"text at the bound", "Path(`/" + strings.Repeat("a", route.MaxRuleBytes-len("Path(`/`)")) + "`)", true},
		{"text over the bound", "Path(`/" + strings.Repeat("a", route.MaxRuleBytes-len("Path(`/`)")+1) + "`)", false},
		{"100 KiB", strings.Repeat("Host(`a`) && ", 8000) + "Host(`a`)", false},
		{"nesting at the bound", strings.Repeat("(", route.MaxNesting) + "Host(`a`)" + strings.Repeat(")", route.MaxNesting), true},
		{"nesting over the bound", strings.Repeat("(", route.MaxNesting+1) + "Host(`a`)" + strings.Repeat(")", route.MaxNesting+1), false},
		{"negations over the bound", strings.Repeat("!", route.MaxNesting+1) + "Host(`a`)", false},
		{"matchers at the bound", strings.Repeat("Host(`a`)||", route.MaxMatchers-1) + "Host(`a`)", true},
		{"matchers over the bound", strings.Repeat("Host(`a`)||", route.MaxMatchers) + "Host(`a`)", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, errs := route.Parse(tc.text)
			if tc.ok {
				if r == nil {
					t.Fatal(errs[0])
				}
				return
			}
			if len(errs) != 1 || errs[0].Code != route.CodeTooLarge {
				t.Fatalf("errors: %v", errs)
			}
		})
	}
	if _, errs := route.Parse(strings.Repeat("!)", 2000)); len(errs) != 20 {
		t.Errorf("%d errors, want them capped at 20", len(errs))
	}
}

func TestRuleFacts(t *testing.T) {
	r := mustParse(t, "(Host(`A.example.`) || Host(`*.B.example`) || Host(`a.example`)) && !Path(`/x`) && Method(`GET`)")
	if got := strings.Join(r.Hosts(), " "); got != "a.example *.b.example" {
		t.Errorf("Hosts() = %s", got)
	}
	if got := mustParse(t, "Host(`a.example`) && !(Host(`b.example`) || !Host(`c.example`))").Hosts(); strings.Join(got, " ") != "a.example c.example" {
		t.Errorf("Hosts() = %s", got)
	}
	if got := mustParse(t, "HostSNI(`a.example`) || HostSNI(`*.b.example`) || HostSNI(`*`)").Hosts(); strings.Join(got, " ") != "a.example *.b.example *" {
		t.Errorf("Hosts() = %s", got)
	}
	ms := r.Matchers()
	if len(ms) != 5 {
		t.Fatalf("%d matchers", len(ms))
	}
	if m := ms[3]; m.Name != "Path" || m.Args[0] != "/x" || r.Text()[m.Pos:m.Pos+m.Len] != "Path(`/x`)" || m.TCP {
		t.Errorf("matcher: %+v", m)
	}
	for _, tc := range []struct {
		text            string
		host, path, tcp bool
	}{
		{"Host(`a`)", true, false, false},
		{"Method(`GET`) && !(HostRegexp(`a`))", true, false, false},
		{"PathPrefix(`/`)", false, true, false},
		{"PathRegexp(`/`) || Path(`/`)", false, true, false},
		{"Method(`GET`) || HostSNI(`*`)", false, false, true},
	} {
		r := mustParse(t, tc.text)
		if r.HasHost() != tc.host || r.HasPath() != tc.path || r.HasTCP() != tc.tcp {
			t.Errorf("%s: host %v path %v tcp %v", tc.text, r.HasHost(), r.HasPath(), r.HasTCP())
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"Host(`a.b`) && (PathPrefix(`/x`) || !Method(`GET`))", "Host)`a`(", "Query(\"a`b\", `c`)", "Headers(`a` `b`)",
		"ClientIP(`10.0.0.0/8`,`::1`)", "HostRegexp(`^[a-z]+\\.x$`)", "!(!(!Path(`/%7e`)))", "HostSNI(`*`)", "((", "Host(`",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, errs := route.Parse(text)
		if (r == nil) != (len(errs) > 0) {
			t.Fatalf("rule %v with %d errors", r, len(errs))
		}
		for _, e := range errs {
			if e.Pos < 0 || e.Len < 0 || e.Pos+e.Len > len(text) || e.Code == "" || e.Msg == "" {
				t.Fatalf("error out of bounds: %+v", e)
			}
		}
		if r == nil {
			return
		}
		canonical := r.String()
		if len(canonical) > route.MaxRuleBytes {
			return
		}
		again, errs := route.Parse(canonical)
		if len(errs) > 0 {
			t.Fatalf("canonical form %q refused: %v", canonical, errs[0])
		}
		if got := again.String(); got != canonical {
			t.Fatalf("%q became %q", canonical, got)
		}
	})
}
