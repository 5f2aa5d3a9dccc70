package route

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"strings"
)

// kind is one kind of matcher.
type kind uint8

const (
	kindHost kind = iota
	kindHostRegexp
	kindPath
	kindPathPrefix
	kindPathRegexp
	kindMethod
	kindHeaders
	kindQuery
	kindClientIP
	kindHostSNI
)

// spec is what the grammar knows of a kind of matcher.
type spec struct {
	name     string
	kind     kind
	min, max int  // number of arguments
	tcp      bool // judges connections
}

// specs lists every matcher; names are case-sensitive.
var specs = [...]spec{
	{name: "Host", kind: kindHost, min: 1, max: 1},
	{name: "HostRegexp", kind: kindHostRegexp, min: 1, max: 1},
	{name: "Path", kind: kindPath, min: 1, max: 1},
	{name: "PathPrefix", kind: kindPathPrefix, min: 1, max: 1},
	{name: "PathRegexp", kind: kindPathRegexp, min: 1, max: 1},
	{name: "Method", kind: kindMethod, min: 1, max: 1},
	{name: "Headers", kind: kindHeaders, min: 2, max: 2},
	{name: "Query", kind: kindQuery, min: 1, max: 2},
	{name: "ClientIP", kind: kindClientIP, min: 1, max: 1024},
	{name: "HostSNI", kind: kindHostSNI, min: 1, max: 1, tcp: true},
}

func specByName(name string) *spec {
	for i := range specs {
		if specs[i].name == name {
			return &specs[i]
		}
	}
	return nil
}

// argError is a fault in one argument. A value of Headers or Query never appears in msg: it may be a secret.
type argError struct {
	n        int // which argument
	pos, len int // the place inside its text; len 0 is all of it
	msg      string
}

// compile checks the arguments of m and fills its compiled fields. It reports and returns false when they are wrong.
func (p *parser) compile(m *matcher, args []arg) bool {
	if n := len(args); n < m.spec.min || n > m.spec.max {
		p.fail(m.pos, m.len, CodeArgumentCount, "%s takes %s, not %d", m.spec.name, m.spec.count(), n)
		return false
	}
	e := m.build()
	if e == nil {
		return true
	}
	a := args[e.n]
	pos, n := a.pos, a.len
	if a.raw && e.len > 0 {
		pos, n = a.pos+1+e.pos, e.len
	}
	p.fail(pos, n, CodeBadArgument, "%s", e.msg)
	return false
}

// count says in words how many arguments the matcher takes.
func (s *spec) count() string {
	switch {
	case s.min == s.max && s.min == 1:
		return "1 argument"
	case s.min == s.max:
		return fmt.Sprintf("%d arguments", s.min)
	case s.max > 8:
		return fmt.Sprintf("at least %d argument", s.min)
	}
	return fmt.Sprintf("%d or %d arguments", s.min, s.max)
}

// build compiles the arguments of one matcher, whose number is right.
func (m *matcher) build() *argError {
	first := m.args[0]
	if first == "" {
		return &argError{msg: "this argument is empty"}
	}
	switch m.spec.kind {
	case kindHost, kindHostSNI:
		return m.buildHost(first)
	case kindHostRegexp, kindPathRegexp:
		return m.buildRegexp(first)
	case kindPath, kindPathPrefix:
		return m.buildPath(first)
	case kindMethod:
		if i := notToken(first); i >= 0 {
			return &argError{pos: i, len: 1, msg: "this byte cannot stand in a method"}
		}
		m.want = strings.ToUpper(first)
	case kindHeaders:
		return m.buildHeaders()
	case kindQuery:
		m.want, m.hasValue = first, len(m.args) == 2
		if m.hasValue {
			m.value = m.args[1]
		}
	case kindClientIP:
		return m.buildClientIP()
	}
	return nil
}

// buildHost checks a host: a name, "*." and a name, an IPv4 address or an IPv6 address in brackets. What can never
// equal the host of a request (a port, another alphabet) is refused instead of silently matching nothing.
func (m *matcher) buildHost(host string) *argError {
	if m.spec.kind == kindHostSNI && host == "*" {
		m.want = host
		return nil
	}
	name := lower(host)
	if strings.HasPrefix(name, "[") {
		return m.buildIPv6(name)
	}
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		m.wildcard = true
		name = rest
	}
	at := len(host) - len(name)
	if _, err := netip.ParseAddr(name); err == nil && strings.Contains(name, ":") {
		return &argError{msg: "an IPv6 address is written in brackets"}
	}
	for i := range len(name) {
		switch c := name[i]; {
		case isAlpha(c), isDigit(c), c == '-', c == '_', c == '.':
		case c == ':':
			return &argError{pos: at + i, len: len(name) - i, msg: "hosts are compared without their port, leave it out"}
		case c >= 0x80:
			return &argError{msg: "hosts are ASCII, write this one in its xn-- form"}
		case c == '*':
			return &argError{pos: at + i, len: 1, msg: "a wildcard is only possible as the whole first label, as in *.example.com"}
		default:
			return &argError{pos: at + i, len: 1, msg: "this byte cannot stand in a host"}
		}
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > 253 || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") {
		return &argError{msg: "this is no host: a label is empty or the name is longer than 253 bytes"}
	}
	m.want = name
	if m.wildcard {
		m.want = "." + name
	}
	return nil
}

