// Package egress decides where an actor may go, and is the way there. It owns the one normal form that names are compared in,
// whoever speaks them (SNI, Host, DNS, a policy), what is a valid policy, which rule of it decides, and the [Gateway] that
// tunnels of actors come to. The decisions ([Identify], [AdmitActor], [Stand], [AdmitPolicy], [JudgeTLS], [ChooseTLS], [Judge])
// take and give values, in files that know no connection and no exchange; a policy is compiled once ([Compile]) and the result
// decides for all connections at the same time without locks, for as long as anybody holds it. A Gateway lives as long as
// its settings are in force. The package knows no message of the control plane.
//
// What belongs here and is not here yet: replacing the fields that [Effects] name. A request that such a rule would change is
// refused.
package egress

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// ErrHost is a text that is neither a name nor an address in the one spelling that counts. It is refused: another reader
// might find a destination in it.
var ErrHost = errors.New("not a host name or address")

const (
	maxName  = 253 // characters of a whole name, RFC 1035
	maxLabel = 63
)

// Host is a destination in normal form: a name in lower case without a dot at its end, or an IP address. Hosts are equal
// if and only if they are the same destination, so a Host is a key. The zero Host is none and matches nothing.
type Host struct {
	name string
	addr netip.Addr
}

// Name returns the name, empty for an address.
func (h Host) Name() string { return h.name }

// Addr returns the address, invalid for a name. It is never an IPv4 address mapped into IPv6, and has no zone.
func (h Host) Addr() netip.Addr { return h.addr }

// String returns the name or the address, without brackets, which ParseName or ParseAuthority read back.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// authority is the host as an authority has it: IPv6 in brackets.
func (h Host) authority() string {
	if h.addr.Is6() {
		return "[" + h.addr.String() + "]"
	}
	return h.String()
}

// ParseName brings a name as SNI and DNS carry it into normal form: ASCII letters become small, and nothing else is
// folded (the Kelvin sign is no k); one dot at the end is dropped, a second is refused. Labels have 1 to 63 letters,
// digits, hyphens and underscores, a name 253 characters. A name that ends in a number is refused, be it an address or
// something that some resolver takes for one ("01.2.3.4", "0x7f.1", "2130706433").
func ParseName(s string) (Host, error) {
	s = strings.TrimSuffix(s, ".")
	name, ok := lowerName(s)
	if !ok || endsInNumber(name) {
		return Host{}, ErrHost
	}
	return Host{name: name}, nil
}

// ParseAuthority brings the host of a Host field, an :authority or an absolute target into normal form: what ParseName
// takes, an IPv4 address, or an IPv6 address in brackets, without a zone. A port may follow; it must be one, and is
// dropped, since neither rules nor dialing ever look at it.
func ParseAuthority(s string) (Host, error) {
	host, port, found := cutPort(s)
	if found && !validPort(port) {
		return Host{}, ErrHost
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !ok || err != nil || !addr.Is6() || addr.Zone() != "" {
			return Host{}, ErrHost
		}
		return Host{addr: addr.Unmap()}, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if !addr.Is4() {
			return Host{}, ErrHost
		}
		return Host{addr: addr}, nil
	}
	return ParseName(host)
}

// ErrDialed is an authority of a tunnel that is not an address and a port.
var ErrDialed = errors.New("not an IP address and a port")

// ParseDialed reads what an actor dialed, as the authority of its tunnel says: an IPv4 address or an IPv6 address in
// brackets, a colon, and a port from 1 to 65535 without leading zeros. Names and zones are ErrDialed; a mapped IPv4
// address becomes one.
func ParseDialed(s string) (netip.AddrPort, error) {
	h, err := ParseAuthority(s)
	if err != nil || !h.addr.IsValid() {
		return netip.AddrPort{}, ErrDialed
	}
	_, port, _ := cutPort(s)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, ErrDialed
	}
	return netip.AddrPortFrom(h.addr, uint16(n)), nil
}

// cutPort splits at the last colon that does not stand in brackets.
func cutPort(s string) (host, port string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.IndexByte(s[i:], ']') >= 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// validPort reports whether s is 1 to 65535 in the one decimal spelling.
func validPort(s string) bool {
	if len(s) == 0 || len(s) > 5 || s[0] == '0' {
		return false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n <= 65535
}

// lowerName returns s with small letters, and whether it consists of valid labels. A name that is small already is not
// copied.
func lowerName(s string) (string, bool) {
	if len(s) == 0 || len(s) > maxName {
		return "", false
	}
	label, upper := 0, false
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '.':
			if label == 0 {
				return "", false
			}
			label = 0
			continue
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return "", false
		}
		if label++; label > maxLabel {
			return "", false
		}
	}
	if upper {
		s = strings.ToLower(s)
	}
	return s, label > 0
}

// endsInNumber reports whether the last label is a number to those who read addresses leniently: decimal or octal
// digits, or 0x and hexadecimal ones.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	digits, hex := strings.CutPrefix(last, "0x")
	for i := range len(digits) {
		c := digits[i]
		if (c < '0' || c > '9') && (!hex || c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
