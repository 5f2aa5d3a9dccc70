package acl_test

import (
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
	again, ds := acl.Format("out.acl", out)
	if len(ds) > 0 || string(again) != string(out) {
		t.Fatalf("formatting twice differs: %v\nfirst:\n%s\nsecond:\n%s", ds, out, again)
	}
	return out
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
