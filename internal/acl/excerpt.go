package acl

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maskText     = "•"
	tabWidth     = 4
	excerptWidth = 100 // characters of a line shown at most
	excerptLead  = 60  // of these before the place, when the line is longer
)

// excerpter shows lines of one text with what may be secret masked.
type excerpter struct {
	src    string
	starts map[int]int         // offset of the first byte of the lines needed
	tokens map[int][]lineToken // tokens of the lines needed
	broken int                 // first line on which quotes are in doubt, else 0
	strict bool                // the text has syntax errors
}

// lineToken is a token and what decides whether its text may be shown.
type lineToken struct {
	token
	keep bool // shown in a text without syntax errors
	safe bool // shown in any text
}

// newExcerpter reads the text once and keeps the lines that findings are about.
// It returns nil for a text that has no meaningful lines.
func newExcerpter(file string, src []byte, ds Diagnostics) *excerpter {
	if len(src) > MaxDocumentBytes || !utf8.Valid(src) {
		return nil
	}
	e := &excerpter{src: string(src), starts: map[int]int{}, tokens: map[int][]lineToken{}}
	for _, d := range ds {
		if d.Span.File != file {
			continue
		}
		e.strict = e.strict || isSyntaxCode(d.Code)
		if !d.Span.IsZero() {
			e.tokens[d.Span.Start.Line] = nil
		}
	}
	e.read()
	return e
}

// isSyntaxCode reports whether a finding puts the reading of the text in doubt.
func isSyntaxCode(code string) bool {
	return strings.HasPrefix(code, "acl.") && code != CodeDuplicateAttribute && code != CodeNumberRange
}

func (e *excerpter) read() {
	lx := newLexer(e.src, true)
	e.starts[1] = lx.lineStart
	var c context
	tok := lx.next()
	for tok.kind != tokEOF {
		next := lx.next()
		e.strict = e.strict || tok.kind == tokUnterminated || tok.kind == tokUnquoted
		if e.broken == 0 && quotesInDoubt(&tok, &next) {
			e.broken = tok.start.Line
		}
		if list, wanted := e.tokens[tok.start.Line]; wanted {
			e.noteStart(&tok)
			keep, safe := c.visible(&tok, &next)
			e.tokens[tok.start.Line] = append(list, lineToken{tok, keep, safe})
		}
		c.pass(&tok)
		tok = next
	}
	if _, wanted := e.tokens[tok.start.Line]; wanted {
		e.noteStart(&tok)
	}
}

// quotesInDoubt reports whether a string is not closed, or something sticks to
// it: in a broken text both mean that quotes may be the wrong way round.
func quotesInDoubt(t, next *token) bool {
	return t.kind == tokUnterminated || next.adjacent && (t.kind == tokString && next.kind.isText() ||
		next.kind == tokString && t.kind.isText())
}

// noteStart remembers where the token's line begins, once a line.
func (e *excerpter) noteStart(t *token) {
	if _, known := e.starts[t.start.Line]; !known {
		e.starts[t.start.Line] = t.start.Offset - columnBytes(e.src, t.start)
	}
}

// columnBytes returns how many bytes stand before at on its line.
func columnBytes(src string, at Pos) int {
	offset := at.Offset
	for range at.Col - 1 {
		_, size := utf8.DecodeLastRuneInString(src[:offset])
		offset -= size
	}
	return at.Offset - offset
}

// context is what a token's meaning depends on.
type context struct {
	inList []bool // for each open bracket: `[` or `(`, where every word is a value
	prev   tokenKind
}

func (c *context) pass(t *token) {
	switch t.kind {
	case tokComment:
		return
	case tokLeftBrace, tokLeftBracket, tokLeftParen:
		c.inList = append(c.inList, t.kind != tokLeftBrace)
	case tokRightBrace, tokRightBracket, tokRightParen:
		if len(c.inList) > 0 {
			c.inList = c.inList[:len(c.inList)-1]
		}
	}
	c.prev = t.kind
}

