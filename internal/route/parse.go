package route

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parse reads a rule expression:
//
//	or      = and { "||" and }
//	and     = unary { "&&" unary }
//	unary   = "!" unary | "(" or ")" | matcher
//	matcher = name "(" arg { ["," ] arg } ")"
//	arg     = "`" any bytes but a backtick "`" | a Go string literal in double quotes
//
// Names are case-sensitive; blanks and line ends may stand between all of these. Arguments may be separated by
// blanks alone, because older files do so. All arguments are checked and compiled.
//
// It returns either a rule and no errors, or nil and at least one error; it goes on behind an error where it can, so
// that one run shows as many as possible (at most 20). It never panics, whatever the text.
func Parse(text string) (*Rule, []*Error) {
	p := &parser{text: text}
	if len(text) > MaxRuleBytes {
		p.fail(MaxRuleBytes, len(text)-MaxRuleBytes, CodeTooLarge, "rule is longer than %d bytes", MaxRuleBytes)
		return nil, p.errs
	}
	p.blanks()
	if p.end() {
		p.fail(0, len(text), CodeSyntax, "rule is empty")
		return nil, p.errs
	}
	root := p.or()
	for !p.end() {
		// Only a parenthesis that closes nothing stops an expression before its end.
		p.fail(p.pos, 1, CodeSyntax, "this ) closes nothing")
		p.pos++
		p.blanks()
		if p.operator("&&") || p.operator("||") || !p.end() && p.text[p.pos] != ')' {
			p.or()
		}
	}
	if len(p.errs) > 0 {
		return nil, p.errs
	}
	return &Rule{text: text, root: root}, nil
}

// parser is the state of one run. Its methods return nil nodes behind an error; a nil never reaches a Rule.
type parser struct {
	text     string
	pos      int
	depth    int
	matchers int
	stopped  bool // the rest was given up; what is missing at the end is no news
	errs     []*Error
}

func (p *parser) end() bool { return p.pos >= len(p.text) }

// stop gives the rest of the text up: nothing behind this point can be judged.
func (p *parser) stop() { p.pos, p.stopped = len(p.text), true }

