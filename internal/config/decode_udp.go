package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/route"
)

// everyClient is the rule of a udp router that has none.
const everyClient = "PathPrefix(`/`)"

// UDPBalance is what a udp entrypoint divides among the backends.
type UDPBalance string

// Balances.
const (
	ByClient   UDPBalance = "client"   // all datagrams of a client go to one backend
	ByDatagram UDPBalance = "datagram" // each datagram goes to the backend whose turn it is
)

const udpHint = `write "udp://host:port"`

// judgesDatagrams reports whether a rule says by itself that it is about datagrams.
func judgesDatagrams(rule *route.Rule) bool {
	return rule != nil && slices.ContainsFunc(rule.Matchers(), func(m route.Matcher) bool {
		return m.Name == "Method" && strings.EqualFold(m.Args[0], string(UDP))
	})
}

// completeRule gives a udp router without a rule that of every client. Others need one.
func (d *decoder) completeRule(r *Router) {
	switch {
	case r.refs.rule.ok || written(r.refs.block, "rule"):
	case r.Protocol == UDP:
		r.Rule, _ = route.Parse(everyClient)
	default:
		r.refs.block.missing("rule", "")
	}
}

// fitsDatagrams reports whether a matcher can be true of a client's datagrams, which have the path / and the method UDP.
func fitsDatagrams(m route.Matcher) bool {
	switch m.Name {
	case "ClientIP":
		return true
	case "Method":
		return strings.EqualFold(m.Args[0], string(UDP))
	case "Path", "PathPrefix":
		return m.Args[0] == "/"
	}
	return false
}

// nameless makes the backends that are written without a scheme ones of udp, in services that only udp routers use.
func (d *decoder) nameless(cfg *Config) {
	datagrams, others := map[string]bool{}, map[string]bool{}
	for _, r := range cfg.Routers {
		if r.Protocol == UDP {
			datagrams[r.Service] = true
		} else {
			others[r.Service] = true
		}
	}
	for name, s := range cfg.Services {
		servers := s.LoadBalancer.Servers
		if !datagrams[name] || others[name] || slices.ContainsFunc(servers, func(s Server) bool { return !s.bare }) {
			continue
		}
		for i := range servers {
			servers[i].Scheme = "udp"
		}
	}
}

// datagramServers reports whether the servers of a service are udp backends. Those without a scheme are then, too.
func (d *decoder) datagramServers(servers []Server, o *object) bool {
	if !slices.ContainsFunc(servers, func(s Server) bool { return s.Scheme == "udp" }) {
		return false
	}
	for i := range servers {
		if servers[i].bare {
			servers[i].Scheme = "udp"
		} else if servers[i].Scheme != "udp" {
			d.fail(CodeConflict, o.at, "the servers of %s are not all udp backends", o.title)
			break
		}
	}
	return true
}

// checkDatagramBackends reports backends that datagrams cannot be sent to.
func (d *decoder) checkDatagramBackends(s *Service, title string) {
	name := strconv.Quote(s.Name)
	if lb := &s.LoadBalancer; lb.Transport.SendProxy > 0 {
		d.fail(CodeConflict, lb.SendProxyPos, "send_proxy of services %s has no effect on %s: datagrams have no beginning that could name the client", name, title)
		return
	}
	for _, srv := range s.LoadBalancer.Servers {
		switch {
		case strings.HasPrefix(srv.Addr, "unix:"):
			d.fail(CodeConflict, srv.Pos, "%s sends datagrams to services %s, which has a unix socket among its backends", title, name).Hint = udpHint
		case srv.Scheme != "udp" && srv.Scheme != "tcp":
			d.fail(CodeConflict, srv.Pos, "%s sends datagrams to services %s, whose backends speak %s", title, name, srv.Scheme).Hint = udpHint
		default:
			continue
		}
		return
	}
}

// checkDatagramEntrypoint reports what has no effect on datagrams.
func (d *decoder) checkDatagramEntrypoint(o *object, e *Entrypoint) {
	if e.Protocol != UDP {
		return
	}
	for key, hint := range map[string]string{
		"tls": "", "proxy_protocol": "", "max_connections": "udp_max_sessions bounds the clients at a time",
	} {
		if o.has(key) {
			d.fail(CodeOtherType, o.where(key), "%s in %s has no effect on protocol udp", key, o.title).Hint = hint
		}
	}
	if strings.HasPrefix(e.Address, "unix:") {
		d.fail(CodeConflict, e.AddressPos, "address in %s is a unix socket, and protocol udp has an IP address", o.title)
	}
}
