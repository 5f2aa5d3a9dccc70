package route

import (
	"fmt"
	"strings"
)

// Reason is the stable code of a [Verdict].
type Reason string

// The reasons. Those that end in mismatch name the matcher that decided.
const (
	ReasonMatched            Reason = "matched"              // this entry serves the request
	ReasonShadowed           Reason = "shadowed"             // it matches, but an entry before it does so too
	ReasonEntrypointNotBound Reason = "entrypoint_not_bound" // the router is not bound to the entrypoint
	ReasonHost               Reason = "host_mismatch"
	ReasonPath               Reason = "path_mismatch"
	ReasonMethod             Reason = "method_mismatch"
	ReasonHeader             Reason = "header_mismatch"
	ReasonQuery              Reason = "query_mismatch"
	ReasonClientIP           Reason = "client_ip_mismatch"
	ReasonNotOperand         Reason = "not_operand_matched" // what stands behind a ! is true
	ReasonTCPOnly            Reason = "tcp_only"            // the matcher judges connections, not requests
	ReasonSNI                Reason = "sni_mismatch"
	ReasonNoRule             Reason = "no_rule" // the entry has no rule
)

// String returns the code itself.
func (r Reason) String() string { return string(r) }

// Verdict says what became of one entry, and why.
type Verdict struct {
	Entry    int    // index in the slice given to Build
	Name     string // of the entry
	Priority int    // the one that counts
	Reason   Reason
	// Detail is one sentence for an operator. It repeats host, path, method and address of the request, but never
	// the value of a header field or of a query parameter.
	Detail string
	// Pos and Len are the place in the rule text of what decided; both 0 where no part of the rule did.
	Pos, Len int
}

// Explain judges every entry in the order of the table, by the same evaluation that Match uses. The one entry whose
// reason is ReasonMatched, if any, is what Match returns.
func (t *Table) Explain(in *Input) []Verdict {
	r := &request{Input: *in, host: HostKey(nil, in.Host)}
	out := make([]Verdict, 0, len(t.order))
	var winner *Verdict
	for i := range t.order {
		p := &t.order[i]
		v := Verdict{Entry: p.index, Name: p.Name, Priority: p.effective()}
		switch {
		case !p.bound:
			v.Reason, v.Detail = ReasonEntrypointNotBound, p.boundTo()
		case p.Rule == nil:
			v.Reason, v.Detail = ReasonNoRule, "has no rule"
		case !p.Rule.root.match(r):
			v.because(p.Rule.root, r)
		case winner == nil:
			v.Reason, v.Detail = ReasonMatched, "first match in the order of priority and name"
		default:
			v.Reason, v.Detail = ReasonShadowed, "matches too, but "+winner.before(&v)
		}
		out = append(out, v)
		if v.Reason == ReasonMatched {
			winner = &out[len(out)-1] // out never grows beyond its first array
		}
	}
	return out
}

// boundTo says where the entry serves instead.
func (e *Entry) boundTo() string {
	switch {
	case len(e.Entrypoints) > 0:
		return "bound to " + clip(strings.Join(e.Entrypoints, ", ")) + " only"
	case e.Kind == Connections:
		return "bound to entrypoints of protocol tcp only"
	case e.Kind == Datagrams:
		return "bound to entrypoints of protocol udp only"
	}
	return "bound to http entrypoints only"
}

// before says why w comes before v.
func (w *Verdict) before(v *Verdict) string {
	if w.Priority == v.Priority {
		return fmt.Sprintf("%q comes first by name at the same priority %d", w.Name, w.Priority)
	}
	return fmt.Sprintf("%q has priority %d over %d", w.Name, w.Priority, v.Priority)
}

// because fills in why n, which is false for r, is false: the first operand of an "and" that fails, the first
// alternative of an "or".
func (v *Verdict) because(n *node, r *request) {
	switch n.op {
	case opAnd:
		for _, k := range n.kids {
			if !k.match(r) {
				v.because(k, r)
				return
			}
		}
	case opOr:
		v.because(n.kids[0], r)
		v.Detail = fmt.Sprintf("none of %d alternatives holds; the first: %s", len(n.kids), v.Detail)
	case opNot:
		v.Reason, v.Detail = ReasonNotOperand, "what the rule excludes is true"
		end := 0
		n.each(func(m *matcher) {
			if end == 0 {
				v.Pos = m.pos
			}
			end = m.pos + m.len
		})
		v.Len = end - v.Pos
	case opMatch:
		v.Pos, v.Len = n.m.pos, n.m.len
		v.Reason, v.Detail = n.m.why(r)
	}
}

// why says why the matcher, which is false for r, is false.
func (m *matcher) why(r *request) (Reason, string) {
	wants := clip(m.args[0])
	switch m.spec.kind {
	case kindHost, kindHostRegexp:
		if len(r.host) == 0 {
			return ReasonHost, "the request has no host"
		}
		return ReasonHost, fmt.Sprintf("host %q is not %s", clip(string(r.host)), wants)
	case kindPath:
		return ReasonPath, fmt.Sprintf("path %q is not %s", clip(string(r.Path)), wants)
	case kindPathPrefix:
		return ReasonPath, fmt.Sprintf("path %q does not start with %s", clip(string(r.Path)), wants)
	case kindPathRegexp:
		return ReasonPath, fmt.Sprintf("path %q as a whole does not match %s", clip(string(r.Path)), wants)
	case kindMethod:
		return ReasonMethod, fmt.Sprintf("method %q is not %s", clip(string(r.Method)), m.want)
	case kindHeaders:
		return ReasonHeader, fmt.Sprintf("header %s is absent or its first value differs", m.want)
	case kindQuery:
		if m.hasValue {
			return ReasonQuery, fmt.Sprintf("no query parameter %q has the wanted value", wants)
		}
		return ReasonQuery, fmt.Sprintf("there is no query parameter %q", wants)
	case kindClientIP:
		if !r.ClientIP.IsValid() {
			return ReasonClientIP, "the client has no IP address"
		}
		return ReasonClientIP, fmt.Sprintf("client address %s is not in %s", r.ClientIP, clip(strings.Join(m.args, ", ")))
	case kindHostSNI:
		switch {
		case !r.TCP:
			return ReasonTCPOnly, "judges connections, not requests"
		case len(r.host) == 0:
			return ReasonSNI, "the client has asked for no server name"
		}
		return ReasonSNI, fmt.Sprintf("server name %q is not %s", clip(string(r.host)), wants)
	}
	return ReasonNoRule, "unknown matcher"
}

// clip bounds what a sentence quotes.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
