package acl

import (
	"fmt"
	"strings"
)

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
