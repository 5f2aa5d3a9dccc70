package cert_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

const tunnelURI = "spiffe://substrate-actor.local/worker-for-actor/demo/a1"

func openAuthority(t *testing.T, o cert.AuthorityOptions) *cert.Authority {
	t.Helper()
	if o.Name == "" {
		o.Name = "test"
	}
	a, err := cert.OpenAuthority(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func anyKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func parseChain(t *testing.T, chain [][]byte) []*x509.Certificate {
	t.Helper()
	out := make([]*x509.Certificate, len(chain))
	for i, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = c
	}
	return out
}

func issueChain(t *testing.T, a *cert.Authority, l cert.Leaf) []*x509.Certificate {
	t.Helper()
	chain, err := a.Issue(anyKey(t).Public(), l)
	if err != nil {
		t.Fatal(err)
	}
	return parseChain(t, chain)
}

// TestLeaves compares what is issued with the table of the installation's certificates.
func TestLeaves(t *testing.T) {
	client, server := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for _, tc := range []struct {
		name           string
		leaf           cert.Leaf
		uses           []x509.ExtKeyUsage
		life, backdate time.Duration
		uri            string
		names          []string
		addr           string
	}{
		{"service", cert.ServiceLeaf("a.svc", "b.svc"), []x509.ExtKeyUsage{client, server}, 24 * time.Hour, 2 * time.Minute, "", []string{"a.svc", "b.svc"}, ""},
		{"workload", cert.WorkloadLeaf("spiffe://cluster.local/ns/n/sa/s", false), []x509.ExtKeyUsage{client}, 24 * time.Hour, 2 * time.Minute, "spiffe://cluster.local/ns/n/sa/s", nil, ""},
		{"serving workload", cert.WorkloadLeaf("spiffe://cluster.local/ns/n/sa/s", true), []x509.ExtKeyUsage{client, server}, 24 * time.Hour, 2 * time.Minute, "spiffe://cluster.local/ns/n/sa/s", nil, ""},
		{"tunnel", cert.TunnelLeaf(tunnelURI), []x509.ExtKeyUsage{client, server}, time.Hour, 5 * time.Minute, tunnelURI, nil, ""},
		{"intercepted name", cert.InterceptionLeaf("api.test", netip.Addr{}), []x509.ExtKeyUsage{server}, 15 * time.Minute, 12 * time.Hour, "", []string{"api.test"}, ""},
		{"intercepted address", cert.InterceptionLeaf("", netip.MustParseAddr("2001:db8::1")), []x509.ExtKeyUsage{server}, 15 * time.Minute, 12 * time.Hour, "", nil, "2001:db8::1"},
	} {
		for _, ed := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, " ed25519 ", ed), func(t *testing.T) {
				a := openAuthority(t, cert.AuthorityOptions{Ed25519: ed})
				now := time.Now()
				chain := issueChain(t, a, tc.leaf)
				if len(chain) != 1 {
					t.Fatalf("%d certificates, want the leaf alone", len(chain))
				}
				c := chain[0]
				var addrs, uris []string
				for _, ip := range c.IPAddresses {
					addrs = append(addrs, ip.String())
				}
				for _, u := range c.URIs {
					uris = append(uris, u.String())
				}
				if strings.Join(addrs, " ") != tc.addr || strings.Join(uris, " ") != tc.uri || !slices.Equal(c.DNSNames, tc.names) {
					t.Errorf("names %v, addresses %v, URIs %v", c.DNSNames, addrs, uris)
				}
				if !slices.Equal(c.ExtKeyUsage, tc.uses) || c.KeyUsage != x509.KeyUsageDigitalSignature || c.IsCA || !c.BasicConstraintsValid {
					t.Errorf("uses %v, key usage %v, CA %v", c.ExtKeyUsage, c.KeyUsage, c.IsCA)
				}
				if d := c.NotAfter.Sub(now.Add(tc.life)).Abs(); d > 5*time.Second {
					t.Errorf("it ends %s from the right time", d)
				}
				if d := c.NotBefore.Sub(now.Add(-tc.backdate)).Abs(); d > 5*time.Second {
					t.Errorf("it begins %s from the right time", d)
				}
				if len(c.SubjectKeyId) == 0 || len(c.AuthorityKeyId) == 0 || c.SerialNumber.BitLen() < 120 || c.SerialNumber.Sign() <= 0 {
					t.Errorf("key ids %x and %x, serial number %x", c.SubjectKeyId, c.AuthorityKeyId, c.SerialNumber)
				}
				if ed != (c.SignatureAlgorithm == x509.PureEd25519) {
					t.Errorf("signed with %v", c.SignatureAlgorithm)
				}
				if _, err := c.Verify(x509.VerifyOptions{Roots: a.Roots(), KeyUsages: tc.uses[:1]}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestIssueRefuses(t *testing.T) {
	a := openAuthority(t, cert.AuthorityOptions{})
	for name, l := range map[string]cert.Leaf{
		"nobody":                    {Client: true, Life: time.Hour},
		"no use":                    {URI: tunnelURI, Life: time.Hour},
		"no life":                   {URI: tunnelURI, Client: true},
		"a URI that would change":   {URI: "SPIFFE://a/b", Client: true, Life: time.Hour},
		"a URI that would lose a #": {URI: "spiffe://a/b#", Client: true, Life: time.Hour},
		"no URI":                    {URI: "spiffe://a b/%", Client: true, Life: time.Hour},
	} {
		if chain, err := a.Issue(anyKey(t).Public(), l); err == nil {
			t.Errorf("%s: issued %d certificates", name, len(chain))
		}
	}
	if _, err := a.Issue("no key", cert.TunnelLeaf(tunnelURI)); err == nil {
		t.Error("a key that is none is certified")
	}
}

// A leaf lives within the life of its authority: it never predates it, and does not outlive it.
func TestLeafWithinAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openAuthority(t, cert.AuthorityOptions{})
		l := cert.TunnelLeaf(tunnelURI)
		l.Backdate = 1000 * time.Hour
		root := parseBundle(t, a)[0]
		if c := issueChain(t, a, l)[0]; !c.NotBefore.Equal(root.NotBefore) {
			t.Errorf("it begins at %s, its authority at %s", c.NotBefore, root.NotBefore)
		}
		time.Sleep(10*365*24*time.Hour - 10*time.Minute) // its authority's last minutes
		c := issueChain(t, a, cert.TunnelLeaf(tunnelURI))[0]
		if left := time.Until(c.NotAfter); left > 10*time.Minute {
			t.Errorf("it lasts for %s, longer than its authority", left)
		}
		time.Sleep(11 * time.Minute)
		if _, err := a.Issue(anyKey(t).Public(), cert.TunnelLeaf(tunnelURI)); err == nil {
			t.Error("an authority that has ended issues")
		}
	})
}

func TestIssueFor(t *testing.T) {
	a := openAuthority(t, cert.AuthorityOptions{Ed25519: true})
	key := anyKey(t)
	request := func(t *testing.T, template x509.CertificateRequest, by crypto.Signer) []byte {
		t.Helper()
		der, err := x509.CreateCertificateRequest(rand.Reader, &template, by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	// What the request asks for besides its key is not heard.
	good := request(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"evil.test"}}, key)
	chain, err := a.IssueFor(good, cert.TunnelLeaf(tunnelURI))
	if err != nil {
		t.Fatal(err)
	}
	c := parseChain(t, chain)[0]
	if !key.PublicKey.Equal(c.PublicKey) || len(c.DNSNames) != 0 || c.Subject.CommonName != "" {
		t.Errorf("the certificate is for %v, %v, %v", c.Subject, c.DNSNames, c.PublicKey)
	}
	if uri, err := mutual.URIOf(c); uri != tunnelURI || err != nil {
		t.Errorf("its URI is %q, %v", uri, err)
	}

	forged := slices.Clone(good)
	forged[len(forged)-1] ^= 1
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, der := range map[string][]byte{
		"nothing": {}, "rubbish": []byte("rubbish"), "a broken signature": forged, "something behind it": append(slices.Clone(good), 0),
		"more than 16384 bytes": request(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: strings.Repeat("x", 16384)}}, large),
	} {
		if chain, err := a.IssueFor(der, cert.TunnelLeaf(tunnelURI)); !errors.Is(err, cert.ErrRequest) {
			t.Errorf("%s: %d certificates, %v; want ErrRequest", name, len(chain), err)
		}
	}
}

