package acl

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const byteOrderMark = "\uFEFF"

// lexer cuts a valid UTF-8 text into tokens, each byte looked at a bounded
// number of times. It never fails: what forms no token becomes tokUnquoted or
// tokUnterminated and is judged by the parser.
type lexer struct {
	src       string
	comments  bool // return comments as tokens instead of skipping them
	off       int
	line      int // 1-based
	lineStart int // offset of the first byte of the line
	wide      int // continuation bytes on this line before off: bytes minus characters
	lastEnd   int // end of the previous token; -1 before the first
}

func newLexer(src string, comments bool) lexer {
	lx := lexer{src: src, comments: comments, line: 1, lastEnd: -1}
	if strings.HasPrefix(src, byteOrderMark) {
		// Editors on Windows write one; it is no character of the first line.
		lx.off, lx.lineStart = len(byteOrderMark), len(byteOrderMark)
	}
	return lx
}

func (lx *lexer) pos() Pos {
	return Pos{Line: lx.line, Col: lx.off - lx.lineStart - lx.wide + 1, Offset: lx.off}
}

// next returns the next token; at the end it returns tokEOF again and again.
func (lx *lexer) next() token {
	t := token{lines: lx.skipBlank()}
	t.start = lx.pos()
	t.adjacent = lx.off == lx.lastEnd
	t.kind = lx.scan()
	t.end = lx.pos()
	t.text = lx.src[t.start.Offset:lx.off]
	lx.lastEnd = lx.off
	return t
}

// skipBlank passes blanks, line ends and (unless wanted) comments, and returns
// how many lines ended.
func (lx *lexer) skipBlank() (lines int32) {
	for lx.off < len(lx.src) {
		switch c := lx.src[lx.off]; {
		case c == ' ' || c == '\t':
			lx.off++
		case c == '\n' || c == '\r':
			lx.off += lineEndLen(lx.src[lx.off:])
			lx.line++
			lx.lineStart, lx.wide = lx.off, 0
			lines++
		case !lx.comments && lx.atComment():
			lx.skipLine()
		default:
			return lines
		}
	}
	return lines
}

// lineEndLen returns the length of the line end that s starts with, or 0.
func lineEndLen(s string) int {
	switch {
	case strings.HasPrefix(s, "\r\n"):
		return 2
	case s != "" && (s[0] == '\n' || s[0] == '\r'):
		return 1
	}
	return 0
}

func (lx *lexer) atComment() bool {
	rest := lx.src[lx.off:]
	return strings.HasPrefix(rest, "#") || strings.HasPrefix(rest, "//")
}

// skipLine moves to the end of the line, not past it.
func (lx *lexer) skipLine() {
	for lx.off < len(lx.src) && lx.src[lx.off] != '\n' && lx.src[lx.off] != '\r' {
		lx.passByte()
	}
}

func (lx *lexer) passByte() {
	if !utf8.RuneStart(lx.src[lx.off]) {
		lx.wide++
	}
	lx.off++
}

func (lx *lexer) passRune() {
	_, size := utf8.DecodeRuneInString(lx.src[lx.off:])
	lx.off += size
	lx.wide += size - 1
}

// peek returns the character at off, or -1 at the end.
func (lx *lexer) peek() rune {
	if lx.off >= len(lx.src) {
		return -1
	}
	if c := lx.src[lx.off]; c < utf8.RuneSelf {
		return rune(c)
	}
	r, _ := utf8.DecodeRuneInString(lx.src[lx.off:])
	return r
}

var punctuation = [utf8.RuneSelf]tokenKind{
	'{': tokLeftBrace, '}': tokRightBrace, '[': tokLeftBracket, ']': tokRightBracket,
	'(': tokLeftParen, ')': tokRightParen, '=': tokEquals, ':': tokColon,
	',': tokComma, ';': tokSemicolon,
}

// scan passes one token and returns its kind.
func (lx *lexer) scan() tokenKind {
	r := lx.peek()
	switch {
	case r < 0:
		return tokEOF
	case r < utf8.RuneSelf && punctuation[r] != 0:
		lx.off++
		return punctuation[r]
	case r == '"' || r == '\'':
		return lx.scanString(byte(r))
	case isIdentStart(r):
		return lx.scanIdent()
	case isDigit(r) || r == '-' || r == '.':
		return lx.scanNumber()
	case lx.atComment(): // only when asked for
		lx.skipLine()
		return tokComment
	case strings.HasPrefix(lx.src[lx.off:], "+="):
		lx.off += 2
		return tokPlusEquals
	}
	return lx.scanUnquoted()
}

func (lx *lexer) scanString(quote byte) tokenKind {
	lx.off++
	for lx.off < len(lx.src) {
		switch c := lx.src[lx.off]; c {
		case '\n', '\r':
			return tokUnterminated
		case quote:
			lx.off++
			return tokString
		case '\\':
			lx.off++
			if lx.off < len(lx.src) && escape(quote, lx.src[lx.off]) != 0 {
				lx.off++
			}
		default:
			lx.passByte()
		}
	}
	return tokUnterminated
}

func (lx *lexer) scanIdent() tokenKind {
	start := lx.off
	for lx.off < len(lx.src) && lx.src[lx.off] < utf8.RuneSelf && isIdentPart(rune(lx.src[lx.off])) {
		lx.off++
	}
	for isIdentPart(lx.peek()) {
		lx.passRune()
	}
	if !lx.atBoundary() {
		return lx.scanUnquoted()
	}
	switch lx.src[start:lx.off] {
	case "true":
		return tokTrue
	case "false":
		return tokFalse
	case "null":
		return tokNull
	}
	return tokIdent
}

func (lx *lexer) scanNumber() tokenKind {
	if lx.peek() == '-' {
		lx.off++
	}
	digits := lx.passDigits()
	if lx.peek() == '.' {
		lx.off++
		digits += lx.passDigits()
	}
	ok := digits > 0
	if r := lx.peek(); ok && (r == 'e' || r == 'E') {
		lx.off++
		if r := lx.peek(); r == '+' || r == '-' {
			lx.off++
		}
		ok = lx.passDigits() > 0
	}
	if !ok || !lx.atBoundary() {
		return lx.scanUnquoted()
	}
	return tokNumber
}

func (lx *lexer) passDigits() int {
	start := lx.off
	for isDigit(lx.peek()) {
		lx.off++
	}
	return lx.off - start
}

// atBoundary reports whether a word or number may end here.
func (lx *lexer) atBoundary() bool {
	return !isUnquotedPart(lx.peek()) || lx.atComment() || strings.HasPrefix(lx.src[lx.off:], "+=")
}

// scanUnquoted passes everything that sticks together, so that one mistake is
// one token and no half of it is read as something else.
func (lx *lexer) scanUnquoted() tokenKind {
	for isUnquotedPart(lx.peek()) {
		lx.passRune()
	}
	return tokUnquoted
}

func isUnquotedPart(r rune) bool {
	switch r {
	case -1, ' ', '\t', '\n', '\r', '"', '\'':
		return false
	}
	return r >= utf8.RuneSelf || punctuation[r] == 0
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func isIdentStart(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '_'
	}
	return unicode.IsLetter(r) || unicode.Is(unicode.Other_Alphabetic, r)
}

func isIdentPart(r rune) bool {
	return isIdentStart(r) || isDigit(r) || r >= utf8.RuneSelf && unicode.IsNumber(r)
}
