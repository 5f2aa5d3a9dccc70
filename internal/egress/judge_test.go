package egress_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/egress"
)

func name(t interface{ Fatalf(string, ...any) }, s string) egress.Host {
	h, err := egress.ParseName(s)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return h
}

// The rows of requests of the transcript: M is inside TLS that was opened, H in clear text.
func TestJudgeTranscript(t *testing.T) {
	rules := compile(t, https(nil, "*.example.com"), passthrough(on(443), "raw.example.org"), http(nil, "example.com", "web.example.org"))
	sni := name(t, "api.example.com")
	inside := func(authority string) egress.Request {
		return egress.Request{Leg: egress.LegIntercepted, SNI: sni, Method: "GET", Authority: authority, HostField: authority, Port: 443}
	}
	clear := func(authority string, port uint16) egress.Request {
		return egress.Request{Leg: egress.LegCleartext, Method: "GET", Authority: authority, HostField: authority, Port: port}
	}
	with := func(q egress.Request, change func(*egress.Request)) egress.Request { change(&q); return q }
	for _, tc := range []struct {
		id     string
		q      egress.Request
		reason egress.Reason
		status int
		host   string
	}{
		{"X16", inside("api.example.com"), egress.Allowed, 0, "api.example.com"},
		{"X17", inside("other.test"), egress.SNIMismatch, 403, ""},
		{"X17 both allowed", inside("other.example.com"), egress.SNIMismatch, 403, ""},
		{"X17 fronting", with(inside("other.example.com"), func(q *egress.Request) { q.Fronting = true }), egress.Allowed, 0, "other.example.com"},
		{"X17 fronting to what is not allowed", with(inside("other.test"), func(q *egress.Request) { q.Fronting = true }), egress.NoRule, 403, "other.test"},
		{"X18", inside("api.example.com:9999"), egress.Allowed, 0, "api.example.com"},
		{"KF_EGR_01 spelling", inside("API.Example.COM."), egress.Allowed, 0, "api.example.com"},
		{"X22", clear("example.com", 80), egress.Allowed, 0, "example.com"},
		{"X22 another port", clear("example.com", 8080), egress.OtherPort, 403, "example.com"},
		{"X23", clear("", 80), egress.AuthorityInvalid, 400, ""},
		{"X24", with(clear("example.com", 80), func(q *egress.Request) { q.HostField = "web.example.org" }), egress.AuthorityMismatch, 403, ""},
		{"X24 the same in another spelling", with(clear("example.com", 80), func(q *egress.Request) { q.HostField = "EXAMPLE.com:80" }), egress.Allowed, 0, "example.com"},
		{"X24 an odd Host", with(clear("example.com", 80), func(q *egress.Request) { q.HostField = "a b" }), egress.AuthorityMismatch, 403, ""},
		{"X25 H", with(clear("example.com", 80), func(q *egress.Request) { q.Upgrade = true }), egress.UpgradeRefused, 403, ""},
		{"X25 M", with(inside("api.example.com"), func(q *egress.Request) { q.Upgrade = true }), egress.UpgradeRefused, 403, ""},
		{"X26 H", with(clear("example.com", 80), func(q *egress.Request) { q.Method = "CONNECT" }), egress.NestedConnect, 403, ""},
		{"X26 M", with(inside("api.example.com"), func(q *egress.Request) { q.Method = "CONNECT" }), egress.NestedConnect, 403, ""},
		{"I20 TLS only", clear("api.example.com", 443), egress.OtherKind, 403, "api.example.com"},
		{"I20 clear text only", with(inside("example.com"), func(q *egress.Request) { q.SNI, q.Port = name(t, "example.com"), 80 }), egress.NoRule, 403, ""},
		{"passed through only", with(inside("raw.example.org"), func(q *egress.Request) { q.SNI = name(t, "raw.example.org") }), egress.NoRule, 403, ""},
		{"an address", clear("93.184.216.34", 80), egress.NoRule, 403, "93.184.216.34"},
		{"KF_EGR_02", clear("[example.com]", 80), egress.AuthorityInvalid, 400, ""},
		{"a leg without requests", with(clear("example.com", 80), func(q *egress.Request) { q.Leg = egress.LegPassthrough }), egress.OtherKind, 403, "example.com"},
	} {
		v := egress.Judge(rules, tc.q)
		if v.Reason != tc.reason || v.Status != tc.status || v.Host.String() != tc.host || v.OK() != (tc.reason == egress.Allowed) {
			t.Errorf("%s: %+v", tc.id, v)
		}
		if v := egress.Judge(nil, tc.q); v.OK() {
			t.Errorf("%s without rules: %+v", tc.id, v)
		}
	}
}

