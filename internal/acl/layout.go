package acl

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// formatWidth is the column up to which a list or object that was written on
// one line stays on one.
const formatWidth = 100

// group is what stands between brackets, or the whole text.
type group struct {
	comment string // behind the opening bracket, on its line
	items   []item
	oneLine bool // opened and closed on one line
}

// item is what takes a place of its own in a group: a comment, an attribute or
// pair (head and value), a list item (value only) or a block (head and body).
type item struct {
	blank   bool   // a blank line stands before it
	comment string // the comment itself, or the one that follows the item
	head    string
	value   *layout
	body    *group
}

func (it *item) isComment() bool { return it.value == nil && it.body == nil }

// layout is a value: its text, or for a list or object what it encloses.
type layout struct {
	text  string
	list  bool
	group *group
}

// flat returns the value on one line, without any comments.
func (v *layout) flat() string {
	if v.group == nil {
		return v.text
	}
	var parts []string
	for i := range v.group.items {
		switch it := &v.group.items[i]; {
		case it.isComment():
		case v.list:
			parts = append(parts, it.value.flat())
		default:
			parts = append(parts, it.head+" = "+it.value.flat())
		}
	}
	text := strings.Join(parts, ", ")
	switch {
	case v.list:
		return "[" + text + "]"
	case text == "":
		return "{}"
	}
	return "{ " + text + " }"
}

// fits reports whether the value goes on one line after so many characters,
// whatever is aligned there, so that the answer is the same the next time.
func (v *layout) fits(before int) bool {
	if v.group == nil || v.group.empty() {
		return true
	}
	return v.group.oneLine && before+utf8.RuneCountInString(v.flat()) <= formatWidth
}

func (g *group) empty() bool { return g.comment == "" && len(g.items) == 0 }

// layoutWriter prints groups.
type layoutWriter struct {
	out bytes.Buffer
}

func (w *layoutWriter) indent(depth int) {
	for range depth {
		w.out.WriteString("  ")
	}
}

func (w *layoutWriter) items(items []item, depth int, list bool) {
	for i := 0; i < len(items); {
		if items[i].blank && i > 0 {
			w.out.WriteByte('\n')
		}
		n := 0
		for i+n < len(items) && items[i+n].takesOneLine(depth, list) && (n == 0 || !items[i+n].blank) {
			n++
		}
		if n > 0 {
			w.run(items[i:i+n], depth, list)
			i += n
			continue
		}
		w.long(&items[i], depth, list)
		i++
	}
}

// takesOneLine reports whether the item is printed in a run of aligned lines.
func (it *item) takesOneLine(depth int, list bool) bool {
	switch {
	case it.body != nil:
		return false
	case it.value == nil:
		return true
	case list:
		return it.value.fits(2*depth + len(","))
	}
	return it.value.fits(2*depth + utf8.RuneCountInString(it.head) + len(" = "))
}

// run prints neighbours that take one line each, their signs and their
// comments aligned.
func (w *layoutWriter) run(items []item, depth int, list bool) {
	widest := 0
	for i := range items {
		widest = max(widest, utf8.RuneCountInString(items[i].head))
	}
	lines := make([]string, len(items))
	for i := range items {
		switch it := &items[i]; {
		case it.isComment():
			lines[i] = it.comment
		case list:
			lines[i] = it.value.flat() + ","
		default:
			lines[i] = pad(it.head, widest) + " = " + it.value.flat()
		}
	}
	column := 0
	for i := range items {
		if items[i].isComment() || items[i].comment == "" {
			column = 0
		} else if column == 0 {
			column = commentColumn(items[i:], lines[i:])
		}
		w.indent(depth)
		w.out.WriteString(lines[i])
		if column > 0 {
			w.out.WriteString(pad("", column-utf8.RuneCountInString(lines[i])) + " " + items[i].comment)
		}
		w.out.WriteByte('\n')
	}
}

// commentColumn returns the width of the widest of the lines, from the first
// on, that all have a comment behind them.
func commentColumn(items []item, lines []string) int {
	column := 0
	for i := range items {
		if items[i].isComment() || items[i].comment == "" {
			break
		}
		column = max(column, utf8.RuneCountInString(lines[i]))
	}
	return column
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// long prints an item that encloses lines of its own, or a block.
func (w *layoutWriter) long(it *item, depth int, list bool) {
	w.indent(depth)
	w.out.WriteString(it.head)
	switch {
	case it.body != nil:
		w.out.WriteByte(' ')
		w.block(it, depth)
	case it.value.list:
		if !list {
			w.out.WriteString(" = ")
		}
		w.enclosed(it.value.group, depth, true, "[]")
	default:
		if !list {
			w.out.WriteString(" = ")
		}
		w.enclosed(it.value.group, depth, false, "{}")
	}
	if list {
		w.out.WriteByte(',')
	}
	if it.comment != "" {
		w.out.WriteString(" " + it.comment)
	}
	w.out.WriteByte('\n')
}

// block prints the body. One attribute that was on the line of its braces
// stays there.
func (w *layoutWriter) block(it *item, depth int) {
	g := it.body
	if g.oneLine && len(g.items) == 1 && g.items[0].value != nil {
		only := &g.items[0]
		around := 2*depth + utf8.RuneCountInString(it.head) + len(" { ") + len(" }")
		if only.value.fits(around + utf8.RuneCountInString(only.head) + len(" = ")) {
			text := only.head + " = " + only.value.flat()
			if around+utf8.RuneCountInString(text) <= formatWidth {
				w.out.WriteString("{ " + text + " }")
				return
			}
		}
	}
	w.enclosed(g, depth, false, "{}")
}

func (w *layoutWriter) enclosed(g *group, depth int, list bool, brackets string) {
	w.out.WriteByte(brackets[0])
	if !g.empty() {
		if g.comment != "" {
			w.out.WriteString(" " + g.comment)
		}
		w.out.WriteByte('\n')
		w.items(g.items, depth+1, list)
		w.indent(depth)
	}
	w.out.WriteByte(brackets[1])
}
