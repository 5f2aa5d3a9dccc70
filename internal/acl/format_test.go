package acl_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// checkFormat formats and checks what must hold for every text: the result is
// stable, parses to the same tree and keeps every comment.
func checkFormat(t *testing.T, src []byte) []byte {
	t.Helper()
	before, ds := acl.Parse("in.acl", src)
	out, fds := acl.Format("in.acl", src)
	if ds.HasErrors() {
		if out != nil || !fds.HasErrors() {
			t.Fatalf("a text with errors was formatted:\n%s", out)
		}
		return nil
	}
	if fds.HasErrors() {
		if fds[0].Code == acl.CodeDocumentBytes {
			return nil // indentation made it too large
		}
		t.Fatalf("not formatted: %v", fds)
	}
	after, ds := acl.Parse("out.acl", out)
	if len(ds) > 0 {
		t.Fatalf("the formatted text has errors: %v\n%s", ds, out)
	}
	if a, b := dump(before, false), dump(after, false); a != b {
		t.Fatalf("formatting changed the tree from\n%s\nto\n%s\ntext:\n%s", a, b, out)
	}
	if a, b := comments(src), comments(out); a != b {
		t.Fatalf("formatting changed the comments from\n%s\nto\n%s\ntext:\n%s", a, b, out)
	}
	again, ds := acl.Format("out.acl", out)
	if len(ds) > 0 || string(again) != string(out) {
		t.Fatalf("formatting twice differs: %v\nfirst:\n%s\nsecond:\n%s", ds, out, again)
	}
	return out
}

// comments lists the comments of a valid text in an order that does not depend
// on their places. It reads the text by itself, the slow and simple way.
func comments(src []byte) string {
	var found []string
	for line := range strings.FieldsFuncSeq(string(src), func(r rune) bool { return r == '\n' || r == '\r' }) {
		quote := byte(0)
		for i := 0; i < len(line); i++ {
			c := line[i]
			switch {
			case quote != 0 && c == '\\' && i+1 < len(line) && (line[i+1] == quote || quote == '"' && line[i+1] == '\\'):
				i++
			case quote != 0 && c == quote:
				quote = 0
			case quote != 0:
			case c == '"' || c == '\'':
				quote = c
			case c == '#' || strings.HasPrefix(line[i:], "//"):
				found = append(found, strings.TrimRight(line[i:], " \t"))
				i = len(line)
			}
		}
	}
	slices.Sort(found)
	return strings.Join(found, "\n")
}

func TestFormatGoldens(t *testing.T) {
	eachGolden(t, "format/*.golden", func(t *testing.T, src []byte) string {
		if out := checkFormat(t, src); out != nil {
			return string(out)
		}
		_, ds := acl.Format("in.acl", src)
		return list(ds)
	})
}

// The inputs of the parser's goldens are formatter inputs as well.
func TestFormatOfParserInputs(t *testing.T) {
	eachInput(t, func(t *testing.T, src []byte) { checkFormat(t, src) })
}

// A list that was on one line stays there up to exactly 100 columns.
func TestFormatWidth(t *testing.T) {
	for width, broken := range map[int]bool{99: false, 100: false, 101: true} {
		empty := `k = ["", 1]`
		src := strings.Replace(empty, `""`, `"`+strings.Repeat("é", width-len(empty))+`"`, 1)
		out := string(checkFormat(t, []byte(src)))
		if got := strings.Contains(out, "[\n"); got != broken {
			t.Errorf("width %d: broken %t, want %t:\n%s", width, got, broken, out)
		}
	}
}

// Deep indentation can make a small text too large; that is a refusal, not a
// text that cannot be read again.
func TestFormatRefusesAResultBeyondTheLimit(t *testing.T) {
	depth := acl.MaxNestingDepth
	src := strings.Repeat("b {", depth) + strings.Repeat("\n#", 9000) + "\n" + strings.Repeat("}", depth)
	out, ds := acl.Format("in.acl", []byte(src))
	if out != nil || len(ds) != 1 || ds[0].Code != acl.CodeDocumentBytes {
		t.Fatalf("got %d bytes, %v", len(out), ds)
	}
}
