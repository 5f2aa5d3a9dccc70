package config

import (
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Actor says that a service leads to actors: each request names its own, which is woken if it sleeps.
type Actor struct {
	Pos acl.Span
	Way ActorWay
	// AllowedIDs are the SPIFFE IDs of clients that may reach every actor; compared byte for byte.
	AllowedIDs []string
	// Anyone lets everybody reach every actor, also without a certificate.
	Anyone bool
	Allow  []ActorRule // what other clients may reach
	// Entrypoint serves what comes out of tunnels to actors; its address is TunnelAddress. "" takes no CONNECT.
	Entrypoint string

	entrypoint text

	controlFiles, workerFiles [2]text // for CheckFiles: credential_file, ca_file
}

// ActorWay is how actors are reached. Services with the same way share what they know of actors, and the requests that wait.
type ActorWay struct {
	Control ControlPlane
	Workers ActorWorkers
	Parking ActorParking
	// AssignmentTTL is how long it is taken for granted where an actor is; 0 asks the control plane for each request. Default 5 s.
	AssignmentTTL time.Duration
}

// ActorWorkers is how workers are reached, where the control plane says that they are.
type ActorWorkers struct {
	Port           int    // default 8443
	TrustDomain    string // of their SPIFFE IDs; default cluster.local
	CredentialFile string // our key and chain
	CAFile         string // who signs their certificates
}

// ActorParking is how long requests wait for an actor, and how many.
type ActorParking struct {
	Budget        time.Duration // default 5 s
	Max           int           // requests that wait at a time; 0: none does. Default 1024
	RetryInterval time.Duration // the first delay between two attempts; default 100 ms
	RetryFactor   float64       // how delays grow; default 1.1
	RetryJitter   float64       // the part by which a delay is longer at random; default 0.1
}

// ActorRule lets some clients reach some actors. Empty lists but Callers and Actors are no bound.
type ActorRule struct {
	Name    string
	Callers []string // SPIFFE IDs
	Actors  []string // atespace/name, atespace/* or */*
	Ports   []int    // of the actor
	Methods []string
	Paths   []string // the path itself and everything below it
}

const workloadDomain = "cluster.local"

// actor decodes the block of a service; nil without one.
func (d *decoder) actor(o *object, lb *LoadBalancer) *Actor {
	if o == nil {
		return nil
	}
	a := &Actor{Pos: o.at}
	a.Way.Control, a.controlFiles = d.controlPlane(o)
	d.actorWorkers(o, a)
	d.actorParking(o.child("parking"), &a.Way.Parking)
	a.Way.AssignmentTTL = 5 * time.Second
	if o.boolean("assignment_cache", true) {
		a.Way.AssignmentTTL = o.duration("assignment_ttl", a.Way.AssignmentTTL)
	} else if a.Way.AssignmentTTL = 0; o.take("assignment_ttl") != nil {
		d.fail(CodeConflict, o.where("assignment_ttl"), "assignment_ttl in %s has no effect without assignment_cache", o.title)
	}
	lb.RequestTimeout = o.duration("request_timeout", 5*time.Minute)
	lb.StreamIdleTimeout = o.duration("stream_idle_timeout", 5*time.Minute)
	lb.StreamTotalTimeout = o.duration("stream_total_timeout", time.Hour)
	a.AllowedIDs, a.Anyone = d.spiffeIDs(o, "allowed_spiffe_ids"), o.boolean("allow_anyone", false)
	d.actorRules(o, a)
	a.entrypoint = o.str("entrypoint", false)
	a.Entrypoint = a.entrypoint.s
	granted := len(a.AllowedIDs) > 0 || len(a.Allow) > 0
	switch {
	case a.Anyone && granted:
		d.fail(CodeConflict, o.where("allow_anyone"), "allow_anyone in %s makes who else is allowed of no effect", o.title)
	case !a.Anyone && !granted && !o.has("allowed_spiffe_ids") && !o.has("allow"):
		o.missing("allowed_spiffe_ids", `write the SPIFFE IDs of the clients, or allow_anyone = true`)
	}
	o.finish(nil)
	return a
}

func validPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	n, perr := strconv.Atoi(port)
	return err == nil && perr == nil && n > 0 && n < 1<<16
}

func (d *decoder) actorWorkers(o *object, a *Actor) {
	c := o.child("workers")
	if c == nil {
		o.missing("workers { … }", `write workers { credential_file = "…", ca_file = "…" }`)
		return
	}
	w := &a.Way.Workers
	w.Port = c.count("port", 8443, 1, 65535)
	w.TrustDomain = workloadDomain
	if t := c.str("trust_domain", false); t.ok {
		if !isHostName(t.s) || t.s != strings.ToLower(t.s) {
			d.bad(t, CodeValue, "trust_domain in %s is no name of a trust domain", c.title)
		}
		w.TrustDomain = t.s
	}
	a.workerFiles = d.credentials(c)
	w.CredentialFile, w.CAFile = a.workerFiles[0].s, a.workerFiles[1].s
	c.finish(nil)
}

func (d *decoder) actorParking(o *object, p *ActorParking) {
	*p = ActorParking{Budget: 5 * time.Second, Max: 1024, RetryInterval: 100 * time.Millisecond, RetryFactor: 1.1, RetryJitter: 0.1}
	if o == nil {
		return
	}
	p.Budget = o.duration("budget", p.Budget)
	p.Max = o.count("max", p.Max, 0, maxPool)
	p.RetryInterval = o.duration("retry_interval", p.RetryInterval)
	p.RetryFactor = o.float("retry_factor", p.RetryFactor, "at least 1", func(f float64) bool { return f >= 1 && !math.IsInf(f, 1) })
	p.RetryJitter = o.float("retry_jitter", p.RetryJitter, "from 0 and below 1", func(f float64) bool { return f >= 0 && f < 1 })
	o.finish(nil)
}

