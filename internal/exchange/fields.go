package exchange

import "iter"

// line is one field line: offsets into the block it came with, or into the arena of added lines.
type line struct {
	start, end uint32 // the whole line with its CRLF
	name       uint16 // length of the name, which begins at start
	value      uint32 // offset of the value
	valueEnd   uint32
	id         FieldID
	added      bool // lies in the arena
	dropped    bool
}

// Fields is an ordered list of header fields: lines that lie where the engine received them, plus an edit list.
// The zero value is empty and ready. Names and values that it hands out are views: they are valid until the
// exchange ends and must not be changed. Not safe for concurrent use.
type Fields struct {
	block []byte
	arena []byte
	lines []line
	edits int // dropped plus added
}

// Reset empties f and takes block as the bytes that lines appended by AppendLine lie in.
func (f *Fields) Reset(block []byte) {
	f.block, f.arena, f.lines, f.edits = block, f.arena[:0], f.lines[:0], 0
}

// Rebase moves f to a copy of its block, for an engine whose buffer grew.
func (f *Fields) Rebase(block []byte) { f.block = block }

// RawLine places one field line of the block; all offsets count from its start.
type RawLine struct {
	Start, NameEnd, Value, ValueEnd, End int
	ID                                   FieldID
}

// AppendLine records a line of the block in its order. For protocol engines.
func (f *Fields) AppendLine(l RawLine) {
	f.lines = append(f.lines, line{
		start: uint32(l.Start), end: uint32(l.End), name: uint16(l.NameEnd - l.Start),
		value: uint32(l.Value), valueEnd: uint32(l.ValueEnd), id: l.ID,
	})
}

func (f *Fields) src(l *line) []byte {
	if l.added {
		return f.arena
	}
	return f.block
}

func (f *Fields) nameOf(l *line) []byte  { return f.src(l)[l.start : l.start+uint32(l.name)] }
func (f *Fields) valueOf(l *line) []byte { return f.src(l)[l.value:l.valueEnd] }

// Len is the number of fields.
func (f *Fields) Len() int {
	n := 0
	for i := range f.lines {
		if !f.lines[i].dropped {
			n++
		}
	}
	return n
}

// First returns the first value of the field with the given lower-case name.
func (f *Fields) First(name string) ([]byte, bool) {
	for i := range f.lines {
		l := &f.lines[i]
		if int(l.name) == len(name) && !l.dropped && EqualFold(f.nameOf(l), name) {
			return f.valueOf(l), true
		}
	}
	return nil, false
}

// Known returns the first value of a known field.
func (f *Fields) Known(id FieldID) ([]byte, bool) {
	for i := range f.lines {
		if l := &f.lines[i]; l.id == id && !l.dropped {
			return f.valueOf(l), true
		}
	}
	return nil, false
}

// Has reports whether a known field is present.
func (f *Fields) Has(id FieldID) bool {
	_, ok := f.Known(id)
	return ok
}

// All yields name and value of each field in order.
func (f *Fields) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := range f.lines {
			l := &f.lines[i]
			if !l.dropped && !yield(f.nameOf(l), f.valueOf(l)) {
				return
			}
		}
	}
}

// Values yields each value of the field with the given lower-case name.
func (f *Fields) Values(name string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range f.lines {
			l := &f.lines[i]
			if int(l.name) == len(name) && !l.dropped && EqualFold(f.nameOf(l), name) && !yield(f.valueOf(l)) {
				return
			}
		}
	}
}

// Add appends a field. Name must be a token and value free of control bytes: callers that take either from
// outside check with ValidName and ValidValue first.
func (f *Fields) Add(name, value string) {
	start := len(f.arena)
	f.arena = append(f.arena, name...)
	f.finishAdd(start, len(name), append2(&f.arena, value))
}

// AddBytes is Add for byte values.
func (f *Fields) AddBytes(name string, value []byte) {
	start := len(f.arena)
	f.arena = append(f.arena, name...)
	f.finishAdd(start, len(name), append2(&f.arena, value))
}

// append2 appends ": " and the value, and returns where the value begins.
func append2[T string | []byte](arena *[]byte, value T) int {
	*arena = append(*arena, ": "...)
	at := len(*arena)
	*arena = append(*arena, value...)
	return at
}

