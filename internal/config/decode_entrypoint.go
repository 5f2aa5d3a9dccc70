package config

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Limits of entrypoint keys. They are far beyond use and keep a mistyped number from becoming a memory bound.
const (
	maxHeaderBytesLimit = 16 << 20
	maxHeadersLimit     = 10_000
)

// halfCloseTimeout is how long a connection may be silent once one side has ended its sending, unless configured.
const halfCloseTimeout = 30 * time.Second

// protocolKeys are the keys that only entrypoints of one protocol have.
var protocolKeys = map[string]Protocol{
	"tcp_allowed_ips": TCP, "tcp_hello_timeout": TCP, "tcp_idle_timeout": TCP, "tcp_half_close_timeout": TCP, "udp_session_timeout_secs": UDP, "udp_max_sessions": UDP, "udp_balance": UDP,
	"header_timeout": HTTP, "body_idle_timeout": HTTP, "write_idle_timeout": HTTP, "keepalive_timeout": HTTP,
	"max_header_bytes": HTTP, "max_headers": HTTP, "forwarded": HTTP, "encoded_slashes": HTTP,
}

func (d *decoder) entrypoint(name string, o *object) *Entrypoint {
	o.kind = "entrypoints"
	e := &Entrypoint{Name: name, Pos: o.at}
	e.Address, e.AddressPos = o.address("address", true, "")
	e.Protocol, _ = enum(o, "protocol", HTTP, HTTP, TCP, CONNECT, UDP)
	d.wrongProtocol(o, e.Protocol)
	d.checkDatagramEntrypoint(o, e)
	e.MaxConnections = o.count("max_connections", 10_000, 1, math.MaxUint32)
	e.MaxPerClient = o.count("max_connections_per_client", 0, 1, math.MaxUint32)
	e.HeaderTimeout = o.duration("header_timeout", 10*time.Second)
	e.BodyIdleTimeout = o.duration("body_idle_timeout", 30*time.Second)
	e.WriteIdleTimeout = o.duration("write_idle_timeout", 60*time.Second)
	e.KeepAliveTimeout = o.duration("keepalive_timeout", 75*time.Second)
	e.MaxHeaderBytes = o.count("max_header_bytes", 65_536, 1024, maxHeaderBytesLimit)
	e.MaxHeaders = o.count("max_headers", 256, 1, maxHeadersLimit)
	slashes, _ := enum(o, "encoded_slashes", "reject", "reject", "allow")
	e.AllowEncodedSlash = slashes == "allow"
	if f := o.child("forwarded"); f != nil {
		f.kind = "forwarded"
		e.Forwarded.TrustedIPs = f.prefixes("trusted_ips")
		f.finish(nil)
	}
	if p := o.child("proxy_protocol"); p != nil {
		p.kind = "proxy_protocol"
		if e.ProxyProtocol = p.prefixes("trusted_ips"); !written(p, "trusted_ips") {
			p.missing("trusted_ips", "name the load balancers that send the header")
		}
		p.finish(nil)
	}
	e.TCPAllowedIPs = o.prefixes("tcp_allowed_ips")
	hello := o.duration("tcp_hello_timeout", 3*time.Second)
	idle, half := o.duration("tcp_idle_timeout", 0), o.duration("tcp_half_close_timeout", halfCloseTimeout)
	if e.Protocol == TCP {
		e.TCPHelloTimeout = hello
	}
	if e.Protocol == TCP || e.Protocol == CONNECT {
		e.TCPIdleTimeout, e.TCPHalfCloseTimeout = idle, half
	}
	timeout, sessions := o.seconds("udp_session_timeout_secs", 30, 1), o.number("udp_max_sessions", 10_000, 1, math.MaxUint32)
	balance, _ := enum(o, "udp_balance", ByClient, ByClient, ByDatagram)
	if e.Protocol == UDP {
		e.UDPSessionTimeout, e.UDPMaxSessions, e.UDPBalance = timeout, sessions, balance
	}
	if t := o.child("tls"); t != nil {
		t.kind = "tls"
		e.TLS = d.tls(t)
		if e.Protocol == TCP {
			if e.TLS.ALPN = []string{}; t.written("alpn") {
				d.fail(CodeOtherType, t.where("alpn"), "alpn in %s has no effect on protocol tcp", t.title).Hint = "what is spoken inside is between the client and a backend"
			}
		}
		if e.Protocol == HTTP {
			d.http3(t, e)
		}
		t.finish(nil)
	}
	if g := o.child("egress"); g != nil {
		e.Egress = d.egress(g, e)
	}
	o.finish(nil)
	d.checkTunnelled(e)
	return e
}

// wrongProtocol reports keys that have no effect on an entrypoint of that protocol.
func (d *decoder) wrongProtocol(o *object, is Protocol) {
	report := func(key string, at acl.Span) {
		if only, ok := protocolKeys[key]; ok && only != is && !(is == CONNECT && slices.Contains(connectKeys, key)) {
			d.fail(CodeOtherType, at, "%s in %s has an effect on protocol %s only", key, o.title, only)
		}
	}
	for _, f := range o.fields {
		report(f.key, f.keySpan)
	}
	for _, c := range o.blocks {
		report(c.block.Name, c.block.NameSpan)
	}
}

// address returns a listening address in its canonical form, and the place of its value.
func (o *object) address(key string, required bool, def string) (string, acl.Span) {
	t := o.str(key, required)
	if !t.ok {
		return def, t.at
	}
	if o.kind == "entrypoints" && t.s == TunnelAddress {
		return TunnelAddress, t.at
	}
	canonical, err := ParseAddress(t.s)
	if err != nil {
		o.d.bad(t, CodeAddress, "%s in %s %s", key, o.title, err).Hint = `write "IP:port", "[IPv6]:port", ":port", "name:port" or "unix:/path"`
		return def, t.at
	}
	return canonical, t.at
}

// prefixes returns a list of IPs and CIDRs.
func (o *object) prefixes(key string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range o.list(key) {
		p, ok := parsePrefix(t.s)
		if !ok {
			o.d.bad(t, CodeAddress, "%s in %s has an item that is neither an IP address nor a CIDR", key, o.title)
			continue
		}
		out = append(out, p)
	}
	return out
}