// actorRules decodes the allow blocks.
func (d *decoder) actorRules(o *object, a *Actor) {
	names := map[string]bool{}
	for _, c := range o.children("allow") {
		name, at, ok := c.name()
		if ok && names[name] {
			d.fail(CodeDuplicate, at, "allow %s is defined twice", strconv.Quote(name))
		}
		names[name] = true
		r := ActorRule{Name: name, Callers: d.spiffeIDs(c, "callers"), Ports: d.ports(c)}
		for _, t := range c.list("actors") {
			if !actorPattern(t.s) {
				d.bad(t, CodeValue, "an item of actors in %s must be atespace/name, atespace/* or */*", c.title)
			}
			r.Actors = append(r.Actors, t.s)
		}
		for _, t := range c.list("methods") {
			if !isToken(t.s) {
				d.bad(t, CodeValue, "an item of methods in %s is no method", c.title)
			}
			r.Methods = append(r.Methods, t.s)
		}
		for _, t := range c.list("paths") {
			if !strings.HasPrefix(t.s, "/") || strings.ContainsAny(t.s, "?#% \t\r\n") {
				d.bad(t, CodeValue, "an item of paths in %s must begin with / and hold no query, fragment, escape or blank", c.title)
			}
			r.Paths = append(r.Paths, t.s)
		}
		for _, key := range []string{"callers", "actors"} {
			if !c.has(key) {
				c.missing(key, "")
			}
		}
		c.finish(nil)
		a.Allow = append(a.Allow, r)
	}
}

// spiffeIDs reads a list of identities.
func (d *decoder) spiffeIDs(o *object, key string) []string {
	var out []string
	for _, t := range o.list(key) {
		rest, ok := strings.CutPrefix(t.s, "spiffe://")
		if domain, path, found := strings.Cut(rest, "/"); !ok || !found || domain == "" || path == "" || strings.ContainsAny(t.s, " \t\r\n?#*%") {
			d.bad(t, CodeValue, "an item of %s in %s is no SPIFFE ID, such as spiffe://cluster.local/ns/apps/sa/web", key, o.title)
		}
		if slices.Contains(out, t.s) {
			d.bad(t, CodeDuplicate, "%s in %s has an item twice", key, o.title)
		}
		out = append(out, t.s)
	}
	return out
}

// actorPattern reports whether s is a reference, or one with stars at its end.
func actorPattern(s string) bool {
	atespace, name, _ := strings.Cut(s, "/")
	return s == "*/*" || actorName(atespace) && (name == "*" || actorName(name))
}

// actorName is actor.ValidName, which this room cannot ask.
func actorName(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// checkActorService reports what is wrong between a service that leads to actors and the rest.
func (d *decoder) checkActorService(cfg *Config, s *Service) {
	if s.Actor != nil {
		d.checkReentry(cfg, s.Actor.entrypoint, "actor of services "+strconv.Quote(s.Name))
	}
}

// checkActorRouter reports a router that leads to actors where neither requests are nor tunnels for them.
func (d *decoder) checkActorRouter(s *Service, r *Router, title string) {
	switch {
	case s == nil || s.Actor == nil || r.Protocol == HTTP:
	case r.Protocol == CONNECT && s.Actor.entrypoint.ok:
	case r.Protocol == CONNECT:
		d.fail(CodeConflict, r.refs.service.at, "%s leads CONNECT to actors by services %s, which has no entrypoint for what is inside", title, strconv.Quote(s.Name)).Hint = `write actor { entrypoint = "…" }, the name of an entrypoint with address = "tunnel:"`
	default:
		d.fail(CodeConflict, r.refs.service.at, "%s leads to actors by services %s, which is for requests of HTTP", title, strconv.Quote(s.Name))
	}
}

// filled is a list that is printed as one, also if it is empty.
func filled[T any](all []T) []T { return append([]T{}, all...) }

func actorTree(a *Actor, lb *LoadBalancer) any {
	if a == nil {
		return nil
	}
	w, rules := a.Way, []any{}
	for _, r := range a.Allow {
		rules = append(rules, tree{"name": r.Name, "callers": r.Callers, "actors": r.Actors, "ports": filled(r.Ports), "methods": filled(r.Methods), "paths": filled(r.Paths)})
	}
	return tree{
		"control": controlTree(w.Control),
		"workers": tree{"port": w.Workers.Port, "trust_domain": w.Workers.TrustDomain, "credential_file": w.Workers.CredentialFile, "ca_file": w.Workers.CAFile},
		"parking": tree{
			"budget": dur(w.Parking.Budget), "max": w.Parking.Max, "retry_interval": dur(w.Parking.RetryInterval),
			"retry_factor": w.Parking.RetryFactor, "retry_jitter": w.Parking.RetryJitter,
		},
		"assignment_cache": w.AssignmentTTL > 0, "assignment_ttl": when(w.AssignmentTTL > 0, dur(w.AssignmentTTL)),
		"request_timeout": dur(lb.RequestTimeout), "stream_idle_timeout": dur(lb.StreamIdleTimeout), "stream_total_timeout": dur(lb.StreamTotalTimeout),
		"entrypoint": orNull(a.Entrypoint), "allowed_spiffe_ids": filled(a.AllowedIDs), "allow_anyone": a.Anyone, "allow": rules,
	}
}
