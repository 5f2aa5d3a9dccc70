// Package acl owns the configuration language: its lexer, its parser, the tree
// with positions that the parser returns, the diagnostics that every later
// stage reports with, and the formatter.
//
// Lifetime: nothing here outlives a call. Parse returns a Document that is
// never changed afterwards and may be shared between goroutines; the strings in
// it share one copy of the source.
//
// The package must not know a single word of the gateway: no block name, no
// attribute name, no function name. env("X") and file("p") are Call values like
// any other; what they mean is decided by whoever reads the tree.
package acl

import "math/big"

// Pos is a place in a source text. The zero Pos means "no place"; a real one
// has Line and Col of at least 1.
type Pos struct {
	Line   int // 1-based; LF, CR LF and a lone CR each end a line
	Col    int // 1-based, counts characters (code points), not bytes
	Offset int // 0-based byte offset into the source
}

// Span is the half-open range of source text from Start up to, not including,
// End. File is the name given to Parse.
type Span struct {
	File       string
	Start, End Pos
}

// IsZero reports whether the span names no place at all.
func (s Span) IsZero() bool { return s.Start.Line == 0 }

// Kind says which of a Value's fields are meaningful.
type Kind int

// The kinds of values of the language. There is no zero kind, so that a
// forgotten one shows up.
const (
	String Kind = iota + 1 // Str, Bare, Quote
	Number                 // Float, IsInt, Int or Big
	Bool                   // Bool
	Null                   // nothing further
	List                   // List
	Object                 // Pairs
	Call                   // Func, Args
)

var kindNames = [...]string{
	String: "string", Number: "number", Bool: "bool", Null: "null",
	List: "list", Object: "object", Call: "function call",
}

// String returns the lower-case name used in messages to operators.
func (k Kind) String() string {
	if k < String || k > Call {
		return "invalid"
	}
	return kindNames[k]
}

// Value is one value of the tree. Only the fields of its Kind are set, besides
// Kind, Span and (for scalars) Text.
type Value struct {
	Kind Kind
	Span Span
	Text string // scalars: exactly as written, quotes included

	Str   string // String: decoded text, or the bareword itself
	Bare  bool   // String: written without quotes
	Quote byte   // String: '"' or '\''; 0 for a bareword

	Float float64  // Number: nearest double, always finite
	IsInt bool     // Number: the fraction is zero (5, 5.0 and 5e3 are integral)
	Int   int64    // Number: the exact integer when IsInt and Big is nil
	Big   *big.Int // Number: the exact integer when it does not fit in Int, else nil

	Bool  bool     // Bool
	List  []*Value // List: items in order
	Pairs []*Pair  // Object: pairs in order; keys are unique
	Func  string   // Call: function name
	Args  []*Value // Call: arguments in order
}

// Pair is one key and value of an Object. The key may have been written as an
// identifier or as a string.
type Pair struct {
	Key     string
	KeySpan Span
	Value   *Value
}

// Attr is one `key = value` of a block or of the document.
type Attr struct {
	Key     string
	KeySpan Span
	Value   *Value
}

// Label is one quoted label of a block. Span includes the quotes.
type Label struct {
	Text string
	Span Span
}

// Block is a named group. Attribute keys are unique in a tree that was parsed
// without errors. Attrs and Blocks each keep their written order; the order
// between the two has no meaning.
type Block struct {
	Name     string
	NameSpan Span
	Labels   []Label
	Span     Span // from the name up to and including the closing brace
	Attrs    []*Attr
	Blocks   []*Block
}

// Attr returns the attribute with that key, or nil.
func (b *Block) Attr(key string) *Attr { return findAttr(b.Attrs, key) }

// Child returns the first nested block with that name, or nil.
func (b *Block) Child(name string) *Block {
	for _, c := range b.Blocks {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Document is a parsed source text.
type Document struct {
	File   string
	Src    []byte   // the source as given; not to be changed
	Attrs  []*Attr  // bare attributes at the top level
	Blocks []*Block // top-level blocks in order
}

// Attr returns the top-level attribute with that key, or nil.
func (d *Document) Attr(key string) *Attr { return findAttr(d.Attrs, key) }

func findAttr(attrs []*Attr, key string) *Attr {
	for _, a := range attrs {
		if a.Key == key {
			return a
		}
	}
	return nil
}

// StringOffset maps a byte offset inside the decoded text of a String to its
// place in the source, so that an error found inside a string (a rule, say)
// can point at the very character. Offsets out of range are moved to the
// nearest end; the offset len(Str) is the place just after the last character.
// For any other kind it returns the start of the value.
func (v *Value) StringOffset(offset int) Pos {
	pos := v.Span.Start
	if v.Kind != String || offset < 0 {
		offset = 0
	}
	if v.Kind != String {
		return pos
	}
	text := v.Text
	if v.Quote != 0 {
		if len(text) < 2 {
			return pos
		}
		text = text[1 : len(text)-1]
		pos.Col++
		pos.Offset++
	}
	for decoded := 0; decoded < offset && len(text) > 0; {
		n, width, chars := stringStep(text, v.Quote)
		if decoded+n > offset {
			break // inside a character: its start is the place
		}
		decoded += n
		pos.Offset += width
		pos.Col += chars
		text = text[width:]
	}
	return pos
}
