package conn

import "net/netip"

// special are networks that nobody on the Internet is in: the machine itself, its neighbours, private and shared networks,
// what is reserved, documentation, multicast, and the addresses of IPv6 that carry one of IPv4 to a translator, whose end
// nobody can judge (the IANA registries of special-purpose addresses, RFC 6890). One address that looks public is among them: it is
// where machines of Azure find what other clouds have at 169.254.169.254, certificates and settings of the machine included.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10",
	"fec0::/10", "ff00::/8",
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// Translators whose addresses hold one of IPv4 at a known place: NAT64 (RFC 6052) and 6to4 (RFC 3056).
var nat64, sixToFour = netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16")

// Special reports whether an address leads somewhere else than to the public Internet, also by way of an IPv4 address inside
// it: a client that names a destination must not reach it unless somebody says so. An invalid address is special.
func Special(a netip.Addr) bool {
	if a = a.Unmap().WithZone(""); !a.IsValid() {
		return true
	}
	for _, p := range special {
		if p.Contains(a) {
			return true
		}
	}
	inner, ok := Embedded(a)
	return ok && Special(inner)
}

// Embedded is the IPv4 address that a translator makes of one of IPv6.
func Embedded(a netip.Addr) (inner netip.Addr, ok bool) {
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}
