package acl_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/acl"
	"pgregory.net/rapid"
)

func seed(f *testing.F) {
	for _, src := range inputs(f) {
		f.Add(src)
	}
	for _, src := range []string{
		"a = \"", "a = '\\'", "a = [[[{{((", "a += 1", "}}}", "a { b { c", "\uFEFFa = 1\r\r\n\tb = 'ü'", "a = f(#\n[#\n1#\n]#\n)#", "a = -.5e-3 b = 1.e2",
		"a\n\n{\n#\n}", "a = { 'k' = 1; \"l\": [2 3,\n4] }", "\xff", "a = \x00", "x \"l\" 'm'\n# c\n\n{ ; , }", "a = 1 b = 2; c = 3 # d",
	} {
		f.Add([]byte(src))
	}
}

// checker verifies that positions agree with the source and that spans nest.
type checker struct {
	t   interface{ Fatalf(string, ...any) }
	src []byte
}

func (c checker) pos(p acl.Pos) {
	if p.Offset < 0 || p.Offset > len(c.src) {
		c.t.Fatalf("offset %d of a text of %d bytes", p.Offset, len(c.src))
	}
	before := strings.TrimPrefix(string(c.src[:p.Offset]), "\uFEFF")
	if p.Offset > 0 && p.Offset < len(c.src) && c.src[p.Offset-1] == '\r' && c.src[p.Offset] == '\n' {
		c.t.Fatalf("position %v splits a line end", p)
	}
	// The slow way: count line ends and the characters since the last one.
	lines := strings.Split(strings.ReplaceAll(strings.ReplaceAll(before, "\r\n", "\n"), "\r", "\n"), "\n")
	if line, col := len(lines), utf8.RuneCountInString(lines[len(lines)-1])+1; p.Line != line || p.Col != col {
		c.t.Fatalf("position %v is %d:%d in %q", p, line, col, c.src)
	}
}

func (c checker) span(s, outer acl.Span) {
	if s.Start.Offset > s.End.Offset || s.Start.Offset < outer.Start.Offset || s.End.Offset > outer.End.Offset {
		c.t.Fatalf("span %v is not inside %v", s, outer)
	}
	c.pos(s.Start)
	c.pos(s.End)
}

func (c checker) attrs(attrs []*acl.Attr, outer acl.Span) {
	for _, a := range attrs {
		c.span(a.KeySpan, outer)
		c.value(a.Value, outer)
	}
}

func (c checker) value(v *acl.Value, outer acl.Span) {
	c.span(v.Span, outer)
	if v.Text != "" && v.Text != string(c.src[v.Span.Start.Offset:v.Span.End.Offset]) {
		c.t.Fatalf("text %q is not what the span holds", v.Text)
	}
	if v.Kind == acl.String {
		for i := 0; i <= len(v.Str); i += 1 + len(v.Str)/8 {
			c.span(acl.Span{Start: v.StringOffset(i), End: v.StringOffset(len(v.Str))}, v.Span)
		}
	}
	for _, item := range append(v.List, v.Args...) {
		c.value(item, v.Span)
	}
	for _, p := range v.Pairs {
		c.span(p.KeySpan, v.Span)
		c.value(p.Value, v.Span)
	}
}

func (c checker) block(b *acl.Block, outer acl.Span) {
	c.span(b.Span, outer)
	c.span(b.NameSpan, b.Span)
	for _, l := range b.Labels {
		c.span(l.Span, b.Span)
	}
	c.attrs(b.Attrs, b.Span)
	for _, n := range b.Blocks {
		c.block(n, b.Span)
	}
}

// checkParse verifies what holds for every text, valid or not.
func checkParse(t interface{ Fatalf(string, ...any) }, src []byte) {
	start := time.Now()
	doc, ds := acl.Parse("in.acl", src)
	c := checker{t, src}
	whole := acl.Span{End: acl.Pos{Offset: len(src)}}
	if len(ds) > acl.MaxDiagnostics+1 {
		c.t.Fatalf("%d diagnostics", len(ds))
	}
	seen := map[string]bool{}
	for _, d := range ds {
		if d.Code != acl.CodeTruncated && !d.Span.IsZero() {
			c.span(d.Span, whole)
		}
		at := fmt.Sprint(d.Span.Start.Offset, d.Code)
		if seen[at] {
			c.t.Fatalf("the same finding twice: %v", d)
		}
		seen[at] = true
	}
	if utf8.Valid(src) {
		c.attrs(doc.Attrs, whole)
		for _, b := range doc.Blocks {
			c.block(b, whole)
		}
	}
	out := render(ds, string(src), acl.RenderOptions{Max: -1})
	if !utf8.ValidString(out) {
		c.t.Fatalf("the report is not UTF-8: %q", out)
	}
	if d := time.Since(start); d > 5*time.Second {
		c.t.Fatalf("%d bytes took %v", len(src), d)
	}
}

func FuzzParse(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 4096 {
			t.Skip("positions are checked the slow way")
		}
		checkParse(t, src)
	})
}

func FuzzFormat(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, src []byte) { checkFormat(t, src) })
}

// Random texts put together from the pieces of the grammar: most are valid,
// with comments and line ends in every place where they may stand.
func TestGeneratedTexts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		src := []byte(statements(rt, 0))
		checkParse(rt, src)
		if _, ds := acl.Parse("in.acl", src); len(ds) > 0 {
			rt.Fatalf("the grammar allows\n%s\nbut: %v", src, ds)
		}
		checkFormat(t, src)
	})
}

