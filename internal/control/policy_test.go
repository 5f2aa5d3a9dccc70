package control_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// message is a policy with everything in it that a policy may hold.
func message() *ateapi.EgressPolicy {
	return &ateapi.EgressPolicy{
		Metadata: &ateapi.ResourceMetadata{Atespace: "demo", Name: "default", Version: 3},
		Rules: []*ateapi.EgressRule{
			{Http: &ateapi.HTTPRule{Hostnames: []string{"plain.test"}}},
			{Https: &ateapi.HTTPSRule{
				Hostnames: []string{"api.test", "*.api.test"}, Ports: &ateapi.Ports{Numbers: []int32{443, 8443}},
				Effects: &ateapi.HttpRuleEffects{ReplaceHeaders: []*ateapi.CredentialHeader{
					{Header: "Authorization", Prefix: "Bearer ", CredentialUri: "ate-secret://k8s.io/default/a/b/c"},
					{Header: "X-Who", ActorJwt: &ateapi.ActorJWTSource{Audiences: []string{"rp"}, ExpirationSeconds: 600}},
				}},
			}},
			{TlsPassthrough: &ateapi.TLSPassthroughRule{
				Hostnames: []string{"*"}, Ports: &ateapi.Ports{All: &ateapi.AllPorts{}},
			}},
		},
	}
}

