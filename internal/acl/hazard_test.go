package acl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// brief lists diagnostics as `code line:col start-end`.
func brief(ds acl.Diagnostics) string {
	lines := make([]string, len(ds))
	for i, d := range ds {
		code := strings.TrimPrefix(strings.TrimPrefix(d.Code, "acl.parse."), "acl.limit.")
		lines[i] = fmt.Sprintf("%s %d:%d %d-%d", code, d.Span.Start.Line, d.Span.Start.Col,
			d.Span.Start.Offset, d.Span.End.Offset)
	}
	return strings.Join(lines, "; ")
}

// The texts that lenient readers of the language swallow, and the reference
// vectors of its syntax errors.
func TestHazards(t *testing.T) {
	tests := []struct {
		name, src string
		want      string // diagnostics, or empty
		hint      string // part of the first one's hint
		tree      string // without spans, when there are no diagnostics
	}{
		{"H1 missing brace", "a {\n  b = 1\n", "unexpected_eof 3:1 12-12", "opened at line 1, column 3", ""},
		{"H1 missing brace, nested", "a {\n  b {\n}\n", "unexpected_eof 4:1 12-12", "line 1, column 3", ""},
		{"H2 no braces", "mode\nkind = \"standalone\"\nc {}\n", "expected_token 2:1 5-9", "or by `{`", ""},
		{"H2 no braces, blocks around", "a {}\nmode\nkind = 1\n}\nb {}", "expected_token 3:1 10-14; unexpected_token 4:1 19-20", "", ""},
		{"H3 unterminated", "a = \"x\nb = 1\n", "unexpected_token 1:5 4-6", "ends on the line", ""},
		{"H3 unterminated single", "a = 'x\\'\nb = 1", "unexpected_token 1:5 4-8", "ends on the line", ""},
		{"H3 unterminated at the end", `a = "x\`, "unexpected_token 1:5 4-7", "ends on the line", ""},
		{"H3 unterminated label", "a \"x {\n}\n", "unexpected_token 1:3 2-6; unexpected_token 2:1 7-8", "ends on the line", ""},
		{"H4 slash", "path = /health\ninterval = \"5s\"\n", "unexpected_token 1:8 7-14", "in quotes", ""},
		{"H4 slash alone", "a = 1 / 2", "unexpected_token 1:7 6-7", "", ""},
		{"H4 url", "u = http://x:80/y\nv = 1", "unexpected_token 1:9 8-9", "in quotes", ""},
		{"H5 separators", "a = 1_000", "unexpected_token 1:5 4-9", "a number is", ""},
		{"H5 unit", "a = 8mb\nb = 1", "unexpected_token 1:5 4-7", "in quotes", ""},
		{"H5 two points", "a = 1.2.3", "unexpected_token 1:5 4-9", "one point", ""},
		{"H5 minus", "a = -", "unexpected_token 1:5 4-5", "", ""},
		{"H5 plus", "a = +1", "unexpected_token 1:5 4-6", "", ""},
		{"H5 exponent", "a = 1e", "unexpected_token 1:5 4-6", "", ""},
		{"H5 hexadecimal", "a = 0x10", "unexpected_token 1:5 4-8", "", ""},
		{"H5 address", "a = 0.0.0.0:80\nb = 1", "unexpected_token 1:5 4-11", "addresses", ""},
		{"H5 port", "a = :80\nb = 1", "unexpected_token 1:5 4-5", "in quotes", ""},
		{
			"H6 quoted keys", `h = { "X-Frame-Options" = "DENY" }`, "", "",
			"attr h\n  object\n    pair \"X-Frame-Options\"\n      string \" \"DENY\"\n",
		},
		{"H7 percent", "a {\n  %\n}", "unexpected_token 2:3 6-7", "", ""},
		{"H7 bang", "!\na = 1", "unexpected_token 1:1 0-1", "", ""},
		{"H7 backtick", "a {\n `x`\n b = 1 }", "unexpected_token 2:2 5-8", "backtick", ""},
		{"H7 lone word", "a { word }", "expected_token 1:10 9-10", "or by `{`", ""},
		{"H7 lone word at the end", "word", "unexpected_eof 1:5 4-4", "", ""},
		{"H7 two words", "a { one two\n b = 1 }", "expected_token 1:9 8-11", "label is written in quotes", ""},
		{"H7 string", "\"TOP_SECRET\"", "unexpected_token 1:1 0-12", "", ""},
		{"H7 number", "a { 5 }", "unexpected_token 1:5 4-5", "", ""},
		{
			"H8 brace on the next line", "a {\n  b\n\n  { c = 1 }\n  d = 2\n}", "", "",
			"block a\n  attr d\n    number 2 int 2\n  block b\n    attr c\n      number 1 int 1\n",
		},
		{"H9 block in object", "o = {\n  b { c = 1 }\n  d = 2\n}", "expected_token 2:5 10-11", "write `=`", ""},
		{"H9 labelled block in object", "o = { b \"l\" { c = 1 } }", "expected_token 1:9 8-11", "write `=`", ""},
		{"H10 duplicate", "x {\n  a = 1\n  b = 2\n  a = 3\n}", "duplicate_attribute 4:3 22-23", "one of the two", ""},
		{"H10 duplicate at the top", "a = 1\na = 2", "duplicate_attribute 2:1 6-7", "", ""},
		{"H10 duplicate in object", `o = { "a" = 1, a = 2 }`, "duplicate_attribute 1:16 15-16", "", ""},
		{"append", "a += 1\nb = 2", "unexpected_token 1:3 2-4", "write `=`", ""},
		{"append without blanks", "a+=1", "unexpected_token 1:2 1-3", "write `=`", ""},
		{"H11 hyphen", "strategy = round-robin\nb = 1", "unexpected_token 1:12 11-22", "in quotes", ""},
		{"H11 host", "h = api.example.com", "unexpected_token 1:5 4-19", "in quotes", ""},
		{"H11 hyphen in a key", "request-timeout = 1\nb = 1", "unexpected_token 1:1 0-15", "a name has", ""},
		{
			"H12 exact integers", "a = 9007199254740993 b = -9223372036854775808 c = 9223372036854775808", "", "",
			"attr a\n  number 9007199254740993 int 9007199254740993\n" +
				"attr b\n  number -9223372036854775808 int -9223372036854775808\n" +
				"attr c\n  number 9223372036854775808 big 9223372036854775808\n",
		},
		{"H12 out of range", "a = 1e309\nb = 1", "number_range 1:5 4-9", "", ""},
		{"H13 list without commas", `l = [ "a" "b" ]`, "", "", "attr l\n  list\n    string \" \"a\"\n    string \" \"b\"\n"},
		{"list with a comma too many", `l = ["a",,"b"]`, "unexpected_token 1:10 9-10", "", ""},
		{"list with a semicolon", `l = ["a"; "b"]`, "expected_token 1:9 8-9", "", ""},
		{"H14 extra brace", "a {\n  {\n  b = 1\n  }\n  c = 1\n}\nd {}", "unexpected_token 2:3 6-7", "begins with its name", ""},
		{"H15 stray brace", "a {}\n}\nb {}", "unexpected_token 2:1 5-6", "no block is open", ""},
		{"comma between blocks", "a {}, b {}", "unexpected_token 1:5 4-5", "remove it", ""},
		{"reserved word", "null = 1\na = 1", "unexpected_token 1:1 0-4", "reserved", ""},
		{"label without quotes", "a b {\n c = 1\n}\nd = 1", "expected_token 1:3 2-3", "in quotes", ""},
		{"label that is a call", "a env(\"X\") {\n c = 1\n}\nd = 1", "expected_token 1:3 2-5", "in quotes", ""},
		{"attribute with a label", "a \"x\" = 1\nb = 1", "expected_token 1:7 6-7", "no label", ""},
		{"missing value", "password = ]", "unexpected_token 1:12 11-12", "", ""},
		{"missing comma in a call", `value = env("X" true)`, "expected_token 1:17 16-20", "", ""},
		{"comma too many in a call", `value = env("X",)`, "unexpected_token 1:17 16-17", "", ""},
		{"open call", "value = env(", "unexpected_eof 1:13 12-12", "", ""},
		{"value missing at the end", "value =", "unexpected_eof 1:8 7-7", "", ""},
		{"T4 characters and bytes", "a = \"größe ☃\" %", "unexpected_token 1:15 18-19", "", ""},
		{"T4 after CR LF", "ü = \"é\"\r\n\r\n  ☃", "unexpected_token 3:3 15-18", "", ""},
		{"lone CR ends a line", "a = 1\r%\rb = 1", "unexpected_token 2:1 6-7", "", ""},
		{"typographic quotes", "a = “x”", "unexpected_token 1:5 4-11", "typographic", ""},
		{"no-break space", "a =\u00a01", "unexpected_token 1:4 3-6", "U+00A0", ""},
		{"control character", "a = \x00", "unexpected_token 1:5 4-5", "U+0000", ""},
		{"byte order mark", "\uFEFFa = ]", "unexpected_token 1:5 7-8", "", ""},
		{"not UTF-8", "a = 1\nb = \"\xff\"\nc = \"\xfe\"", "invalid_encoding 2:6 11-12", "UTF-8", ""},
		{"UTF-16", "\xff\xfea\x00", "invalid_encoding 1:1 0-1", "UTF-16", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc, ds := acl.Parse("in.acl", []byte(tt.src))
			if got := brief(ds); got != tt.want {
				t.Fatalf("got %q, want %q\n%s", got, tt.want, list(ds))
			}
			if tt.want == "" {
				if got := dump(doc, false); got != tt.tree {
					t.Errorf("got tree\n%s\nwant\n%s", got, tt.tree)
				}
				return
			}
			if !strings.Contains(ds[0].Hint, tt.hint) {
				t.Errorf("hint %q lacks %q", ds[0].Hint, tt.hint)
			}
		})
	}
}

// A duplicate names both places.
func TestDuplicateNamesTheFirstPlace(t *testing.T) {
	_, ds := acl.Parse("in.acl", []byte("x {\n  a = 1\n  a = 3\n}"))
	if len(ds) != 1 || !strings.Contains(ds[0].Message, "line 2, column 3") {
		t.Fatalf("got %v", ds)
	}
	if want := "in.acl:3:3: "; !strings.HasPrefix(ds.Error(), want) {
		t.Errorf("%q does not begin with %q", ds.Error(), want)
	}
}
