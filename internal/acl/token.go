package acl

// tokenKind is what the lexer cuts the text into. Newlines are not tokens:
// a token knows whether a line ended before it.
type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokIdent
	tokString
	tokNumber
	tokTrue
	tokFalse
	tokNull
	tokLeftBrace
	tokRightBrace
	tokLeftBracket
	tokRightBracket
	tokLeftParen
	tokRightParen
	tokEquals
	tokColon
	tokPlusEquals
	tokComma
	tokSemicolon
	tokComment      // only when the lexer is asked for comments
	tokUnterminated // a string without its closing quote, up to the end of the line
	tokUnquoted     // characters that form no token: `/health`, `round-robin`, `8mb`, `%`
)

var tokenNames = [...]string{
	tokEOF: "end of file", tokIdent: "Ident", tokString: "String", tokNumber: "Number",
	tokTrue: "Bool", tokFalse: "Bool", tokNull: "Null",
	tokLeftBrace: "LeftBrace", tokRightBrace: "RightBrace",
	tokLeftBracket: "LeftBracket", tokRightBracket: "RightBracket",
	tokLeftParen: "LeftParen", tokRightParen: "RightParen",
	tokEquals: "Equals", tokColon: "Colon", tokPlusEquals: "PlusEquals",
	tokComma: "Comma", tokSemicolon: "Semicolon", tokComment: "Comment",
	tokUnterminated: "UnterminatedString", tokUnquoted: "UnquotedText",
}

// String returns the name that diagnostics use; it never holds source text.
func (k tokenKind) String() string { return tokenNames[k] }

func (k tokenKind) isCloser() bool {
	return k == tokRightBrace || k == tokRightBracket || k == tokRightParen
}

func (k tokenKind) isBrace() bool { return k == tokLeftBrace || k == tokRightBrace }

// isText reports whether such a token consists of a word, a number or quotes.
func (k tokenKind) isText() bool {
	switch k {
	case tokIdent, tokString, tokNumber, tokTrue, tokFalse, tokNull, tokUnterminated, tokUnquoted:
		return true
	}
	return false
}

// startsValue reports whether a value can begin with such a token.
func (k tokenKind) startsValue() bool {
	switch k {
	case tokIdent, tokString, tokNumber, tokTrue, tokFalse, tokNull, tokLeftBrace, tokLeftBracket:
		return true
	}
	return false
}

// token is one lexical unit. text is a part of the source.
type token struct {
	kind     tokenKind
	lines    int32 // line ends between the previous token and this one
	start    Pos
	end      Pos
	text     string
	adjacent bool // nothing at all stands between the previous token and this one
}

// nl reports whether the token is the first on its line.
func (t *token) nl() bool { return t.lines > 0 }
