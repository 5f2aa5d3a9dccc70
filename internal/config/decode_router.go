package config

import (
	"slices"
	"strconv"
	"strings"

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
	r.TLS, r.refs.tls = enum(o, "tls", TLSMode(""), Terminate, Passthrough)
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
	return rule
}

// bind finds out what each router routes.
func (d *decoder) bind(cfg *Config) {
	for _, name := range sortedKeys(cfg.Routers) {
		r := cfg.Routers[name]
		r.Protocol = HTTP
		if len(r.Entrypoints) == 0 && judgesConnections(r.Rule) {
			r.Protocol = TCP
		}
		named := map[Protocol]bool{}
		for _, e := range r.Entrypoints {
			switch ep := cfg.Entrypoints[e]; {
			case ep == nil:
			case ep.Protocol == TCP, ep.Protocol == CONNECT:
				named[ep.Protocol] = true
			default:
				named[HTTP] = true
			}
		}
		for _, p := range []Protocol{CONNECT, TCP} {
			if named[p] {
				r.Protocol = p
			}
			if named[p] && len(named) > 1 {
				d.fail(CodeConflict, r.refs.entrypoints[0].at, "routers %s names entrypoints of protocol %s and others", strconv.Quote(name), p).Hint = "write a router for each protocol"
				break
			}
		}
	}
}

// judgesConnections reports whether a rule says by itself that it is about connections.
func judgesConnections(rule *route.Rule) bool {
	return rule != nil && slices.ContainsFunc(rule.Matchers(), func(m route.Matcher) bool {
		return m.TCP || m.Name == "Method" && strings.EqualFold(m.Args[0], string(TCP))
	})
}

// checkRule reports matchers that cannot judge what the router routes.
func (d *decoder) checkRule(r *Router, title string) {
	if r.Rule == nil {
		return
	}
	t := r.refs.rule
	for _, m := range r.Rule.Matchers() {
		at := t.at
		if t.lit != nil {
			at = acl.Span{File: at.File, Start: t.lit.StringOffset(m.Pos), End: t.lit.StringOffset(m.Pos + m.Len)}
		}
		switch {
		case r.Protocol != TCP && m.TCP:
			d.later(at, "matcher "+m.Name+" on http entrypoints, in "+title+", is", "this release routes requests there: Host, Path, PathPrefix, Method, Headers, Query, ClientIP")
		case r.Protocol == TCP && !fitsConnections(m):
			d.fail(CodeRule, at, "rule in %s: matcher %s is never true of a tcp connection", title, m.Name).Hint = "connections are told apart by HostSNI and ClientIP; HostSNI(`*`) takes all"
		}
	}
}

// fitsConnections reports whether a matcher can be true of a connection, which has the path / and the method TCP.
func fitsConnections(m route.Matcher) bool {
	switch m.Name {
	case "HostSNI", "ClientIP":
		return true
	case "Method":
		return strings.EqualFold(m.Args[0], string(TCP))
	case "Path", "PathPrefix":
		return m.Args[0] == "/"
	}
	return false
}

// checkRouter checks the names a router uses, against the whole configuration.
func (d *decoder) checkRouter(cfg *Config, r *Router) {
	title := "routers " + strconv.Quote(r.Name)
	d.checkRule(r, title)
	d.checkTLSMode(cfg, r, title)
	if t := r.refs.service; t.ok {
		reference(d, t, "service", title, cfg.Services)
		d.checkConnectRouter(cfg.Services[t.s], r, title)
		d.checkBackends(cfg.Services[t.s], r, title)
	}
	bound := false
	for _, t := range r.refs.entrypoints {
		reference(d, t, "entrypoint", title, cfg.Entrypoints)
		d.checkEgressRouter(cfg.Entrypoints[t.s], t, title)
		bound = true
	}
	for _, t := range r.refs.middlewares {
		if slices.Contains(d.registered, t.s) {
			continue
		}
		reference(d, t, "middleware", title, cfg.Middlewares)
	}
	for _, t := range r.refs.middlewares {
		d.checkStep(cfg.Middlewares[t.s], t, r, title)
	}
	if !bound {
		for _, e := range cfg.Entrypoints {
			bound = bound || e.Protocol == r.Protocol && !e.OnlyByName()
		}
	}
	switch {
	case bound:
	case r.Protocol == TCP:
		d.fail(CodeReference, r.Pos, "%s can be reached by no connection: there is no tcp entrypoint", title).Hint = `add one: entrypoints "db" { address = ":5432", protocol = "tcp" }`
	default:
		d.fail(CodeReference, r.Pos, "%s can be reached by no request: there is no http entrypoint", title).Hint = `add one: entrypoints "web" { address = ":8080" }`
	}
}

