package config

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Limits of transport keys.
const maxPool = 1 << 20

func (d *decoder) service(name string, o *object) *Service {
	o.kind = "services"
	s := &Service{Name: name, Pos: o.at}
	lb := &s.LoadBalancer
	block := o.child("load_balancer")
	d.loadBalancer(block, lb)
	lb.UpstreamErrorStatus = d.upstreamErrorStatus(o)
	lb.PassHost = o.boolean("pass_host", true)
	d.transport(o.child("transport"), lb)
	d.plannedService(o, s)
	if len(lb.Servers) == 0 && !o.has("revisions") && !o.has("revision") && !s.boxDiscovery() && !written(block, "servers", "server") {
		o.missing("load_balancer { servers … }", `write load_balancer { servers { url = "http://host:port" } }`)
	}
	if len(lb.Servers) > 0 && !slices.ContainsFunc(lb.Servers, func(s Server) bool { return s.Weight > 0 }) {
		d.warn(WarnNoTraffic, s.Pos, "every server of %s has weight 0: it answers 503", o.title)
	}
	o.finish(nil)
	return s
}

// written reports whether a block holds faulty entries under one of the names: their own findings are enough then.
func written(o *object, names ...string) bool {
	if o == nil {
		return false
	}
	for _, f := range o.fields {
		if slices.Contains(names, f.key) && !(f.val.Kind == acl.List && len(f.val.List) == 0) && f.val.Kind != acl.Null {
			return true
		}
	}
	return slices.ContainsFunc(o.blocks, func(c *child) bool { return slices.Contains(names, c.block.Name) })
}

func (d *decoder) loadBalancer(o *object, lb *LoadBalancer) {
	lb.Strategy = RoundRobin
	lb.RequestTimeout, lb.StreamIdleTimeout, lb.StreamTotalTimeout = 30*time.Second, 5*time.Minute, time.Hour
	if o == nil {
		return
	}
	lb.Strategy, _ = enum(o, "strategy", RoundRobin, RoundRobin, Weighted, LeastConnections, Random)
	lb.RequestTimeout = o.duration("request_timeout", lb.RequestTimeout)
	lb.StreamIdleTimeout = o.duration("stream_idle_timeout", lb.StreamIdleTimeout)
	lb.StreamTotalTimeout = o.duration("stream_total_timeout", lb.StreamTotalTimeout)
	lb.Servers = d.servers(o)
	udp := d.datagramServers(lb.Servers, o)
	tcp := !udp && slices.ContainsFunc(lb.Servers, func(s Server) bool { return s.Scheme == "tcp" })
	if tcp && slices.ContainsFunc(lb.Servers, func(s Server) bool { return s.Scheme != "tcp" && !strings.HasPrefix(s.Addr, "unix:") }) {
		d.fail(CodeConflict, o.at, "the servers of %s are not all tcp backends, or all http backends", o.title)
	}
	lb.HealthCheck = d.healthCheck(o.child("health_check"), tcp || udp)
	if st := o.child("sticky"); st != nil {
		t := st.str("cookie", true)
		if t.ok && !isToken(t.s) {
			d.bad(t, CodeValue, "cookie in %s is not a legal cookie name", st.title)
		}
		st.finish(nil)
		lb.Sticky = &Sticky{Cookie: t.s}
		d.later(st.at, "sticky sessions are", "this release balances each request on its own")
	}
	o.finish(func(key string, at acl.Span) bool {
		if key != "upstream_error_status" && key != "pass_host" && key != "transport" {
			return false
		}
		d.fail(CodeUnknownKey, at, "unknown key %s in %s", key, o.title).Hint = "it belongs to the service, beside load_balancer"
		return true
	})
}

func (d *decoder) servers(o *object) []Server {
	var out []Server
	for _, c := range o.children("servers", "server") {
		c.noLabels()
		s := Server{Pos: c.at}
		t := c.str("url", true)
		ok := t.ok && d.backend(t, c.title, &s)
		s.Weight = c.count("weight", 1, 0, math.MaxUint32)
		if target := c.child("target"); target != nil {
			s.Target = d.target(target)
		}
		c.finish(nil)
		if ok {
			out = append(out, s)
		}
	}
	return out
}

