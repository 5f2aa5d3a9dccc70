package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// validate checks what needs more than one block. It runs only on texts without syntax errors: in a broken one the
// block that is referred to may merely be unread.
func (d *decoder) validate(cfg *Config) {
	for _, name := range sortedKeys(cfg.Routers) {
		d.checkRouter(cfg, cfg.Routers[name])
	}
	for _, name := range sortedKeys(cfg.Services) {
		d.checkService(cfg.Services[name])
	}
	d.checkAddresses(cfg)
	d.checkScaling(cfg)
	d.checkMode(cfg)
	d.checkManagement(cfg)
	d.checkPriorities(cfg)
}

// bound is one address that the process would listen on.
type bound struct {
	what string
	at   acl.Span
	addr string
	udp  bool
}

// checkAddresses reports two listeners that cannot be bound together.
func (d *decoder) checkAddresses(cfg *Config) {
	var all []bound
	for _, name := range sortedKeys(cfg.Entrypoints) {
		e := cfg.Entrypoints[name]
		if e.Address != "" {
			all = append(all, bound{"entrypoints " + strconv.Quote(name), e.AddressPos, e.Address, e.Protocol == UDP})
		}
	}
	slices.SortStableFunc(all, func(a, b bound) int {
		if c := strings.Compare(a.at.File, b.at.File); c != 0 {
			return c
		}
		return a.at.Start.Offset - b.at.Start.Offset
	})
	if m := cfg.Management; m.Enabled {
		all = append(all, bound{"the address of management", m.AddressPos, m.Address, false})
		if m.ProbeAddress != "" {
			all = append(all, bound{"the probe_address of management", m.ProbePos, m.ProbeAddress, false})
		}
	}
	for i, b := range all {
		for _, a := range all[:i] {
			if a.udp == b.udp && listenerOf(a.addr).overlaps(listenerOf(b.addr)) {
				d.fail(CodeDuplicate, b.at, "%s and %s, at %s, cannot both listen on their address", b.what, a.what, a.at).Hint =
					"give each its own port"
				break
			}
		}
	}
}

// checkScaling holds the rules across services with a concurrency.
func (d *decoder) checkScaling(cfg *Config) {
	var first *Service
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		if s.Scaling == nil || s.Scaling.ContainerConcurrency == 0 {
			continue
		}
		switch {
		case first == nil:
			first = s
		case first.Scaling.Executor != s.Scaling.Executor:
			d.fail(CodeConflict, s.Pos, "services %s and %s scale with different executors; one is allowed",
				strconv.Quote(first.Name), strconv.Quote(name))
		case s.Scaling.Executor == "box" && first.Scaling.ExecutorEndpoint != s.Scaling.ExecutorEndpoint:
			d.fail(CodeConflict, s.Pos, "services %s and %s scale with different endpoints; one is allowed",
				strconv.Quote(first.Name), strconv.Quote(name))
		}
	}
}

// checkMode holds what each mode rejects.
func (d *decoder) checkMode(cfg *Config) {
	native := cfg.Mode == CloudManaged && cfg.Managed != nil && cfg.Managed.GatewayID != ""
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		if cfg.Mode == CloudManaged && s.Scaling != nil {
			d.fail(CodeConflict, s.Pos, "scaling of services %s is not allowed in mode cloud-managed", strconv.Quote(name))
		}
		if cfg.Mode == Standalone && slices.ContainsFunc(s.LoadBalancer.Servers, func(s Server) bool { return s.Target != nil }) {
			d.fail(CodeConflict, s.Pos, "the target of a server of services %s needs mode cloud-managed", strconv.Quote(name))
		}
		if native {
			d.fail(CodeConflict, s.Pos, "services %s belongs to the snapshot: a managed bootstrap has no services", strconv.Quote(name))
		}
	}
	if !native {
		return
	}
	for _, name := range sortedKeys(cfg.Routers) {
		d.fail(CodeConflict, cfg.Routers[name].Pos, "routers %s belongs to the snapshot: a managed bootstrap has no routers", strconv.Quote(name))
	}
	for _, name := range sortedKeys(cfg.Middlewares) {
		d.fail(CodeConflict, cfg.Middlewares[name].Pos, "middlewares %s belongs to the snapshot: a managed bootstrap has no middlewares", strconv.Quote(name))
	}
}

// checkManagement warns when nothing guards the listener.
func (d *decoder) checkManagement(cfg *Config) {
	m := cfg.Management
	if !m.Enabled {
		return
	}
	if m.TokenEnv != "" {
		return
	}
	guarded := m.TLS != nil && m.TLS.RequireClientCert || strings.HasPrefix(m.Address, "unix:")
	local := len(m.AllowedIPs) > 0 && !slices.ContainsFunc(m.AllowedIPs, func(p netip.Prefix) bool { return !p.Addr().IsLoopback() })
	if !guarded && !local {
		d.warn(WarnExposed, m.Pos, "management answers other machines without a token or client certificate")
	}
}

// checkPriorities warns where a rule without a host outranks a rule with one by its length alone: the request for
// that host then goes to the wrong router, which nobody who writes rules expects.
func (d *decoder) checkPriorities(cfg *Config) {
	for _, hostName := range sortedKeys(cfg.Routers) {
		host := cfg.Routers[hostName]
		if host.Rule == nil || !host.Rule.HasHost() || host.Priority > 0 {
			continue
		}
		for _, pathName := range sortedKeys(cfg.Routers) {
			path := cfg.Routers[pathName]
			if path.Rule == nil || path.Rule.HasHost() || !path.Rule.HasPath() || path.Priority > 0 || !shareEntrypoint(host, path) {
				continue
			}
			long, short := path.Rule.DefaultPriority(), host.Rule.DefaultPriority()
			if long < short || long == short && pathName > hostName || disjointPaths(host, path) {
				continue
			}
			d.warn(WarnPriority, host.refs.rule.at, "the rule of routers %s, for a host, is outranked by the longer rule of routers %s, for a path, at %s",
				strconv.Quote(hostName), strconv.Quote(pathName), path.refs.rule.at).Hint =
				"longer rules come first: set priority on routers " + strconv.Quote(hostName) + " if that is not meant"
			break
		}
	}
}

// disjointPaths reports whether two plain conjunctions ask for path prefixes that no path has both of. It errs on the
// side of false.
func disjointPaths(a, b *Router) bool {
	for _, m := range a.Rule.Matchers() {
		for _, n := range b.Rule.Matchers() {
			if strings.ContainsAny(a.RuleText+b.RuleText, "|!") || m.Name != "Path" && m.Name != "PathPrefix" || n.Name != "Path" && n.Name != "PathPrefix" {
				continue
			}
			if !strings.HasPrefix(m.Args[0], n.Args[0]) && !strings.HasPrefix(n.Args[0], m.Args[0]) {
				return true
			}
		}
	}
	return false
}

func shareEntrypoint(a, b *Router) bool {
	return len(a.Entrypoints) == 0 || len(b.Entrypoints) == 0 ||
		slices.ContainsFunc(a.Entrypoints, func(e string) bool { return slices.Contains(b.Entrypoints, e) })
}
