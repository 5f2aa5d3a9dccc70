package route

import (
	"bytes"
	"math"
	"slices"
	"strings"
)

// An anchor is a necessary condition on host and path: a rule can only match where one of its anchors holds. It is
// allowed to hold more often than the rule (the rule itself is always evaluated), never less often.
type anchor struct {
	hostKind hostKind
	pathKind pathKind
	host     string // exact: the host; wildcard: the suffix with its dot
	path     string
}

type hostKind uint8

const (
	anyHost hostKind = iota
	wildcardHost
	exactHost
)

type pathKind uint8

const (
	anyPath pathKind = iota
	prefixPath
	exactPath
)

// maxAnchors bounds the places in the index that one rule takes. It is above the number of matchers, so that only
// products of alternatives reach it.
const maxAnchors = 512

// anchorsOf computes anchors of an expression. No anchors at all means that it can never match a request.
func anchorsOf(n *node) []anchor {
	switch n.op {
	case opMatch:
		return n.m.anchors()
	case opOr:
		var out []anchor
		for _, k := range n.kids {
			out = append(out, anchorsOf(k)...)
		}
		return reduce(out)
	case opAnd:
		out := []anchor{{}}
		for _, k := range n.kids {
			out = both(out, anchorsOf(k))
		}
		return out
	}
	return []anchor{{}} // a negation holds nearly everywhere
}

func (m *matcher) anchors() []anchor {
	switch m.spec.kind {
	case kindHost:
		if m.wildcard {
			return []anchor{{hostKind: wildcardHost, host: m.want}}
		}
		return []anchor{{hostKind: exactHost, host: m.want}}
	case kindPath:
		return []anchor{{pathKind: exactPath, path: m.want}}
	case kindPathPrefix:
		return []anchor{{pathKind: prefixPath, path: m.want}}
	case kindHostSNI:
		if m.wildcard || m.want == "*" {
			return []anchor{{}}
		}
		return []anchor{{hostKind: exactHost, host: m.want}}
	}
	return []anchor{{}}
}

// reduce removes repetitions, and everything if one anchor holds everywhere anyway.
func reduce(as []anchor) []anchor {
	seen := make(map[anchor]bool, len(as))
	out := as[:0]
	for _, a := range as {
		if a == (anchor{}) {
			return []anchor{{}}
		}
		if !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	if len(out) > maxAnchors {
		return []anchor{{}}
	}
	return out
}

// both computes anchors for "a and b". Either side alone would do; the product is narrower.
func both(a, b []anchor) []anchor {
	if len(a)*len(b) > maxAnchors {
		if everywhere(a) || !everywhere(b) && len(b) < len(a) {
			return b
		}
		return a
	}
	out := make([]anchor, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			if z, ok := meet(x, y); ok {
				out = append(out, z)
			}
		}
	}
	return reduce(out)
}

func everywhere(as []anchor) bool { return len(as) == 1 && as[0] == anchor{} }

// meet computes the anchor where both hold; false if there is no such place.
func meet(a, b anchor) (anchor, bool) {
	if a.hostKind < b.hostKind {
		a.hostKind, a.host, b.hostKind, b.host = b.hostKind, b.host, a.hostKind, a.host
	}
	switch {
	case b.hostKind == anyHost:
	case a.hostKind == b.hostKind:
		if a.host != b.host {
			return a, false
		}
	case a.host[max(0, strings.IndexByte(a.host, '.')):] != b.host:
		return a, false
	}
	if a.pathKind < b.pathKind || a.pathKind == b.pathKind && len(a.path) < len(b.path) {
		a.pathKind, a.path, b.pathKind, b.path = b.pathKind, b.path, a.pathKind, a.path
	}
	// Now a is the narrower one.
	switch b.pathKind {
	case prefixPath:
		return a, strings.HasPrefix(a.path, b.path)
	case exactPath:
		return a, a.path == b.path
	}
	return a, true
}

// pathIndex finds ranks by path: a radix tree over the exact paths and prefixes of one host. All lists of ranks are
// ascending.
type pathIndex struct {
	root  *pathNode
	any   []int32 // whatever the path
	first int32   // the lowest rank in here
}

// pathNode is reached by the labels on the way from the root.
type pathNode struct {
	label  string
	heads  []byte // first bytes of the kids' labels
	kids   []*pathNode
	exact  []int32   // for requests whose path ends here
	prefix []int32   // for requests whose path passes or ends here
	up     *pathNode // the nearest node above that has a prefix list
}

func newPathIndex() *pathIndex { return &pathIndex{root: &pathNode{}, first: math.MaxInt32} }

// add puts a rank where an anchor says. Ranks are added in ascending order.
func (ix *pathIndex) add(a anchor, rank int32) {
	ix.first = min(ix.first, rank)
	list := &ix.any
	switch a.pathKind {
	case exactPath:
		list = &ix.root.insert(a.path).exact
	case prefixPath:
		list = &ix.root.insert(a.path).prefix
	}
	*list = append(*list, rank)
}

// insert finds or makes the node for a path.
func (n *pathNode) insert(path string) *pathNode {
	for path != "" {
		k := bytes.IndexByte(n.heads, path[0])
		if k < 0 {
			kid := &pathNode{label: path}
			n.heads, n.kids = append(n.heads, path[0]), append(n.kids, kid)
			return kid
		}
		kid := n.kids[k]
		same := 0
		for same < len(path) && same < len(kid.label) && path[same] == kid.label[same] {
			same++
		}
		if same < len(kid.label) {
			mid := &pathNode{label: kid.label[:same], heads: []byte{kid.label[same]}, kids: []*pathNode{kid}}
			kid.label = kid.label[same:]
			n.kids[k], kid = mid, mid
		}
		n, path = kid, path[same:]
	}
	return n
}

// finish links every node to the nearest prefix above it and trims the memory. Nested prefixes may make the tree as
// deep as there are routes, hence no recursion.
func (ix *pathIndex) finish() {
	todo := []*pathNode{ix.root}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		up := n.up
		if len(n.prefix) > 0 {
			up = n
		}
		for _, k := range n.kids {
			k.up = up
		}
		todo = append(todo, n.kids...)
		n.kids, n.heads = slices.Clip(n.kids), slices.Clip(n.heads)
	}
}