func TestDecodePolicy(t *testing.T) {
	got, err := control.DecodePolicy("egress_policy", message())
	if err != nil {
		t.Fatal(err)
	}
	want := egress.Policy{Name: "default", Atespace: "demo", Rules: []egress.Rule{
		{HTTP: &egress.WebRule{Hostnames: []string{"plain.test"}}},
		{HTTPS: &egress.WebRule{
			Hostnames: []string{"api.test", "*.api.test"}, Ports: &egress.Ports{Numbers: []int32{443, 8443}},
			Effects: &egress.Effects{ReplaceHeaders: []egress.CredentialHeader{
				{Header: "Authorization", Prefix: "Bearer ", CredentialURI: "ate-secret://k8s.io/default/a/b/c"},
				{Header: "X-Who", JWT: &egress.JWTSource{Audiences: []string{"rp"}, ExpirationSeconds: 600}},
			}},
		}},
		{Passthrough: &egress.PassthroughRule{Hostnames: []string{"*"}, Ports: &egress.Ports{All: true}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := egress.Compile(got, "demo"); err != nil {
		t.Errorf("what was decoded does not compile: %v", err)
	}
}

// What the message says by leaving out must not be lost: presence decides whether a rule is valid.
func TestDecodePresence(t *testing.T) {
	for name, rule := range map[string]*ateapi.EgressRule{
		"no member":      {},
		"a rule of none": {Http: &ateapi.HTTPRule{}},
		"empty effects":  {Http: &ateapi.HTTPRule{Hostnames: []string{"a.test"}, Effects: &ateapi.HttpRuleEffects{}}},
		"empty ports":    {Http: &ateapi.HTTPRule{Hostnames: []string{"a.test"}, Ports: &ateapi.Ports{}}},
		"both ports": {Http: &ateapi.HTTPRule{
			Hostnames: []string{"a.test"}, Ports: &ateapi.Ports{All: &ateapi.AllPorts{}, Numbers: []int32{80}},
		}},
		"a header without a source": {Http: &ateapi.HTTPRule{
			Hostnames: []string{"a.test"}, Effects: &ateapi.HttpRuleEffects{ReplaceHeaders: []*ateapi.CredentialHeader{{Header: "A"}}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := control.DecodePolicy("egress_policy", &ateapi.EgressPolicy{
				Metadata: &ateapi.ResourceMetadata{Atespace: "demo", Name: "default"}, Rules: []*ateapi.EgressRule{rule},
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := egress.Compile(p, "demo"); err == nil {
				t.Error("the rule is accepted")
			}
		})
	}
	if p, err := control.DecodePolicy("egress_policy", nil); err != nil || p.Rules != nil {
		t.Errorf("no policy: %v, %v", p, err)
	}
}

// TestTwoMembers sends rules and headers with two members, in the order that would let the wider one win, if they were
// members of a oneof. They must be refused.
func TestTwoMembers(t *testing.T) {
	field := func(b []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
	}
	name := field(nil, 1, []byte("a.test"))
	everything := field(field(nil, 1, []byte("*")), 2, field(nil, 1, nil))
	header := func(sources ...protowire.Number) []byte {
		h := field(nil, 1, []byte("Authorization"))
		for _, number := range sources {
			source := []byte("ate-secret://class/provider/tail")
			if number == 4 {
				source = protowire.AppendVarint(protowire.AppendTag(field(nil, 1, []byte("rp")), 2, protowire.VarintType), 300)
			}
			h = field(h, number, source)
		}
		return field(nil, 2, field(name, 3, field(nil, 1, h)))
	}
	for _, tc := range []struct {
		name string
		rule []byte
		want string
	}{
		{"https", field(nil, 2, name), ""},
		{"http and https", field(field(nil, 1, name), 2, name), "p.rules[0]: must have exactly one of http, https and tls_passthrough, has 2"},
		{"https and tls_passthrough", field(field(nil, 2, name), 3, everything), "p.rules[0]: must have exactly one of http, https and tls_passthrough, has 2"},
		{"tls_passthrough and https", field(field(nil, 3, everything), 2, name), "p.rules[0]: must have exactly one of http, https and tls_passthrough, has 2"},
		{"a URI", header(3), ""},
		{"a URI and a token", header(3, 4), "p.rules[0].https.effects.replace_headers[0]: must have exactly one of credential_uri and actor_jwt"},
		{"a token and a URI", header(4, 3), "p.rules[0].https.effects.replace_headers[0]: must have exactly one of credential_uri and actor_jwt"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wire, err := proto.Marshal(&ateapi.EgressPolicy{Metadata: message().Metadata})
			if err != nil {
				t.Fatal(err)
			}
			var m ateapi.EgressPolicy
			if err := proto.Unmarshal(field(wire, 2, tc.rule), &m); err != nil {
				t.Fatal(err)
			}
			p, err := control.DecodePolicy("p", &m)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := p.Validate("p", "demo"); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("Validate = %q, want %q", got, tc.want)
			}
		})
	}
}

// TestUnknownFields puts a field that is not known into every message of a policy in turn, as it comes from a wire.
func TestUnknownFields(t *testing.T) {
	extra := protowire.AppendVarint(protowire.AppendTag(nil, 10001, protowire.VarintType), 1)
	for want, place := range map[string]func(*ateapi.EgressPolicy) proto.Message{
		"egress_policy":                          func(p *ateapi.EgressPolicy) proto.Message { return p },
		"egress_policy.metadata":                 func(p *ateapi.EgressPolicy) proto.Message { return p.Metadata },
		"egress_policy.rules[0]":                 func(p *ateapi.EgressPolicy) proto.Message { return p.Rules[0] },
		"egress_policy.rules[0].http":            func(p *ateapi.EgressPolicy) proto.Message { return p.Rules[0].GetHttp() },
		"egress_policy.rules[1].https":           func(p *ateapi.EgressPolicy) proto.Message { return p.Rules[1].GetHttps() },
		"egress_policy.rules[1].https.ports":     func(p *ateapi.EgressPolicy) proto.Message { return p.Rules[1].GetHttps().Ports },
		"egress_policy.rules[1].https.effects":   func(p *ateapi.EgressPolicy) proto.Message { return p.Rules[1].GetHttps().Effects },
		"egress_policy.rules[2].tls_passthrough": func(p *ateapi.EgressPolicy) proto.Message { return p.Rules[2].GetTlsPassthrough() },
		"egress_policy.rules[2].tls_passthrough.ports.all": func(p *ateapi.EgressPolicy) proto.Message {
			return p.Rules[2].GetTlsPassthrough().Ports.All
		},
		"egress_policy.rules[1].https.effects.replace_headers[1].actor_jwt": func(p *ateapi.EgressPolicy) proto.Message {
			return p.Rules[1].GetHttps().Effects.ReplaceHeaders[1].GetActorJwt()
		},
	} {
		t.Run(want, func(t *testing.T) {
			sent := message()
			place(sent).ProtoReflect().SetUnknown(extra)
			wire, err := proto.Marshal(sent)
			if err != nil {
				t.Fatal(err)
			}
			var received ateapi.EgressPolicy
			if err := proto.Unmarshal(wire, &received); err != nil {
				t.Fatal(err)
			}
			p, err := control.DecodePolicy("egress_policy", &received)
			if err == nil || err.Error() != want+": holds field 10001, which is not known" {
				t.Errorf("DecodePolicy = %v", err)
			}
			if len(p.Rules) != 0 {
				t.Errorf("a policy that is refused still has rules: %v", p.Rules)
			}
		})
	}
}

// A rule of the first generation used the numbers of today with other meanings, and more numbers.
func TestAllUnknownFieldsAreTold(t *testing.T) {
	p := message()
	for _, r := range p.Rules {
		r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 1))
	}
	_, err := control.DecodePolicy("p", p)
	const what = ": holds field 4, which is not known"
	if want := "p.rules[0]" + what + "; p.rules[1]" + what + "; p.rules[2]" + what; err == nil || err.Error() != want {
		t.Errorf("DecodePolicy = %v, want %s", err, want)
	}
}
