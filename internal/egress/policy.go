package egress

import "github.com/sluice-proxy/sluice/internal/actor"

// Policy is all that one actor may reach, as somebody wrote it. No policy, and one without rules, is no outbound traffic
// at all. It is plain data: Validate says what is wrong with it, Compile makes it decide.
type Policy struct {
	// Name must be PolicyName.
	Name string
	// Atespace must be the actor's.
	Atespace string
	Rules    []Rule
}

// Kept is a policy as the control plane keeps it.
type Kept struct {
	Policy
	actor.Meta
}

// PolicyName is the name of every policy: an actor has one.
const PolicyName = "default"

// Rule allows something. Exactly one member is set.
type Rule struct {
	HTTP        *WebRule
	HTTPS       *WebRule
	Passthrough *PassthroughRule
}

// WebRule allows HTTP requests, in clear text or over TLS that is opened.
type WebRule struct {
	Hostnames []string
	// Ports are 80 or 443 when nil.
	Ports *Ports
	// Effects is nil when requests go out as they are.
	Effects *Effects
}

// PassthroughRule allows TLS connections that stay closed.
type PassthroughRule struct {
	Hostnames []string
	// Ports must be given.
	Ports *Ports
}

// Ports are destination ports: all, or some. Exactly one member is set.
type Ports struct {
	All     bool
	Numbers []int32
}

// Effects is what happens to an allowed request.
type Effects struct {
	ReplaceHeaders []CredentialHeader
}

// CredentialHeader replaces a field that the actor's request carries by one with a secret in it. Whoever sends the request on
// replaces it; this package only says by what. Exactly one of
// CredentialURI and JWT is set.
type CredentialHeader struct {
	Header string
	// Prefix stands before the secret, such as "Bearer ".
	Prefix string
	// CredentialURI is ate-secret://<class>/<provider>/<tail>; it names a secret and holds none.
	CredentialURI string
	JWT           *JWTSource
}

// JWTSource is a token that names the actor.
type JWTSource struct {
	Audiences         []string
	ExpirationSeconds int64
}

// Kind is what a rule allows.
type Kind uint8

// Kinds. The zero Kind is no rule's.
const (
	HTTP Kind = iota + 1
	HTTPS
	Passthrough
)

// String is the name of the rule's member on the wire.
func (k Kind) String() string { return [...]string{"", "http", "https", "tls_passthrough"}[k] }

// spread is a rule whose kind is known.
type spread struct {
	index     int // in the policy
	kind      Kind
	hostnames []string
	ports     *Ports
	effects   *Effects
}

// spread returns the members that are set; a valid rule has one.
func (r Rule) spread(index int) []spread {
	var s []spread
	if w := r.HTTP; w != nil {
		s = append(s, spread{index, HTTP, w.Hostnames, w.Ports, w.Effects})
	}
	if w := r.HTTPS; w != nil {
		s = append(s, spread{index, HTTPS, w.Hostnames, w.Ports, w.Effects})
	}
	if p := r.Passthrough; p != nil {
		s = append(s, spread{index, Passthrough, p.Hostnames, p.Ports, nil})
	}
	return s
}

// effective returns the ports that the rule is about. The rule is valid.
func (s spread) effective() []uint16 {
	if s.ports == nil {
		if s.kind == HTTP {
			return []uint16{80}
		}
		return []uint16{443}
	}
	if s.ports.All {
		return []uint16{allPorts}
	}
	numbers := make([]uint16, len(s.ports.Numbers))
	for i, n := range s.ports.Numbers {
		numbers[i] = uint16(n)
	}
	return numbers
}

// allPorts stands for every port where numbers of ports stand; 0 is none.
const allPorts = 0

// WithDefaults returns the policy with the default ports written out, as it is to be stored and shown. It shares
// everything else with p.
func (p Policy) WithDefaults() Policy {
	rules := make([]Rule, len(p.Rules))
	for i, r := range p.Rules {
		r.HTTP = r.HTTP.withPorts(80)
		r.HTTPS = r.HTTPS.withPorts(443)
		rules[i] = r
	}
	p.Rules = rules
	return p
}

func (w *WebRule) withPorts(number int32) *WebRule {
	if w == nil || w.Ports != nil {
		return w
	}
	c := *w
	c.Ports = &Ports{Numbers: []int32{number}}
	return &c
}
