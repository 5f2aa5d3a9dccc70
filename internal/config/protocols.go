package config

import "slices"

// Protocols is a set of HTTP versions that a backend may choose from.
type Protocols uint8

// HTTP versions.
const (
	HTTP1 Protocols = 1 << iota // http/1.1
	HTTP2                       // h2
)

// protocolNames are the ALPN names, those that are preferred first.
var protocolNames = []struct {
	name string
	p    Protocols
}{{"h2", HTTP2}, {"http/1.1", HTTP1}}

// Has reports membership.
func (p Protocols) Has(q Protocols) bool { return p&q != 0 }

// protocolsOf is the set of ALPN names.
func protocolsOf(names []string) (p Protocols) {
	for _, n := range protocolNames {
		if slices.Contains(names, n.name) {
			p |= n.p
		}
	}
	return p
}

// Names are the ALPN names of the set, HTTP/2 first.
func (p Protocols) Names() []string {
	names := []string{}
	for _, n := range protocolNames {
		if p.Has(n.p) {
			names = append(names, n.name)
		}
	}
	return names
}
