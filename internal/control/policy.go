package control

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// DecodePolicy translates a policy. One that holds a field this program does not know, in whatever message of it, is
// refused as a whole with actor.Faults, each naming the place below field: earlier generations used the same messages with
// other meanings, and what is not understood may have been written to forbid something. It is not checked otherwise:
// that is the task of egress.Policy.Validate and egress.Compile. A nil policy is the zero one.
func DecodePolicy(field string, p *ateapi.EgressPolicy) (egress.Policy, error) {
	var unknown actor.Faults
	findUnknown(&unknown, field, p.ProtoReflect())
	if err := unknown.Err(); err != nil {
		return egress.Policy{}, err
	}
	out := egress.Policy{Name: p.GetMetadata().GetName(), Atespace: p.GetMetadata().GetAtespace()}
	for _, r := range p.GetRules() {
		out.Rules = append(out.Rules, decodeRule(r))
	}
	return out, nil
}

func decodeRule(r *ateapi.EgressRule) egress.Rule {
	var out egress.Rule
	if w := r.GetHttp(); w != nil {
		out.HTTP = decodeWeb(w)
	}
	if w := r.GetHttps(); w != nil {
		out.HTTPS = decodeWeb(w)
	}
	if p := r.GetTlsPassthrough(); p != nil {
		out.Passthrough = &egress.PassthroughRule{Hostnames: p.GetHostnames(), Ports: decodePorts(p.GetPorts())}
	}
	return out
}

// webRule is what HTTPRule and HTTPSRule have in common, which is everything.
type webRule interface {
	GetHostnames() []string
	GetPorts() *ateapi.Ports
	GetEffects() *ateapi.HttpRuleEffects
}

func decodeWeb(r webRule) *egress.WebRule {
	return &egress.WebRule{Hostnames: r.GetHostnames(), Ports: decodePorts(r.GetPorts()), Effects: decodeEffects(r.GetEffects())}
}

func decodePorts(p *ateapi.Ports) *egress.Ports {
	if p == nil {
		return nil
	}
	return &egress.Ports{All: p.GetAll() != nil, Numbers: p.GetNumbers()}
}

func decodeEffects(e *ateapi.HttpRuleEffects) *egress.Effects {
	if e == nil {
		return nil
	}
	out := &egress.Effects{}
	for _, h := range e.GetReplaceHeaders() {
		c := egress.CredentialHeader{Header: h.GetHeader(), Prefix: h.GetPrefix(), CredentialURI: h.GetCredentialUri()}
		if j := h.GetActorJwt(); j != nil {
			c.JWT = &egress.JWTSource{Audiences: j.GetAudiences(), ExpirationSeconds: j.GetExpirationSeconds()}
		}
		out.ReplaceHeaders = append(out.ReplaceHeaders, c)
	}
	return out
}

// encodePolicy is what DecodePolicy reads.
func encodePolicy(k egress.Kept) *ateapi.EgressPolicy {
	out := &ateapi.EgressPolicy{Metadata: encodeMeta(actor.Ref{Atespace: k.Atespace, Name: k.Name}, k.Meta)}
	for _, r := range k.Rules {
		m := &ateapi.EgressRule{}
		if w := r.HTTP; w != nil {
			m.Http = &ateapi.HTTPRule{Hostnames: w.Hostnames, Ports: encodePorts(w.Ports), Effects: encodeEffects(w.Effects)}
		}
		if w := r.HTTPS; w != nil {
			m.Https = &ateapi.HTTPSRule{Hostnames: w.Hostnames, Ports: encodePorts(w.Ports), Effects: encodeEffects(w.Effects)}
		}
		if p := r.Passthrough; p != nil {
			m.TlsPassthrough = &ateapi.TLSPassthroughRule{Hostnames: p.Hostnames, Ports: encodePorts(p.Ports)}
		}
		out.Rules = append(out.Rules, m)
	}
	return out
}

func encodePorts(p *egress.Ports) *ateapi.Ports {
	if p == nil {
		return nil
	}
	out := &ateapi.Ports{Numbers: p.Numbers}
	if p.All {
		out.All = &ateapi.AllPorts{}
	}
	return out
}

func encodeEffects(e *egress.Effects) *ateapi.HttpRuleEffects {
	if e == nil {
		return nil
	}
	out := &ateapi.HttpRuleEffects{}
	for _, h := range e.ReplaceHeaders {
		m := &ateapi.CredentialHeader{Header: h.Header, Prefix: h.Prefix, CredentialUri: h.CredentialURI}
		if j := h.JWT; j != nil {
			m.ActorJwt = &ateapi.ActorJWTSource{Audiences: j.Audiences, ExpirationSeconds: j.ExpirationSeconds}
		}
		out.ReplaceHeaders = append(out.ReplaceHeaders, m)
	}
	return out
}

// decodeKept reads a policy together with its version.
func decodeKept(p *ateapi.EgressPolicy) (egress.Kept, error) {
	policy, err := DecodePolicy("egress_policy", p)
	_, meta := decodeMeta(p)
	return egress.Kept{Policy: policy, Meta: meta}, err
}

// findUnknown adds a fault for every message below m that holds fields without a name.
func findUnknown(f *actor.Faults, at string, m protoreflect.Message) {
	if f.Full() {
		return
	}
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, _ := protowire.ConsumeTag(raw) // what was decoded has a tag
		f.Add(at, "holds field %d, which is not known", number)
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() { // in the order of their declaration, which Range does not keep
		d := fields.Get(i)
		if d.Message() == nil || d.IsMap() || !m.Has(d) {
			continue
		}
		name := at + "." + string(d.Name())
		if !d.IsList() {
			findUnknown(f, name, m.Get(d).Message())
			continue
		}
		list := m.Get(d).List()
		for j := range list.Len() {
			findUnknown(f, fmt.Sprintf("%s[%d]", name, j), list.Get(j).Message())
		}
	}
}