// X19 to X21: a rule that would replace a field decides only when the field is there, and is refused then.
func TestJudgeCredentials(t *testing.T) {
	rules := compile(t, replacing(secret("Authorization")))
	host := replacing(secret("Authorization")).HTTPS.Hostnames[0]
	for carries, want := range map[string]egress.Reason{"accept": egress.Allowed, "authorization": egress.CredentialsUnsupported} {
		v := egress.Judge(rules, egress.Request{
			Leg: egress.LegIntercepted, SNI: name(t, host), Method: "GET", Authority: host, Port: 443,
			Carries: func(f string) bool { return strings.EqualFold(f, carries) },
		})
		if v.Reason != want {
			t.Errorf("with %s: %+v", carries, v)
		}
	}
	if v := egress.Judge(rules, egress.Request{Leg: egress.LegIntercepted, SNI: name(t, host), Method: "GET", Authority: host, Port: 443}); v.OK() {
		t.Errorf("when nobody says what the request carries: %+v", v)
	}
}

func TestJudgeTLS(t *testing.T) {
	rules := compile(t, https(nil, "*.example.com"), passthrough(on(443), "raw.example.org", "*.d.test"), http(nil, "web.example.org"))
	for _, tc := range []struct {
		name   string
		h      egress.Handshake
		mode   egress.Mode
		reason egress.Reason
	}{
		{"https", egress.Handshake{ServerName: "api.example.com", Port: 443}, egress.ModeIntercept, egress.Allowed},
		{"https, hidden", egress.Handshake{ServerName: "api.example.com", Hidden: true, Port: 443}, egress.ModeIntercept, egress.Allowed},
		{"KF_EGR_01", egress.Handshake{ServerName: "API.example.COM", Port: 443}, egress.ModeIntercept, egress.Allowed},
		{"passthrough", egress.Handshake{ServerName: "raw.example.org", Port: 443}, egress.ModePassthrough, egress.Allowed},
		{"KF_EGR_10 passthrough, hidden", egress.Handshake{ServerName: "raw.example.org", Hidden: true, Port: 443}, egress.ModeClose, egress.NameHidden},
		{"X10", egress.Handshake{ServerName: "raw.example.org", Port: 8443}, egress.ModeClose, egress.OtherPort},
		{"KF_EGR_07", egress.Handshake{ServerName: "web.example.org", Port: 443}, egress.ModeClose, egress.OtherKind},
		{"KF_EGR_08 one label", egress.Handshake{ServerName: "a.d.test", Port: 443}, egress.ModePassthrough, egress.Allowed},
		{"KF_EGR_08 two labels", egress.Handshake{ServerName: "a.b.d.test", Port: 443}, egress.ModeClose, egress.NoRule},
		{"KF_EGR_08 none", egress.Handshake{ServerName: "d.test", Port: 443}, egress.ModeClose, egress.NoRule},
		{"KF_EGR_08 no dot", egress.Handshake{ServerName: "xd.test", Port: 443}, egress.ModeClose, egress.NoRule},
		{"KF_EGR_10 none", egress.Handshake{Port: 443}, egress.ModeClose, egress.SNIMissing},
		{"KF_EGR_10 an address", egress.Handshake{ServerName: "1.2.3.4", Port: 443}, egress.ModeClose, egress.SNIInvalid},
		{"two dots", egress.Handshake{ServerName: "api.example.com..", Port: 443}, egress.ModeClose, egress.SNIInvalid},
	} {
		mode, v := egress.JudgeTLS(rules, tc.h)
		if mode != tc.mode || v.Reason != tc.reason || v.OK() != (mode != egress.ModeClose) {
			t.Errorf("%s: %q %+v", tc.name, mode, v)
		}
		if mode, _ := egress.JudgeTLS(nil, tc.h); mode != egress.ModeClose {
			t.Errorf("%s without rules: %q", tc.name, mode)
		}
	}
}

// patternTwin matches in another way: by labels.
func patternTwin(pattern, host string, isName bool) bool {
	if pattern == "*" {
		return true
	}
	if !isName {
		return false
	}
	p, h := strings.Split(pattern, "."), strings.Split(host, ".")
	if p[0] == "*" {
		return len(p) == len(h) && slices.Equal(p[1:], h[1:])
	}
	return slices.Equal(p, h)
}

