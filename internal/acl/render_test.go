package acl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/acl"
)

func render(ds acl.Diagnostics, src string, opts acl.RenderOptions) string {
	var sb strings.Builder
	acl.Render(&sb, ds, map[string][]byte{"in.acl": []byte(src)}, opts)
	return sb.String()
}

// The syntax errors of a text, as an operator sees them.
func TestRenderGoldens(t *testing.T) {
	eachGolden(t, "render/*.golden", func(t *testing.T, src []byte) string {
		_, ds := acl.Parse("in.acl", src)
		return render(ds, string(src), acl.RenderOptions{})
	})
}

// about makes a finding about the n-th value of a list attribute `x`.
func about(t *testing.T, src string, pick func(*acl.Document) acl.Span, show bool) string {
	t.Helper()
	doc, ds := acl.Parse("in.acl", []byte(src))
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	d := &acl.Diagnostic{Code: "c", Message: "m", Span: pick(doc), ShowValue: show}
	return render(acl.Diagnostics{d}, src, acl.RenderOptions{})
}

func TestExcerpts(t *testing.T) {
	value := func(key string) func(*acl.Document) acl.Span {
		return func(d *acl.Document) acl.Span { return d.Attr(key).Value.Span }
	}
	tests := []struct {
		name, src string
		pick      func(*acl.Document) acl.Span
		show      bool
		want      string
	}{
		{
			"masked", `a = "x" b = "secret"`, value("b"), false,
			"in.acl:1:13: error[c]: m\n    1 | a = \"•\" b = \"••••••\"\n      |             ^^^^^^^^\n",
		},
		{
			"shown", `a = "x" b = "fine"`, value("b"), true,
			"in.acl:1:13: error[c]: m\n    1 | a = \"•\" b = \"fine\"\n      |             ^^^^^^\n",
		},
		{
			"bareword masked", `a = secret b = other`, value("b"), false,
			"in.acl:1:16: error[c]: m\n    1 | a = •••••• b = •••••\n      |                ^^^^^\n",
		},
		{
			"bareword shown", `a = secret b = other`, value("b"), true,
			"in.acl:1:16: error[c]: m\n    1 | a = •••••• b = other\n      |                ^^^^^\n",
		},
		{
			"words of a list", `a = [one two, three] b = 1`, value("b"), true,
			"in.acl:1:26: error[c]: m\n    1 | a = [••• •••, •••••] b = 1\n      |                          ^\n",
		},
		{
			"call", `a = env("X", "fallback") # why`, value("a"), false,
			"in.acl:1:5: error[c]: m\n    1 | a = env(\"•\", \"••••••••\")\n      |     ^^^^^^^^^^^^^^^^^^^^\n",
		},
		{
			"the whole list is not shown", `a = ["x", "y"]`, value("a"), true,
			"in.acl:1:5: error[c]: m\n    1 | a = [\"•\", \"•\"]\n      |     ^^^^^^^^^^\n",
		},
		{
			"tabs", "a\t=\t\"s\"\tb\t=\ttrue", value("b"), false,
			"in.acl:1:13: error[c]: m\n    1 | a    =    \"•\"    b    =    true\n" +
				"      |                            ^^^^\n",
		},
		{
			"wide characters", `名前 = true`, value("名前"), false,
			"in.acl:1:6: error[c]: m\n    1 | 名前 = true\n      |        ^^^^\n",
		},
		{
			"several lines", "a = [\n  1,\n]", value("a"), false,
			"in.acl:1:5: error[c]: m\n    1 | a = [\n      |     ^\n",
		},
		{
			"inside the string", `a = "Host(\"x\") && y"`, func(d *acl.Document) acl.Span {
				v := d.Attr("a").Value
				return acl.Span{File: "in.acl", Start: v.StringOffset(13), End: v.StringOffset(14)}
			}, true,
			"in.acl:1:21: error[c]: m\n    1 | a = \"Host(\\\"x\\\") && y\"\n      |                     ^\n",
		},
		{
			"long line", strings.Repeat("k", 300) + ` = "s" ` + strings.Repeat("b", 200) + " = true", value(strings.Repeat("b", 200)), false,
			"in.acl:1:511: error[c]: m\n    1 | …" + strings.Repeat("b", 93) + " = true\n      |  " + strings.Repeat(" ", 96) + "^^^^\n",
		},
		{"no place", "a = 1", func(*acl.Document) acl.Span { return acl.Span{File: "in.acl"} }, false, "in.acl: error[c]: m\n"},
		{"other file", "a = 1", func(*acl.Document) acl.Span {
			return acl.Span{File: "other.acl", Start: acl.Pos{Line: 1, Col: 2}}
		}, false, "other.acl:1:2: error[c]: m\n"},
		{"line that is not there", "a = 1", func(*acl.Document) acl.Span {
			return acl.Span{File: "in.acl", Start: acl.Pos{Line: 9, Col: 2}, End: acl.Pos{Line: 9, Col: 3}}
		}, false, "in.acl:9:2: error[c]: m\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := about(t, tt.src, tt.pick, tt.show); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestRenderCounts(t *testing.T) {
	many := func(n int) (ds acl.Diagnostics) {
		for range n {
			ds.Add(&acl.Diagnostic{Severity: acl.Warning, Message: "m", Hint: "h"})
		}
		return ds
	}
	one := "warning: m\n      hint: h\n"
	tests := []struct {
		n, max int
		want   string
	}{
		{0, 0, ""},
		{20, 0, strings.Repeat(one, 20)},
		{21, 0, strings.Repeat(one, 20) + "and 1 more\n"},
		{3, 2, one + one + "and 1 more\n"},
		{30, -1, strings.Repeat(one, 30)},
		{101, 0, strings.Repeat(one, 20) + "and 80 more, besides those that were not collected\n"},
	}
	for _, tt := range tests {
		if got := render(many(tt.n), "", acl.RenderOptions{Max: tt.max}); got != tt.want {
			t.Errorf("%d of at most %d: got\n%s", tt.n, tt.max, got)
		}
	}
}

func TestRenderColor(t *testing.T) {
	src := "a = ]"
	_, ds := acl.Parse("in.acl", []byte(src))
	got := render(ds, src, acl.RenderOptions{Color: true})
	plain := render(ds, src, acl.RenderOptions{})
	if !strings.Contains(got, "\x1b[1;31merror[") || strings.Contains(plain, "\x1b") {
		t.Errorf("got %q and %q", got, plain)
	}
}

// A message or a value cannot move the cursor of the operator's terminal.
func TestRenderIsPrintable(t *testing.T) {
	src := "a = \"\x1b[2J\u202e\""
	doc, _ := acl.Parse("in.acl", []byte(src))
	ds := acl.Diagnostics{{Message: "m\x1b\n", Hint: "\r", Span: doc.Attr("a").Value.Span, ShowValue: true}}
	if got := render(ds, src, acl.RenderOptions{}); strings.ContainsAny(got, "\x1b\r\u202e") || strings.Count(got, "\n") != 4 {
		t.Errorf("got %q", got)
	}
}

// No way of breaking a text lets a diagnostic show a piece of a secret.
func TestSecretsStayOut(t *testing.T) {
	const secret = "CANARYcanary"
	writings := []string{
		`"` + secret + `"`, `'` + secret + `'`, `"` + secret, `'` + secret, secret, secret + `"`, `"a"` + secret + `"b"`,
		`"a" ` + secret + ` "b"`, secret + "-" + secret, "sk-" + secret + "=", secret + "=", secret + "==", secret + ":" + secret,
		"pw:" + secret, "12" + secret, "/" + secret, "`" + secret + "`", "“" + secret + "”", secret + "/" + secret,
		secret + "(" + secret, secret + "{" + secret, secret + "[" + secret, "%" + secret + "%" + secret, `"\` + secret,
		"\"-----BEGIN KEY-----\n" + secret + "\n" + secret + "=\n" + secret + " = " + secret + "\n-----END KEY-----\"",
		`"` + secret + "\n" + secret + `"`, "# " + secret, "// " + secret, "env(" + secret + ")", `env("` + secret + `" x)`,
		`["x", "` + secret + `"`, `{ k = "` + secret + `" `, "[" + secret, "[x, " + secret + ", ]]", "\x00" + secret, secret + "\x00",
		"[\n" + secret + "\n" + secret + "\n}", "{ k = " + secret + " ]", "http://" + secret + "@h/" + secret, "(" + secret + ")",
		`"` + secret + `\"`, `'` + secret + `\'`, "1." + secret, "+=" + secret, "+" + secret, "=" + secret, "= " + secret,
	}
	frames := []string{
		"password = %", "x {\n  password = %\n}", "x {\n  password = % ]\n}\n", "password = % %", "a = [%, % %]\nb = ]", "x \"%\" % {\n",
		"a = { % = % ]\n", "a = f(%, % %", "password = % } ]", "password = %\npassword = %\n}", "a = ] password = %", "a += %", "password = %;) x",
	}
	var srcs []string
	for _, f := range frames {
		for _, w := range writings {
			srcs = append(srcs, strings.ReplaceAll(f, "%", w), "ok = 1\n"+strings.ReplaceAll(f, "%", w)+"\nlast = ]")
		}
	}
	broken := 0
	for _, src := range srcs {
		_, ds := acl.Parse("in.acl", []byte(src))
		if len(ds) == 0 {
			ds.Add(&acl.Diagnostic{Message: "m", Span: acl.Span{File: "in.acl", Start: acl.Pos{Line: 1, Col: 1}}})
		} else {
			broken++
		}
		if got := render(ds, src, acl.RenderOptions{Max: -1}) + ds.Error(); leaks(got, secret) {
			t.Errorf("%q gives\n%s", src, got)
		}
	}
	if broken < len(srcs)/2 {
		t.Errorf("only %d of %d texts are broken: the test has lost its point", broken, len(srcs))
	}
}

// leaks reports whether four characters of the secret in a row are shown.
func leaks(text, secret string) bool {
	for i := range len(secret) - 3 {
		if strings.Contains(text, secret[i:i+4]) {
			return true
		}
	}
	return false
}

// After a syntax error even the value complained of is masked.
func TestSyntaxErrorMasksEverything(t *testing.T) {
	src := "a = \"shown\"\nb = ]"
	doc, ds := acl.Parse("in.acl", []byte(src))
	ds.Add(&acl.Diagnostic{Message: "m", Span: doc.Attr("a").Value.Span, ShowValue: true})
	if got := render(ds, src, acl.RenderOptions{}); strings.Contains(got, "shown") {
		t.Errorf("got\n%s", got)
	}
}

func TestRenderOfEveryInput(t *testing.T) {
	eachInput(t, func(t *testing.T, src []byte) {
		_, ds := acl.Parse("in.acl", src)
		got := render(ds, string(src), acl.RenderOptions{Max: -1})
		if strings.Count(got, ": error[") != len(ds) {
			t.Errorf("%d findings, printed\n%s", len(ds), got)
		}
	})
	if _, err := os.Stat(filepath.Join("testdata", "render")); err != nil {
		t.Error(err)
	}
}
