package egress_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// authority signs certificates as the test wants them, also such as no authority of ours would.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.sign(&x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "actors"}}, nil)
	return a
}

// sign fills in what the template leaves out.
func (a *authority) sign(c, parent *x509.Certificate) *x509.Certificate {
	a.t.Helper()
	c.SerialNumber, c.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), true
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, a.key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

func (a *authority) leaf(uris ...string) *x509.Certificate {
	c := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, u := range uris {
		parsed, err := url.Parse(u)
		if err != nil {
			a.t.Fatal(err)
		}
		c.URIs = append(c.URIs, parsed)
	}
	return c
}

const tunnelID = "spiffe://substrate-actor.local/worker-for-actor/demo/a1"

// I12: who may open a tunnel for an actor, and X11, X12 and X27 of the transcript.
func TestI12_Identify(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	signed := func(c *x509.Certificate) []*x509.Certificate { return []*x509.Certificate{a.sign(c, a.cert)} }
	with := func(change func(*x509.Certificate)) []*x509.Certificate {
		c := a.leaf(tunnelID)
		change(c)
		return signed(c)
	}
	const dialed = "93.184.216.34:443"
	for _, tc := range []struct {
		name              string
		method, authority string
		chain             []*x509.Certificate
		reason            egress.Reason
		status            int
	}{
		{"a worker", "CONNECT", dialed, signed(a.leaf(tunnelID)), egress.Allowed, 0},
		{"another method", "GET", dialed, signed(a.leaf(tunnelID)), egress.MethodRefused, 405},
		{"X27 nobody", "CONNECT", dialed, nil, egress.IdentityInvalid, 403},
		{"X11 the actor itself", "CONNECT", dialed, signed(a.leaf("spiffe://substrate-actor.local/actor/demo/a1")), egress.IdentityInvalid, 403},
		{"an earlier name", "CONNECT", dialed, signed(a.leaf("spiffe://substrate-actor.local/ateom-for-actor/demo/a1")), egress.IdentityInvalid, 403},
		{"another domain", "CONNECT", dialed, signed(a.leaf("spiffe://cluster.local/worker-for-actor/demo/a1")), egress.IdentityInvalid, 403},
		{"one segment more", "CONNECT", dialed, signed(a.leaf(tunnelID + "/x")), egress.IdentityInvalid, 403},
		{"an escape", "CONNECT", dialed, signed(a.leaf("spiffe://substrate-actor.local/worker-for-actor/demo/a%31")), egress.IdentityInvalid, 403},
		{"two URIs", "CONNECT", dialed, signed(a.leaf(tunnelID, "spiffe://substrate-actor.local/worker-for-actor/demo/a2")), egress.IdentityInvalid, 403},
		{"no URI", "CONNECT", dialed, signed(a.leaf()), egress.IdentityInvalid, 403},
		{"a DNS name only", "CONNECT", dialed, with(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"substrate-actor.local"} }), egress.IdentityInvalid, 403},
		{"expired", "CONNECT", dialed, with(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Second)
		}), egress.IdentityInvalid, 403},
		{"not valid yet", "CONNECT", dialed, with(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Minute), time.Now().Add(time.Hour)
		}), egress.IdentityInvalid, 403},
		{"for servers", "CONNECT", dialed, with(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), egress.IdentityInvalid, 403},
		{"for nothing", "CONNECT", dialed, with(func(c *x509.Certificate) { c.ExtKeyUsage = nil }), egress.IdentityInvalid, 403},
		{"an authority", "CONNECT", dialed, with(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }), egress.IdentityInvalid, 403},
		{"a guest's", "CONNECT", dialed, with(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 12, 2}, Value: []byte{5, 0}}}
		}), egress.IdentityInvalid, 403},
		{"signed by another", "CONNECT", dialed, []*x509.Certificate{other.sign(other.leaf(tunnelID), other.cert)}, egress.IdentityInvalid, 403},
		{"signed by itself", "CONNECT", dialed, []*x509.Certificate{other.sign(other.leaf(tunnelID), nil)}, egress.IdentityInvalid, 403},
		{"X12 a name", "CONNECT", "example.com:443", signed(a.leaf(tunnelID)), egress.DialedInvalid, 403},
		{"no port", "CONNECT", "93.184.216.34", signed(a.leaf(tunnelID)), egress.DialedInvalid, 403},
		{"a zone", "CONNECT", "[fe80::1%eth0]:443", signed(a.leaf(tunnelID)), egress.DialedInvalid, 403},
	} {
		o := egress.Opening{Method: tc.method, Authority: tc.authority, Chain: tc.chain}
		c, v := egress.Identify(o, egress.Believed{Roots: roots, Tunnels: actor.Tunnels{Domain: actor.ActorDomain}})
		if v.Reason != tc.reason || v.Status != tc.status || v.OK() && (c.Ref.String() != "demo/a1" || c.Dialed.String() != tc.authority) {
			t.Errorf("%s: %+v %+v", tc.name, c, v)
		}
		if _, v := egress.Identify(o, egress.Believed{Tunnels: actor.Tunnels{Domain: actor.ActorDomain}}); v.OK() || tc.method == "CONNECT" && v.Status != 503 {
			t.Errorf("%s when nobody is believed: %+v", tc.name, v)
		}
	}
}

