package cert

import (
	"crypto/rsa"
	"crypto/tls"
	"slices"
	"strings"
)

// index finds the certificates for a name. It does not change.
type index struct {
	names map[string][]*tls.Certificate // lower case; wildcards as they are written
	// fallback is for clients that name nobody, or nobody known: the first certificate, and what else has its first name.
	fallback []*tls.Certificate
}

// newIndex arranges certificates, given in the order of the configuration. Of several for one name those with an
// elliptic curve come first: they are cheaper, and a client that cannot use them gets the others.
func newIndex(certs []*tls.Certificate) *index {
	x := &index{names: map[string][]*tls.Certificate{}}
	byKind := slices.Clone(certs)
	slices.SortStableFunc(byKind, func(a, b *tls.Certificate) int { return kind(a) - kind(b) })
	for _, c := range byKind {
		for _, name := range c.Leaf.DNSNames {
			name = strings.ToLower(name)
			if !slices.Contains(x.names[name], c) {
				x.names[name] = append(x.names[name], c)
			}
		}
	}
	switch {
	case len(certs) == 0:
	case len(certs[0].Leaf.DNSNames) == 0:
		x.fallback = certs[:1]
	default:
		x.fallback = x.names[strings.ToLower(certs[0].Leaf.DNSNames[0])]
	}
	return x
}

func kind(c *tls.Certificate) int {
	if _, old := c.Leaf.PublicKey.(*rsa.PublicKey); old {
		return 1
	}
	return 0
}

// lookup returns the certificates for a server name: those with the very name, else those with a wildcard in the place
// of its first label (RFC 6125 section 6.4.3).
func (x *index) lookup(name string) []*tls.Certificate {
	if name == "" {
		return nil
	}
	name = strings.ToLower(name)
	if found := x.names[name]; found != nil {
		return found
	}
	if _, rest, ok := strings.Cut(name, "."); ok {
		return x.names["*."+rest]
	}
	return nil
}

// pick returns the first certificate that the client can use; the first one when there is none.
func pick(hello *tls.ClientHelloInfo, certs []*tls.Certificate) *tls.Certificate {
	if len(certs) == 1 {
		return certs[0]
	}
	asked := *hello
	asked.ServerName = "" // the name was matched already, or there is nothing for it
	for _, c := range certs {
		if asked.SupportsCertificate(c) == nil {
			return c
		}
	}
	return certs[0]
}
