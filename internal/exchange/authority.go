package exchange

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Authority is where a CONNECT wants to get: a host and a port.
type Authority struct {
	Host string     // a name in lower case, without a dot at its end; "" where Addr is valid
	Addr netip.Addr // a literal address, IPv4 also where it was written inside IPv6
	Port uint16     // never 0
}

// String is the authority as CONNECT spells it.
func (a Authority) String() string {
	host := a.Host
	if a.Addr.IsValid() {
		host = a.Addr.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(a.Port)))
}

// ErrAuthority is a text that is not exactly one host and one port.
var ErrAuthority = errors.New("not host:port")

const (
	maxHostName  = 253 // RFC 1035 §2.3.4
	maxHostLabel = 63
)

// ParseAuthority reads the target of a CONNECT (RFC 9110 §9.3.6): host:port, the host a name, an IPv4 address or an IPv6
// address in brackets without a zone, the port from 1 to 65535 in plain digits. A name of which some resolver makes an
// address ("127.1", "0x7f.1", "2130706433") is refused.
func ParseAuthority(b []byte) (Authority, error) {
	s := string(b)
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return Authority{}, ErrAuthority
	}
	port, ok := parsePort(s[i+1:])
	if !ok {
		return Authority{}, ErrAuthority
	}
	host := s[:i]
	if inner, literal := strings.CutPrefix(host, "["); literal {
		inner, closed := strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !closed || err != nil || !addr.Is6() || addr.Zone() != "" {
			return Authority{}, ErrAuthority
		}
		return Authority{Addr: addr.Unmap(), Port: port}, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if !addr.Is4() {
			return Authority{}, ErrAuthority
		}
		return Authority{Addr: addr, Port: port}, nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if !hostName(name) {
		return Authority{}, ErrAuthority
	}
	return Authority{Host: name, Port: port}, nil
}

func parsePort(s string) (uint16, bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && len(s) <= 5
}

// hostName accepts labels of letters, digits, hyphens and underscores, the last of which does not begin with a digit.
func hostName(s string) bool {
	if s == "" || len(s) > maxHostName {
		return false
	}
	last := ""
	for l := range strings.SplitSeq(s, ".") {
		if l == "" || len(l) > maxHostLabel || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		for i := range len(l) {
			if c := l[i]; c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
		last = l
	}
	return last[0] < '0' || last[0] > '9'
}
