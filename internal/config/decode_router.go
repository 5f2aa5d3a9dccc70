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
	r.refs.block, r.refs.rule = o, o.str("rule", false)
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
		switch {
		case len(r.Entrypoints) > 0:
		case judgesConnections(r.Rule):
			r.Protocol = TCP
		case judgesDatagrams(r.Rule):
			r.Protocol = UDP
		}
		d.bindNamed(cfg, r)
		d.completeRule(r)
	}
	d.nameless(cfg)
}

// bindNamed finds out what a router routes by the entrypoints that it names: all of one protocol.
func (d *decoder) bindNamed(cfg *Config, r *Router) {
	if d.bindInside(cfg, r) {
		return
	}
	var found []Protocol
	for _, p := range []Protocol{CONNECT, TCP, UDP, HTTP} {
		if slices.ContainsFunc(r.Entrypoints, func(e string) bool { return r.routes(cfg.Entrypoints[e]) == p }) {
			found = append(found, p)
		}
	}
	if len(found) > 0 {
		r.Protocol = found[0]
	}
	if len(found) > 1 {
		d.fail(CodeConflict, r.refs.entrypoints[0].at, "routers %s names entrypoints of protocol %s and others", strconv.Quote(r.Name), found[0]).Hint = "write a router for each protocol"
	}
}

// routes is what the router routes on an entrypoint that it names: on one of http with TLS it may take connections before TLS ends.
func (r *Router) routes(e *Entrypoint) Protocol {
	switch {
	case e == nil:
		return ""
	case e.Protocol == HTTP && e.TLS != nil && r.TLS == Passthrough && judgesConnections(r.Rule):
		e.Shared, e.TCPHalfCloseTimeout = true, halfCloseTimeout
		return TCP
	}
	return e.Protocol
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
		case r.Inside && m.Name == "ClientIP":
			d.fail(CodeRule, at, "rule in %s: matcher ClientIP would see the worker of an actor, whichever actor it is", title).Hint = "what one actor may reach is for its policy to say"
		case r.Protocol == UDP && !fitsDatagrams(m):
			d.fail(CodeRule, at, "rule in %s: matcher %s is never true of datagrams", title, m.Name).Hint = "clients are told apart by ClientIP; a router without a rule takes all"
		case r.Protocol != TCP && m.TCP:
			d.fail(CodeRule, at, "rule in %s: matcher %s is about connections, and the router routes requests", title, m.Name).Hint = `on an http entrypoint with a tls block write tls = "passthrough", too; requests are told apart by Host`
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
	d.checkInside(cfg, r, title)
	switch t := r.refs.service; {
	case t.s == OriginService:
		d.checkOrigin(r, title)
	case t.ok:
		reference(d, t, "service", title, cfg.Services)
		d.checkConnectRouter(cfg.Services[t.s], r, title)
		d.checkActorRouter(cfg.Services[t.s], r, title)
		d.checkBackends(cfg.Services[t.s], r, title)
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
	for _, t := range r.refs.middlewares {
		d.checkStep(cfg.Middlewares[t.s], t, r, title)
		d.checkIdentities(cfg, t, r, title)
	}
	if !bound {
		for _, e := range cfg.Entrypoints {
			bound = bound || e.Protocol == r.Protocol && !e.OnlyByName()
		}
	}
	switch {
	case bound:
	case r.Protocol == UDP:
		d.fail(CodeReference, r.Pos, "%s can be reached by no datagram: there is no udp entrypoint", title).Hint = `add one: entrypoints "dns" { address = ":53", protocol = "udp" }`
	case r.Protocol == TCP:
		d.fail(CodeReference, r.Pos, "%s can be reached by no connection: there is no tcp entrypoint", title).Hint = `add one: entrypoints "db" { address = ":5432", protocol = "tcp" }`
	default:
		d.fail(CodeReference, r.Pos, "%s can be reached by no request: there is no http entrypoint", title).Hint = `add one: entrypoints "web" { address = ":8080" }`
	}
}

// checkTLSMode reports a router that cannot have TLS as it wants it.
func (d *decoder) checkTLSMode(cfg *Config, r *Router, title string) {
	if !r.refs.tls.ok || r.Inside {
		return
	}
	if r.Protocol == UDP {
		d.fail(CodeConflict, r.refs.tls.at, "tls in %s has no effect on datagrams", title)
		return
	}
	switch {
	case r.Protocol != TCP && r.TLS == Passthrough:
		d.fail(CodeConflict, r.refs.tls.at, "%s passes TLS through, and routes what is inside it", title).Hint = "pass it through by HostSNI, on a tcp entrypoint or on an http one with a tls block"
		return
	case r.Protocol != TCP:
		d.later(r.refs.tls.at, "tls in "+title+", on http entrypoints, is", "this release terminates TLS there, as the entrypoint says")
		return
	}
	d.checkShared(cfg, r, title)
	for _, name := range sortedKeys(cfg.Entrypoints) {
		e := cfg.Entrypoints[name]
		bound := len(r.Entrypoints) == 0 && !e.OnlyByName() || slices.Contains(r.Entrypoints, name)
		if r.TLS == Terminate && bound && e.Protocol == TCP && e.TLS == nil {
			d.fail(CodeConflict, r.refs.tls.at, "%s terminates TLS, for which entrypoints %s has no certificate", title, strconv.Quote(name)).Hint = "give the entrypoint a tls block, or name other entrypoints"
			return
		}
	}
}

// checkShared reports a router that takes every connection of an http entrypoint, and so leaves none for requests.
func (d *decoder) checkShared(cfg *Config, r *Router, title string) {
	if r.Rule == nil || r.Rule.NeedsSNI() {
		return
	}
	for _, e := range r.Entrypoints {
		if ep := cfg.Entrypoints[e]; ep != nil && ep.Shared {
			d.fail(CodeConflict, r.refs.rule.at, "rule in %s takes every connection of entrypoints %s, which leaves no request", title, strconv.Quote(e)).Hint = "write HostSNI with a name"
		}
	}
}

// checkStep reports a middleware of the other protocol. m is nil for one that the program brings along: those serve
// requests.
func (d *decoder) checkStep(m *Middleware, t text, r *Router, title string) {
	registered := m == nil && slices.Contains(d.registered, t.s)
	switch {
	case m == nil && !registered || m != nil && m.Type == "":
	case r.Protocol == UDP:
		d.bad(t, CodeConflict, "%s routes datagrams, which pass no middleware", title).Hint = "ClientIP in the rule chooses clients, and udp_max_sessions of the entrypoint bounds them"
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
	if r.Protocol == UDP {
		d.checkDatagramBackends(s, title)
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
		case srv.Scheme == "udp":
			d.fail(CodeConflict, srv.Pos, "%s sends no datagrams, and services %s has udp backends", title, strconv.Quote(s.Name)).Hint = "give datagrams a udp entrypoint and a router of their own"
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
