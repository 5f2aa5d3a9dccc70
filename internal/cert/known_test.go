package cert_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
)

// Leaves that a new CA issues at once begin no earlier than it does, and end no later: some verifiers refuse the chain otherwise.
func TestKF_MITM_03_LeafWithinItsCA(t *testing.T) {
	a := openAuthority(t, cert.AuthorityOptions{})
	root := parseBundle(t, a)[0]
	for name, l := range map[string]cert.Leaf{
		"intercepted name": cert.InterceptionLeaf("api.test", netip.Addr{}), "intercepted address": cert.InterceptionLeaf("", netip.MustParseAddr("192.0.2.1")),
		"tunnel": cert.TunnelLeaf(tunnelURI), "service": cert.ServiceLeaf("a.svc"), "workload": cert.WorkloadLeaf("spiffe://cluster.local/ns/n/sa/s", true),
	} {
		c := issueChain(t, a, l)[0]
		if c.NotBefore.Before(root.NotBefore) || c.NotAfter.After(root.NotAfter) {
			t.Errorf("%s: from %s to %s, its CA from %s to %s", name, c.NotBefore, c.NotAfter, root.NotBefore, root.NotAfter)
		}
		if cut := time.Until(c.NotBefore.Add(l.Backdate)); cut > 5*time.Second { // the CA is older than any of them wants to be
			t.Errorf("%s: begins %s later than it should", name, cut)
		}
	}
}

// An actor whose clock is behind takes what is minted for it.
func TestKF_MITM_02_ClockBehind(t *testing.T) {
	a := openAuthority(t, cert.AuthorityOptions{})
	c := issueChain(t, a, cert.InterceptionLeaf("api.test", netip.Addr{}))[0]
	for _, behind := range []time.Duration{0, 30 * time.Second, 5 * time.Minute, 75 * time.Minute, 11 * time.Hour} {
		if _, err := c.Verify(x509.VerifyOptions{Roots: a.Roots(), DNSName: "api.test", CurrentTime: time.Now().Add(-behind)}); err != nil {
			t.Errorf("%s behind: %v", behind, err)
		}
	}
}

func parseBundle(t *testing.T, a *cert.Authority) []*x509.Certificate {
	t.Helper()
	var ders [][]byte
	for block, rest := pem.Decode(a.Bundle()); block != nil; block, rest = pem.Decode(rest) {
		ders = append(ders, block.Bytes)
	}
	return parseChain(t, ders)
}
