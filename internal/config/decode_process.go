package config

import (
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// providers decodes the dynamic sources.
func (d *decoder) providers(cfg *Config, o *object) {
	if o == nil {
		return
	}
	if f := o.child("file"); f != nil {
		f.kind = "providers file"
		dir := f.str("directory", false)
		if dir.ok && dir.s == "" {
			d.bad(dir, CodeValue, "directory in %s is empty", f.title)
		}
		cfg.Providers.File = &FileProvider{Watch: f.boolean("watch", true), Directory: dir.s}
		f.finish(nil)
		d.notManaged(cfg.Mode, f)
	}
	later := func(c *object, what string) {
		c.finish(nil)
		d.notManaged(cfg.Mode, c)
		d.later(c.at, what+" is", "this release has providers { file { … } }")
	}
	if c := o.child("discovery"); c != nil {
		c.kind = "providers discovery"
		cfg.Providers.Discovery = d.discovery(c)
		later(c, "the discovery provider")
	}
	if c := o.child("docker"); c != nil {
		c.kind = "providers docker"
		p := &DockerProvider{Host: "/var/run/docker.sock", LabelPrefix: "a3s"}
		if t := c.str("host", false); t.ok {
			p.Host = t.s
			if !strings.HasPrefix(t.s, "/") && !strings.HasPrefix(t.s, "tcp://") {
				d.bad(t, CodeValue, "host in %s must be a socket path or tcp://host:port", c.title)
			}
		}
		if t := c.str("label_prefix", false); t.ok {
			p.LabelPrefix = t.s
			if t.s == "" {
				d.bad(t, CodeValue, "label_prefix in %s is empty", c.title)
			}
		}
		p.PollInterval = c.seconds("poll_interval_secs", 10, 1)
		cfg.Providers.Docker = p
		later(c, "the docker provider")
	}
	if c := o.child("kubernetes"); c != nil {
		c.kind = "providers kubernetes"
		cfg.Providers.Kubernetes = &KubernetesProvider{
			Namespace: c.str("namespace", false).s, LabelSelector: c.str("label_selector", false).s,
			WatchInterval: c.seconds("watch_interval_secs", 30, 1), IngressRouteCRD: c.boolean("ingress_route_crd", false),
		}
		later(c, "the kubernetes provider")
	}
	o.finish(nil)
}

func (d *decoder) notManaged(mode Mode, o *object) {
	if mode == CloudManaged {
		d.fail(CodeConflict, o.at, "%s is not allowed in mode cloud-managed", o.title)
	}
}

func (d *decoder) discovery(o *object) *DiscoveryProvider {
	p := &DiscoveryProvider{}
	for _, seed := range o.children("seeds", "seed") {
		seed.noLabels()
		if t := seed.str("url", true); t.ok {
			d.webURL(t, "url in "+seed.title)
			p.Seeds = append(p.Seeds, t.s)
		}
		seed.finish(nil)
	}
	p.PollInterval, p.Timeout = o.seconds("poll_interval_secs", 30, 1), o.seconds("timeout_secs", 5, 1)
	return p
}

// observability decodes what is recorded. The short names of the keys were documented once and had no effect.
func (d *decoder) observability(cfg *Config, o *object) {
	cfg.Observability = Observability{Metrics: true, AccessLog: true, Tracing: true, Log: AccessLog{Output: "stdout", Format: "json"}}
	if o == nil {
		return
	}
	ob := &cfg.Observability
	ob.Metrics = o.boolean("metrics_enabled", true)
	ob.AccessLog = o.boolean("access_log_enabled", true)
	ob.Tracing = o.boolean("tracing_enabled", true)
	// access_log is a block; as a plain value it is the short name of the switch.
	short := map[string]string{"metrics": "metrics_enabled", "tracing": "tracing_enabled", "access_log": "access_log_enabled"}
	var scalar bool
	for _, f := range o.fields {
		if f.key == "access_log" && f.val.Kind != acl.Object && f.val.Kind != acl.Null {
			scalar = true
		}
	}
	if !scalar {
		if l := o.child("access_log"); l != nil {
			l.kind = "access_log"
			if t := l.str("output", false); t.ok {
				ob.Log.Output = t.s
				if t.s != "stdout" && t.s != "stderr" && !filepath.IsAbs(t.s) {
					d.bad(t, CodeValue, "output in %s must be stdout, stderr or an absolute path", l.title)
				}
			}
			ob.Log.Format, _ = enum(l, "format", "json", "json", "common")
			l.finish(nil)
		}
	}
	o.finish(func(key string, at acl.Span) bool {
		long, ok := short[key]
		if ok {
			d.fail(CodeUnknownKey, at, "unknown key %s in %s", key, o.title).Hint = "write " + long + " = true or false"
		}
		return ok
	})
}

// DefaultTokenEnv is the variable with the management token when auth_token_env is not written.
const DefaultTokenEnv = "A3S_GATEWAY_ADMIN_TOKEN"

func (d *decoder) management(cfg *Config, o *object) {
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")}
	m := &cfg.Management
	*m = Management{Address: "127.0.0.1:9090", PathPrefix: "/api/gateway", TokenEnv: DefaultTokenEnv, AllowedIPs: loopback}
	if o == nil {
		return
	}
	m.Pos = o.at
	m.Enabled = o.boolean("enabled", false)
	m.Address, m.AddressPos = o.address("address", false, m.Address)
	m.ProbeAddress, m.ProbePos = o.address("probe_address", false, "")
	m.TokenPos = o.at
	if t := o.str("path_prefix", false); t.ok {
		m.PathPrefix = d.pathPrefix(t, o.title, m.PathPrefix)
	}
	if t := o.str("auth_token_env", false); t.ok {
		m.TokenEnv, m.TokenPos = t.s, t.at
		if t.s != "" && !isVariable(t.s) {
			// Most likely the token itself: it must not be repeated.
			t.secret = true
			d.bad(t, CodeEnv, "auth_token_env in %s must be the name of an environment variable", o.title).Hint = "put the token into the environment, and the name of the variable here"
		}
	}
	if ips := o.prefixes("allowed_ips"); o.written("allowed_ips") {
		m.AllowedIPs = ips
	}
	if t := o.child("tls"); t != nil {
		t.kind = "management tls"
		m.TLS = &ManagementTLS{TLS: *d.tls(t)}
		m.TLS.RequireClientCert = t.boolean("require_client_cert", false)
		if m.TLS.RequireClientCert && m.TLS.ClientCAFile == "" {
			d.fail(CodeConflict, t.where("require_client_cert"), "require_client_cert in %s needs client_ca_file", t.title)
		}
		t.finish(nil)
	}
	o.finish(nil)
}

// pathPrefix returns a prefix in normal form, without its trailing slash.
func (d *decoder) pathPrefix(t text, title, def string) string {
	p := strings.TrimRight(t.s, "/")
	u, err := url.Parse(p)
	if !strings.HasPrefix(t.s, "/") || err != nil || u.Path != p || badBase(p) {
		d.bad(t, CodeValue, "path_prefix in %s must be an absolute path in normal form, such as /api/gateway", title)
		return def
	}
	return p
}

func isVariable(s string) bool {
	for i, c := range []byte(s) {
		if !isAlnum(c) && c != '_' || i == 0 && c >= '0' && c <= '9' {
			return false
		}
	}
	return s != "" && len(s) <= 255
}

// managed decodes the identity of a managed gateway.
func (d *decoder) managed(o *object, mode Mode) *Managed {
	if o == nil {
		return nil
	}
	m := &Managed{GatewayID: o.uuid("gateway_id", false)}
	state := o.str("state_file", false)
	m.StateFile = state.s
	if state.ok && (!filepath.IsAbs(state.s) || strings.HasSuffix(state.s, "/") || filepath.Base(state.s) == "..") {
		d.bad(state, CodeValue, "state_file in %s must be an absolute path of a file", o.title)
	}
	if u := o.child("usage_spool"); u != nil {
		dir := u.str("directory", true)
		if dir.ok && (!filepath.IsAbs(dir.s) || filepath.Clean(dir.s) == "/") {
			d.bad(dir, CodeValue, "directory in %s must be an absolute path other than /", u.title)
		}
		m.UsageSpool = &UsageSpool{Directory: dir.s, MaxBytes: u.number("max_bytes", 256<<20, 1<<20, math.MaxInt64)}
		u.finish(nil)
		if state.ok && dir.ok && (within(state.s, dir.s) || within(dir.s, state.s)) {
			d.fail(CodeConflict, dir.at, "directory in %s and state_file must be apart: one is inside the other", u.title)
		}
	}
	for _, key := range []string{"gateway_id", "state_file", "usage_spool"} {
		switch {
		case !o.has(key):
		case mode == Standalone:
			d.fail(CodeConflict, o.where(key), "%s in managed needs mode cloud-managed", key)
		case key != "gateway_id" && !o.has("gateway_id"):
			d.fail(CodeConflict, o.where(key), "%s in managed needs gateway_id", key)
		}
	}
	o.finish(nil)
	if mode == CloudManaged {
		d.later(o.at, "managed is", `this release runs mode { kind = "standalone" }`)
	}
	return m
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
