package route

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a rule text. Every parse, and every match, is linear in them.
const (
	MaxRuleBytes = 16 << 10 // length of the text
	MaxNesting   = 64       // parentheses and negations inside each other
	MaxMatchers  = 256      // matchers in one rule
	maxErrors    = 20       // faults reported for one text
)

// Rule is a parsed and compiled rule expression. It is immutable and may be shared by any number of tables.
type Rule struct {
	text string
	root *node
}

// Matcher describes one matcher of a rule, in the order of the text.
type Matcher struct {
	Name     string   // as written: "Host", "PathPrefix", …
	Args     []string // without their quotes
	Pos, Len int      // its place in the rule text, from the name to the closing parenthesis
	TCP      bool     // it judges a connection, not an HTTP request (HostSNI); against a request it is false
}

// Text returns the rule exactly as it was written.
func (r *Rule) Text() string { return r.text }

// DefaultPriority is the priority of a router that sets none: the length of the rule text in bytes, blanks included.
func (r *Rule) DefaultPriority() int { return len(r.text) }

// String returns the rule in one canonical spelling. Parsing that gives an equal rule (with another
// [Rule.DefaultPriority], if the spelling differs).
func (r *Rule) String() string {
	var b strings.Builder
	r.root.write(&b)
	return b.String()
}

// Matchers lists the matchers of the rule in the order of the text. The result belongs to the caller.
func (r *Rule) Matchers() []Matcher {
	var out []Matcher
	r.root.each(func(m *matcher) {
		out = append(out, Matcher{Name: m.spec.name, Args: slices.Clone(m.args), Pos: m.pos, Len: m.len, TCP: m.spec.tcp})
	})
	return out
}

// Hosts lists the arguments of the Host and HostSNI matchers that are not negated, lower-cased and without repetition,
// wildcards as "*.x".
func (r *Rule) Hosts() []string {
	var out []string
	r.root.asked(false, func(m *matcher) {
		if m.spec.kind != kindHost && m.spec.kind != kindHostSNI {
			return
		}
		h := m.want
		if m.wildcard {
			h = "*" + h
		}
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	})
	return out
}

// HasHost tells whether the rule looks at the host at all (Host or HostRegexp).
func (r *Rule) HasHost() bool {
	return r.has(func(m *matcher) bool { return m.spec.kind == kindHost || m.spec.kind == kindHostRegexp })
}

// HasPath tells whether the rule looks at the path at all (Path, PathPrefix or PathRegexp).
func (r *Rule) HasPath() bool {
	return r.has(func(m *matcher) bool {
		return m.spec.kind == kindPath || m.spec.kind == kindPathPrefix || m.spec.kind == kindPathRegexp
	})
}

// HasTCP tells whether the rule contains a matcher that judges connections, not HTTP requests (HostSNI).
func (r *Rule) HasTCP() bool {
	return r.has(func(m *matcher) bool { return m.spec.tcp })
}

// NeedsSNI tells whether the rule can be judged only with the server name that a client asks for.
func (r *Rule) NeedsSNI() bool {
	return r.has(func(m *matcher) bool { return m.spec.kind == kindHostSNI && m.want != "*" })
}

func (r *Rule) has(f func(*matcher) bool) bool {
	found := false
	r.root.each(func(m *matcher) { found = found || f(m) })
	return found
}

// nodeOp is what a node of the expression does with its operands.
type nodeOp uint8

const (
	opMatch nodeOp = iota // the matcher m
	opAnd                 // all of kids
	opOr                  // any of kids
	opNot                 // not kids[0]
)

// node is one node of the compiled expression. An opAnd never has an opAnd among its kids, nor an opOr an opOr.
type node struct {
	op   nodeOp
	kids []*node
	m    *matcher
}

func (n *node) each(f func(*matcher)) {
	if n.op == opMatch {
		f(n.m)
		return
	}
	for _, k := range n.kids {
		k.each(f)
	}
}

// asked is each for the matchers under an even number of negations.
func (n *node) asked(not bool, f func(*matcher)) {
	switch n.op {
	case opMatch:
		if !not {
			f(n.m)
		}
		return
	case opNot:
		not = !not
	}
	for _, k := range n.kids {
		k.asked(not, f)
	}
}

func (n *node) write(b *strings.Builder) {
	switch n.op {
	case opMatch:
		n.m.write(b)
	case opNot:
		b.WriteByte('!')
		n.writeKid(b, n.kids[0])
	case opAnd, opOr:
		for i, k := range n.kids {
			if i > 0 && n.op == opAnd {
				b.WriteString(" && ")
			} else if i > 0 {
				b.WriteString(" || ")
			}
			n.writeKid(b, k)
		}
	}
}

// writeKid writes an operand, in parentheses where it binds weaker than n.
func (n *node) writeKid(b *strings.Builder, k *node) {
	weaker := k.op == opOr && n.op != opOr || k.op == opAnd && n.op == opNot
	if weaker {
		b.WriteByte('(')
	}
	k.write(b)
	if weaker {
		b.WriteByte(')')
	}
}

// matcher is one compiled matcher. Which of the fields behind args are set depends on spec.kind.
type matcher struct {
	spec     *spec
	args     []string // as written, without quotes
	pos, len int

	want     string         // what is compared: host, suffix, path, method, field name, query key
	wildcard bool           // Host: want is the suffix behind one label, with its dot
	value    string         // Headers and Query: the wanted value
	hasValue bool           // Query: a value is wanted
	re       *regexp.Regexp // HostRegexp, PathRegexp: anchored at both ends
	nets     []netip.Prefix // ClientIP
}

func (m *matcher) write(b *strings.Builder) {
	b.WriteString(m.spec.name)
	b.WriteByte('(')
	for i, a := range m.args {
		if i > 0 {
			b.WriteString(", ")
		}
		if strings.IndexByte(a, '`') < 0 {
			b.WriteByte('`')
			b.WriteString(a)
			b.WriteByte('`')
		} else {
			b.WriteString(strconv.Quote(a))
		}
	}
	b.WriteByte(')')
}
