package actor

import (
	"slices"
	"strings"
)

// Access is who may reach which actor. It is a value: whoever asks about a request (a router, explain, tests) asks the same.
type Access struct {
	// Anyone lets everybody reach everything, also clients of whom nothing is known.
	Anyone bool
	// Trusted are identities that may reach everything.
	Trusted []string
	// Rules let others reach something. Their order is of no importance: one that holds is enough.
	Rules []AccessRule
}

// AccessRule lets callers reach actors. Both lists must hold an item that fits; an empty one of the others is no bound.
type AccessRule struct {
	Name    string
	Callers []string // whole identities
	Actors  []string // atespace/name, atespace/* or */*
	Ports   []uint16
	Methods []string
	Paths   []string // a path itself and everything below it
}

// Asked is a request as far as it is decided about: what it asks for, and nothing of what it says of itself.
type Asked struct {
	Caller string // identity by a verified certificate; empty nobody knows
	Ref    Ref
	Port   uint16
	Method string
	Path   string // in normal form
}

// Decision is an answer of Authorize.
type Decision struct {
	Allowed bool
	By      string // "anyone", "allowed_spiffe_ids", or the name of the rule; of a refusal "no caller" or "no rule"
}

// Authorize decides whether a request may reach an actor. What no part of the access allows is refused.
func (a *Access) Authorize(q Asked) Decision {
	return a.decide(q, (*AccessRule).allows)
}

// Reaches decides whether some request of a caller's may reach an actor on a port: what a tunnel is granted by. Each request
// inside is decided about again.
func (a *Access) Reaches(q Asked) Decision {
	return a.decide(q, (*AccessRule).reaches)
}

func (a *Access) decide(q Asked, holds func(*AccessRule, Asked) bool) Decision {
	switch {
	case a.Anyone:
		return Decision{true, "anyone"}
	case q.Caller == "":
		return Decision{false, "no caller"}
	case slices.Contains(a.Trusted, q.Caller):
		return Decision{true, "allowed_spiffe_ids"}
	}
	for i := range a.Rules {
		if r := &a.Rules[i]; holds(r, q) {
			return Decision{true, r.Name}
		}
	}
	return Decision{false, "no rule"}
}

func (r *AccessRule) reaches(q Asked) bool {
	return slices.Contains(r.Callers, q.Caller) &&
		slices.ContainsFunc(r.Actors, q.Ref.fits) &&
		(len(r.Ports) == 0 || slices.Contains(r.Ports, q.Port))
}

func (r *AccessRule) allows(q Asked) bool {
	return r.reaches(q) &&
		(len(r.Methods) == 0 || slices.Contains(r.Methods, q.Method)) &&
		(len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, func(p string) bool { return below(p, q.Path) }))
}

// byPath reports whether some rule looks at paths.
func (a *Access) byPath() bool {
	return slices.ContainsFunc(a.Rules, func(r AccessRule) bool { return len(r.Paths) > 0 })
}

// fits reports whether a pattern names the actor.
func (r Ref) fits(pattern string) bool {
	atespace, name, _ := strings.Cut(pattern, "/")
	return (atespace == "*" || atespace == r.Atespace) && (name == "*" || name == r.Name)
}

// below reports whether path is base or below it.
func below(base, path string) bool {
	base = strings.TrimSuffix(base, "/")
	rest, ok := strings.CutPrefix(path, base)
	return ok && (rest == "" || rest[0] == '/')
}
