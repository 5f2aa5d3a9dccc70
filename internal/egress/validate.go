package egress

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// Bounds of a policy.
const (
	MaxRules     = 256
	MaxHostnames = 256 // of one rule
	MaxPorts     = 16  // of one rule
	MaxHeaders   = 16  // of one rule
	MaxAudiences = 16  // of one header
)

const (
	maxAudience = 512 // characters
	// What the published schema has no bounds for, in bytes.
	maxHeader = 256
	maxPrefix = 1024
	maxURI    = 2048

	minExpiration = 300 // seconds
	maxExpiration = 3600
)

// Validate returns what is wrong with a policy for an actor of an atespace as actor.Faults, or nil: everything, up to as many
// as those hold. Fields have the names of the wire, below field: "egress_policy.rules[0].http.hostnames[1]".
func (p Policy) Validate(field, atespace string) error {
	var v validator
	if p.Name != PolicyName {
		v.Add(field+".metadata.name", "must be %q", PolicyName)
	}
	if p.Atespace != atespace || atespace == "" {
		v.Add(field+".metadata.atespace", "must be the actor's, %.80q", atespace)
	}
	v.rules(field+".rules", p.Rules)
	return v.Err()
}

// validator collects faults.
type validator struct{ actor.Faults }

func (v *validator) rules(field string, rules []Rule) {
	if len(rules) > MaxRules {
		v.Add(field, "has %d rules, at most %d are allowed", len(rules), MaxRules)
		return
	}
	var sound []spread // what can be compared
	for i, r := range rules {
		if v.Full() {
			return
		}
		at := fmt.Sprintf("%s[%d]", field, i)
		members := r.spread(i)
		if len(members) != 1 {
			v.Add(at, "must have exactly one of http, https and tls_passthrough, has %d", len(members))
		}
		for _, s := range members {
			if v.rule(at+"."+s.kind.String(), s) && len(members) == 1 {
				sound = append(sound, s)
			}
		}
	}
	v.ties(field, sound)
}

// rule checks a rule by itself, and reports whether it is sound.
func (v *validator) rule(field string, s spread) bool {
	before := len(v.Faults)
	v.hostnames(field+".hostnames", s.hostnames)
	v.ports(field+".ports", s)
	v.effects(field+".effects", s.effects)
	return len(v.Faults) == before
}

// ties finds rules that decide what an earlier one decides already: the same pattern on the same port, or both on all
// ports, for the same input.
func (v *validator) ties(field string, rules []spread) {
	clear, tls := tabulate(rules)
	for _, s := range rules {
		t := tls
		if s.kind == HTTP {
			t = clear
		}
		for i, text := range s.hostnames {
			for _, port := range s.effective() {
				if v.Full() {
					return
				}
				first, _ := t[keyOf(text)].at(port)
				if int(first) == s.index {
					continue
				}
				on := "all ports"
				if port != allPorts {
					on = fmt.Sprintf("port %d", port)
				}
				at := fmt.Sprintf("%s[%d].%s.hostnames[%d]", field, s.index, s.kind, i)
				v.Add(at, "%.80q on %s is decided by rules[%d] already", text, on, first)
			}
		}
	}
}

func (v *validator) hostnames(field string, names []string) {
	if len(names) == 0 || len(names) > MaxHostnames {
		v.Add(field, "must have 1 to %d entries, has %d", MaxHostnames, len(names))
		return
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		if v.Full() {
			return
		}
		if reason := patternFault(name); reason != "" {
			v.Add(fmt.Sprintf("%s[%d]", field, i), "%.80q %s", name, reason)
		} else if seen[name] {
			v.Add(fmt.Sprintf("%s[%d]", field, i), "%.80q is listed twice", name)
		}
		seen[name] = true
	}
}

// patternFault says why a pattern is none, or "". A pattern is "*", a name, or "*." and a name, where a name is a DNS
// subdomain after RFC 1123 in lower case that does not end in a number.
func patternFault(pattern string) string {
	if pattern == "*" {
		return ""
	}
	name := strings.TrimPrefix(pattern, "*.")
	switch {
	case name == "":
		return "is empty"
	case strings.ContainsAny(name, ":[]"):
		return "must be a name without scheme and port, not an address"
	case strings.ContainsAny(name, "/@?#"):
		return "must be a name, not a URL"
	case strings.Contains(name, "*"):
		return "has a wildcard that does not stand for the whole first label"
	case strings.HasSuffix(name, "."):
		return "must not end in a dot"
	case len(name) > maxName:
		return fmt.Sprintf("is longer than %d characters", maxName)
	}
	for label := range strings.SplitSeq(name, ".") {
		if reason := labelFault(label); reason != "" {
			return reason
		}
	}
	if endsInNumber(name) {
		return "ends in a number, as an address does"
	}
	return ""
}

func labelFault(label string) string {
	switch {
	case actor.ValidName(label):
		return ""
	case label == "":
		return "has an empty label"
	case len(label) > maxLabel:
		return fmt.Sprintf("has a label longer than %d characters", maxLabel)
	case label != strings.ToLower(label):
		return "must be in lower case"
	}
	for i := range len(label) {
		if label[i] >= 0x80 {
			return "must be in ASCII: write internationalized names in Punycode"
		}
	}
	return "must have letters, digits and hyphens only, and no hyphen at an end of a label"
}

