package config

import (
	"crypto/tls"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// tls decodes the keys that entrypoints and management share, and the others where the kind has them.
func (d *decoder) tls(o *object) *TLS {
	t := &TLS{Pos: o.at, MinVersion: tls.VersionTLS12, ClientAuth: ClientAuthOff}
	version, _ := enum(o, "min_version", "1.2", "1.2", "1.3")
	if version == "1.3" {
		t.MinVersion = tls.VersionTLS13
	}
	ca := o.str("client_ca_file", false)
	t.ClientCAFile, t.ClientCAPos = ca.s, ca.at
	needed := true
	if o.kind == "tls" {
		d.tlsOfEntrypoint(o, t)
		needed = t.ACME == nil && len(t.Certificates) == 0 || o.written("cert_file") || o.written("key_file")
	}
	t.KeyPair = d.keyPair(o, needed)
	return t
}

// keyPair decodes the files of one certificate.
func (d *decoder) keyPair(o *object, required bool) (p KeyPair) {
	file := func(key string) (string, acl.Span) {
		f := o.str(key, required)
		if f.ok && f.s == "" && required {
			d.bad(f, CodeMissing, "%s in %s is empty", key, o.title)
		}
		return f.s, f.at
	}
	p.CertFile, p.CertPos = file("cert_file")
	p.KeyFile, p.KeyPos = file("key_file")
	return p
}

// tlsOfEntrypoint decodes what only entrypoints have.
func (d *decoder) tlsOfEntrypoint(o *object, t *TLS) {
	t.ACME = d.acme(o)
	for _, c := range o.children("certificate") {
		c.noLabels()
		t.Certificates = append(t.Certificates, d.keyPair(c, true))
		c.finish(nil)
	}
	t.StrictSNI = o.boolean("strict_sni", false)
	t.ALPN = d.alpn(o, HTTP3)
	var auth text
	t.ClientAuth, auth = enum(o, "client_auth", ClientAuthOff, ClientAuthOff, ClientAuthRequest, ClientAuthRequire)
	switch {
	case !auth.ok && o.written("client_auth"): // reported
	case t.ClientAuth != ClientAuthOff && t.ClientCAFile == "":
		d.fail(CodeConflict, o.where("client_auth"), "client_auth in %s needs client_ca_file", o.title)
	case t.ClientAuth == ClientAuthOff && o.written("client_ca_file"):
		d.fail(CodeConflict, o.where("client_ca_file"), "client_ca_file in %s has no effect without client_auth", o.title).Hint = `write client_auth = "request" or client_auth = "require"`
	}
}

// alpn decodes the protocols that are offered, which are h2, http/1.1 and those of more.
func (d *decoder) alpn(o *object, more ...string) []string {
	known := append([]string{"h2", "http/1.1"}, more...)
	f := o.take("alpn")
	if f == nil {
		return known[:2]
	} else if f.val.Kind == acl.List && len(f.val.List) == 0 {
		d.fail(CodeValue, f.val.Span, "alpn in %s is empty", o.title)
	}
	var out []string
	for _, t := range o.list("alpn") {
		switch {
		case !slices.Contains(known, t.s):
			d.bad(t, CodeEnum, "an item of alpn in %s must be one of %s, not %s", o.title, strings.Join(known, ", "), t.quote())
		case slices.Contains(out, t.s):
			d.bad(t, CodeDuplicate, "alpn in %s has %s twice", o.title, t.quote())
		default:
			out = append(out, t.s)
		}
	}
	if slices.Equal(out, []string{HTTP3}) {
		d.fail(CodeConflict, f.val.Span, "alpn in %s has h3 alone", o.title).Hint = "clients learn of h3 over h2 or http/1.1"
	}
	return out
}

// http3 reports what an entrypoint with HTTP/3 cannot have.
func (d *decoder) http3(t *object, e *Entrypoint) {
	switch {
	case !e.TLS.HTTP3():
	case strings.HasPrefix(e.Address, "unix:"):
		d.fail(CodeConflict, t.where("alpn"), "h3 in alpn in %s needs an address of UDP, which a unix socket does not have", t.title)
	case len(e.ProxyProtocol) > 0:
		d.fail(CodeConflict, t.where("alpn"), "h3 in alpn in %s does not go with proxy_protocol, which UDP does not have", t.title)
	}
}

// Directories of the authority that is asked when none is written.
const (
	directoryURL = "https://acme-v02.api.letsencrypt.org/directory"
	stagingURL   = "https://acme-staging-v02.api.letsencrypt.org/directory"
)

// acmeKeys have no effect without acme = true.
var acmeKeys = []string{
	"acme_email", "acme_domains", "acme_staging", "acme_storage_path", "acme_challenge", "acme_dns", "acme_directory_url", "acme_ca_file", "acme_eab",
}

// acme decodes how certificates are asked for. It is nil when acme is false or absent; the other keys are then of no
// effect, which is reported.
func (d *decoder) acme(o *object) *ACME {
	a := &ACME{Pos: o.where("acme"), Directory: directoryURL, StoragePath: "/etc/gateway/acme"}
	enabled, staging := o.boolean("acme", false), o.boolean("acme_staging", false)
	if t := o.str("acme_email", false); t.ok {
		a.Email = t.s
		if !strings.Contains(t.s, "@") || strings.ContainsAny(t.s, " \t\r\n,<>") {
			d.bad(t, CodeValue, "acme_email in %s is not an address of electronic mail", o.title)
		}
	}
	for _, t := range o.list("acme_domains") {
		if !isHostName(strings.TrimPrefix(t.s, "*.")) || !strings.Contains(strings.TrimPrefix(t.s, "*."), ".") {
			d.bad(t, CodeValue, "acme_domains in %s has an item that is not a host name of two labels or more", o.title)
		}
		name := strings.ToLower(strings.TrimSuffix(t.s, "."))
		if slices.Contains(a.Domains, name) {
			d.bad(t, CodeConflict, "acme_domains in %s has %s twice", o.title, name)
		}
		a.Domains = append(a.Domains, name)
	}
	if t := o.str("acme_storage_path", false); t.ok {
		a.StoragePath = t.s
		if t.s == "" {
			d.bad(t, CodeValue, "acme_storage_path in %s is empty", o.title)
		}
	}
	if t := o.str("acme_directory_url", false); t.ok {
		a.Directory = t.s
		d.publicURL(t, "acme_directory_url in "+o.title, false)
		if o.written("acme_staging") {
			d.fail(CodeConflict, o.where("acme_staging"), "acme_staging in %s has no effect beside acme_directory_url", o.title)
		}
	} else if staging {
		a.Directory = stagingURL
	}
	ca := o.str("acme_ca_file", false)
	a.CAFile, a.CAPos = ca.s, ca.at
	a.Challenge, _ = enum(o, "acme_challenge", "", ChallengeHTTP, ChallengeALPN, ChallengeDNS)
	a.DNS, a.EAB = d.acmeDNS(o), d.acmeEAB(o)
	if !enabled {
		for _, key := range acmeKeys {
			if o.hasValue(key) {
				d.fail(CodeConflict, o.where(key), "%s in %s has no effect without acme = true", key, o.title)
			}
		}
		return nil
	}
	switch wildcard := slices.ContainsFunc(a.Domains, func(n string) bool { return strings.HasPrefix(n, "*.") }); {
	case a.Challenge == ChallengeDNS && !o.hasValue("acme_dns"):
		d.fail(CodeConflict, o.where("acme_challenge"), "acme_challenge dns-01 in %s needs acme_dns", o.title)
	case a.Challenge != ChallengeDNS && a.DNS != nil:
		d.fail(CodeConflict, a.DNS.Pos, "acme_dns in %s has no effect without acme_challenge = \"dns-01\"", o.title)
	case a.Challenge != ChallengeDNS && wildcard:
		d.fail(CodeConflict, o.where("acme_domains"), "a wildcard in acme_domains of %s needs acme_challenge = \"dns-01\"", o.title)
	}
	return a
}

// acmeEAB decodes the binding to an existing account.
func (d *decoder) acmeEAB(o *object) *EAB {
	c := o.child("acme_eab")
	if c == nil {
		return nil
	}
	e := &EAB{KeyID: c.str("key_id", true).s, HMACKey: NewSecret(c.secret("hmac_key", true).s)}
	c.finish(nil)
	return e
}

// acmeDNS decodes where records are put. What a key means depends on the provider.
func (d *decoder) acmeDNS(o *object) *DNS {
	c := o.child("acme_dns")
	if c == nil {
		return nil
	}
	n := &DNS{Pos: c.at}
	provider := c.str("provider", true)
	all := []DNSProvider{DNSUpdate, DNSCloudflare, DNSRoute53}
	if n.Provider = DNSProvider(provider.s); provider.ok && !slices.Contains(all, n.Provider) {
		d.bad(provider, CodeEnum, "provider in %s must be one of rfc2136, cloudflare, route53, not %s", c.title, provider.quote())
	}
	update := n.Provider == DNSUpdate
	n.ZoneID = c.str("zone_id", true).s
	token := c.secret("token", !update)
	n.Token = NewSecret(token.s)
	if id, key, ok := strings.Cut(token.s, ":"); token.ok && n.Provider == DNSRoute53 && (!ok || id == "" || key == "") {
		d.bad(token, CodeValue, "token in %s must be an access key id, a colon, and its secret access key", c.title)
	}
	n.Propagation = time.Duration(c.number("propagation_wait_secs", 60, 0, 3600)) * time.Second
	server := c.str("server", update)
	if n.Server = server.s; server.ok && !isHostPort(server.s) {
		d.bad(server, CodeAddress, "server in %s must be host:port", c.title)
	}
	n.KeyName = c.str("key_name", update && token.ok).s
	n.KeyAlg, _ = enum(c, "key_algorithm", "hmac-sha256", "hmac-sha256", "hmac-sha384", "hmac-sha512")
	if t := c.str("endpoint", false); t.ok {
		n.Endpoint = t.s
		d.publicURL(t, "endpoint in "+c.title, true)
	}
	for key, has := range map[string]bool{"server": update, "key_name": update, "key_algorithm": update, "endpoint": !update} {
		if !has && c.hasValue(key) && provider.ok {
			d.fail(CodeOtherType, c.where(key), "%s in %s has no effect with provider %s", key, c.title, n.Provider)
		}
	}
	c.finish(nil)
	return n
}

// isHostPort accepts a host, or an IPv6 address in brackets, with a port.
func isHostPort(s string) bool {
	host, port, ok := cutPort(s)
	return ok && isHost(host) && isPort(port)
}

// publicURL reports a text that is not an absolute https URL, or http where that is allowed, or that holds credentials: it is
// shown in views.
func (d *decoder) publicURL(t text, what string, http bool) {
	switch t.secret = true; {
	case strings.Contains(t.s, "@"):
		d.bad(t, CodeURL, "%s must not hold credentials", what)
	case !http && !strings.HasPrefix(t.s, "https://"):
		d.bad(t, CodeURL, "%s must be an absolute https URL", what)
	default:
		d.webURL(t, what)
	}
}

// acmeDomains fills in the names to ask for where none are written, and bounds them. It comes after the rules are compiled.
func (d *decoder) acmeDomains(cfg *Config) {
	for _, name := range sortedKeys(cfg.Entrypoints) {
		t := cfg.Entrypoints[name].TLS
		if t == nil || t.ACME == nil {
			continue
		}
		a := t.ACME
		if len(a.Domains) == 0 {
			a.Domains = hostsOf(cfg, cfg.Entrypoints[name], a.Challenge == ChallengeDNS)
		}
		switch n := len(a.Domains); {
		case n == 0:
			d.fail(CodeMissing, a.Pos, "tls of entrypoints %q has acme and no name to ask for", name).Hint = "write acme_domains, or routers with Host(`…`), or HostSNI(`…`) where protocol is tcp, on this entrypoint"
		case n > maxDomains:
			d.fail(CodeRange, a.Pos, "tls of entrypoints %q asks for %d names; at most %d are allowed", name, n, maxDomains)
		}
	}
}

// hostsOf lists the hosts that the rules of an entrypoint's routers ask for and that can have a certificate. Those whose TLS
// a backend ends are no concern of ours.
func hostsOf(cfg *Config, ep *Entrypoint, wildcards bool) []string {
	var all []string
	for _, name := range sortedKeys(cfg.Routers) {
		r := cfg.Routers[name]
		if r.Rule == nil || r.Protocol != ep.Protocol || r.TLS == Passthrough || len(r.Entrypoints) > 0 && !slices.Contains(r.Entrypoints, ep.Name) {
			continue
		}
		for _, host := range r.Rule.Hosts() {
			plain, wildcard := isHostName(host) && strings.Contains(host, "."), strings.HasPrefix(host, "*.")
			if (plain || wildcard && wildcards) && !slices.Contains(all, host) {
				all = append(all, host)
			}
		}
	}
	return all
}

// maxDomains bounds the names of one entrypoint.
const maxDomains = 1000