// checkTLSMode reports a router that cannot have TLS as it wants it.
func (d *decoder) checkTLSMode(cfg *Config, r *Router, title string) {
	if !r.refs.tls.ok {
		return
	}
	if r.Protocol != TCP {
		d.later(r.refs.tls.at, "tls in "+title+", on http entrypoints, is", "this release terminates TLS there, as the entrypoint says")
		return
	}
	for _, name := range sortedKeys(cfg.Entrypoints) {
		e := cfg.Entrypoints[name]
		bound := len(r.Entrypoints) == 0 && !e.OnlyByName() || slices.Contains(r.Entrypoints, name)
		if r.TLS == Terminate && bound && e.Protocol == TCP && e.TLS == nil {
			d.fail(CodeConflict, r.refs.tls.at, "%s terminates TLS, for which entrypoints %s has no certificate", title, strconv.Quote(name)).Hint = "give the entrypoint a tls block, or name other entrypoints"
			return
		}
	}
}

// checkStep reports a middleware of the other protocol. m is nil for one that the program brings along: those serve
// requests.
func (d *decoder) checkStep(m *Middleware, t text, r *Router, title string) {
	registered := m == nil && slices.Contains(d.registered, t.s)
	switch {
	case m == nil && !registered || m != nil && m.Type == "":
	case r.Protocol == TCP && (registered || m.Type != "tcp-filter"):
		d.bad(t, CodeConflict, "%s routes connections, and middlewares %s serves requests", title, t.quote()).Hint = "a tcp router takes middlewares of type tcp-filter"
	case r.Protocol != TCP && m != nil && m.Type == "tcp-filter":
		d.bad(t, CodeConflict, "%s routes requests, and middlewares %s serves tcp connections", title, t.quote())
	}
}

// checkBackends reports backends that cannot be reached in the way of the router.
func (d *decoder) checkBackends(s *Service, r *Router, title string) {
	if s == nil {
		return
	}
	if lb := &s.LoadBalancer; r.Protocol != TCP && lb.Transport.SendProxy > 0 {
		d.fail(CodeConflict, lb.SendProxyPos, "send_proxy of services %s has no effect on %s: its connections to backends serve many clients", strconv.Quote(s.Name), title).Hint = "backends of http routers learn the client from X-Forwarded-For"
		return
	}
	if r.Protocol != HTTP && s.WebSocket.Multiplex {
		d.fail(CodeConflict, s.Pos, "%s sends connections to services %s, whose websocket { multiplex } serves requests", title, strconv.Quote(s.Name))
		return
	}
	for _, srv := range s.LoadBalancer.Servers {
		switch {
		case r.Protocol == HTTP && isStream(srv.Scheme):
			d.fail(CodeConflict, srv.Pos, "%s sends requests to services %s, whose backends name no protocol", title, strconv.Quote(s.Name)).Hint = `write "http://host:port"`
		case r.Protocol == TCP && srv.Scheme == "https":
			d.fail(CodeConflict, srv.Pos, "%s sends connections to services %s, whose backends speak HTTP over TLS", title, strconv.Quote(s.Name)).Hint = `write "tls://host:port" for TLS around the bytes of connections`
		case r.Protocol == TCP && srv.WebSocket:
			d.fail(CodeConflict, srv.Pos, "%s sends connections to services %s, whose backends speak WebSocket", title, strconv.Quote(s.Name)).Hint = `write "tcp://host:port"`
		case r.Protocol == TCP && srv.Scheme == "h2c":
			d.fail(CodeConflict, srv.Pos, "%s sends connections to services %s, whose backends speak HTTP/2", title, strconv.Quote(s.Name)).Hint = `write "tcp://host:port"`
		case r.Protocol == TCP && srv.Base != "":
			d.fail(CodeConflict, srv.Pos, "%s sends connections to services %s, where the path of the URL has no effect", title, strconv.Quote(s.Name))
		default:
			continue
		}
		return
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
