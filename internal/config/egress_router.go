package config

import (
	"slices"
	"strconv"
	"strings"
)

// OriginService is the service that is always there for routers of requests inside the tunnels of actors: the destination that the
// policy has allowed. No service can be given the name.
const OriginService = "@origin"

// bindInside makes a router one of requests inside the tunnels of actors, if it names an entrypoint with egress; then all of its
// entrypoints must have it, since what such a request is and may become differs from all others.
func (d *decoder) bindInside(cfg *Config, r *Router) bool {
	others := false
	for _, name := range r.Entrypoints {
		e := cfg.Entrypoints[name]
		switch {
		case e == nil:
		case e.Egress != nil && e.Protocol == CONNECT:
			r.Inside = true
		default:
			others = true
		}
	}
	if !r.Inside {
		return false
	}
	r.Protocol = HTTP
	if others {
		d.fail(CodeConflict, r.refs.entrypoints[0].at, "routers %s names entrypoints with egress and others", strconv.Quote(r.Name)).Hint = "write a router for the requests of actors, and one for the others"
	}
	return true
}

// checkOrigin reports who uses the name of the built-in service, and must not.
func (d *decoder) checkOrigin(r *Router, title string) {
	if r.Service == OriginService && !r.Inside {
		d.bad(r.refs.service, CodeConflict, "%s leads to %s, where only requests of actors have something to go to", title, OriginService).Hint = "name entrypoints with egress in the router, or another service"
	}
}

// checkInside reports what a router of requests inside the tunnels of actors cannot have.
func (d *decoder) checkInside(cfg *Config, r *Router, title string) {
	if !r.Inside {
		return
	}
	if r.refs.tls.ok {
		d.fail(CodeConflict, r.refs.tls.at, "tls in %s has no effect: whether TLS of actors is opened, their policies say", title)
	}
	d.checkInsideService(cfg.Services[r.Service], r, title)
	if r.Service != OriginService {
		return
	}
	for _, t := range r.refs.middlewares {
		m := cfg.Middlewares[t.s]
		if m != nil && m.Headers != nil && slices.ContainsFunc(m.Headers.Request, setsHost) {
			d.bad(t, CodeConflict, "middlewares %s sets Host, and %s leads to %s, where the host stays that which was allowed", t.quote(), title, OriginService).Hint = "set Host on the way to a service of yours"
		}
	}
}

func setsHost(h HeaderValue) bool { return strings.EqualFold(h.Name, "host") }

// checkInsideService reports a service to which no request of an actor can go, all of which are plain requests of HTTP.
func (d *decoder) checkInsideService(s *Service, r *Router, title string) {
	at := r.refs.service.at
	switch {
	case s == nil:
	case s.Actor != nil:
		d.fail(CodeConflict, at, "%s leads requests of actors to services %s, which leads to actors", title, strconv.Quote(s.Name)).Hint = "in this release actors reach one another from outside only"
	case s.Connect != nil:
		d.fail(CodeConflict, at, "%s routes what is inside the tunnels of actors, and services %s is for CONNECT", title, strconv.Quote(s.Name)).Hint = "write " + strconv.Quote(OriginService) + " for the destination that was allowed"
	case s.WebSocket.Multiplex:
		d.fail(CodeConflict, at, "%s leads to services %s, whose clients speak WebSocket, which is refused inside the tunnels of actors", title, strconv.Quote(s.Name))
	default:
		for _, srv := range s.LoadBalancer.Servers {
			if srv.WebSocket {
				d.fail(CodeConflict, srv.Pos, "%s leads to services %s, whose backends speak WebSocket, which is refused inside the tunnels of actors", title, strconv.Quote(s.Name))
				return
			}
		}
	}
}
