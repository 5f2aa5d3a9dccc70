package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// ErrURL is a text that is no URL of HTTP.
var ErrURL = errors.New("not an http or https URL with a host")

// Call is what an actor might do: a request to a URL.
type Call struct {
	Secure    bool
	Authority string // as the Host field has it
	Port      uint16
	Method    string
	// Fields are the names of fields that the request has, beside the usual.
	Fields []string
}

// ParseCall reads a URL as a client of the actor would. Its host stays as it is written: the decisions judge the spelling.
func ParseCall(method, text string) (Call, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Opaque != "" {
		return Call{}, fmt.Errorf("%.200q: %w", text, ErrURL)
	}
	c := Call{Secure: u.Scheme == "https", Authority: u.Host, Port: 80, Method: method}
	if c.Secure {
		c.Port = 443
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return Call{}, fmt.Errorf("%.200q: port: %w", text, ErrURL)
		}
		c.Port = uint16(n)
	}
	return c, nil
}

// Step is one decision on the way out.
type Step struct {
	Leg Leg
	Verdict
}

// Explain takes a call through the decisions that a gateway without settings of its own would make, with what the control plane says
// now, in their order. admitted is what AdmitActor says. The last step decides: after a refusal there is no other. What only a gateway can know is left out:
// certificates, limits, and where the name leads.
func Explain(admitted Verdict, s Standing, c Call) []Step {
	v := admitted
	if v.OK() {
		v = AdmitPolicy(s)
	}
	steps := []Step{{LegConnect, v}}
	if !v.OK() {
		return steps
	}
	q := Request{Leg: LegCleartext, Method: c.Method, Authority: c.Authority, HostField: c.Authority, Port: c.Port, Carries: c.has}
	if c.Secure {
		mode, v := JudgeTLS(s.Rules, Handshake{ServerName: serverName(c.Authority), Port: c.Port})
		leg := LegIntercepted
		switch mode {
		case ModePassthrough:
			leg = LegPassthrough
		case ModeClose:
			leg = LegUnknown
		}
		if steps = append(steps, Step{leg, v}); mode != ModeIntercept {
			return steps
		}
		q.Leg, q.SNI = LegIntercepted, v.Host
	}
	return append(steps, Step{q.Leg, Judge(s.Rules, q)})
}

func (c Call) has(field string) bool {
	for _, f := range c.Fields {
		if strings.EqualFold(f, field) {
			return true
		}
	}
	return false
}

// serverName is what a client asks for by SNI: a name, and nothing for an address (RFC 6066 section 3).
func serverName(authority string) string {
	host, _, _ := cutPort(authority)
	inner := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(inner); err == nil {
		return ""
	}
	return strings.TrimSuffix(host, ".")
}