// TestRotationSteps walks through a rotation and looks, at every step, who can verify what.
func TestRotationSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "ca.pem")
		a := openAuthority(t, cert.AuthorityOptions{File: file})
		verifies := func(what string, roots *x509.CertPool, chain []*x509.Certificate, want bool) {
			t.Helper()
			uri, err := mutual.VerifyURI(chain, roots, x509.ExtKeyUsageClientAuth)
			if (err == nil) != want || want && uri != tunnelURI || !want && !errors.Is(err, mutual.ErrPeer) {
				t.Errorf("%s: %q, %v; want verified %v", what, uri, err, want)
			}
		}
		steps := func(add, activate, retire error) {
			t.Helper()
			for name, s := range map[string]struct {
				step func() error
				want error
			}{"add": {a.Add, add}, "activate": {a.Activate, activate}, "retire": {a.Retire, retire}} {
				if s.want != nil {
					if err := s.step(); !errors.Is(err, s.want) {
						t.Errorf("%s: %v, want %v", name, err, s.want)
					}
				}
			}
		}
		leaf := cert.TunnelLeaf(tunnelURI)

		oldRoots, oldLeaf := a.Roots(), issueChain(t, a, leaf)
		verifies("before", oldRoots, oldLeaf, true)
		steps(nil, cert.ErrRotation, cert.ErrRotation)

		if err := a.Add(); err != nil {
			t.Fatal(err)
		}
		verifies("the old one still signs", oldRoots, issueChain(t, a, leaf), true)
		verifies("both are trusted", a.Roots(), oldLeaf, true)
		steps(cert.ErrRotation, cert.ErrTooYoung, cert.ErrRotation)
		time.Sleep(cert.MinSigningAge - time.Second)
		steps(nil, cert.ErrTooYoung, nil)
		time.Sleep(time.Second)

		a = openAuthority(t, cert.AuthorityOptions{File: file}) // a restart changes nothing
		if err := a.Activate(); err != nil {
			t.Fatal(err)
		}
		newLeaf := issueChain(t, a, leaf)
		if len(newLeaf) != 2 {
			t.Fatalf("%d certificates during the overlap, want the leaf and the one by the old authority", len(newLeaf))
		}
		verifies("who has not heard of the new one", oldRoots, newLeaf, true)
		verifies("only by that certificate", oldRoots, newLeaf[:1], false)
		verifies("old leaves", a.Roots(), oldLeaf, true)
		verifies("new leaves", a.Roots(), newLeaf, true)
		steps(cert.ErrRotation, cert.ErrRotation, nil)

		a = openAuthority(t, cert.AuthorityOptions{File: file})
		if again := issueChain(t, a, leaf); len(again) != 2 {
			t.Errorf("after a restart %d certificates", len(again))
		}
		steps(nil, nil, cert.ErrInUse)
		time.Sleep(time.Until(oldLeaf[0].NotAfter))
		verifies("old leaves on their last day", a.Roots(), oldLeaf, true)
		steps(nil, nil, cert.ErrInUse) // one was issued later
		time.Sleep(2 * time.Hour)
		if err := a.Retire(); err != nil {
			t.Fatal(err)
		}
		newLeaf = issueChain(t, a, leaf)
		verifies("new leaves", a.Roots(), newLeaf, true)
		verifies("old leaves", a.Roots(), oldLeaf, false)
		if last := issueChain(t, a, leaf); len(last) != 1 {
			t.Errorf("after the overlap %d certificates", len(last))
		}
		steps(nil, cert.ErrRotation, cert.ErrRotation)
		if a := openAuthority(t, cert.AuthorityOptions{File: file}); !strings.Contains(string(a.Bundle()), "BEGIN CERTIFICATE") || strings.Count(string(a.Bundle()), "BEGIN") != 1 {
			t.Errorf("the bundle is %s", a.Bundle())
		}
	})
}

