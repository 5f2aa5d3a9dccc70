package egress

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Rules is a policy that decides. It does not change, and is safe for concurrent use. The zero Rules and a nil *Rules allow
// nothing.
type Rules struct {
	rules      []compiled // as in the policy
	clear, tls table
	named      map[uint16]bool // ports of which some rule speaks by number

	mu    sync.Mutex
	lists map[uint16][]TLSRule // what TLSRules has made, by port; bounded
}

// maxLists bounds what is remembered of one policy: ports that a rule names, and all others as one.
const maxLists = 16

type compiled struct {
	kind    Kind
	effects []CredentialHeader
}

// table finds patterns, so that a decision costs the same with one name and with thousands.
type table map[key]*pattern

// key is a pattern without a copy of its text, so that a lookup makes none either.
type key struct {
	wildcard bool   // "*." or "*" stands before name
	name     string // empty for "*"
}

func keyOf(text string) key {
	name, wildcard := strings.CutPrefix(text, "*")
	return key{wildcard: wildcard, name: strings.TrimPrefix(name, ".")}
}

type pattern struct {
	text  string
	ports []portRule // by port, then by rule; allPorts is the first
}

type portRule struct{ port, rule uint16 }

// tabulate makes the tables of clear text and of TLS.
func tabulate(rules []spread) (clear, tls table) {
	clear, tls = make(table), make(table)
	for _, s := range rules {
		into := tls
		if s.kind == HTTP {
			into = clear
		}
		for _, text := range s.hostnames {
			p := into[keyOf(text)]
			if p == nil {
				p = &pattern{text: text}
				into[keyOf(text)] = p
			}
			for _, port := range s.effective() {
				p.ports = append(p.ports, portRule{port: port, rule: uint16(s.index)})
			}
		}
	}
	for _, t := range []table{clear, tls} {
		for _, p := range t {
			slices.SortStableFunc(p.ports, func(a, b portRule) int { return cmp.Compare(a.port, b.port) })
		}
	}
	return clear, tls
}

// at finds the rule for one port, or with allPorts the one for all, but not one for the other.
func (p *pattern) at(port uint16) (rule uint16, found bool) {
	i, found := slices.BinarySearchFunc(p.ports, port, func(e portRule, port uint16) int { return cmp.Compare(e.port, port) })
	if !found {
		return 0, false
	}
	return p.ports[i].rule, true
}

// Match is the rule that decides: the only one that counts, whatever others might say.
type Match struct {
	// Rule is its index in the policy.
	Rule int
	Kind Kind
	// Pattern is the entry of its host names that matched.
	Pattern string
	// Effects are the headers to replace, nil for none. They are the policy's and must not be changed.
	Effects []CredentialHeader
}

// Compile makes a policy decide for the actors of an atespace. What Validate refuses is refused here too, such as the policy
// of another atespace: a policy is not taken in part.
func Compile(p Policy, atespace string) (*Rules, error) {
	if err := p.Validate("egress_policy", atespace); err != nil {
		return nil, err
	}
	r := &Rules{rules: make([]compiled, len(p.Rules))}
	all := make([]spread, len(p.Rules))
	for i, rule := range p.Rules {
		all[i] = rule.spread(i)[0]
		r.rules[i].kind = all[i].kind
		if e := all[i].effects; e != nil {
			r.rules[i].effects = e.ReplaceHeaders
		}
	}
	r.clear, r.tls = tabulate(all)
	r.named = make(map[uint16]bool)
	for _, s := range all {
		for _, port := range s.effective() {
			r.named[port] = true
		}
	}
	return r, nil
}

// Clear finds the rule for an HTTP request in clear text to a host, on a port that was dialed.
func (r *Rules) Clear(h Host, port uint16) (Match, bool) {
	if r == nil {
		return Match{}, false
	}
	return r.find(r.clear, h, port)
}

// TLS finds the rule for TLS to a host, on a port that was dialed: HTTPS and Passthrough rules compete. Only names can be
// passed through, so for an address there are HTTPS rules only.
func (r *Rules) TLS(h Host, port uint16) (Match, bool) {
	if r == nil {
		return Match{}, false
	}
	return r.find(r.tls, h, port)
}

// find looks for the exact name, then for the wildcard of its suffix, then for "*"; and for each first with the port, then
// with all ports.
func (r *Rules) find(t table, h Host, port uint16) (Match, bool) {
	if port == 0 || h == (Host{}) {
		return Match{}, false
	}
	if h.name != "" {
		if m, ok := r.decide(t[key{name: h.name}], port, true); ok {
			return m, true
		}
		if suffix, ok := suffixOf(h.name); ok {
			if m, ok := r.decide(t[key{wildcard: true, name: suffix}], port, true); ok {
				return m, true
			}
		}
	}
	return r.decide(t[key{wildcard: true}], port, h.name != "")
}