func TestAdmitActor(t *testing.T) {
	ref := actor.Ref{Atespace: "demo", Name: "a1"}
	made := func(s actor.State) actor.Actor { return actor.Actor{Ref: ref, Meta: actor.Meta{UID: "u"}, State: s} }
	for s := actor.State(0); s <= actor.Reverting; s++ { // X13
		if v := egress.AdmitActor(ref, made(s), nil); v.OK() != (s == actor.Running || s == actor.Resuming) || !v.OK() && v.Status != 403 {
			t.Errorf("%s: %+v", s, v)
		}
	}
	for code, want := range map[actor.Code]int{ // X14
		actor.NotFound: 403, actor.Unavailable: 503, actor.DeadlineExceeded: 503, actor.Canceled: 408, actor.PermissionDenied: 403, actor.Internal: 403,
	} {
		if v := egress.AdmitActor(ref, made(actor.Running), actor.Refuse(code, "x")); v.OK() || v.Status != want {
			t.Errorf("%s: %+v", code, v)
		}
	}
	if v := egress.AdmitActor(ref, made(actor.Running), errors.New("x")); v.OK() {
		t.Errorf("after an error: %+v", v)
	}
	if v := egress.AdmitActor(actor.Ref{Atespace: "demo", Name: "a2"}, made(actor.Running), nil); v.OK() {
		t.Errorf("for another: %+v", v)
	}
	if v := egress.AdmitActor(ref, actor.Actor{Ref: ref, State: actor.Running}, nil); v.OK() {
		t.Errorf("without a UID: %+v", v)
	}
}

// KF_EGR_09, I29: without a policy that is good as a whole, nothing.
func TestI29_KF_EGR_09_Stand(t *testing.T) {
	var unknown actor.Faults
	unknown.Add("egress_policy.rules[0]", "holds field 9, which is not known")
	good := egress.Kept{Policy: policy(https(nil, "a.test")), Meta: actor.Meta{Version: 7}}
	elsewhere := good
	elsewhere.Atespace = "other"
	for _, tc := range []struct {
		name   string
		kept   egress.Kept
		err    error
		reason egress.Reason
		status int
	}{
		{"good", good, nil, egress.Allowed, 0},
		{"X15 none", egress.Kept{}, actor.Refuse(actor.NotFound, "none"), egress.PolicyNone, 403},
		{"empty", egress.Kept{Policy: policy()}, nil, egress.PolicyEmpty, 403},
		{"an unknown field", good, &actor.Error{Code: actor.Internal, Text: "x", Err: unknown}, egress.PolicyInvalid, 403},
		{"a rule of no kind", egress.Kept{Policy: policy(https(nil, "a.test"), egress.Rule{})}, nil, egress.PolicyInvalid, 403},
		{"another atespace's", elsewhere, nil, egress.PolicyInvalid, 403},
		{"out of reach", good, actor.Refuse(actor.Unavailable, "x"), egress.PolicyUnavailable, 503},
		{"late", good, actor.Refuse(actor.DeadlineExceeded, "x"), egress.PolicyUnavailable, 503},
		{"refused", good, actor.Refuse(actor.PermissionDenied, "x"), egress.PolicyUnavailable, 503},
	} {
		s := egress.Stand("demo", tc.kept, tc.err)
		v := egress.AdmitPolicy(s)
		if s.Reason != tc.reason || v.Reason != tc.reason || v.Status != tc.status || (s.Rules != nil) != v.OK() {
			t.Errorf("%s: %+v %+v", tc.name, s, v)
		}
	}
	if v := egress.AdmitPolicy(egress.Standing{}); v.OK() {
		t.Errorf("no standing at all: %+v", v)
	}
}

// Every reason that a decision can give has its counter.
func TestReasons(t *testing.T) {
	seen := map[egress.Reason]bool{}
	for _, r := range egress.Reasons {
		if r == "" || seen[r] {
			t.Errorf("reason %q twice, or empty", r)
		}
		seen[r] = true
	}
}
