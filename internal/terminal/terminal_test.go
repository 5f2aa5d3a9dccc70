package terminal_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/terminal"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, want, line string }{
		{"nothing", "", "", ""},
		{"plain", "a ~é漢👩‍👩‍👧\\u", "a ~é漢👩‍👩‍👧\\u", "a ~é漢👩‍👩‍👧\\u"},
		{"lines", "a\tb\nc\n", "a\tb\nc\n", `a\u0009b\u000ac\u000a`},
		{"a colour", "\x1b[31mred", `\u001b[31mred`, `\u001b[31mred`},
		{"the title of the window", "\x1b]0;x\a", `\u001b]0;x\u0007`, `\u001b]0;x\u0007`},
		{"another line over it", "bad\rgood", `bad\u000dgood`, `bad\u000dgood`},
		{"deleted", "a\b\x7f", `a\u0008\u007f`, `a\u0008\u007f`},
		{"C1 as a character", "\u009b2J", `\u009b2J`, `\u009b2J`},
		{"C1 as a byte", "\x9b2J", `\x9b2J`, `\x9b2J`},
		{"directions", "a\u202eb\u2066c\u061cd\u200fe", `a\u202eb\u2066c\u061cd\u200fe`, `a\u202eb\u2066c\u061cd\u200fe`},
		{"separators", "a\u2028b\u2029", `a\u2028b\u2029`, `a\u2028b\u2029`},
		{"half a character", "\xe6\xbcx\xff", `\xe6\xbcx\xff`, `\xe6\xbcx\xff`},
		{"the character for what is none", "\ufffd", "\ufffd", "\ufffd"},
		{"NUL", "\x00", `\u0000`, `\u0000`},
	} {
		if got := terminal.Escape(tc.text); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if got := terminal.Line(tc.text); got != tc.line {
			t.Errorf("%s in a line: %q, want %q", tc.name, got, tc.line)
		}
	}
}

// Whatever comes, nothing that acts is left; and what JSON says stays the same.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "a\x1b[2J", "\u009b\u202e", "\xe6\xbc", "\"\\\n\u2028\x7f"} {
		f.Add(s, 1)
	}
	f.Fuzz(func(t *testing.T, s string, cut int) {
		want := terminal.Escape(s)
		for _, r := range want {
			if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
				t.Fatalf("%q leaves %q", s, r)
			}
		}
		if !utf8.ValidString(want) {
			t.Fatalf("%q becomes %q", s, want)
		}
		if text, err := json.Marshal(s); err == nil {
			var got, plain string
			if err := json.Unmarshal([]byte(terminal.Line(string(text))), &got); err != nil {
				t.Fatalf("%s is no JSON any more: %v", text, err)
			}
			if _ = json.Unmarshal(text, &plain); got != plain {
				t.Fatalf("%q means %q", text, got)
			}
		}
		var b strings.Builder
		w := terminal.Showing(&b)
		cut = max(min(cut, len(s)), 0)
		for _, piece := range []string{s[:cut], s[cut:]} {
			if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := w.Flush(); err != nil || b.String() != want {
			t.Fatalf("%q in two writes becomes %q, want %q (%v)", s, b.String(), want, err)
		}
	})
}

// Text arrives in pieces of any size, and no later than it has to.
func TestWriterInPieces(t *testing.T) {
	t.Parallel()
	const text = "é漢👩\x1b[2J\u009b\xe6\n"
	var b strings.Builder
	w := terminal.Showing(&b)
	for i := range len(text) {
		if _, err := w.Write([]byte{text[i]}); err != nil {
			t.Fatal(err)
		}
		if missing := len(terminal.Escape(text[:i+1])) - b.Len(); missing > len(`\xf0\x9f\x91`) {
			t.Errorf("%d bytes wait after byte %d", missing, i)
		}
	}
	if want := terminal.Escape(text); b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	if _, err := w.Write([]byte("\xf0\x9f")); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil || !strings.HasSuffix(b.String(), `\xf0\x9f`) {
		t.Errorf("half a character at the end: %q (%v)", b.String(), err)
	}
}

// A file and the null device are no terminals, and get bytes as they are.
func TestWriterOfFiles(t *testing.T) {
	t.Parallel()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if terminal.Is(null) || terminal.Is(f) {
		t.Errorf("terminals: null device %v, file %v", terminal.Is(null), terminal.Is(f))
	}
	w := terminal.NewWriter(f)
	const text = "\x1b[2J\xff\xe6"
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatal(n, err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); string(got) != text || err != nil {
		t.Errorf("%q (%v)", got, err)
	}
}