// judgeTwin looks at every rule and keeps the best, as the order of precedence is written down.
func judgeTwin(rules []egress.Rule, tls, passing bool, host string, port int32) (kind egress.Kind, found bool) {
	isName := !strings.Contains(host, "1.2.3.4")
	best := -1
	for _, r := range rules {
		k, names, ports := egress.HTTP, []string(nil), (*egress.Ports)(nil)
		switch {
		case r.HTTP != nil:
			names, ports = r.HTTP.Hostnames, r.HTTP.Ports
		case r.HTTPS != nil:
			k, names, ports = egress.HTTPS, r.HTTPS.Hostnames, r.HTTPS.Ports
		default:
			k, names, ports = egress.Passthrough, r.Passthrough.Hostnames, r.Passthrough.Ports
		}
		if (k == egress.HTTP) == tls || k == egress.Passthrough && !passing {
			continue
		}
		portScore := 0
		switch {
		case ports == nil && (k == egress.HTTP && port == 80 || k != egress.HTTP && port == 443), ports != nil && slices.Contains(ports.Numbers, port):
			portScore = 2
		case ports != nil && ports.All:
			portScore = 1
		default:
			continue
		}
		for _, n := range names {
			if !patternTwin(n, host, isName) {
				continue
			}
			score := portScore
			switch {
			case n == "*":
			case strings.HasPrefix(n, "*."):
				score += 10
			default:
				score += 20
			}
			if score > best {
				best, kind, found = score, k, true
			}
		}
	}
	return kind, found
}

// The decisions agree with a twin that knows nothing of tables.
func TestI28_DecisionTwin(t *testing.T) {
	names := []string{"*", "*.d.test", "a.d.test", "b.d.test", "d.test"}
	hosts := []string{"a.d.test", "b.d.test", "c.d.test", "d.test", "x.a.d.test", "other.test", "1.2.3.4"}
	ports := []*egress.Ports{nil, everywhere, on(443), on(80, 8443)}
	rapid.Check(t, func(t *rapid.T) {
		var rules []egress.Rule
		for range rapid.IntRange(1, 5).Draw(t, "rules") {
			n, p := rapid.SampledFrom(names).Draw(t, "name"), rapid.SampledFrom(ports).Draw(t, "ports")
			r := http(p, n)
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 1:
				r = https(p, n)
			case 2:
				if p == nil {
					p = everywhere
				}
				r = passthrough(p, n)
			}
			if policy(append(slices.Clone(rules), r)...).Validate("p", "demo") == nil { // else it ties with another
				rules = append(rules, r)
			}
		}
		if len(rules) == 0 {
			return
		}
		r := compile(t, rules...)
		host, sni := rapid.SampledFrom(hosts).Draw(t, "host"), rapid.SampledFrom(hosts[:6]).Draw(t, "sni")
		port := rapid.SampledFrom([]int32{80, 443, 8443, 9}).Draw(t, "port")
		fronting := rapid.Bool().Draw(t, "fronting")

		_, want := judgeTwin(rules, false, true, host, port)
		if v := egress.Judge(r, egress.Request{Leg: egress.LegCleartext, Method: "GET", Authority: host, Port: uint16(port)}); v.OK() != want {
			t.Fatalf("clear text to %s:%d: %+v, want %v", host, port, v, want)
		}
		isName := host != "1.2.3.4"
		k, ok := judgeTwin(rules, true, isName, host, port)
		ks, oks := judgeTwin(rules, true, true, sni, port)
		want = ok && k == egress.HTTPS && oks && ks == egress.HTTPS && (fronting || host == sni)
		v := egress.Judge(r, egress.Request{Leg: egress.LegIntercepted, SNI: name(t, sni), Method: "GET", Authority: host, Port: uint16(port), Fronting: fronting})
		if v.OK() != want {
			t.Fatalf("inside TLS for %s to %s:%d: %+v, want %v", sni, host, port, v, want)
		}
		mode, v := egress.JudgeTLS(r, egress.Handshake{ServerName: sni, Port: uint16(port)})
		wantMode := map[egress.Kind]egress.Mode{egress.HTTPS: egress.ModeIntercept, egress.Passthrough: egress.ModePassthrough}[ks]
		if mode != wantMode || v.OK() != (wantMode != "") {
			t.Fatalf("TLS for %s:%d: %q %+v, want %q", sni, port, mode, v, wantMode)
		}
		if listed := egress.ChooseTLS(name(t, sni), r.TLSRules(uint16(port))); listed != mode {
			t.Fatalf("TLS for %s:%d: %q, by the list of the tunnel %q", sni, port, mode, listed)
		}
	})
}