// Retire waits for what the predecessor has signed, over restarts too; Distrust waits for nothing.
func TestRetireWaits(t *testing.T) {
	rotated := func(t *testing.T, o cert.AuthorityOptions) (*cert.Authority, []*x509.Certificate) {
		t.Helper()
		o.MinSigningAge = 1
		a := openAuthority(t, o)
		leaf := issueChain(t, a, cert.TunnelLeaf(tunnelURI))
		a = openAuthority(t, o)
		time.Sleep(time.Second)
		for _, step := range []func() error{a.Add, func() error { time.Sleep(time.Second); return a.Activate() }} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		return openAuthority(t, o), leaf
	}
	synctest.Test(t, func(t *testing.T) {
		a, leaf := rotated(t, cert.AuthorityOptions{File: filepath.Join(t.TempDir(), "ca.pem")})
		for end := time.Now().Add(12 * time.Hour); ; time.Sleep(time.Minute) {
			err := a.Retire()
			if err == nil {
				break
			}
			if _, invalid := mutual.VerifyURI(leaf, a.Roots(), x509.ExtKeyUsageClientAuth); !errors.Is(err, cert.ErrInUse) || (invalid == nil) != time.Now().Before(leaf[0].NotAfter.Add(1)) {
				t.Fatalf("Retire: %v; the leaf: %v", err, invalid)
			}
			if time.Now().After(end) {
				t.Fatal("the predecessor is never retired")
			}
		}
		if late := time.Since(leaf[0].NotAfter); late < 0 || late > time.Hour+time.Minute {
			t.Errorf("retired %s after the last certificate's end", late)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a, leaf := rotated(t, cert.AuthorityOptions{File: filepath.Join(t.TempDir(), "ca.pem")})
		if err := a.Distrust(); err != nil {
			t.Fatal(err)
		}
		if _, err := mutual.VerifyURI(leaf, a.Roots(), x509.ExtKeyUsageClientAuth); !errors.Is(err, mutual.ErrPeer) {
			t.Errorf("a leaf by a distrusted authority: %v", err)
		}
	})
}

func TestAuthorityFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	a := openAuthority(t, cert.AuthorityOptions{File: file, MinSigningAge: 1})
	for _, step := range []func() error{a.Add, a.Activate} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the file there are %v, %v", entries, err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.pem")
	openAuthority(t, cert.AuthorityOptions{File: other})
	foreign, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.SplitAfter(string(good), "-----\n")
	text := string(good)
	for name, content := range map[string]string{
		"empty":                   "",
		"rubbish":                 "rubbish",
		"cut":                     text[:len(text)-40],
		"something behind":        text + "x",
		"a key alone":             strings.Join(blocks[:2], ""),
		"a certificate first":     strings.Join(blocks[2:4], "") + text,
		"nobody signs":            strings.ReplaceAll(text, "State: active", "State: idle"),
		"something before":        "x\n" + text,
		"something between":       strings.Join(blocks[:2], "") + "x\n" + strings.Join(blocks[2:], ""),
		"a broken block":          strings.Join(blocks[:4], "") + "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n" + strings.Join(blocks[4:], ""),
		"not by its predecessor":  strings.Join(blocks[:8], "") + strings.Join(blocks[6:8], ""),
		"without the predecessor": strings.Join(blocks[4:], ""),
		"no overlap":              strings.Join(blocks[:8], ""),
		"no end":                  strings.ReplaceAll(text, "Until: ", "When: "),
		"two sign":                strings.ReplaceAll(text, "State: idle", "State: active"),
		"a state that is not one": strings.ReplaceAll(text, "State: idle", "State: other"),
		"no time":                 strings.ReplaceAll(text, "Since: ", "When: "),
		"three":                   text + strings.ReplaceAll(string(foreign), "State: active", "State: idle"),
		"another's certificate":   strings.Join(blocks[:2], "") + string(foreign)[strings.Index(string(foreign), "-----BEGIN CERTIFICATE"):],
		"a block of another kind": text + "-----BEGIN X-----\n-----END X-----\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "test", File: file})
		if err == nil {
			t.Errorf("%s: opened %v", name, a)
			continue
		}
		for _, line := range strings.Split(text, "\n") {
			if len(line) > 40 && strings.Contains(err.Error(), line) {
				t.Errorf("%s: the error shows the file: %v", name, err)
			}
		}
		if now, _ := os.ReadFile(file); string(now) != content {
			t.Errorf("%s: the file was replaced", name)
		}
	}
}

// An authority whose file cannot be written does not take the step.
func TestAuthorityWriteFails(t *testing.T) {
	dir := t.TempDir()
	a := openAuthority(t, cert.AuthorityOptions{File: filepath.Join(dir, "ca.pem")})
	before := string(a.Bundle())
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Add(); err == nil || string(a.Bundle()) != before {
		t.Errorf("Add: %v; the bundle changed: %v", err, string(a.Bundle()) != before)
	}
	if _, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "test", File: filepath.Join(dir, "ca.pem")}); err == nil {
		t.Error("an authority is opened that cannot be kept")
	}
}

func FuzzAuthorityFile(f *testing.F) {
	file := filepath.Join(f.TempDir(), "ca.pem")
	if _, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "test", File: file}); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nState: active\nSince: 2026-01-01T00:00:00Z\n\nMAA=\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		file := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "test", File: file})
		if err != nil {
			return
		}
		_, _ = a.Certificate(cert.ServiceLeaf("a.test")) // must not panic
		if len(a.Bundle()) == 0 {
			t.Fatal("an authority that trusts nobody")
		}
	})
}