func (m *matcher) buildIPv6(host string) *argError {
	end := strings.IndexByte(host, ']')
	if end < 0 {
		return &argError{msg: "the bracket of this IPv6 address is never closed"}
	}
	if end != len(host)-1 {
		return &argError{pos: end + 1, len: len(host) - end - 1, msg: "hosts are compared without their port, leave it out"}
	}
	if ip, err := netip.ParseAddr(host[1:end]); err != nil || !ip.Is6() {
		return &argError{msg: "this is no IPv6 address"}
	}
	m.want = host
	return nil
}

// buildPath brings the wanted path to the normal form that requests are compared in. The last segment of a prefix
// is only the beginning of one, so that dots in it are no dot segment.
func (m *matcher) buildPath(text string) *argError {
	if text[0] != '/' {
		return &argError{msg: "a path starts with a slash"}
	}
	text = strings.ReplaceAll(text, " ", "%20")
	head, tail := text, ""
	if m.spec.kind == kindPathPrefix {
		cut := strings.LastIndexByte(text, '/') + 1
		head, tail = text[:cut], text[cut:]
	}
	norm, _, err := NormalPath(nil, []byte(head), true)
	if err == nil && tail != "" {
		var last []byte
		last, _, err = NormalPath(nil, []byte("/x"+tail), true)
		tail = strings.TrimPrefix(string(last), "/x")
	}
	if err != nil {
		return &argError{msg: "this " + err.Error()}
	}
	m.want = string(norm) + tail
	return nil
}

// buildRegexp compiles an expression that has to match the whole host or path.
func (m *matcher) buildRegexp(text string) *argError {
	// Alone first: the error then names the expression as it was written, and no parenthesis in it can close ours.
	if _, err := regexp.Compile(text); err != nil {
		e := &argError{msg: "this is no RE2 expression: " + err.Error()}
		var se *syntax.Error
		if errors.As(err, &se) {
			e.msg = "this is no RE2 expression: " + se.Code.String()
			if at := strings.Index(text, se.Expr); at >= 0 && se.Expr != "" {
				e.pos, e.len = at, len(se.Expr)
			}
		}
		return e
	}
	open := `\A(?:`
	if m.spec.kind == kindHostRegexp && hasUpperLiteral(text) {
		// Hosts are lower-case when they are compared: a capital letter could not match anything.
		open = `\A(?i:`
	}
	re, err := regexp.Compile(open + text + `)\z`)
	if err != nil {
		return &argError{msg: "this expression is too large"}
	}
	m.re = re
	return nil
}

// hasUpperLiteral tells whether an expression has a capital letter that is no part of an escape.
func hasUpperLiteral(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			i++
		} else if 'A' <= text[i] && text[i] <= 'Z' {
			return true
		}
	}
	return false
}

func (m *matcher) buildHeaders() *argError {
	name, value := m.args[0], m.args[1]
	if i := notToken(name); i >= 0 {
		return &argError{pos: i, len: 1, msg: "this byte cannot stand in a field name"}
	}
	for i := range len(value) {
		if c := value[i]; c != '\t' && (c < ' ' || c > '~') {
			return &argError{n: 1, msg: "only visible ASCII values are compared, this one has another byte"}
		}
	}
	if strings.Trim(value, " \t") != value {
		return &argError{n: 1, msg: "a field value never starts or ends with a blank"}
	}
	m.want, m.value = lower(name), value
	return nil
}

// buildClientIP reads addresses and CIDRs. IPv4-mapped IPv6 forms become IPv4, as those of clients do.
func (m *matcher) buildClientIP() *argError {
	for i, text := range m.args {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Zone() != "" {
				return &argError{n: i, msg: "this is neither an IP address nor a CIDR"}
			}
			prefix = netip.PrefixFrom(ip, ip.BitLen())
		}
		if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		m.nets = append(m.nets, prefix.Masked())
	}
	return nil
}

// notToken returns the place of the first byte that is no RFC 9110 tchar, or -1.
func notToken(s string) int {
	for i := range len(s) {
		if c := s[i]; !isAlpha(c) && !isDigit(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return i
		}
	}
	return -1
}

// lower folds ASCII capitals only; no other byte changes, so that offsets stay.
func lower(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for j := i; j < len(b); j++ {
				b[j] = lowerByte(b[j])
			}
			return string(b)
		}
	}
	return s
}

func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}
