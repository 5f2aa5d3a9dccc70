package config

import (
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/route"
)

func (d *decoder) router(name string, o *object) *Router {
	o.kind = "routers"
	r := &Router{Name: name, Pos: o.at}
	r.refs.rule = o.str("rule", true)
	r.RuleText = r.refs.rule.s
	r.refs.service = o.str("service", true)
	r.Service = r.refs.service.s
	r.refs.entrypoints = o.list("entrypoints")
	r.Entrypoints = plain(r.refs.entrypoints)
	r.refs.middlewares = o.list("middlewares")
	r.Middlewares = plain(r.refs.middlewares)
	r.Priority = max(o.signed("priority", 0), 0)
	o.finish(nil)
	if r.refs.rule.ok {
		r.Rule = d.rule(r.refs.rule, o.title)
	}
	return r
}

// rule compiles a rule. Its errors point into the string literal; into the whole value when that was computed.
func (d *decoder) rule(t text, title string) *route.Rule {
	rule, errs := route.Parse(t.s)
	for _, e := range errs {
		at := t.at
		if t.lit != nil {
			at.Start, at.End = t.lit.StringOffset(e.Pos), t.lit.StringOffset(e.Pos+e.Len)
		}
		msg := e.Msg
		if t.lit == nil {
			msg = "the computed text does not compile (" + e.Code.String() + ")"
		}
		diag := d.fail(CodeRule, at, "rule in %s: %s", title, msg)
		diag.ShowValue = t.lit != nil && !mentionsCredential(t.s)
		if e.Suggest != "" {
			diag.Hint = "did you mean " + e.Suggest + "?"
		}
	}
	if rule == nil {
		return nil
	}
	for _, m := range rule.Matchers() {
		if m.TCP {
			at := t.at
			if t.lit != nil {
				at = acl.Span{File: at.File, Start: t.lit.StringOffset(m.Pos), End: t.lit.StringOffset(m.Pos + m.Len)}
			}
			d.later(at, "matcher "+m.Name+" in "+title+" is", "this release routes HTTP requests: Host, Path, PathPrefix, Method, Headers, Query, ClientIP")
		}
	}
	return rule
}

// checkRouter checks the names a router uses, against the whole configuration.
func (d *decoder) checkRouter(cfg *Config, r *Router) {
	title := "routers " + strconv.Quote(r.Name)
	if t := r.refs.service; t.ok {
		reference(d, t, "service", title, cfg.Services)
	}
	bound := false
	for _, t := range r.refs.entrypoints {
		reference(d, t, "entrypoint", title, cfg.Entrypoints)
		bound = true
	}
	for _, t := range r.refs.middlewares {
		if slices.Contains(d.registered, t.s) {
			continue
		}
		reference(d, t, "middleware", title, cfg.Middlewares)
	}
	if !bound {
		for _, e := range cfg.Entrypoints {
			bound = bound || e.Protocol == HTTP
		}
	}
	if !bound {
		d.fail(CodeReference, r.Pos, "%s can be reached by no request: there is no http entrypoint", title).Hint = `add one: entrypoints "web" { address = ":8080" }`
	}
}

// reference reports a name that is not a key of the map, with the nearest that is.
func reference[T any](d *decoder, t text, what, title string, defined map[string]T) {
	if _, ok := defined[t.s]; ok {
		return
	}
	diag := d.bad(t, CodeReference, "%s names %s %s, which is not defined", title, what, t.quote())
	names := sortedKeys(defined)
	if near := acl.Suggest(t.s, names); near != "" {
		diag.Hint = "did you mean " + strconv.Quote(near) + "?"
	} else if len(names) > 0 {
		diag.Hint = "defined: " + quoteSome(names)
	} else {
		diag.Hint = "no " + what + " is defined"
	}
}
