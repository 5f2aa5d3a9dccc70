package acl

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Parse reads a source text. file is only a name for positions. The document is
// never nil; after errors it holds what could be read, for a caller that wants
// to report more, and must not be used to run anything. The diagnostics are
// sorted and at most MaxDiagnostics, plus the mark of truncation.
//
// After a syntax error reading resumes at the next line or brace; a text beyond
// one of the limits is not read further.
func Parse(file string, src []byte) (*Document, Diagnostics) {
	doc := &Document{File: file, Src: src}
	text := string(src)
	if d := checkText(file, text); d != nil {
		return doc, Diagnostics{d}
	}
	p := &parser{file: file, lx: newLexer(text, false), lastError: -1}
	p.advance()
	b := &body{}
	p.parseBody(b, true)
	doc.Attrs, doc.Blocks = b.attrs, b.blocks
	p.ds.Sort()
	return doc, p.ds
}

// checkText refuses what is no text of the language at all.
func checkText(file, text string) *Diagnostic {
	start := Pos{Line: 1, Col: 1}
	if len(text) > MaxDocumentBytes {
		return &Diagnostic{
			Code:    CodeDocumentBytes,
			Message: fmt.Sprintf("the text has %d bytes, more than the limit of %d", len(text), MaxDocumentBytes),
			Span:    Span{File: file, Start: start, End: start},
		}
	}
	if utf8.ValidString(text) {
		return nil
	}
	hint := "save it as UTF-8"
	if len(text) > 1 && (text[:2] == "\xff\xfe" || text[:2] == "\xfe\xff") {
		hint = "it looks like UTF-16: save it as UTF-8"
	}
	lx := newLexer(text, false)
	for {
		r, size := utf8.DecodeRuneInString(text[lx.off:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		if n := lineEndLen(text[lx.off:]); n > 0 {
			lx.off += n
			lx.line++
			lx.lineStart, lx.wide = lx.off, 0
			continue
		}
		lx.passRune()
	}
	at := lx.pos()
	return &Diagnostic{
		Code: CodeInvalidEncoding, Message: "the text is not valid UTF-8", Hint: hint,
		Span: Span{File: file, Start: at, End: Pos{at.Line, at.Col + 1, at.Offset + 1}},
	}
}

// bracket is an open `{`, `[` or `(`.
type bracket struct {
	closer tokenKind
	at     Pos
}

type parser struct {
	file      string
	lx        lexer
	tok       token
	prevEnd   Pos
	ds        Diagnostics
	stopped   bool      // nothing more is read or reported
	lastError int       // offset of the last syntax error: one place, one finding
	brackets  []bracket // those that are open, outermost first
	keys      []keyAt   // of the collections that are open; see keySet
	implicit  int       // levels that are open without a bracket
}

// advance moves to the next token. After a stop every token is the end.
func (p *parser) advance() {
	p.prevEnd = p.tok.end
	if p.stopped {
		p.tok.kind = tokEOF
		return
	}
	p.tok = p.lx.next()
	if len(p.tok.text) > MaxTokenBytes {
		p.stop(CodeTokenBytes, fmt.Sprintf("the %s has %d bytes, more than the limit of %d",
			p.tok.kind, len(p.tok.text), MaxTokenBytes))
	}
}

func (p *parser) span(start, end Pos) Span { return Span{File: p.file, Start: start, End: end} }

func (p *parser) here() Span { return p.span(p.tok.start, p.tok.end) }

// stop reports a limit at the current token and ends the reading.
func (p *parser) stop(code, message string) {
	if p.stopped {
		return
	}
	p.ds.Add(&Diagnostic{Code: code, Message: message, Span: p.here()})
	p.stopped = true
	p.tok.kind = tokEOF
}

func (p *parser) report(d *Diagnostic) {
	if p.stopped {
		return
	}
	if !p.ds.Add(d) {
		p.stopped = true
		p.tok.kind = tokEOF
	}
}

// open enters a bracket at the current token and moves past it. It reports
// false when that is one level too many.
func (p *parser) open(closer tokenKind) bool {
	if len(p.brackets)+p.implicit >= MaxNestingDepth {
		p.stop(CodeNestingDepth, fmt.Sprintf("%s nests deeper than the limit of %d levels", p.tok.kind, MaxNestingDepth))
		return false
	}
	p.brackets = append(p.brackets, bracket{closer, p.tok.start})
	p.advance()
	return true
}

func (p *parser) leave() { p.brackets = p.brackets[:len(p.brackets)-1] }

// room reports whether a collection of n items may get one more.
func (p *parser) room(n int, what string) bool {
	if n < MaxCollectionItems {
		return true
	}
	p.stop(CodeCollectionItems, fmt.Sprintf("more than %d items in one %s", MaxCollectionItems, what))
	return false
}

// close expects the closer of the innermost bracket and leaves that level. It
// reports whether the closer was there.
func (p *parser) close(expected string) bool {
	if p.tok.kind == p.brackets[len(p.brackets)-1].closer {
		p.leave()
		p.advance()
		return true
	}
	p.syntax(p.expected(expected, ""))
	p.leave()
	return false
}

// belongsOutside reports whether the current token closes an outer bracket, so
// that skipping it would do more harm than leaving the inner one.
func (p *parser) belongsOutside() bool {
	return p.tok.kind.isCloser() &&
		slices.ContainsFunc(p.brackets, func(b bracket) bool { return b.closer == p.tok.kind })
}

// skip drops tokens until the next line, a brace or one of the kinds given.
// With force at least one token is dropped.
func (p *parser) skip(force bool, until ...tokenKind) {
	for first := force; p.tok.kind != tokEOF; first = false {
		if !first && (p.tok.nl() || p.tok.kind.isBrace() || slices.Contains(until, p.tok.kind)) {
			return
		}
		p.advance()
	}
}