// healthCheck decodes how backends are probed; those that no protocol is known of by connecting alone, or knocking.
func (d *decoder) healthCheck(o *object, nameless bool) *HealthCheck {
	if o == nil {
		return nil
	}
	h := &HealthCheck{}
	t := o.str("path", !nameless)
	if nameless && t.ok {
		d.fail(CodeConflict, t.at, "path in %s has no effect: a tcp backend is probed by connecting to it, a udp one by an empty datagram", o.title)
	}
	if t.ok && (!strings.HasPrefix(t.s, "/") || strings.ContainsAny(t.s, "# \t\r\n\x00")) {
		d.bad(t, CodeValue, "path in %s must begin with / and hold no blank, fragment or control character", o.title)
	}
	h.Path = t.s
	h.Interval = o.duration("interval", 10*time.Second)
	h.Timeout = o.duration("timeout", 5*time.Second)
	h.UnhealthyThreshold = o.count("unhealthy_threshold", 3, 1, math.MaxUint32)
	h.HealthyThreshold = o.count("healthy_threshold", 1, 1, math.MaxUint32)
	o.finish(nil)
	return h
}

func (d *decoder) upstreamErrorStatus(o *object) int {
	n := o.count("upstream_error_status", http.StatusBadGateway, 0, math.MaxUint32)
	if n != http.StatusBadGateway && n != http.StatusServiceUnavailable {
		d.fail(CodeRange, o.where("upstream_error_status"), "upstream_error_status in %s must be 502 or 503", o.title)
		n = http.StatusBadGateway
	}
	return n
}

func (d *decoder) transport(o *object, lb *LoadBalancer) {
	tr := &lb.Transport
	*tr = Transport{ConnectTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxIdle: 512, MaxConnections: 1024}
	if o == nil {
		return
	}
	tr.ConnectTimeout = o.duration("connect_timeout", tr.ConnectTimeout)
	tr.IdleTimeout = o.duration("idle_timeout", tr.IdleTimeout)
	tr.MaxIdle = o.count("max_idle", tr.MaxIdle, 0, maxPool)
	tr.MaxConnections = o.count("max_connections", tr.MaxConnections, 1, maxPool)
	ca := o.str("ca_file", false)
	tr.CAFile, lb.CAPos = ca.s, ca.at
	if ca.ok && ca.s == "" {
		d.bad(ca, CodeValue, "ca_file in %s is empty", o.title)
	}
	name := o.str("server_name", false)
	if name.ok {
		canonical, why := canonicalHost(name.s)
		if why != "" {
			d.bad(name, CodeValue, "server_name in %s is neither a host name nor an IP address", o.title)
		}
		tr.ServerName = strings.Trim(canonical, "[]")
	}
	lb.ClientPos = d.keyPair(o, o.written("cert_file") || o.written("key_file"))
	tr.CertFile, tr.KeyFile = lb.ClientPos.CertFile, lb.ClientPos.KeyFile
	for _, p := range o.list("alpn") {
		switch p.s {
		case "http/1.1":
		case "h2":
			d.later(p.at, "HTTP/2 to backends is", `this release speaks HTTP/1.1 to backends`)
		default:
			d.bad(p, CodeEnum, "an item of alpn in %s must be one of h2, http/1.1, not %s", o.title, p.quote())
		}
	}
	version, t := enum(o, "send_proxy", "", "v1", "v2")
	if lb.SendProxyPos = t.at; version != "" {
		tr.SendProxy = int(version[1] - '0')
	}
	o.finish(nil)
}

// checkService reports what can be judged only with all of a service at hand.
func (d *decoder) checkService(s *Service) {
	seen := map[string]acl.Span{}
	for _, srv := range s.LoadBalancer.Servers {
		key := srv.Scheme + "://" + srv.Addr + srv.Base
		if prev, dup := seen[key]; dup {
			d.warn(WarnDuplicate, srv.Pos, "services %s has this backend twice; the first is at %s", strconv.Quote(s.Name), prev).Hint = "give one of them a weight instead"
			continue
		}
		seen[key] = srv.Pos
	}
	hasTLS := slices.ContainsFunc(s.LoadBalancer.Servers, func(s Server) bool { return s.Scheme == "https" })
	if tr := s.LoadBalancer.Transport; !hasTLS && len(s.LoadBalancer.Servers) > 0 && (tr.CAFile != "" || tr.ServerName != "" || tr.CertFile != "") {
		d.warn(WarnNoEffect, s.Pos, "ca_file, cert_file and server_name of services %s have no effect: it has no https backend", strconv.Quote(s.Name))
	}
}
