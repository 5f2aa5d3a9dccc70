package acl

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// DefaultRenderMax is how many findings Render prints when not told otherwise.
const DefaultRenderMax = 20

// RenderOptions says how Render prints. The zero value is for a log or a pipe.
type RenderOptions struct {
	Color bool // ANSI colours, for a terminal
	Max   int  // findings to print: 0 means DefaultRenderMax, below 0 all
}

// Render prints findings in the order given, each as
// `file:line:col: error[code]: message`, the line with a mark below the place,
// and the hint. What is over the maximum becomes one line `and N more`.
//
// sources holds the texts by file name; a finding in another file has no
// excerpt. Excerpts never show the content of a string, quoted or bare, nor a
// comment, except the string that a ShowValue finding is about. Once a file has
// a syntax error nothing is shown that could be part of a string gone wrong.
func Render(w io.Writer, ds Diagnostics, sources map[string][]byte, opts RenderOptions) {
	limit := opts.Max
	if limit == 0 {
		limit = DefaultRenderMax
	}
	r := renderer{color: opts.Color, excerpts: make(map[string]*excerpter)}
	printed, left := 0, 0
	for _, d := range ds {
		switch {
		case d.Code == CodeTruncated:
		case limit >= 0 && printed == limit:
			left++
		default:
			r.finding(d, r.excerpter(d.Span.File, ds, sources))
			printed++
		}
	}
	switch truncated := ds.Truncated(); {
	case truncated:
		fmt.Fprintf(&r.out, "and %d more, besides those that were not collected\n", left)
	case left > 0:
		fmt.Fprintf(&r.out, "and %d more\n", left)
	}
	_, _ = io.WriteString(w, r.out.String()) // a broken stderr has no one to be told
}

type renderer struct {
	out      strings.Builder
	color    bool
	excerpts map[string]*excerpter
}

// excerpter returns the one for that file, nil when its text is not there.
func (r *renderer) excerpter(file string, ds Diagnostics, sources map[string][]byte) *excerpter {
	src, ok := sources[file]
	if !ok {
		return nil
	}
	e, ok := r.excerpts[file]
	if !ok {
		e = newExcerpter(file, src, ds)
		r.excerpts[file] = e
	}
	return e
}

const (
	ansiReset  = "\x1b[0m"
	ansiBold   = "\x1b[1m"
	ansiRed    = "\x1b[1;31m"
	ansiYellow = "\x1b[1;33m"
	ansiBlue   = "\x1b[34m"
)

func (r *renderer) paint(color, text string) string {
	if !r.color || text == "" {
		return text
	}
	return color + text + ansiReset
}

func (r *renderer) finding(d *Diagnostic, e *excerpter) {
	color := ansiRed
	if d.Severity == Warning {
		color = ansiYellow
	}
	label := d.Severity.String()
	if d.Code != "" {
		label += "[" + d.Code + "]"
	}
	if at := d.Span.String(); at != "" {
		r.out.WriteString(r.paint(ansiBold, printable(at)+":") + " ")
	}
	fmt.Fprintf(&r.out, "%s: %s\n", r.paint(color, label), printable(d.Message))
	if text, mark, ok := e.excerpt(d); ok {
		number := fmt.Sprintf("%5d", d.Span.Start.Line)
		fmt.Fprintf(&r.out, "%s %s\n", r.paint(ansiBlue, number+" |"), text)
		fmt.Fprintf(&r.out, "%s %s\n", r.paint(ansiBlue, "      |"), r.paint(color, mark))
	}
	if d.Hint != "" {
		fmt.Fprintf(&r.out, "      %s %s\n", r.paint(ansiBold, "hint:"), printable(d.Hint))
	}
}

// printable keeps text that came from a file from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