func (f *Fields) finishAdd(start, nameLen, value int) {
	valueEnd := len(f.arena)
	f.arena = append(f.arena, "\r\n"...)
	f.lines = append(f.lines, line{
		start: uint32(start), end: uint32(len(f.arena)), name: uint16(nameLen), value: uint32(value),
		valueEnd: uint32(valueEnd), id: KnownField(f.arena[start : start+nameLen]), added: true,
	})
	f.edits++
}

// Set replaces every field of that name (any case) by one, at the end.
func (f *Fields) Set(name, value string) {
	f.del(name)
	f.Add(name, value)
}

// SetBytes is Set for byte values.
func (f *Fields) SetBytes(name string, value []byte) {
	f.del(name)
	f.AddBytes(name, value)
}

// Del removes every field of that name (any case).
func (f *Fields) Del(name string) { f.del(name) }

func (f *Fields) del(name string) {
	for i := range f.lines {
		l := &f.lines[i]
		if int(l.name) == len(name) && !l.dropped && equalFoldString(f.nameOf(l), name) {
			l.dropped = true
			f.edits++
		}
	}
}

// DelKnown removes every field with that id.
func (f *Fields) DelKnown(id FieldID) {
	for i := range f.lines {
		if l := &f.lines[i]; l.id == id && !l.dropped {
			l.dropped = true
			f.edits++
		}
	}
}

// DelFunc removes the fields for which drop returns true.
func (f *Fields) DelFunc(drop func(id FieldID, name, value []byte) bool) {
	for i := range f.lines {
		l := &f.lines[i]
		if !l.dropped && drop(l.id, f.nameOf(l), f.valueOf(l)) {
			l.dropped = true
			f.edits++
		}
	}
}

// StripHopByHop removes the fields that concern one connection only, among them all that a Connection field
// names (RFC 9110 §7.6.1). Framing and routing fields never count as named: a client cannot have Host removed.
func (f *Fields) StripHopByHop() {
	for i := range f.lines {
		l := &f.lines[i]
		if hop[l.id] && !l.dropped {
			l.dropped = true
			f.edits++
			if l.id == FieldConnection {
				f.stripNamed(f.valueOf(l))
			}
		}
	}
}

// stripNamed drops each field that a Connection value lists.
func (f *Fields) stripNamed(v []byte) {
	for tok := range Tokens(v) {
		if EqualFold(tok, "close") || EqualFold(tok, "keep-alive") {
			continue
		}
		switch KnownField(tok) {
		case FieldHost, FieldContentLength, FieldTransferEncoding, FieldConnection, FieldForwarded, FieldXForwardedFor,
			FieldXForwardedHost, FieldXForwardedProto, FieldXForwardedPort, FieldXForwardedOther, FieldXRealIP, FieldXRequestID:
			continue
		}
		for i := range f.lines {
			l := &f.lines[i]
			if !l.dropped && !l.added && int(l.name) == len(tok) && equalFoldString(f.nameOf(l), string(tok)) {
				l.dropped = true
				f.edits++
			}
		}
	}
}

// AppendHTTP1 appends the field lines as HTTP/1.1 sends them, without the closing empty line. Lines in
// skip are left out. Neighbouring lines are copied as one span.
func (f *Fields) AppendHTTP1(dst []byte, skip FieldSet) []byte {
	from, to, added := uint32(0), uint32(0), false
	flush := func() {
		if from == to {
			return
		}
		if added {
			dst = append(dst, f.arena[from:to]...)
		} else {
			dst = append(dst, f.block[from:to]...)
		}
	}
	for i := range f.lines {
		l := &f.lines[i]
		if l.dropped || skip.Has(l.id) {
			continue
		}
		if l.start != to || l.added != added {
			flush()
			from, added = l.start, l.added
		}
		to = l.end
	}
	flush()
	return dst
}

// CopyFrom makes f an independent copy of src's fields.
func (f *Fields) CopyFrom(src *Fields) {
	f.Reset(nil)
	for n, v := range src.All() {
		start := len(f.arena)
		f.arena = append(f.arena, n...)
		f.finishAdd(start, len(n), append2(&f.arena, v))
	}
}
