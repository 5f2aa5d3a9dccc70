package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// TunnelAddress is the address of an entrypoint that listens nowhere: its connections come out of tunnels, by a service
// with connect { entrypoint }.
const TunnelAddress = "tunnel:"

// Connect says where a service leads the CONNECTs of its routers: to the destination that each asks for, or, with
// Entrypoint, into an entrypoint of this process.
type Connect struct {
	Pos            acl.Span
	Entrypoint     string         // its address is TunnelAddress; "" is the destination asked for
	Ports          []int          // that may be connected to; default 443
	Allow          []netip.Prefix // connected to although they are special addresses
	Deny           []netip.Prefix // never connected to
	ConnectTimeout time.Duration  // resolution and connecting; default 5 s

	entrypoint text
}

// connectKeys are the keys of other protocols that entrypoints of protocol connect have, too.
var connectKeys = []string{
	"header_timeout", "write_idle_timeout", "keepalive_timeout", "max_header_bytes", "max_headers", "tcp_allowed_ips", "tcp_idle_timeout", "tcp_half_close_timeout",
}

// OnlyByName reports whether only those routers lead anywhere from the entrypoint that name it.
func (e *Entrypoint) OnlyByName() bool { return e.Protocol == CONNECT || e.Tunnelled() }

// Tunnelled reports whether the entrypoint listens nowhere.
func (e *Entrypoint) Tunnelled() bool { return e.Address == TunnelAddress }

// connect decodes the block of a service; nil without one.
func (d *decoder) connect(o *object) *Connect {
	if o == nil {
		return nil
	}
	c := &Connect{Pos: o.at, Ports: []int{443}}
	c.entrypoint = o.str("entrypoint", false)
	c.Entrypoint = c.entrypoint.s
	if ports := d.ports(o); len(ports) > 0 {
		c.Ports = ports
	}
	c.Allow, c.Deny = o.prefixes("allow_cidrs"), o.prefixes("deny_cidrs")
	c.ConnectTimeout = o.duration("connect_timeout", 5*time.Second)
	for _, key := range []string{"ports", "allow_cidrs", "deny_cidrs", "connect_timeout"} {
		if c.entrypoint.ok && o.written(key) {
			d.fail(CodeConflict, o.where(key), "%s in %s has no effect beside entrypoint: nothing is dialed", key, o.title)
		}
	}
	o.finish(nil)
	return c
}

// ports reads a list of port numbers, or one, in order and each once.
func (d *decoder) ports(o *object) []int {
	f := o.take("ports")
	if f == nil {
		return nil
	}
	items := []*acl.Value{f.val}
	if f.val.Kind == acl.List {
		items = f.val.List
	}
	var out []int
	for _, v := range items {
		n := o.integer(&field{key: f.key, val: v})
		if n == nil {
			continue
		}
		if !n.IsUint64() || n.Uint64() < 1 || n.Uint64() > 65535 {
			d.fail(CodeRange, v.Span, "an item of ports in %s must be between 1 and 65535", o.title)
			continue
		}
		out = append(out, int(n.Uint64()))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkConnectService reports what is wrong between a service for CONNECTs and the rest.
func (d *decoder) checkConnectService(cfg *Config, s *Service) {
	if s.Connect != nil {
		d.checkReentry(cfg, s.Connect.entrypoint, "connect of services "+strconv.Quote(s.Name))
	}
}

// checkReentry reports an entrypoint that cannot serve what comes out of tunnels.
func (d *decoder) checkReentry(cfg *Config, t text, title string) {
	if !t.ok {
		return
	}
	reference(d, t, "entrypoint", title, cfg.Entrypoints)
	if e := cfg.Entrypoints[t.s]; e != nil && !e.Tunnelled() {
		d.fail(CodeConflict, t.at, "%s names an entrypoint that listens by itself", title).Hint = `give that entrypoint address = "tunnel:"`
	}
}

// checkTunnelled reports what an entrypoint without a socket cannot have.
func (d *decoder) checkTunnelled(e *Entrypoint) {
	switch {
	case !e.Tunnelled():
	case e.Protocol == CONNECT || e.Protocol == UDP:
		d.fail(CodeConflict, e.AddressPos, "entrypoints %s gets its connections out of tunnels, where protocol %s is not spoken", strconv.Quote(e.Name), e.Protocol)
	case len(e.ProxyProtocol) > 0:
		d.fail(CodeConflict, e.AddressPos, "entrypoints %s gets its connections out of tunnels, which have no PROXY protocol header", strconv.Quote(e.Name))
	}
}

// checkConnectRouter reports a router whose service does not fit CONNECT, and one whose service is for CONNECT only.
func (d *decoder) checkConnectRouter(s *Service, r *Router, title string) {
	switch {
	case s == nil || r.Inside:
	case r.Protocol != CONNECT && s.Connect != nil:
		d.fail(CodeConflict, r.refs.service.at, "%s does not route CONNECT, which services %s is for", title, strconv.Quote(s.Name)).Hint = `name entrypoints of protocol = "connect" in the router`
	case r.Protocol == CONNECT && s.Connect == nil:
		for _, srv := range s.LoadBalancer.Servers {
			if srv.Scheme != "tcp" {
				d.fail(CodeConflict, srv.Pos, "%s leads CONNECT to services %s, whose backends are not all tcp://host:port", title, strconv.Quote(s.Name)).Hint = `a service with connect {} leads where the client asks for`
				return
			}
		}
	}
}

// proxy decodes the URL of the proxy that backends are reached through.
func (d *decoder) proxy(o *object, lb *LoadBalancer) string {
	t := o.str("proxy", false)
	var s Server
	switch {
	case !t.ok:
		return ""
	case strings.HasPrefix(strings.ToLower(t.s), "https:"):
		d.later(t.at, "a proxy that is spoken TLS with is", "this release speaks HTTP/1.1 (http://) or HTTP/2 (h2c://) in clear text to proxies")
		return ""
	case strings.Contains(t.s, "@"):
		d.later(t.at, "credentials for a proxy, as in "+o.title+", are", "this release reaches proxies that ask for none")
		return ""
	case !d.backend(t, o.title, &s):
		return ""
	case s.Scheme != "http" && s.Scheme != "h2c" || s.Base != "" || strings.HasPrefix(s.Addr, "unix:"):
		d.bad(t, CodeURL, "proxy in %s must be http://host:port or h2c://host:port", o.title)
		return ""
	}
	for _, srv := range lb.Servers {
		if strings.HasPrefix(srv.Addr, "unix:") {
			d.fail(CodeConflict, srv.Pos, "a backend on this machine, of %s, cannot be reached through a proxy", o.title)
		}
	}
	return s.Scheme + "://" + s.Addr
}

func connectTree(c *Connect) any {
	if c == nil {
		return nil
	}
	dials := c.Entrypoint == ""
	return tree{
		"entrypoint": orNull(c.Entrypoint), "ports": when(dials, c.Ports), "allow_cidrs": when(dials, prefixes(c.Allow)),
		"deny_cidrs": when(dials, prefixes(c.Deny)), "connect_timeout": when(dials, dur(c.ConnectTimeout)),
	}
}
