package conn

import "crypto/tls"

// PeerIdentity is who the peer is by its verified certificate: its first URI (a SPIFFE ID, for instance), else its first DNS
// name, else its first mail address, else its distinguished name as RFC 2253 prints it. It is "" without a certificate and
// with one that nobody has verified. A resumed session has the identity of the one that it resumes.
func PeerIdentity(s *tls.ConnectionState) string {
	if len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return ""
	}
	leaf := s.VerifiedChains[0][0]
	switch {
	case len(leaf.URIs) > 0:
		return leaf.URIs[0].String()
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.EmailAddresses) > 0:
		return leaf.EmailAddresses[0]
	}
	return leaf.Subject.String()
}
