package route

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sync"
)

// Entry is one router as a table sees it.
type Entry struct {
	// Name is the router's name, unique among the entries.
	Name string
	// Rule is what it matches. An entry without a rule never matches.
	Rule *Rule
	// Priority orders entries, highest first; zero or less means the length of the rule text.
	Priority int
	// Entrypoints are the entrypoints that the router is bound to; empty means all of its kind.
	Entrypoints []string
	// Kind is what the router judges.
	Kind Kind
}

// Kind is what a router judges, and an entrypoint takes.
type Kind uint8

// Kinds.
const (
	Requests Kind = iota
	Connections
	Datagrams
)

// effective is the priority that counts.
func (e *Entry) effective() int {
	switch {
	case e.Priority > 0:
		return e.Priority
	case e.Rule == nil:
		return 0
	}
	return e.Rule.DefaultPriority()
}

func (e *Entry) bound(entrypoint string, kind Kind) bool {
	return e.Kind == kind && (len(e.Entrypoints) == 0 || slices.Contains(e.Entrypoints, entrypoint))
}

// Table finds the first entry that matches a request, in the order of priority (highest first), then name. It is
// immutable and safe for any number of concurrent calls.
//
// A lookup costs the length of the host and of the path, plus the rules that share the request's host and path
// prefix. Rules that say nothing about host or path (or hide it behind a negation or an expression) are tried one by
// one as far as their priority beats what was found.
type Table struct {
	order []placed // every entry, in the order that decides
	rules []*node  // by rank: the rules of the bound entries, in that order
	entry []int    // by rank: the index in the slice given to Build

	exact    map[string]*pathIndex // by host
	wildcard map[string]*pathIndex // by what follows the first label, with its dot
	any      *pathIndex            // whatever the host
}

// placed is one entry in its place.
type placed struct {
	index int // in the slice given to Build
	Entry
	bound bool
}

// Build makes the table of one entrypoint for requests. It keeps the rules, not the slice.
func Build(entries []Entry, entrypoint string) *Table { return BuildFor(Requests, entries, entrypoint) }

// BuildFor makes the table of one entrypoint for what it takes. It keeps the rules, not the slice.
func BuildFor(kind Kind, entries []Entry, entrypoint string) *Table {
	t := &Table{
		order:    make([]placed, 0, len(entries)),
		exact:    map[string]*pathIndex{},
		wildcard: map[string]*pathIndex{},
		any:      newPathIndex(),
	}
	for i := range entries {
		t.order = append(t.order, placed{i, entries[i], entries[i].bound(entrypoint, kind)})
	}
	slices.SortStableFunc(t.order, func(a, b placed) int {
		return cmp.Or(cmp.Compare(b.effective(), a.effective()), cmp.Compare(a.Name, b.Name))
	})
	for i := range t.order {
		p := &t.order[i]
		if !p.bound || p.Rule == nil {
			continue
		}
		rank := int32(len(t.rules))
		t.rules = append(t.rules, p.Rule.root)
		t.entry = append(t.entry, p.index)
		for _, a := range anchorsOf(p.Rule.root) {
			t.hostIndex(a).add(a, rank)
		}
	}
	t.any.finish()
	for _, m := range []map[string]*pathIndex{t.exact, t.wildcard} {
		for _, ix := range m {
			ix.finish()
		}
	}
	return t
}

// hostIndex finds or makes the index that an anchor belongs to.
func (t *Table) hostIndex(a anchor) *pathIndex {
	m := t.exact
	switch a.hostKind {
	case anyHost:
		return t.any
	case wildcardHost:
		m = t.wildcard
	}
	ix := m[a.host]
	if ix == nil {
		ix = newPathIndex()
		m[a.host] = ix
	}
	return ix
}

// folded lends the buffers for hosts that arrive with capitals; the usual ones are compared in place.
var folded = sync.Pool{New: func() any { b := make([]byte, 0, 256); return &b }}

// Match returns the index, in the slice given to Build, of the first entry that matches, or -1. It does not
// allocate.
func (t *Table) Match(in *Input) int {
	r := request{Input: *in, host: trimHost(in.Host)}
	if firstUpper(r.host) < 0 {
		return t.match(&r)
	}
	buf := folded.Get().(*[]byte)
	r.host = HostKey(*buf, r.host)
	found := t.match(&r)
	if cap(r.host) <= 1024 {
		*buf = r.host[:0]
	}
	folded.Put(buf)
	return found
}

func (t *Table) match(r *request) int {
	const none = math.MaxInt32
	best := int32(none)
	if len(r.host) > 0 {
		if ix := t.exact[string(r.host)]; ix != nil {
			best = t.search(ix, r, best)
		}
		if len(t.wildcard) > 0 {
			if i := bytes.IndexByte(r.host, '.'); i > 0 {
				if ix := t.wildcard[string(r.host[i:])]; ix != nil {
					best = t.search(ix, r, best)
				}
			}
		}
	}
	best = t.search(t.any, r, best)
	if best == none {
		return -1
	}
	return t.entry[best]
}

// search returns the best rank below best that matches among the entries of one index, else best. The longest
// prefix goes first: its rule is usually the longest, so that the shorter ones need no look.
func (t *Table) search(ix *pathIndex, r *request, best int32) int32 {
	if ix.first >= best {
		return best
	}
	n, path, last := ix.root, r.Path, (*pathNode)(nil)
	for {
		if len(n.prefix) > 0 {
			last = n
		}
		if len(path) == 0 {
			best = t.try(n.exact, r, best)
			break
		}
		k := bytes.IndexByte(n.heads, path[0])
		if k < 0 {
			break
		}
		n = n.kids[k]
		if len(path) < len(n.label) || string(path[:len(n.label)]) != n.label {
			break
		}
		path = path[len(n.label):]
	}
	for ; last != nil; last = last.up {
		best = t.try(last.prefix, r, best)
	}
	return t.try(ix.any, r, best)
}

// try returns the first of the ranks (ascending) that matches, if it is below best, else best.
func (t *Table) try(ranks []int32, r *request, best int32) int32 {
	for _, rank := range ranks {
		if rank >= best {
			break
		}
		if t.rules[rank].match(r) {
			return rank
		}
	}
	return best
}