// pick draws one of the texts.
func pick(rt *rapid.T, texts ...string) string { return rapid.SampledFrom(texts).Draw(rt, "pick") }

// gap is what may stand where line ends are allowed.
func gap(rt *rapid.T) string {
	return pick(rt, "", "", " ", "\t", "\n", "\r\n", " # one\n", "// two  \n\n\n", "\n\n # three\n")
}

// statements draws a body. Keys are numbered, so that none is there twice.
func statements(rt *rapid.T, depth int) string {
	var sb strings.Builder
	for i := range rapid.IntRange(0, 5).Draw(rt, "statements") {
		sb.WriteString(gap(rt))
		if depth < 3 && rapid.Bool().Draw(rt, "block") {
			sb.WriteString(pick(rt, "b", "größe", "_x") + pick(rt, "", ` "l"`, ` "l" 'm'`) + gap(rt) + "{" +
				statements(rt, depth+1) + gap(rt) + "}")
		} else {
			fmt.Fprintf(&sb, "%s%d%s%s%s", pick(rt, "k", "key_", "ü"), i, pick(rt, "=", " = ", ":"), gap(rt), anyValue(rt, depth))
		}
		sb.WriteString(pick(rt, " ", ";", "\n", " # behind\n", "\n\n\n", "; ; // behind\n"))
	}
	return sb.String()
}

func anyValue(rt *rapid.T, depth int) string {
	kind := rapid.IntRange(0, 7).Draw(rt, "kind")
	if depth >= 4 {
		kind %= 5
	}
	switch kind {
	case 5:
		return "[" + several(rt, depth, func(int) string { return anyValue(rt, depth+1) }, ",", "\n", " , # c\n", " ", "\n,\n") + "]"
	case 6:
		return "{" + several(rt, depth, func(i int) string {
			return fmt.Sprintf(pick(rt, "k%d", `"k %d"`, "'k-%d'"), i) + pick(rt, "=", " : ") + gap(rt) + anyValue(rt, depth+1)
		}, ",", ";", " ", "\n", " # c\n") + "}"
	case 7:
		args := several(rt, depth, func(int) string { return anyValue(rt, depth+1) + "\x01" }, "")
		return "f(" + strings.ReplaceAll(strings.TrimSuffix(strings.TrimSpace(args), "\x01"), "\x01", ",") + gap(rt) + ")"
	}
	return pick(rt, `"a # {"`, `'b // \''`, `"\"\\"`, "word", "true", "null", "42", "-1.5e3", "12345678901234567890", `"é`+"`x`"+`"`)
}

// several draws some pieces with gaps around and separators between them.
func several(rt *rapid.T, depth int, piece func(int) string, separators ...string) string {
	var sb strings.Builder
	n := rapid.IntRange(0, 4).Draw(rt, "pieces")
	for i := range n {
		sb.WriteString(gap(rt) + piece(i))
		if i < n-1 || separators[0] == "" {
			sb.WriteString(pick(rt, separators...))
		}
	}
	if separators[0] == "" {
		return sb.String()
	}
	return sb.String() + gap(rt)
}

// Tokens in any order: mostly broken texts, which no grammar would write.
func TestTokenSoup(t *testing.T) {
	tokens := []string{
		"{", "}", "[", "]", "(", ")", "=", ":", "+=", ",", ";", "\n", "\n\n", "\r\n", " ", " ", "# c\n", "// c\n", "a", "b", "c", "true", "null",
		`"s"`, `'s'`, "1", "-2.5", `"open`, "'", "%", "`x`", "round-robin", "8mb", "ü", "\u00a0", "a = 1\n", "b {", "x \"l\" {\n", "f(", "k = [",
	}
	rapid.Check(t, func(rt *rapid.T) {
		src := []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(tokens), 0, 60).Draw(rt, "tokens"), ""))
		checkParse(rt, src)
		checkFormat(t, src)
	})
}

// benchText is a configuration of n services with two servers each.
func benchText(n int) []byte {
	var sb strings.Builder
	for i := range n {
		fmt.Fprintf(&sb, `# service %[1]d
routers "r%[1]d" {
  rule = "Host(`+"`s%[1]d.example.net`"+`) && PathPrefix(`+"`/api`"+`)"
  service = "s%[1]d"; entrypoints = ["web", "tls"]
}
services "s%[1]d" {
  load_balancer {
    strategy = "weighted" request_timeout = "750ms"
    servers = [
      { url = "http://10.0.0.1:%[1]d", weight = 3 },
      { url = "http://10.0.0.2:%[1]d", weight = 1 },
    ]
    health_check { path = "/ready"; interval = "5s"; unhealthy_threshold = 2 }
  }
}
`, i)
	}
	return []byte(sb.String())
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{75, 300, 1200} {
		src := benchText(n)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				if _, ds := acl.Parse("in.acl", src); len(ds) > 0 {
					b.Fatal(ds)
				}
			}
		})
	}
}

func BenchmarkFormat(b *testing.B) {
	src := benchText(300)
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, ds := acl.Format("in.acl", src); len(ds) > 0 {
			b.Fatal(ds)
		}
	}
}
