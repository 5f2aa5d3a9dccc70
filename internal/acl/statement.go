package acl

import "fmt"

// body collects what stands between the braces of a block, or in a document.
type body struct {
	attrs  []*Attr
	blocks []*Block
	keys   keySet
}

// keySet finds a key that is there twice, in constant time also for collections
// at the limit of items. While there are few, its keys are those on the parser's
// stack from base on: an inner collection is taken off before the next key of an
// outer one comes.
type keySet struct {
	base int
	many map[string]Pos
}

type keyAt struct {
	key string
	at  Pos
}

const fewKeys = 16

func (p *parser) newKeys() keySet { return keySet{base: len(p.keys)} }

func (p *parser) dropKeys(s *keySet) { p.keys = p.keys[:s.base] }

// addKey returns the place of an equal key that was added before.
func (p *parser) addKey(s *keySet, key string, at Pos) (Pos, bool) {
	if s.many != nil {
		first, found := s.many[key]
		if !found {
			s.many[key] = at
		}
		return first, found
	}
	for _, k := range p.keys[s.base:] {
		if k.key == key {
			return k.at, true
		}
	}
	p.keys = append(p.keys, keyAt{key, at})
	if few := p.keys[s.base:]; len(few) > fewKeys {
		s.many = make(map[string]Pos, 4*fewKeys)
		for _, k := range few {
			s.many[k.key] = k.at
		}
	}
	return Pos{}, false
}

// parseBody reads up to the closing brace or, at the top, up to the end.
func (p *parser) parseBody(b *body, top bool) {
	b.keys = p.newKeys()
	defer p.dropKeys(&b.keys)
	for {
		switch kind := p.tok.kind; {
		case kind == tokEOF:
			return
		case kind == tokRightBrace && !top:
			return
		case kind == tokSemicolon || kind == tokComma && !top:
			p.advance()
		case kind == tokIdent || kind == tokUnquoted:
			p.parseStatement(b, top)
		case kind == tokLeftBrace:
			p.strayBrace(top)
		default:
			p.syntax(p.unexpected("a name", strayHint(&p.tok, top)))
			if kind == tokComma {
				p.advance() // what follows is a statement all the same
			} else {
				p.skip(true)
			}
		}
	}
}

// strayBrace reports a brace without a name and reads what it encloses, so that
// its closing brace is not taken for that of the surrounding block.
func (p *parser) strayBrace(top bool) {
	p.syntax(p.unexpected("a name", "a block begins with its name"))
	if !p.open(tokRightBrace) {
		return
	}
	p.parseBody(&body{}, false)
	p.close("RightBrace")
}

// parseStatement reads an attribute or a block. A name that is none is reported
// and then treated like one, so that what follows is still understood.
func (p *parser) parseStatement(b *body, top bool) {
	what := "body"
	if top {
		what = "document"
	}
	if !p.room(len(b.attrs)+len(b.blocks), what) {
		return
	}
	name := p.tok
	if name.kind == tokUnquoted {
		p.syntax(p.unexpected("a name", nameHint(&name)))
	}
	p.advance()
	switch kind := p.tok.kind; {
	case isAssign(kind) && !p.tok.nl():
		if top {
			p.implicit++
			defer func() { p.implicit-- }()
		}
		if a := p.parseAttr(name); a != nil && name.kind == tokIdent && p.unique(&b.keys, a.Key, a.KeySpan) {
			b.attrs = append(b.attrs, a)
		}
	case kind == tokString && !p.tok.nl(), kind == tokLeftBrace, kind == tokIdent && !p.tok.nl():
		if block := p.parseBlock(name); block != nil && name.kind == tokIdent {
			b.blocks = append(b.blocks, block)
		}
	default:
		p.nameAlone(name)
	}
}

// nameAlone reports a name that nothing fitting follows.
func (p *parser) nameAlone(name token) {
	if name.kind == tokUnquoted {
		p.skip(false) // reported already
		return
	}
	d := p.expected("Equals, Colon, String or LeftBrace", valueHint(&p.tok))
	if p.tok.nl() || p.tok.kind == tokEOF || p.tok.kind == tokRightBrace {
		d = p.expected(fmt.Sprintf("LeftBrace to open the block named at line %d, column %d",
			name.start.Line, name.start.Col), "a name is followed by `=` and a value, or by `{`")
	}
	p.syntax(d)
	p.skip(false)
}

func isAssign(k tokenKind) bool { return k == tokEquals || k == tokColon || k == tokPlusEquals }

// passAssign moves past `=` or `:`; `+=` is reported and then taken as `=`.
func (p *parser) passAssign() {
	if p.tok.kind == tokPlusEquals {
		p.syntax(p.unexpected("Equals", "appending has no meaning: write `=` and the whole value"))
	}
	p.advance()
}

// parseAttr reads from the sign after the key. It returns nil when there is no
// value, having skipped to where reading can resume.
func (p *parser) parseAttr(key token) *Attr {
	p.passAssign()
	v := p.parseValue()
	if v == nil {
		p.skip(false)
		return nil
	}
	if v.Bare && p.tok.adjacent && p.tok.kind == tokColon {
		p.syntax(p.unexpected("the end of the value", quoteHint))
		p.skip(true)
	}
	return &Attr{Key: key.text, KeySpan: p.span(key.start, key.end), Value: v}
}

// unique reports a key that the collection has already.
func (p *parser) unique(keys *keySet, key string, at Span) bool {
	first, found := p.addKey(keys, key, at.Start)
	if found {
		p.report(&Diagnostic{
			Code:    CodeDuplicateAttribute,
			Message: fmt.Sprintf("this key is set already at line %d, column %d", first.Line, first.Col),
			Hint:    "keep one of the two",
			Span:    at,
		})
	}
	return !found
}

// parseBlock reads from the first label or the opening brace.
func (p *parser) parseBlock(name token) *Block {
	block := &Block{Name: name.text, NameSpan: p.span(name.start, name.end)}
	for !p.tok.nl() && (p.tok.kind == tokString || p.tok.kind == tokIdent) {
		if !p.room(len(block.Labels), "label list") {
			return nil
		}
		if p.tok.kind == tokIdent {
			p.syntax(p.expected("Equals, Colon, String or LeftBrace",
				"a label is written in quotes; an attribute needs `=` after its name"))
			p.skip(true)
			if p.tok.kind != tokLeftBrace {
				return nil
			}
			break
		}
		block.Labels = append(block.Labels, Label{Text: p.stringText(), Span: p.here()})
		p.advance()
	}
	if p.tok.kind != tokLeftBrace {
		hint := ""
		if isAssign(p.tok.kind) {
			hint = "a name with a label begins a block; an attribute has no label"
		}
		p.syntax(p.expected("LeftBrace", hint))
		p.skip(false)
		return nil
	}
	if !p.open(tokRightBrace) {
		return nil
	}
	b := &body{}
	p.parseBody(b, false)
	p.close("RightBrace")
	block.Span = p.span(name.start, p.prevEnd)
	block.Attrs, block.Blocks = b.attrs, b.blocks
	return block
}
