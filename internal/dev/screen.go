package dev

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/terminal"
)

// Columns of the tour.
const (
	whatWidth  = 44
	longFigure = 200 // bytes of one that is no error
	longError  = 600
)

// screen shows a tour as it happens: a heading for each step, and a line for each thing that it asserts.
type screen struct {
	out    io.Writer
	colors bool
	steps  int
	checks int
	failed []string // what was asserted and is not so
}

func (s *screen) paint(code, text string) string {
	if !s.colors {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// step begins one.
func (s *screen) step(name, shows string) {
	s.steps++
	fmt.Fprintf(s.out, "\n%s  %s\n", s.paint("1", fmt.Sprintf("%2d  %-*s", s.steps, whatWidth+8, name)), s.paint("2", shows))
}

// check shows whether something is as it should be, with the figure that was seen. It reports whether it is.
func (s *screen) check(what string, err error, format string, args ...any) bool {
	s.checks++
	figure, mark, most := fmt.Sprintf(format, args...), s.paint("32", "ok    "), longFigure
	if err != nil {
		s.failed = append(s.failed, what)
		figure, mark, most = err.Error(), s.paint("31", "FAILED"), longError
	}
	s.line(mark, what, figure, most)
	return err == nil
}

// absent shows what cannot be asserted on this machine.
func (s *screen) absent(what, why string) { s.line(s.paint("33", "absent"), what, why, longFigure) }

// line is one of the table, also when a figure has several. What programs have printed into it moves no cursor.
func (s *screen) line(mark, what, figure string, most int) {
	if len(figure) > most {
		figure = strings.ToValidUTF8(figure[:most], "") + "..."
	}
	fmt.Fprintf(s.out, "    %s  %-*s  %s\n", mark, whatWidth, what, terminal.Line(strings.ReplaceAll(figure, "\n", " ")))
}

// end shows how it went.
func (s *screen) end(took time.Duration) {
	if len(s.failed) == 0 {
		fmt.Fprintf(s.out, "\n%s in %s\n", s.paint("32", fmt.Sprintf("All %d assertions of %d steps hold,", s.checks, s.steps)), took.Round(100*time.Millisecond))
		return
	}
	fmt.Fprintf(s.out, "\n%s after %s: %s\n", s.paint("31", fmt.Sprintf("%d of %d assertions do not hold,", len(s.failed), s.checks)), took.Round(100*time.Millisecond), strings.Join(s.failed, "; "))
}
