package acl_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// numbered joins n copies of a format with one number.
func numbered(n int, format string) string {
	var sb strings.Builder
	for i := range n {
		fmt.Fprintf(&sb, format, i)
	}
	return sb.String()
}

// Each limit is met exactly, and exceeded by one. What exceeds stops the
// reading: the stray brace behind it is not reported.
func TestLimits(t *testing.T) {
	const items, token, depth = acl.MaxCollectionItems, acl.MaxTokenBytes, acl.MaxNestingDepth
	tests := []struct {
		name string
		make func(n int) string
		max  int
		code string
	}{
		{"document bytes", func(n int) string { return strings.Repeat("\n", n) }, acl.MaxDocumentBytes, acl.CodeDocumentBytes},
		{"blocks", func(n int) string { return strings.Repeat("b{", n) + strings.Repeat("}", n) }, depth, acl.CodeNestingDepth},
		{"lists", func(n int) string { return "b { a = " + strings.Repeat("[", n) + strings.Repeat("]", n) + "}" }, depth - 1, acl.CodeNestingDepth},
		{"calls", func(n int) string { return "b { a = " + strings.Repeat("f(", n) + "1" + strings.Repeat(")", n) + "}" }, depth - 1, acl.CodeNestingDepth},
		{"lists of an implicit block", func(n int) string { return "a = " + strings.Repeat("[", n) + strings.Repeat("]", n) }, depth - 1, acl.CodeNestingDepth},
		{"objects", func(n int) string {
			return "b { a = " + strings.Repeat("{a=", n-1) + "{}" + strings.Repeat("}", n-1) + "}"
		}, depth - 1, acl.CodeNestingDepth},
		{"document items", func(n int) string { return numbered(n/2, "a%d=1\n") + strings.Repeat("b{}\n", n-n/2) }, items, acl.CodeCollectionItems},
		{"body items", func(n int) string {
			return "x {" + numbered(n/2, "a%d=1\n") + strings.Repeat("b{}\n", n-n/2) + "}"
		}, items, acl.CodeCollectionItems},
		{"labels", func(n int) string { return "x" + strings.Repeat(` "l"`, n) + "{}" }, items, acl.CodeCollectionItems},
		{"list items", func(n int) string { return "x = [" + strings.Repeat("1 ", n) + "]" }, items, acl.CodeCollectionItems},
		{"object items", func(n int) string { return "x = {" + numbered(n, "k%d=1 ") + "}" }, items, acl.CodeCollectionItems},
		{"arguments", func(n int) string { return "x = f(" + strings.Repeat("1,", n-1) + "1)" }, items, acl.CodeCollectionItems},
		{"string bytes", func(n int) string { return `x = "` + strings.Repeat("a", n-2) + `"` }, token, acl.CodeTokenBytes},
		{"name bytes", func(n int) string { return strings.Repeat("a", n) + " = 1" }, token, acl.CodeTokenBytes},
		{"number bytes", func(n int) string { return "x = 0." + strings.Repeat("1", n-2) }, token, acl.CodeTokenBytes},
		{"zeros", func(n int) string { return "x = " + strings.Repeat("0", n) }, token, acl.CodeTokenBytes},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, ds := acl.Parse("in.acl", []byte(tt.make(tt.max))); len(ds) > 0 {
				t.Errorf("at the limit: %v", ds)
			}
			_, ds := acl.Parse("in.acl", []byte(tt.make(tt.max+1)+"\n}"))
			if len(ds) != 1 || ds[0].Code != tt.code {
				t.Errorf("beyond the limit: got %v, want one %s", ds, tt.code)
			}
		})
	}
}

func TestCommentsAreNoTokens(t *testing.T) {
	src := "# " + strings.Repeat("x", acl.MaxTokenBytes) + "\na = 1"
	if _, ds := acl.Parse("in.acl", []byte(src)); len(ds) > 0 {
		t.Fatal(ds)
	}
}

func TestDiagnosticsAreBounded(t *testing.T) {
	for n, truncated := range map[int]bool{99: false, 100: false, 101: true, 5000: true} {
		_, ds := acl.Parse("in.acl", []byte(strings.Repeat("}\n", n)))
		want := min(n, acl.MaxDiagnostics)
		if truncated {
			want++
		}
		if len(ds) != want || ds.Truncated() != truncated {
			t.Errorf("%d errors: got %d entries, truncated %t", n, len(ds), ds.Truncated())
		}
		if truncated && ds[len(ds)-1].Code != acl.CodeTruncated {
			t.Errorf("%d errors: the mark is not last", n)
		}
	}
}

// Objects in lists in objects, hundreds at each level, take time in proportion
// to their number.
func TestDeepObjectLists(t *testing.T) {
	inner := "[" + strings.Repeat("{ url = \"http://h\", weight = 1 },\n", 40) + "]"
	middle := "[" + strings.Repeat("{ servers = "+inner+" }\n", 20) + "]"
	src := []byte("x { groups = [" + strings.Repeat("{ groups = "+middle+" },", 12) + "] }")
	start := time.Now()
	doc, ds := acl.Parse("in.acl", src)
	if len(ds) > 0 {
		t.Fatal(ds[0])
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("%d bytes took %v", len(src), d)
	}
	groups := doc.Blocks[0].Attr("groups").Value.List
	if n := len(groups); n != 12 {
		t.Errorf("got %d groups", n)
	}
	leaf := groups[11].Pairs[0].Value.List[19].Pairs[0].Value.List[39].Pairs[1]
	if leaf.Key != "weight" || leaf.Value.Int != 1 {
		t.Errorf("got %+v", leaf)
	}
}

func TestNumbers(t *testing.T) {
	tests := []struct {
		text  string
		isInt bool
		exact string // the integer, or the float
	}{
		{"0", true, "0"},
		{"-0", true, "0"},
		{"007", true, "7"},
		{"1.0", true, "1"},
		{"1.", true, "1"},
		{".5", false, "0.5"},
		{"-.5e1", true, "-5"},
		{"1e3", true, "1000"},
		{"1.25e2", true, "125"},
		{"1.25e1", false, "12.5"},
		{"120e-1", true, "12"},
		{"125e-1", false, "12.5"},
		{"0e999999999999", true, "0"},
		{"0.0e-99999999999999999999", true, "0"},
		{"1e-400", false, "0"},
		{"1E+2", true, "100"},
		{"9223372036854775807", true, "9223372036854775807"},
		{"-9223372036854775809", true, "-9223372036854775809"},
		{"1e18", true, "1000000000000000000"},
		{"1e20", true, "100000000000000000000"},
		{"00000000000000000000000001", true, "1"},
		{"0.00000000000000000000001e23", true, "1"},
	}
	for _, tt := range tests {
		doc, ds := acl.Parse("in.acl", []byte("n = "+tt.text))
		if len(ds) > 0 {
			t.Errorf("%s: %v", tt.text, ds)
			continue
		}
		v := doc.Attr("n").Value
		_, got, _ := strings.Cut(numberText(v), " ")
		if v.IsInt != tt.isInt || got != tt.exact || v.Text != tt.text {
			t.Errorf("%s: got %q, integral %t, exactly %s", tt.text, v.Text, v.IsInt, got)
		}
	}
}
