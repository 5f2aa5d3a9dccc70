package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// maxUnixPath is the longest path a Unix socket address holds on every supported system.
const maxUnixPath = 103

// ParseAddress reads a listening address: IP:port, [IPv6]:port, :port, name:port or unix:/path, and returns its
// canonical spelling. Port 0 asks the system for a free port. The error text says what is wrong and does not repeat
// the address.
func ParseAddress(s string) (string, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if msg := badUnixPath(path); msg != "" {
			return "", addressError(msg)
		}
		return s, nil
	}
	host, portText, ok := cutPort(s)
	if !ok {
		return "", addressError("has no port")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || portText[0] == '+' {
		return "", addressError("has a port that is not a number from 0 to 65535")
	}
	portText = strconv.FormatUint(port, 10)
	if host == "" {
		return ":" + portText, nil
	}
	canonical, msg := canonicalHost(host)
	if msg != "" {
		return "", addressError(msg)
	}
	return canonical + ":" + portText, nil
}

// addressError is why an address is refused.
type addressError string

// Error returns the reason, to be put behind what is refused.
func (e addressError) Error() string { return string(e) }

// cutPort splits at the colon before the port. An IPv6 address must be in brackets.
func cutPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i == len(s)-1 || strings.IndexByte(s[i:], ']') >= 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// canonicalHost checks an IP, a bracketed IPv6 address or a host name, and returns its canonical spelling.
func canonicalHost(host string) (string, string) {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		if !ok || err != nil || !ip.Is6() {
			return "", "has brackets around something that is not an IPv6 address"
		}
		if ip.Is4In6() {
			return ip.Unmap().String(), ""
		}
		return "[" + ip.String() + "]", ""
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Is6() {
			return "", "needs brackets around the IPv6 address"
		}
		return ip.String(), ""
	}
	if !isHostName(host) {
		return "", "has a host that is neither an IP address nor a host name"
	}
	return strings.ToLower(host), ""
}

// isHostName accepts dotted labels of letters, digits, hyphens and underscores. A name whose last label is a number
// is a mistyped IPv4 address (RFC 3986 section 3.2.2, WHATWG URL).
func isHostName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		for _, c := range []byte(l) {
			if !isAlnum(c) && c != '-' && c != '_' {
				return false
			}
		}
	}
	last := labels[len(labels)-1]
	return strings.Trim(last, "0123456789") != ""
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func badUnixPath(path string) string {
	switch {
	case !strings.HasPrefix(path, "/") || path == "/":
		return "needs an absolute path behind unix:"
	case len(path) > maxUnixPath:
		return "has a socket path longer than " + strconv.Itoa(maxUnixPath) + " bytes"
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has a control character in its path"
	}
	return ""
}

// parsePrefix reads an IP or a CIDR. Host bits in a CIDR are dropped, and IPv4 addresses written as IPv6 are taken as
// IPv4, so that they match what a dual-stack socket reports.
func parsePrefix(s string) (netip.Prefix, bool) {
	s = strings.TrimSpace(s)
	if ip, err := netip.ParseAddr(s); err == nil {
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), ip.Zone() == ""
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// Among reports whether one of the prefixes has the address. An IPv4 address in IPv6 form is that IPv4 address, and a zone
// does not matter.
func Among(all []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range all {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// formatPrefix writes a single address without its length.
func formatPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// listener is an address taken apart for the question whether two can be bound at the same time.
type listener struct {
	host string // "" for every address of the machine
	port string // "" for a Unix socket
}

func listenerOf(canonical string) listener {
	if strings.HasPrefix(canonical, "unix:") {
		return listener{host: canonical}
	}
	host, port, _ := cutPort(canonical)
	if host == "0.0.0.0" || host == "[::]" {
		host = ""
	}
	return listener{host: host, port: port}
}

// overlaps reports whether the second of the two could not be bound. Port 0 is a different port each time.
func (l listener) overlaps(m listener) bool {
	if l.port != m.port || l.port == "0" {
		return false
	}
	return l.host == m.host || l.port != "" && (l.host == "" || m.host == "")
}
