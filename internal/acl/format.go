package acl

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// formatWidth is the column up to which a list or object that was written on
// one line stays on one.
const formatWidth = 100

// Format returns the text in its canonical layout: two spaces a level, one
// attribute a line with the signs of neighbours aligned, `=` for `:`, at most
// one blank line, LF line ends. Every comment is kept. Strings and numbers are
// kept as written. A list or object that was on one line stays there if it
// fits; any other gets one item a line.
//
// Formatting the result again changes nothing, and it parses to the same tree.
// A text with errors is refused: the result is nil and the diagnostics say why.
func Format(file string, src []byte) ([]byte, Diagnostics) {
	if _, ds := Parse(file, src); ds.HasErrors() {
		return nil, ds
	}
	f := &formatter{}
	lx := newLexer(string(src), true)
	for {
		t := lx.next()
		f.toks = append(f.toks, t)
		if t.kind == tokEOF {
			break
		}
	}
	w := layoutWriter{}
	w.items(f.group(tokEOF, false).items, 0, false)
	if w.out.Len() > MaxDocumentBytes {
		start := Pos{Line: 1, Col: 1}
		return nil, Diagnostics{{
			Code:    CodeDocumentBytes,
			Message: fmt.Sprintf("the formatted text would have more bytes than the limit of %d", MaxDocumentBytes),
			Span:    Span{File: file, Start: start, End: start},
		}}
	}
	return w.out.Bytes(), nil
}

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

// formatter turns the tokens of a valid text into groups and items.
type formatter struct {
	toks  []token
	i     int
	hoist []string // comments found where none can be printed
}

// significant passes comments inside an item, to be printed before it, and
// returns the token after them.
func (f *formatter) significant() *token {
	for f.toks[f.i].kind == tokComment {
		f.hoist = append(f.hoist, commentText(&f.toks[f.i]))
		f.i++
	}
	return &f.toks[f.i]
}

func commentText(t *token) string { return strings.TrimRight(t.text, " \t") }

// group reads up to the closer, which is passed.
func (f *formatter) group(closer tokenKind, list bool) *group {
	g := &group{}
	opened := 0
	if closer != tokEOF {
		opened = f.toks[f.i-1].start.Line
	}
	for {
		t := &f.toks[f.i]
		switch t.kind {
		case closer:
			g.oneLine = t.start.Line == opened
			if closer != tokEOF {
				f.i++
			}
			return g
		case tokComment:
			f.i++
			switch {
			case t.nl() || opened == 0 && len(g.items) == 0:
				g.items = append(g.items, item{blank: t.lines > 1, comment: commentText(t)})
			case len(g.items) == 0:
				g.comment = commentText(t)
			default:
				g.items[len(g.items)-1].comment = commentText(t)
			}
		case tokSemicolon, tokComma:
			f.i++
		default:
			f.item(g, list)
		}
	}
}

// item reads one item into g, with the comments from inside it before it.
func (f *formatter) item(g *group, list bool) {
	outer := f.hoist
	f.hoist = nil
	blank := f.toks[f.i].lines > 1
	it := item{}
	if list {
		it.value = f.value()
	} else {
		f.named(&it)
	}
	for _, c := range f.hoist {
		g.items = append(g.items, item{blank: blank, comment: c})
		blank = false
	}
	it.blank = blank
	g.items = append(g.items, it)
	f.hoist = outer
}

// named reads an attribute, a pair or a block.
func (f *formatter) named(it *item) {
	it.head = f.toks[f.i].text
	f.i++
	if isAssign(f.toks[f.i].kind) {
		f.i++
		it.value = f.value()
		return
	}
	for f.toks[f.i].kind == tokString {
		it.head += " " + f.toks[f.i].text
		f.i++
	}
	f.significant()
	f.i++ // the brace
	it.body = f.group(tokRightBrace, false)
}

func (f *formatter) value() *layout {
	t := f.significant()
	f.i++
	switch t.kind {
	case tokLeftBracket:
		return &layout{list: true, group: f.group(tokRightBracket, true)}
	case tokLeftBrace:
		return &layout{group: f.group(tokRightBrace, false)}
	case tokIdent:
		if next := &f.toks[f.i]; next.kind == tokLeftParen && !next.nl() {
			return &layout{text: f.call(t.text)}
		}
	}
	return &layout{text: t.text}
}

// call reads the arguments. A call is always written on one line.
func (f *formatter) call(name string) string {
	f.i++ // the parenthesis
	var args []string
	for {
		switch f.significant().kind {
		case tokRightParen:
			f.i++
			return name + "(" + strings.Join(args, ", ") + ")"
		case tokComma:
			f.i++
		default:
			v := f.value()
			f.hoistFrom(v.group)
			args = append(args, v.flat())
		}
	}
}

// hoistFrom takes the comments out of a group that must fit on one line.
func (f *formatter) hoistFrom(g *group) {
	if g == nil {
		return
	}
	if g.comment != "" {
		f.hoist = append(f.hoist, g.comment)
	}
	for i := range g.items {
		it := &g.items[i]
		if it.value != nil {
			f.hoistFrom(it.value.group)
		}
		if it.comment != "" {
			f.hoist = append(f.hoist, it.comment)
		}
	}
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
