package terminal

import (
	"io"
	"os"
	"unicode/utf8"
)

// Writer writes to a file what others have a say in: by Escape when the file is a terminal, and else byte by byte as it is. It is for
// one goroutine.
type Writer struct {
	File *os.File // for what is known to be harmless, such as our own colours
	out  io.Writer
	show bool
	part []byte // a character that has begun
}

// NewWriter makes one for f, which stays the caller's to close.
func NewWriter(f *os.File) *Writer { return &Writer{File: f, out: f, show: Is(f)} }

// Write writes p. A character whose end is not in it, on a terminal, waits for the next write, or for Flush.
func (w *Writer) Write(p []byte) (int, error) {
	if !w.show {
		return w.out.Write(p)
	}
	text := append(w.part, p...)
	whole := len(text) - begun(text)
	w.part = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(w.out, Escape(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what waits.
func (w *Writer) Flush() error {
	_, err := io.WriteString(w.out, Escape(string(w.part)))
	w.part = nil
	return err
}

// begun is how many bytes at the end of text may be the beginning of a character.
func begun(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if c := text[len(text)-n]; utf8.RuneStart(c) {
			if utf8.FullRune(text[len(text)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}
