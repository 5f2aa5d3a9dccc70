package route

import (
	"bytes"
	"net/netip"
)

// Input is what a rule can see of one request, or of one connection. It is read during a call only; nothing of it is
// kept.
type Input struct {
	// TCP tells that this is a connection. Host is then the server name that its client has asked for in the TLS
	// handshake, Path is "/" and Method "TCP".
	TCP bool
	// Host is the Host field or, on HTTP/2, :authority, as received: case, port and a trailing dot do not matter.
	// Empty means that there is none; no host matcher is true then.
	Host []byte
	// Path is the path in the form of [NormalPath], without the query.
	Path []byte
	// RawQuery is the query as received, without the question mark. Empty means none.
	RawQuery []byte
	// Method is the request method; its case does not matter.
	Method []byte
	// ClientIP is the address that ClientIP matchers judge. IPv4-mapped forms count as IPv4, a zone is ignored. The
	// zero Addr matches nothing.
	ClientIP netip.Addr
	// Fields finds header fields. Nil means that there are none.
	Fields Fields
}

// Fields finds header fields of a request.
type Fields interface {
	// First returns the value of the first field with this name, without blanks around it, and whether there is one.
	// The name is always lower-case ASCII; the fields have to be found whatever their case. It is not asked for
	// "host", which is taken from Input.Host.
	First(name string) ([]byte, bool)
}

// request is an Input while rules judge it.
type request struct {
	Input
	host []byte // Host in the form of HostKey
}

// HostKey brings a host as received to the form that rules compare: without port and trailing dot, ASCII
// lower-case. An IPv6 literal keeps its brackets. The result is a part of host if nothing had to be folded; otherwise
// it is built in dst[:0], which must not overlap host.
func HostKey(dst, host []byte) []byte {
	host = trimHost(host)
	i := firstUpper(host)
	if i < 0 {
		return host
	}
	dst = append(dst[:0], host...)
	for ; i < len(dst); i++ {
		dst[i] = lowerByte(dst[i])
	}
	return dst
}

// trimHost cuts the port and one trailing dot off. Behind the last colon only digits (or nothing) are a port; in an
// IPv6 literal only a colon right behind the bracket starts one.
func trimHost(host []byte) []byte {
	if len(host) > 0 && host[0] == '[' {
		if end := bytes.IndexByte(host, ']'); end >= 0 && isPort(host[end+1:]) {
			return host[:end+1]
		}
		return host
	}
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && isPort(host[i:]) {
		host = host[:i]
	}
	if n := len(host); n > 0 && host[n-1] == '.' {
		host = host[:n-1]
	}
	return host
}

// isPort tells whether s is empty or a colon and digits.
func isPort(s []byte) bool {
	for i, c := range s {
		if i == 0 && c != ':' || i > 0 && !isDigit(c) {
			return false
		}
	}
	return true
}

func firstUpper(s []byte) int {
	for i, c := range s {
		if 'A' <= c && c <= 'Z' {
			return i
		}
	}
	return -1
}

// match evaluates the expression for one request.
func (n *node) match(r *request) bool {
	switch n.op {
	case opAnd:
		for _, k := range n.kids {
			if !k.match(r) {
				return false
			}
		}
		return true
	case opOr:
		for _, k := range n.kids {
			if k.match(r) {
				return true
			}
		}
		return false
	case opNot:
		return !n.kids[0].match(r)
	}
	return n.m.match(r)
}

// match evaluates one matcher.
func (m *matcher) match(r *request) bool {
	switch m.spec.kind {
	case kindHost:
		if m.wildcard {
			// Exactly one label stands for the asterisk, and it is not empty.
			i := bytes.IndexByte(r.host, '.')
			return i > 0 && string(r.host[i:]) == m.want
		}
		return string(r.host) == m.want
	case kindHostRegexp:
		return len(r.host) > 0 && m.re.Match(r.host)
	case kindPath:
		return string(r.Path) == m.want
	case kindPathPrefix:
		return len(r.Path) >= len(m.want) && string(r.Path[:len(m.want)]) == m.want
	case kindPathRegexp:
		return m.re.Match(r.Path)
	case kindMethod:
		return equalUpper(r.Method, m.want)
	case kindHeaders:
		return m.matchHeaders(r)
	case kindQuery:
		return queryHas(r.RawQuery, m)
	case kindClientIP:
		return m.matchClientIP(r.ClientIP)
	case kindHostSNI: // where there is a request, the connection was terminated
		return r.TCP && m.matchSNI(r.host)
	}
	return false
}

// matchSNI compares a server name. Unlike in Host a wildcard stands for any number of labels, as operators of TLS proxies
// know it.
func (m *matcher) matchSNI(name []byte) bool {
	switch {
	case m.want == "*":
		return true
	case m.wildcard:
		return len(name) > len(m.want) && string(name[len(name)-len(m.want):]) == m.want
	}
	return string(name) == m.want
}

func (m *matcher) matchHeaders(r *request) bool {
	if m.want == "host" {
		return len(r.Host) > 0 && string(r.Host) == m.value
	}
	if r.Fields == nil {
		return false
	}
	v, ok := r.Fields.First(m.want)
	return ok && string(v) == m.value
}

func (m *matcher) matchClientIP(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, p := range m.nets {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// equalUpper compares s, folded to ASCII capitals, with want.
func equalUpper(s []byte, want string) bool {
	if len(s) != len(want) {
		return false
	}
	for i, c := range s {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// queryHas looks for a pair with the wanted key, and value if one is wanted. Pairs are separated by "&" alone; a
// pair without "=" has an empty value.
func queryHas(raw []byte, m *matcher) bool {
	for len(raw) > 0 {
		pair := raw
		if i := bytes.IndexByte(raw, '&'); i >= 0 {
			pair, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		if len(pair) == 0 {
			continue
		}
		key, value, _ := bytes.Cut(pair, []byte{'='})
		if equalDecoded(key, m.want) && (!m.hasValue || equalDecoded(value, m.value)) {
			return true
		}
	}
	return false
}

// equalDecoded compares s, form-decoded on the way, with want. A percent sign that starts no escape stands for
// itself, as browsers read it.
func equalDecoded(s []byte, want string) bool {
	n := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '+' {
			c = ' '
		} else if c == '%' {
			if v, ok := unhex(s[i+1:]); ok {
				c = v
				i += 2
			}
		}
		if n >= len(want) || want[n] != c {
			return false
		}
		n++
	}
	return n == len(want)
}
