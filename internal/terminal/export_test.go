package terminal

import "io"

// Showing makes a writer that takes out for a terminal.
func Showing(out io.Writer) *Writer { return &Writer{out: out, show: true} }
