package egress_test

import (
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// The vectors of the contract's Appendix A that are this room's, each a row of its own. More are beside the parsers.

func TestAppendixA_ConnectAuthority(t *testing.T) {
	a := newAuthority(t)
	believed := egress.Believed{Roots: x509.NewCertPool(), Tunnels: actor.Tunnels{Domain: actor.ActorDomain}}
	believed.Roots.AddCert(a.cert)
	chain := []*x509.Certificate{a.sign(a.leaf(tunnelID), a.cert)}
	for authority, ok := range map[string]bool{
		"93.184.216.34:443": true, "[2001:db8::1]:8443": true,
		"example.com:443": false, "1.2.3.4": false, "1.2.3.4:0": false, "1.2.3.4:65536": false, "[fe80::1%eth0]:80": false, "01.2.3.4:80": false, "0x7f.1:80": false, "": false,
	} {
		t.Run(fmt.Sprintf("%q", authority), func(t *testing.T) {
			c, v := egress.Identify(egress.Opening{Method: "CONNECT", Authority: authority, Chain: chain}, believed)
			if ok && (!v.OK() || c.Dialed.String() != authority) || !ok && (v.Status != 403 || v.Reason != egress.DialedInvalid) {
				t.Errorf("%+v %+v; want ok %v", c, v, ok)
			}
		})
	}
}

// What a rule may replace, and what becomes of a request that carries it. Credentials do not exist yet: such a request is refused,
// never sent on with what the actor has put there. The vectors of secrets ("tok\n", "a\rb", empty) come with them.
func TestAppendixA_HeaderEffects(t *testing.T) {
	for header, ok := range map[string]bool{"Authorization": true, "authorization": true, "Host": false, "Content-Length": false, ":authority": false} {
		t.Run("replace "+header, func(t *testing.T) {
			if err := policy(replacing(secret(header))).Validate("p", "demo"); (err == nil) != ok {
				t.Errorf("%v, want ok %v", err, ok)
			}
		})
	}
	for prefix, ok := range map[string]bool{"Bearer ": true, "Bearer\r": false, "Bearer\n": false, "\x00": false} {
		t.Run(fmt.Sprintf("prefix %q", prefix), func(t *testing.T) {
			h := secret("Authorization")
			h.Prefix = prefix
			if err := policy(replacing(h)).Validate("p", "demo"); (err == nil) != ok {
				t.Errorf("%v, want ok %v", err, ok)
			}
		})
	}
}

// The rows of egress of Appendix E, by the deciding functions alone. What becomes of them with a network is in app.
func TestAppendixE(t *testing.T) {
	a := newAuthority(t)
	believed := egress.Believed{Roots: x509.NewCertPool(), Tunnels: actor.Tunnels{Domain: actor.ActorDomain}}
	believed.Roots.AddCert(a.cert)
	ref := actor.Ref{Atespace: "demo", Name: "a1"}
	open := func(authority string, uris ...string) egress.Verdict {
		o := egress.Opening{Method: "CONNECT", Authority: authority}
		if uris != nil {
			o.Chain = []*x509.Certificate{a.sign(a.leaf(uris...), a.cert)}
		}
		_, v := egress.Identify(o, believed)
		return v
	}
	in := func(s actor.State, err error) egress.Verdict {
		return egress.AdmitActor(ref, actor.Actor{Ref: ref, Meta: actor.Meta{UID: "u"}, State: s}, err)
	}
	rules := compile(t, https(nil, "*.example.com"), passthrough(on(443), "raw.example.org"), http(nil, "example.com"), replacing(secret("Authorization")))
	request := func(leg egress.Leg, sni, authority string, port uint16, change func(*egress.Request)) egress.Verdict {
		q := egress.Request{Leg: leg, Method: "GET", Authority: authority, HostField: authority, Port: port, Carries: func(string) bool { return false }}
		if sni != "" {
			q.SNI = name(t, sni)
		}
		if change != nil {
			change(&q)
		}
		return egress.Judge(rules, q)
	}
	const m, h = egress.LegIntercepted, egress.LegCleartext
	carries := func(q *egress.Request) {
		q.Carries = func(f string) bool { return strings.EqualFold(f, "authorization") }
	}
	upgrade := func(q *egress.Request) { q.Upgrade = true }
	connect := func(q *egress.Request) { q.Method = "CONNECT" }
	for _, tc := range []struct {
		id     string
		got    egress.Verdict
		reason egress.Reason
		status int
		host   string
	}{
		{"X9 admitted", open("93.184.216.34:443", tunnelID), egress.Allowed, 0, ""},
		{"X10 admitted", open("93.184.216.34:8443", tunnelID), egress.Allowed, 0, ""},
		{"X10 clear text decided per request", request(h, "", "api.example.com", 8443, nil), egress.OtherKind, 403, "api.example.com"},
		{"X11", open("93.184.216.34:443", "spiffe://substrate-actor.local/actor/demo/a1"), egress.IdentityInvalid, 403, ""},
		{"X12", open("example.com:443", tunnelID), egress.DialedInvalid, 403, ""},
		{"X13 SUSPENDED", in(actor.Suspended, nil), egress.ActorNotRunning, 403, ""},
		{"X13 RESUMING", in(actor.Resuming, nil), egress.Allowed, 0, ""},
		{"X14", in(0, actor.Refuse(actor.Unavailable, "x")), egress.ActorUnavailable, 503, ""},
		{"X15", egress.AdmitPolicy(egress.Stand("demo", egress.Kept{}, actor.Refuse(actor.NotFound, "none"))), egress.PolicyNone, 403, ""},
		{"X16", request(m, "api.example.com", "api.example.com", 443, nil), egress.Allowed, 0, "api.example.com"},
		{"X17", request(m, "api.example.com", "other.test", 443, nil), egress.SNIMismatch, 403, ""},
		{"X18", request(m, "api.example.com", "api.example.com:9999", 443, nil), egress.Allowed, 0, "api.example.com"},
		{"X19", request(m, "a.test", "a.test", 443, nil), egress.Allowed, 0, "a.test"},
		{"X20 X21 until there are credentials", request(m, "a.test", "a.test", 443, carries), egress.CredentialsUnsupported, 403, "a.test"},
		{"X22", request(h, "", "example.com", 80, nil), egress.Allowed, 0, "example.com"},
		{"X22 dialed 8080", request(h, "", "example.com", 8080, nil), egress.OtherPort, 403, "example.com"},
		{"X23", request(h, "", "", 80, nil), egress.AuthorityInvalid, 400, ""},
		{"X24", request(h, "", "example.com", 80, func(q *egress.Request) { q.HostField = "other.test" }), egress.AuthorityMismatch, 403, ""},
		{"X25 M", request(m, "api.example.com", "api.example.com", 443, upgrade), egress.UpgradeRefused, 403, ""},
		{"X25 H", request(h, "", "example.com", 80, upgrade), egress.UpgradeRefused, 403, ""},
		{"X26 M", request(m, "api.example.com", "api.example.com", 443, connect), egress.NestedConnect, 403, ""},
		{"X26 H", request(h, "", "example.com", 80, connect), egress.NestedConnect, 403, ""},
		{"X27", open("93.184.216.34:443"), egress.IdentityInvalid, 403, ""},
		{"X27 another scheme", open("93.184.216.34:443", "http://substrate-actor.local/worker-for-actor/demo/a1"), egress.IdentityInvalid, 403, ""},
	} {
		t.Run(tc.id, func(t *testing.T) {
			if v := tc.got; v.Reason != tc.reason || v.Status != tc.status || v.Host.String() != tc.host || v.OK() != (tc.reason == egress.Allowed) {
				t.Errorf("%+v", v)
			}
		})
	}
	nine := compile(t, https(nil, "*.example.com"), passthrough(on(443), "raw.example.org"))
	t.Run("X9 rules", func(t *testing.T) {
		want := []egress.TLSRule{{Pattern: "raw.example.org", Mode: "passthrough"}, {Pattern: "*.example.com", Mode: "mitm"}}
		if d := cmp.Diff(want, nine.TLSRules(443)); d != "" {
			t.Error(d)
		}
	})
	t.Run("X10 rules", func(t *testing.T) {
		if got := nine.TLSRules(8443); len(got) > 0 {
			t.Errorf("%v", got)
		}
		if mode, v := egress.JudgeTLS(nine, egress.Handshake{ServerName: "api.example.com", Port: 8443}); mode != egress.ModeClose || v.OK() {
			t.Errorf("%s %+v", mode, v)
		}
	})
}

// I26: inside TLS, what a request asks for must be what the connection was opened for, and be allowed itself.
func TestI26_Fronting(t *testing.T) {
	rules := compile(t, https(nil, "a.test", "b.test"), passthrough(on(443), "raw.test"), http(on(443), "clear.test"))
	allowed := map[string]bool{"a.test": true, "b.test": true}
	hosts := []string{"a.test", "b.test", "raw.test", "clear.test", "none.test"}
	for _, fronting := range []bool{false, true} {
		for _, sni := range hosts {
			for _, authority := range hosts {
				v := egress.Judge(rules, egress.Request{
					Leg: egress.LegIntercepted, SNI: name(t, sni), Method: "GET", Authority: authority, HostField: authority, Port: 443, Fronting: fronting,
				})
				if want := allowed[sni] && allowed[authority] && (fronting || sni == authority); v.OK() != want || !want && v.Status != 403 {
					t.Errorf("SNI %s, authority %s, fronting %v: %+v", sni, authority, fronting, v)
				}
			}
		}
	}
}
