package acl

// parseValue reads one value. It returns nil when the current token begins
// none; that is reported, and the token is left for the caller to pass.
func (p *parser) parseValue() *Value {
	v := &Value{Span: p.here(), Text: p.tok.text}
	switch p.tok.kind {
	case tokString:
		v.Kind, v.Str, v.Quote = String, p.stringText(), p.tok.text[0]
	case tokNumber:
		if !v.setNumber(p.tok.text) {
			p.report(&Diagnostic{
				Code: CodeNumberRange, Message: "the number is out of range",
				Hint: "its magnitude must be below 1.8e308", Span: p.here(),
			})
		}
	case tokTrue, tokFalse:
		v.Kind, v.Bool = Bool, p.tok.kind == tokTrue
	case tokNull:
		v.Kind = Null
	case tokIdent:
		name := p.tok
		p.advance()
		if p.tok.kind == tokLeftParen && !p.tok.nl() {
			return p.parseCall(name)
		}
		v.Kind, v.Str, v.Bare = String, name.text, true
		return v
	case tokLeftBracket:
		return p.parseList()
	case tokLeftBrace:
		return p.parseObject()
	default:
		p.syntax(p.unexpected("a value", valueHint(&p.tok)))
		return nil
	}
	p.advance()
	return v
}

func (p *parser) stringText() string {
	t := p.tok.text
	return decodeString(t[1:len(t)-1], t[0])
}

func (p *parser) parseList() *Value {
	v := &Value{Kind: List}
	start := p.tok.start
	if !p.open(tokRightBracket) {
		return nil
	}
	for p.tok.kind != tokRightBracket && p.tok.kind != tokEOF {
		if !p.room(len(v.List), "list") {
			break
		}
		item := p.parseValue()
		if item == nil {
			if p.belongsOutside() {
				break
			}
			p.skip(true, tokComma, tokRightBracket)
		} else {
			v.List = append(v.List, item)
		}
		switch kind := p.tok.kind; {
		case kind == tokComma:
			p.advance()
		case kind == tokRightBracket, kind == tokEOF, kind.startsValue(), item == nil:
		case p.belongsOutside():
		default:
			p.syntax(p.expected("Comma or RightBracket", valueHint(&p.tok)))
			p.skip(!p.tok.nl() || kind.isCloser(), tokComma, tokRightBracket)
			if p.tok.kind == tokComma {
				p.advance()
			}
		}
		if p.belongsOutside() && p.tok.kind != tokRightBracket {
			break
		}
	}
	p.close("Comma or RightBracket")
	v.Span = p.span(start, p.prevEnd)
	return v
}

func (p *parser) parseObject() *Value {
	v := &Value{Kind: Object}
	start := p.tok.start
	if !p.open(tokRightBrace) {
		return nil
	}
	keys := p.newKeys()
	defer p.dropKeys(&keys)
	for p.tok.kind != tokRightBrace && p.tok.kind != tokEOF {
		switch kind := p.tok.kind; {
		case kind == tokComma || kind == tokSemicolon:
			p.advance()
		case kind == tokIdent || kind == tokString || kind == tokUnquoted:
			if !p.room(len(v.Pairs), "object") {
				break
			}
			if pair := p.parsePair(); pair != nil && kind != tokUnquoted && p.unique(&keys, pair.Key, pair.KeySpan) {
				v.Pairs = append(v.Pairs, pair)
			}
		case kind == tokLeftBrace:
			p.strayBrace(false)
		default:
			p.syntax(p.unexpected("a key", strayHint(&p.tok, false)))
			if p.belongsOutside() {
				p.leave()
				v.Span = p.span(start, p.prevEnd)
				return v
			}
			p.skip(true, tokComma, tokSemicolon)
		}
	}
	p.close("RightBrace")
	v.Span = p.span(start, p.prevEnd)
	return v
}

// parsePair reads a key and its value. It returns nil after a mistake, having
// skipped to where the object can be read on.
func (p *parser) parsePair() *Pair {
	name := p.tok
	key := name.text
	switch name.kind {
	case tokString:
		key = p.stringText()
	case tokUnquoted:
		p.syntax(p.unexpected("a key", nameHint(&name)))
	}
	p.advance()
	switch {
	case isAssign(p.tok.kind) && !p.tok.nl():
		p.passAssign()
	case !p.tok.nl() && (p.tok.kind == tokLeftBrace || p.tok.kind == tokString):
		// A block where only pairs can stand: read it as one and go on.
		p.syntax(p.expected("Equals or Colon",
			"an object holds only keys with values: write `=` before `{`, without a label"))
		for p.tok.kind == tokString && !p.tok.nl() {
			p.advance()
		}
	default:
		if name.kind != tokUnquoted {
			p.syntax(p.expected("Equals or Colon", valueHint(&p.tok)))
		}
		p.skip(false, tokComma, tokSemicolon, tokRightBracket)
		return nil
	}
	v := p.parseValue()
	if v == nil {
		p.skip(false, tokComma, tokSemicolon, tokRightBracket)
		return nil
	}
	return &Pair{Key: key, KeySpan: p.span(name.start, name.end), Value: v}
}

// parseCall reads from the opening parenthesis.
func (p *parser) parseCall(name token) *Value {
	v := &Value{Kind: Call, Func: name.text}
	if !p.open(tokRightParen) {
		return nil
	}
	for p.tok.kind != tokRightParen || len(v.Args) > 0 {
		if !p.room(len(v.Args), "argument list") {
			break
		}
		arg := p.parseValue()
		if arg == nil {
			break
		}
		v.Args = append(v.Args, arg)
		if p.tok.kind != tokComma {
			break
		}
		p.advance()
	}
	if !p.close("Comma or RightParen") && !p.belongsOutside() {
		// Pass the rest of the call, so that it is not taken for statements.
		p.skip(false, tokComma, tokRightParen, tokRightBracket)
		for p.tok.kind == tokComma && !p.tok.nl() {
			p.skip(true, tokRightParen, tokRightBracket)
		}
		if p.tok.kind == tokRightParen {
			p.advance()
		}
	}
	v.Span = p.span(name.start, p.prevEnd)
	return v
}
