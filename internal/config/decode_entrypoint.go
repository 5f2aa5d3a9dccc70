package config

import (
	"crypto/tls"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Limits of entrypoint keys. They are far beyond use and keep a mistyped number from becoming a memory bound.
const (
	maxHeaderBytesLimit = 16 << 20
	maxHeadersLimit     = 10_000
)

// protocolKeys are the keys that only entrypoints of one protocol have.
var protocolKeys = map[string]Protocol{
	"tcp_allowed_ips": TCP, "tcp_hello_timeout": TCP, "tcp_idle_timeout": TCP, "tcp_half_close_timeout": TCP, "udp_session_timeout_secs": UDP, "udp_max_sessions": UDP,
	"header_timeout": HTTP, "body_idle_timeout": HTTP, "write_idle_timeout": HTTP, "keepalive_timeout": HTTP,
	"max_header_bytes": HTTP, "max_headers": HTTP, "forwarded": HTTP, "encoded_slashes": HTTP,
}

func (d *decoder) entrypoint(name string, o *object) *Entrypoint {
	o.kind = "entrypoints"
	e := &Entrypoint{Name: name, Pos: o.at}
	e.Address, e.AddressPos = o.address("address", true, "")
	var proto text
	e.Protocol, proto = enum(o, "protocol", HTTP, HTTP, TCP, UDP)
	if e.Protocol == UDP {
		d.later(proto.at, "protocol udp is", `this release runs entrypoints with protocol = "http" or "tcp"`)
	}
	d.wrongProtocol(o, e.Protocol)
	e.MaxConnections = o.count("max_connections", 10_000, 1, math.MaxUint32)
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
		if e.Protocol == UDP {
			d.fail(CodeOtherType, p.at, "proxy_protocol in %s has no effect on protocol udp", o.title)
		}
	}
	e.TCPAllowedIPs = o.prefixes("tcp_allowed_ips")
	hello := o.duration("tcp_hello_timeout", 3*time.Second)
	idle, half := o.duration("tcp_idle_timeout", 0), o.duration("tcp_half_close_timeout", 30*time.Second)
	if e.Protocol == TCP {
		e.TCPHelloTimeout = hello
		e.TCPIdleTimeout, e.TCPHalfCloseTimeout = idle, half
	}
	timeout, sessions := o.seconds("udp_session_timeout_secs", 30, 1), o.number("udp_max_sessions", 10_000, 1, math.MaxUint32)
	if e.Protocol == UDP {
		e.UDPSessionTimeout, e.UDPMaxSessions = timeout, sessions
	}
	if t := o.child("tls"); t != nil {
		if e.Protocol == UDP {
			d.fail(CodeOtherType, t.at, "tls in %s has no effect on protocol udp", o.title)
		}
		t.kind = "tls"
		e.TLS = d.tls(t)
		t.finish(nil)
	}
	o.finish(nil)
	return e
}

// wrongProtocol reports keys that have no effect on an entrypoint of that protocol.
func (d *decoder) wrongProtocol(o *object, is Protocol) {
	report := func(key string, at acl.Span) {
		if only, ok := protocolKeys[key]; ok && only != is {
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

// tls decodes the keys that entrypoints and management share, and acme where the kind has it.
func (d *decoder) tls(o *object) *TLS {
	t := &TLS{Pos: o.at, MinVersion: tls.VersionTLS12}
	version, _ := enum(o, "min_version", "1.2", "1.2", "1.3")
	if version == "1.3" {
		t.MinVersion = tls.VersionTLS13
	}
	if o.kind == "tls" {
		t.ACME = d.acme(o)
	}
	file := func(key string) (string, acl.Span) {
		f := o.str(key, t.ACME == nil)
		if f.ok && f.s == "" && t.ACME == nil {
			d.bad(f, CodeMissing, "%s in %s is empty", key, o.title)
		}
		return f.s, f.at
	}
	t.CertFile, t.CertPos = file("cert_file")
	t.KeyFile, t.KeyPos = file("key_file")
	return t
}

// acme decodes the certificate manager's keys. It is nil when acme is false or absent; the other keys are then of no
// effect, which is reported.
func (d *decoder) acme(o *object) *ACME {
	a := &ACME{Enabled: o.boolean("acme", false), Staging: o.boolean("acme_staging", false)}
	a.Email = o.str("acme_email", false).s
	for _, t := range o.list("acme_domains") {
		if !isHostName(strings.TrimPrefix(t.s, "*.")) {
			d.bad(t, CodeValue, "acme_domains in %s has an item that is not a host name", o.title)
		}
		a.Domains = append(a.Domains, t.s)
	}
	a.StoragePath = "/etc/gateway/acme"
	if t := o.str("acme_storage_path", false); t.ok {
		a.StoragePath = t.s
	}
	if !a.Enabled {
		for _, key := range []string{"acme_staging", "acme_email", "acme_domains", "acme_storage_path"} {
			if o.written(key) {
				d.fail(CodeConflict, o.where(key), "%s in %s has no effect without acme = true", key, o.title)
			}
		}
		return nil
	}
	d.later(o.where("acme"), "certificates by ACME are", "this release reads certificates from cert_file and key_file")
	return a
}

// address returns a listening address in its canonical form, and the place of its value.
func (o *object) address(key string, required bool, def string) (string, acl.Span) {
	t := o.str(key, required)
	if !t.ok {
		return def, t.at
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