// visible decides about one token. keep relies on the grammar; safe holds even
// where quotes have been lost, and then shows only what clearly is a name.
func (c *context) visible(t, next *token) (keep, safe bool) {
	switch t.kind {
	case tokString, tokUnterminated, tokUnquoted, tokComment:
		return false, false
	case tokNumber:
		return true, false
	case tokIdent:
	default:
		return true, true
	}
	isValue := isAssign(c.prev) || len(c.inList) > 0 && c.inList[len(c.inList)-1]
	if isValue {
		return next.kind == tokLeftParen, false
	}
	begins := t.nl() || c.prev == tokEOF
	names := isAssign(next.kind) || next.kind == tokLeftBrace || next.kind == tokString && !next.adjacent
	return true, begins && names && !next.nl()
}

// cell is one character of an excerpt.
type cell struct {
	text  string
	width int
}

// excerpt returns the line that the finding is about and the mark to print
// below it.
func (e *excerpter) excerpt(d *Diagnostic) (text, mark string, ok bool) {
	if e == nil || d.Span.IsZero() {
		return "", "", false
	}
	cells, ok := e.line(d)
	if !ok {
		return "", "", false
	}
	from := min(max(d.Span.Start.Col-1, 0), len(cells))
	to := len(cells)
	if d.Span.End.Line == d.Span.Start.Line {
		to = min(d.Span.End.Col-1, len(cells))
	}
	first, last := 0, len(cells)
	if len(cells) > excerptWidth {
		first = max(0, min(from-excerptLead, len(cells)-excerptWidth))
		last = first + excerptWidth
	}
	var line, below strings.Builder
	if first > 0 {
		line.WriteString("…")
		below.WriteByte(' ')
	}
	for i, c := range cells[first:last] {
		line.WriteString(c.text)
		switch i += first; {
		case i < from:
			below.WriteString(strings.Repeat(" ", c.width))
		case i < to:
			below.WriteString(strings.Repeat("^", c.width))
		}
	}
	if last < len(cells) {
		line.WriteString("…")
	}
	if to <= from {
		below.WriteByte('^')
	}
	return strings.TrimRight(line.String(), " "), below.String(), true
}

// line returns the characters of the finding's line as they may be shown. A
// comment at its end is left out.
func (e *excerpter) line(d *Diagnostic) ([]cell, bool) {
	start, ok := e.starts[d.Span.Start.Line]
	if !ok {
		return nil, false
	}
	end := len(e.src)
	if i := strings.IndexAny(e.src[start:], "\r\n"); i >= 0 {
		end = start + i
	}
	var cells []cell
	if e.strict && e.broken > 0 && d.Span.Start.Line > e.broken {
		// Whatever stands here may belong to a string that a line end cut.
		line := e.src[start:end]
		text := strings.TrimLeft(line, " \t")
		cells = appendCells(nil, line[:len(line)-len(text)], false)
		return appendCells(cells, text, true), true
	}
	done := start
	for _, t := range e.tokens[d.Span.Start.Line] {
		cells = appendCells(cells, e.src[done:t.start.Offset], false)
		if t.kind == tokComment {
			return cells, true
		}
		cells = e.appendToken(cells, t, d)
		done = t.end.Offset
	}
	return appendCells(cells, e.src[done:end], false), true
}

func (e *excerpter) appendToken(cells []cell, t lineToken, d *Diagnostic) []cell {
	at := d.Span.Start.Offset
	subject := d.ShowValue && t.start.Offset <= at && at < t.end.Offset
	switch {
	case t.safe, !e.strict && (t.keep || subject):
		return appendCells(cells, t.text, false)
	case t.kind == tokString:
		cells = appendCells(cells, t.text[:1], false)
		cells = appendCells(cells, t.text[1:len(t.text)-1], true)
		return appendCells(cells, t.text[len(t.text)-1:], false)
	case t.kind == tokUnterminated:
		return appendCells(appendCells(cells, t.text[:1], false), t.text[1:], true)
	}
	return appendCells(cells, t.text, true)
}

func appendCells(cells []cell, text string, mask bool) []cell {
	for _, r := range text {
		c := cell{string(r), runeWidth(r)}
		switch {
		case mask:
			c = cell{maskText, 1}
		case r == '\t':
			c = cell{strings.Repeat(" ", tabWidth), tabWidth}
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			c = cell{string(unicode.ReplacementChar), 1}
		}
		cells = append(cells, c)
	}
	return cells
}

// runeWidth is the number of terminal columns of a character, near enough to
// keep a mark under its place.
func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul),
		r >= 0xFF01 && r <= 0xFF60, r >= 0x1F300 && r <= 0x1FAFF:
		return 2
	}
	return 1
}
