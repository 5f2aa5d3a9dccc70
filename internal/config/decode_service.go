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
	if name == OriginService {
		d.fail(CodeConflict, o.at, "%s has the name of a service that is always there", o.title).Hint = "it leads to the destination that the policy of an actor has allowed; choose another name"
	}
	lb := &s.LoadBalancer
	block := o.child("load_balancer")
	d.loadBalancer(block, lb)
	lb.UpstreamErrorStatus = d.upstreamErrorStatus(o)
	lb.PassHost = o.boolean("pass_host", true)
	d.transport(o.child("transport"), lb)
	s.WebSocket = webSocket(o.child("websocket"))
	s.Connect = d.connect(o.child("connect"))
	s.Actor = d.actor(o.child("actor"), lb)
	if s.Connect != nil && block != nil {
		d.fail(CodeConflict, s.Connect.Pos, "%s has a load_balancer, and cannot lead elsewhere by connect", o.title)
	}
	if s.Actor != nil && (block != nil || s.Connect != nil || s.WebSocket.Multiplex) {
		d.fail(CodeConflict, s.Actor.Pos, "%s leads to actors, and cannot have load_balancer, connect or websocket { multiplex } as well", o.title)
	}
	d.plannedService(o, s)
	if len(lb.Servers) == 0 && s.Connect == nil && s.Actor == nil && !s.WebSocket.Multiplex && !o.has("revisions") && !o.has("revision") && !s.boxDiscovery() && !written(block, "servers", "server") {
		o.missing("load_balancer { servers … }", `write load_balancer { servers { url = "http://host:port" } }`)
	}
	if len(lb.Servers) > 0 && !slices.ContainsFunc(lb.Servers, func(s Server) bool { return s.Weight > 0 }) {
		d.warn(WarnNoTraffic, s.Pos, "every server of %s has weight 0: it answers 503", o.title)
	}
	o.finish(nil)
	return s
}

// webSocket decodes the bounds of sessions.
func webSocket(o *object) WebSocket {
	if o == nil {
		return WebSocket{}
	}
	w := WebSocket{
		IdleTimeout: o.duration("idle_timeout", 0), Lifetime: o.duration("lifetime", 0), Multiplex: o.boolean("multiplex", false),
	}
	o.finish(nil)
	return w
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
	tcp := !udp && slices.ContainsFunc(lb.Servers, func(s Server) bool { return isStream(s.Scheme) })
	if tcp && slices.ContainsFunc(lb.Servers, func(s Server) bool { return !isStream(s.Scheme) && !strings.HasPrefix(s.Addr, "unix:") }) {
		d.fail(CodeConflict, o.at, "the servers of %s are not all tcp backends, or all http backends", o.title)
	}
	web := slices.ContainsFunc(lb.Servers, func(s Server) bool { return s.WebSocket })
	if web && slices.ContainsFunc(lb.Servers, func(s Server) bool { return !s.WebSocket && !strings.HasPrefix(s.Addr, "unix:") }) {
		d.fail(CodeConflict, o.at, "the servers of %s are not all ws and wss backends, or none of them", o.title).Hint = "write http:// and https:// where requests are served, too: WebSocket is passed on there as well"
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
	protocol, written := enum(o, "protocol", "http", "http", "grpc")
	h.GRPC = protocol == "grpc" && !nameless
	path := o.str("path", !nameless && !h.GRPC)
	if path.ok && !h.GRPC && (!strings.HasPrefix(path.s, "/") || strings.ContainsAny(path.s, "# \t\r\n\x00")) {
		d.bad(path, CodeValue, "path in %s must begin with / and hold no blank, fragment or control character", o.title)
	}
	h.Path = path.s
	service := o.str("grpc_service", false)
	if service.ok && !isGRPCService(service.s) {
		d.bad(service, CodeValue, "grpc_service in %s must be the full name of a service, such as \"shop.v1.Orders\", of at most 255 characters", o.title)
	}
	h.GRPCService = service.s
	switch connecting := "a tcp backend is probed by connecting to it, a udp one by an empty datagram"; {
	case nameless:
		d.needless(o, path, "path", connecting)
		d.needless(o, written, "protocol", connecting)
		d.needless(o, service, "grpc_service", connecting)
	case h.GRPC:
		d.needless(o, path, "path", "the health service of gRPC has a path of its own")
	default:
		d.needless(o, service, "grpc_service", `it is asked for with protocol = "grpc"`)
	}
	h.Interval = o.duration("interval", 10*time.Second)
	h.Timeout = o.duration("timeout", 5*time.Second)
	h.UnhealthyThreshold = o.count("unhealthy_threshold", 3, 1, math.MaxUint32)
	h.HealthyThreshold = o.count("healthy_threshold", 1, 1, math.MaxUint32)
	o.finish(nil)
	return h
}

// needless complains of a key of a health check that is of no effect, if it is written.
func (d *decoder) needless(o *object, t text, key, because string) {
	if t.ok {
		d.fail(CodeConflict, t.at, "%s in %s has no effect: %s", key, o.title, because)
	}
}

// maxGRPCService bounds the name that a health service is asked for.
const maxGRPCService = 255

// isGRPCService reports whether s can be the name of a gRPC service, as most of them spell it, or one of the labels that
// servers use instead.
func isGRPCService(s string) bool {
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	return s != "" && len(s) <= maxGRPCService && !strings.ContainsFunc(s, func(r rune) bool { return !printable(r) })
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
	*tr = Transport{ConnectTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxIdle: 512, MaxConnections: 1024, ALPN: HTTP1}
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
	if o.written("alpn") {
		tr.ALPN = protocolsOf(d.alpn(o))
	}
	tr.PingInterval = o.duration("ping_interval", 0)
	tr.MaxRequests = o.count("max_requests", 0, 1, math.MaxInt32)
	tr.MaxAge = o.duration("max_age", 0)
	tr.Proxy = d.proxy(o, lb)
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
	hasTLS := slices.ContainsFunc(s.LoadBalancer.Servers, func(s Server) bool { return s.Scheme == "https" || s.Scheme == "tls" })
	if tr := s.LoadBalancer.Transport; !hasTLS && len(s.LoadBalancer.Servers) > 0 && (tr.CAFile != "" || tr.ServerName != "" || tr.CertFile != "" || tr.ALPN != HTTP1) {
		d.warn(WarnNoEffect, s.Pos, "alpn, ca_file, cert_file and server_name of services %s have no effect: it has no https or tls backend", strconv.Quote(s.Name))
	}
}