// decide finds the rule of a pattern for a port, which may be nil. Without passing, rules that pass through do not count.
func (r *Rules) decide(p *pattern, port uint16, passing bool) (Match, bool) {
	if p == nil {
		return Match{}, false
	}
	for _, n := range [...]uint16{port, allPorts} {
		if i, ok := p.at(n); ok && (passing || r.rules[i].kind != Passthrough) {
			return Match{Rule: int(i), Kind: r.rules[i].kind, Pattern: p.text, Effects: r.rules[i].effects}, true
		}
	}
	return Match{}, false
}

// suffixOf returns the name without its first label, which a wildcard stands for.
func suffixOf(name string) (string, bool) {
	_, suffix, ok := strings.Cut(name, ".")
	return suffix, ok
}

// Resolves reports whether the actor may ask for the addresses of a name: some rule must have it, on whatever port, since
// DNS has none.
func (r *Rules) Resolves(h Host) bool {
	return r != nil && h.name != "" && (r.clear.names(h) || r.tls.names(h))
}

// names reports whether some pattern matches a name, on whatever port.
func (t table) names(h Host) bool {
	if t[key{name: h.name}] != nil || t[key{wildcard: true}] != nil {
		return true
	}
	suffix, found := suffixOf(h.name)
	return found && t[key{wildcard: true, name: suffix}] != nil
}

// Near tells how close an actor came that is refused a host: by another port, or by asking in another way.
func (r *Rules) Near(h Host, clear bool) Reason {
	if r == nil || h.name == "" {
		return NoRule
	}
	same, other := r.tls, r.clear
	if clear {
		same, other = r.clear, r.tls
	}
	switch {
	case same.names(h):
		return OtherPort
	case other.names(h):
		return OtherKind
	}
	return NoRule
}

// Mode is what happens to a TLS connection.
type Mode string

// Modes. The empty Mode closes the connection.
const (
	ModeClose       Mode = ""
	ModeIntercept   Mode = "mitm"
	ModePassthrough Mode = "passthrough"
)

// TLSRule is a rule for the TLS connections of one tunnel.
type TLSRule struct {
	Pattern string
	Mode    Mode
}

// TLSRules lists what applies to TLS on one port, the most specific first, and the same in every run: names, then
// wildcards, then "*". It is what a tunnel takes with it to where only ChooseTLS is at hand, which costs as much as the policy
// is long; who has the Rules asks TLS. The list is shared and must not be changed: it is made once for a port.
func (r *Rules) TLSRules(port uint16) []TLSRule {
	if r == nil || port == 0 {
		return nil
	}
	if !r.named[port] {
		port = allPorts // whichever it is: only rules for all ports apply
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list, made := r.lists[port]
	if !made {
		if r.lists == nil || len(r.lists) >= maxLists {
			r.lists = make(map[uint16][]TLSRule)
		}
		list = r.listTLS(port)
		r.lists[port] = list
	}
	return list
}

func (r *Rules) listTLS(port uint16) []TLSRule {
	var found []TLSRule
	for _, p := range r.tls {
		m, ok := r.decide(p, port, true)
		if !ok {
			continue
		}
		mode := ModeIntercept
		if m.Kind == Passthrough {
			mode = ModePassthrough
		}
		found = append(found, TLSRule{Pattern: m.Pattern, Mode: mode})
	}
	slices.SortFunc(found, func(a, b TLSRule) int {
		return cmp.Or(cmp.Compare(breadth(a.Pattern), breadth(b.Pattern)), strings.Compare(a.Pattern, b.Pattern))
	})
	return found
}

// breadth orders patterns by how much they match.
func breadth(pattern string) int {
	switch {
	case pattern == "*":
		return 2
	case strings.HasPrefix(pattern, "*."):
		return 1
	}
	return 0
}

// ChooseTLS decides a connection by its SNI: the first rule that matches, in the order given. Without a name, without a
// match, and for a mode that it does not know, the connection is closed.
func ChooseTLS(sni Host, rules []TLSRule) Mode {
	for _, rule := range rules {
		if !matches(rule.Pattern, sni.name) {
			continue
		}
		if rule.Mode == ModeIntercept || rule.Mode == ModePassthrough {
			return rule.Mode
		}
		return ModeClose
	}
	return ModeClose
}

// matches compares a pattern with a name in normal form. "*." stands for exactly one label.
func matches(pattern, name string) bool {
	if name == "" {
		return false
	}
	if pattern == "*" || pattern == name {
		return true
	}
	wanted, wildcard := strings.CutPrefix(pattern, "*.")
	suffix, ok := suffixOf(name)
	return wildcard && ok && suffix == wanted
}
