// Package terminal shows on a terminal what others have written: output of actors, names, causes of errors. It owns which characters
// are shown as what they are, and keeps nothing but a beginning of a character. It must not know what is shown.
package terminal

import (
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Is reports whether people look at f.
func Is(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// Escape shows as \u001b or \u202e what would act on a terminal or have text read as what it is not: control characters but newline
// and tab, line separators, and what turns the direction of writing. A byte that is no UTF-8 is shown as \x9b. What stands in a
// string of JSON means the same afterwards.
func Escape(s string) string { return escape(s, "\n\t") }

// Line is Escape for text that is part of a line: newlines and tabs are shown like the others.
func Line(s string) string { return escape(s, "") }

func escape(s, keep string) string {
	var b strings.Builder
	done := 0 // up to here s is in b
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(s[done:i])
			fmt.Fprintf(&b, `\x%02x`, s[i])
			done = i + n
		case acts(r) && !strings.ContainsRune(keep, r):
			b.WriteString(s[done:i])
			fmt.Fprintf(&b, `\u%04x`, r)
			done = i + n
		}
		i += n
	}
	if done == 0 {
		return s
	}
	b.WriteString(s[done:])
	return b.String()
}

// acts reports whether a character does something beside being shown.
func acts(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r)
}