func (p *parser) fail(pos, n int, code ErrorCode, format string, args ...any) *Error {
	pos = min(pos, len(p.text))
	e := &Error{Pos: pos, Len: min(n, len(p.text)-pos), Code: code, Msg: fmt.Sprintf(format, args...)}
	missing := e.Len == 0 && p.stopped
	if len(p.errs) < maxErrors && !missing {
		p.errs = append(p.errs, e)
	}
	return e
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (p *parser) blanks() {
	for !p.end() && isBlank(p.text[p.pos]) {
		p.pos++
	}
}

// operator consumes op if it comes next.
func (p *parser) operator(op string) bool {
	p.blanks()
	if !strings.HasPrefix(p.text[p.pos:], op) {
		return false
	}
	p.pos += len(op)
	return true
}

// word consumes an operator that is spelt out, which is an error, if it comes next.
func (p *parser) word(name, op string) bool {
	rest := p.text[p.pos:]
	if len(rest) <= len(name) || !strings.EqualFold(rest[:len(name)], name) || !isBlank(rest[len(name)]) {
		return false
	}
	p.fail(p.pos, len(name), CodeSyntax, "%s is written %s", rest[:len(name)], op)
	p.pos += len(name)
	return true
}

func (p *parser) or() *node {
	kids := []*node{p.and()}
	for p.operator("||") {
		kids = append(kids, p.and())
	}
	return join(opOr, kids)
}

func (p *parser) and() *node {
	kids := []*node{p.unary()}
	for {
		p.blanks()
		switch {
		case p.end(), p.text[p.pos] == ')', strings.HasPrefix(p.text[p.pos:], "||"):
			return join(opAnd, kids)
		case p.operator("&&"):
		case p.word("and", "&&"), p.word("or", "||"):
		case p.text[p.pos] == '&', p.text[p.pos] == '|':
			p.fail(p.pos, 1, CodeSyntax, "a single %c is no operator, write %[1]c%[1]c", p.text[p.pos])
			p.pos++
		case p.text[p.pos] == '!', p.text[p.pos] == '(', isAlpha(p.text[p.pos]):
			// Read on as if the operator stood there: the matcher behind may have faults of its own.
			p.fail(p.pos, 1, CodeSyntax, "an operator (&& or ||) is missing here")
		default:
			p.unexpected("expected && or ||")
			continue
		}
		kids = append(kids, p.unary())
	}
}

// join builds the n-ary node over kids and flattens what associates.
func join(op nodeOp, kids []*node) *node {
	if len(kids) == 1 {
		return kids[0]
	}
	n := &node{op: op}
	for _, k := range kids {
		switch {
		case k == nil:
		case k.op == op:
			n.kids = append(n.kids, k.kids...)
		default:
			n.kids = append(n.kids, k)
		}
	}
	return n
}

func (p *parser) unary() *node {
	p.blanks()
	if p.end() {
		p.fail(p.pos, 0, CodeSyntax, "rule ends where a matcher is expected")
		return nil
	}
	start, c := p.pos, p.text[p.pos]
	switch {
	case c == '!' || c == '(':
		p.depth++
		defer func() { p.depth-- }()
		if p.depth > MaxNesting {
			p.fail(start, 1, CodeTooLarge, "rule is nested deeper than %d", MaxNesting)
			p.stop()
			return nil
		}
		p.pos++
		if c == '(' {
			return p.group(start)
		}
		if kid := p.unary(); kid != nil {
			return &node{op: opNot, kids: []*node{kid}}
		}
		return nil
	case isAlpha(c):
		return p.matcher()
	case c == ')' || strings.HasPrefix(p.text[p.pos:], "&&") || strings.HasPrefix(p.text[p.pos:], "||"):
		// The operator or parenthesis is left for the caller, who knows what to do with it.
		n := 2
		if c == ')' {
			n = 1
		}
		p.fail(start, n, CodeSyntax, "expected a matcher before %s", p.text[start:start+n])
		return nil
	}
	p.unexpected("expected a matcher")
	return nil
}

// group reads behind an opening parenthesis at open.
func (p *parser) group(open int) *node {
	n := p.or()
	p.blanks()
	if !p.end() && p.text[p.pos] == ')' {
		p.pos++
		return n
	}
	if !p.stopped {
		p.fail(open, 1, CodeSyntax, "this ( is never closed")
	}
	return n
}

// unexpected reports what stands at the current place and skips to the next operator or closing parenthesis.
func (p *parser) unexpected(want string) {
	start := p.pos
	r, size := utf8.DecodeRuneInString(p.text[start:])
	p.fail(start, size, CodeSyntax, "unexpected %q, %s", r, want)
	for !p.end() {
		switch c := p.text[p.pos]; {
		case p.pos > start && (c == ')' || c == '&' || c == '|'):
			return
		case c == '`' || c == '"':
			end := strings.IndexByte(p.text[p.pos+1:], c)
			if end < 0 {
				p.stop()
				return
			}
			p.pos += end + 2
		default:
			p.pos++
		}
	}
}

// matcher reads a name and its arguments, and compiles them.
func (p *parser) matcher() *node {
	start := p.pos
	for !p.end() && (isAlpha(p.text[p.pos]) || isDigit(p.text[p.pos]) || p.text[p.pos] == '_') {
		p.pos++
	}
	name := p.text[start:p.pos]
	p.matchers++
	if p.matchers > MaxMatchers {
		p.fail(start, len(name), CodeTooLarge, "rule has more than %d matchers", MaxMatchers)
		p.stop()
		return nil
	}
	sp := specByName(name)
	if sp == nil {
		p.fail(start, len(name), CodeUnknownMatcher, "unknown matcher %q", name).Suggest = suggest(name)
	}
	p.blanks()
	if p.end() || p.text[p.pos] != '(' {
		if sp != nil {
			p.fail(start, len(name), CodeSyntax, "matcher %s needs its arguments in parentheses", name)
		}
		return nil
	}
	p.pos++
	args, ok := p.args(start, name)
	if !ok || sp == nil {
		return nil
	}
	m := &matcher{spec: sp, pos: start, len: p.pos - start}
	for _, a := range args {
		m.args = append(m.args, a.text)
	}
	if !p.compile(m, args) {
		return nil
	}
	return &node{op: opMatch, m: m}
}

// arg is one argument: its decoded text, and its place with the quotes.
type arg struct {
	text     string
	pos, len int
	raw      bool // written in backticks: offsets inside text are offsets in the rule
}

// args reads the arguments up to and with the closing parenthesis. It returns false if it reported an error.
func (p *parser) args(start int, name string) ([]arg, bool) {
	var out []arg
	ok, comma := true, -1
	for {
		p.blanks()
		if p.end() {
			if ok && !p.stopped {
				p.fail(start, len(name), CodeSyntax, "the parenthesis of %s is never closed", name)
			}
			return nil, false
		}
		switch c := p.text[p.pos]; {
		case c == ')':
			if comma >= 0 && ok {
				p.fail(comma, 1, CodeSyntax, "an argument is missing behind this comma")
				ok = false
			}
			p.pos++
			return out, ok
		case c == ',':
			if comma >= 0 || len(out) == 0 {
				if ok {
					p.fail(p.pos, 1, CodeSyntax, "an argument is missing before this comma")
				}
				ok = false
			}
			comma = p.pos
			p.pos++
		case c == '`' || c == '"':
			a, good := p.quoted(c)
			ok = ok && good
			out = append(out, a)
			comma = -1
		case strings.HasPrefix(p.text[p.pos:], "&&"), strings.HasPrefix(p.text[p.pos:], "||"):
			if ok {
				p.fail(p.pos, 2, CodeSyntax, "the parenthesis of %s is not closed before this %s", name, p.text[p.pos:p.pos+2])
			}
			return nil, false
		default:
			n := p.bareLen()
			if ok {
				p.fail(p.pos, n, CodeSyntax, "arguments are written in backticks")
			}
			ok = false
			p.pos += n
			out = append(out, arg{})
			comma = -1
		}
	}
}

// bareLen is the length of an unquoted (or single-quoted) argument at the current place; at least 1.
func (p *parser) bareLen() int {
	rest := p.text[p.pos:]
	if rest[0] == '\'' {
		if end := strings.IndexByte(rest[1:], '\''); end >= 0 {
			return end + 2
		}
	}
	if end := strings.IndexAny(rest, ",) \t\r\n`\""); end > 0 {
		return end
	}
	return len(rest)
}

// quoted reads an argument that starts with the quote q.
func (p *parser) quoted(q byte) (arg, bool) {
	start := p.pos
	end := start + 1
	for end < len(p.text) && p.text[end] != q {
		if q == '"' && p.text[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(p.text) {
		p.fail(start, len(p.text)-start, CodeSyntax, "this %c is never closed", q)
		p.stop()
		return arg{}, false
	}
	p.pos = end + 1
	a := arg{pos: start, len: p.pos - start, raw: q == '`'}
	if a.raw {
		a.text = p.text[start+1 : end]
		return a, true
	}
	text, err := strconv.Unquote(p.text[start:p.pos])
	if err != nil {
		p.fail(start, a.len, CodeSyntax, "the escapes of this string are not valid; backticks need none")
		return a, false
	}
	a.text = text
	return a, true
}
