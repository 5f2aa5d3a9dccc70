package acl

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// syntax reports a syntax error, unless the same place has one already: an
// outer level that fails for the same token has nothing to add.
func (p *parser) syntax(d *Diagnostic) {
	if d.Span.Start.Offset == p.lastError {
		return
	}
	p.lastError = d.Span.Start.Offset
	p.report(d)
}

// unexpected is about a token that cannot stand where it stands.
func (p *parser) unexpected(wanted, hint string) *Diagnostic {
	return p.finding(CodeUnexpectedToken, wanted, hint)
}

// expected is about one of a few tokens that must stand here.
func (p *parser) expected(wanted, hint string) *Diagnostic {
	return p.finding(CodeExpectedToken, wanted, hint)
}

// finding describes the current token in place of what was wanted. The end of
// the text and a broken string are findings of their own, whatever was wanted.
func (p *parser) finding(code, wanted, hint string) *Diagnostic {
	d := &Diagnostic{Code: code, Hint: hint, Span: p.here()}
	switch p.tok.kind {
	case tokUnterminated:
		d.Code, d.Message, d.Hint = CodeUnexpectedToken, "the String is not closed", unterminatedHint
		return d
	case tokEOF:
		d.Code = CodeUnexpectedEOF
		p.hintUnclosed(d)
	case tokRightBrace, tokRightBracket, tokRightParen:
		if p.belongsOutside() && p.tok.kind != p.brackets[len(p.brackets)-1].closer {
			p.hintUnclosed(d)
		}
	}
	d.Message = fmt.Sprintf("unexpected %s, expected %s", p.tok.kind, wanted)
	return d
}

// hintUnclosed points at the innermost bracket that is still open.
func (p *parser) hintUnclosed(d *Diagnostic) {
	if n := len(p.brackets); n > 0 {
		at := p.brackets[n-1].at
		d.Hint = fmt.Sprintf("the bracket opened at line %d, column %d is not closed", at.Line, at.Col)
	}
}

const (
	unterminatedHint = `a string ends on the line on which it begins; write \n for a line break`
	quoteHint        = "text other than a single word is written in quotes"
)

// valueHint explains a token that stands in place of a value or behind one.
func valueHint(t *token) string {
	switch t.kind {
	case tokUnterminated:
		return unterminatedHint
	case tokColon:
		return quoteHint
	case tokUnquoted:
	default:
		return ""
	}
	if h := characterHint(t.text); h != "" {
		return h
	}
	if isDigit(rune(t.text[0])) {
		return "a number is digits with one point and one exponent at most; durations, sizes and addresses are written in quotes"
	}
	return quoteHint
}

// nameHint explains a token that stands in place of a name.
func nameHint(t *token) string {
	if h := characterHint(t.text); h != "" {
		return h
	}
	return "a name has letters, digits and `_`, and begins with no digit"
}

// strayHint explains a token between statements.
func strayHint(t *token, top bool) string {
	switch t.kind {
	case tokRightBrace:
		return "no block is open here"
	case tokString:
		return "a string can be a label after a block's name, or a value after `=`"
	case tokEquals, tokColon, tokPlusEquals:
		return "is the name before it missing, or the value of the line above?"
	case tokComma:
		if top {
			return "nothing separates blocks; remove it"
		}
	case tokTrue, tokFalse, tokNull:
		return "this word is reserved and cannot be a name"
	}
	return ""
}

// characterHint names a first character that is easily taken for another. Such
// a character alone is no secret.
func characterHint(text string) string {
	r, _ := utf8.DecodeRuneInString(text)
	switch {
	case r == '`':
		return "a backtick has a meaning only inside a string"
	case r == '“' || r == '”' || r == '„' || r == '‘' || r == '’':
		return "typographic quotes do not begin a string; use \" or '"
	case r >= utf8.RuneSelf && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)):
		return fmt.Sprintf("there is an invisible character U+%04X; remove it", r)
	case unicode.IsControl(r):
		return fmt.Sprintf("there is a control character U+%04X; remove it", r)
	}
	return ""
}