func (v *validator) ports(field string, s spread) {
	p := s.ports
	switch {
	case p == nil && s.kind == Passthrough:
		v.Add(field, "must be given")
		return
	case p == nil:
		return
	case p.All == (len(p.Numbers) > 0):
		v.Add(field, "must have exactly one of all and numbers")
		return
	case len(p.Numbers) > MaxPorts:
		v.Add(field+".numbers", "has %d entries, at most %d are allowed", len(p.Numbers), MaxPorts)
		return
	}
	seen := make(map[int32]bool, len(p.Numbers))
	for i, n := range p.Numbers {
		at := fmt.Sprintf("%s.numbers[%d]", field, i)
		if n < 1 || n > 65535 {
			v.Add(at, "%d is not a port from 1 to 65535", n)
		} else if seen[n] {
			v.Add(at, "%d is listed twice", n)
		}
		seen[n] = true
	}
}

func (v *validator) effects(field string, e *Effects) {
	if e == nil {
		return
	}
	field += ".replace_headers"
	if len(e.ReplaceHeaders) == 0 || len(e.ReplaceHeaders) > MaxHeaders {
		v.Add(field, "must have 1 to %d entries, has %d", MaxHeaders, len(e.ReplaceHeaders))
		return
	}
	seen := make(map[string]bool, len(e.ReplaceHeaders))
	for i, h := range e.ReplaceHeaders {
		at := fmt.Sprintf("%s[%d]", field, i)
		name := strings.ToLower(h.Header)
		switch {
		case len(h.Header) > maxHeader:
			v.Add(at+".header", "is longer than %d bytes", maxHeader)
		case !isToken(h.Header):
			v.Add(at+".header", "%.80q is not a field name", h.Header)
		case protectedFields[name]:
			v.Add(at+".header", "%q can not be replaced: it belongs to the connection", h.Header)
		case seen[name]:
			v.Add(at+".header", "%.80q is replaced twice", h.Header)
		}
		seen[name] = true
		v.source(at, h)
	}
}

// source checks where a header's new value comes from. The text of the prefix and of the URI is not repeated: somebody may
// have put a secret there.
func (v *validator) source(field string, h CredentialHeader) {
	if len(h.Prefix) > maxPrefix {
		v.Add(field+".prefix", "is longer than %d bytes", maxPrefix)
	} else if strings.ContainsFunc(h.Prefix, unicode.IsControl) {
		v.Add(field+".prefix", "has a control character")
	}
	if (h.CredentialURI != "") == (h.JWT != nil) {
		v.Add(field, "must have exactly one of credential_uri and actor_jwt")
		return
	}
	if h.JWT == nil {
		if len(h.CredentialURI) > maxURI {
			v.Add(field+".credential_uri", "is longer than %d bytes", maxURI)
		} else if !validCredentialURI(h.CredentialURI) {
			v.Add(field+".credential_uri", "is not of the form ate-secret://<class>/<provider>/<tail>")
		}
		return
	}
	field += ".actor_jwt"
	if n := len(h.JWT.Audiences); n == 0 || n > MaxAudiences {
		v.Add(field+".audiences", "must have 1 to %d entries, has %d", MaxAudiences, n)
	}
	for i, a := range h.JWT.Audiences[:min(len(h.JWT.Audiences), MaxAudiences)] {
		if n := len([]rune(a)); n == 0 || n > maxAudience {
			v.Add(fmt.Sprintf("%s.audiences[%d]", field, i), "must have 1 to %d characters, has %d", maxAudience, n)
		}
	}
	if s := h.JWT.ExpirationSeconds; s < minExpiration || s > maxExpiration {
		v.Add(field+".expiration_seconds", "must be from %d to %d, is %d", minExpiration, maxExpiration, s)
	}
}

// protectedFields belong to a connection or say where a message ends and goes: RFC 9110 sections 7.2 and 7.6.1.
var protectedFields = map[string]bool{
	"host": true, "content-length": true, "connection": true, "keep-alive": true, "proxy-authenticate": true,
	"proxy-authorization": true, "proxy-connection": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
}

// isToken is the grammar of field names, RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// validCredentialURI checks the form and leaves the meaning to the provider: a class and a provider of letters, digits,
// dots, hyphens and underscores, and a tail of visible ASCII whose segments are neither empty nor dots, so that nobody
// climbs out of a provider that takes it for a path.
func validCredentialURI(uri string) bool {
	rest, ok := strings.CutPrefix(uri, "ate-secret://")
	segments := strings.Split(rest, "/")
	if !ok || len(segments) < 3 {
		return false
	}
	for i, s := range segments {
		if s == "" || s == "." || s == ".." {
			return false
		}
		for j := range len(s) {
			c := s[j]
			if c <= ' ' || c >= 0x7f || i < 2 && strings.IndexByte(".-_", c) < 0 && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
				return false
			}
		}
	}
	return true
}
