package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// validate checks what needs more than one block. It runs only on texts without syntax errors: in a broken one the
// block that is referred to may merely be unread.
func (d *decoder) validate(cfg *Config) {
	for _, name := range sortedKeys(cfg.Routers) {
		d.checkRouter(cfg, cfg.Routers[name])
	}
	for _, name := range sortedKeys(cfg.Services) {
		d.checkService(cfg.Services[name])
		d.checkConnectService(cfg, cfg.Services[name])
		d.checkActorService(cfg, cfg.Services[name])
	}
	d.acmeDomains(cfg)
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
		if e.Address != "" && !e.Tunnelled() {
			all = append(all, bound{"entrypoints " + strconv.Quote(name), e.AddressPos, e.Address, e.Protocol == UDP})
			if e.TLS.HTTP3() {
				all = append(all, bound{"h3 of entrypoints " + strconv.Quote(name), e.AddressPos, e.Address, true})
			}
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
	byPort := map[string][]bound{} // only equal ports can meet
	for _, b := range all {
		l := listenerOf(b.addr)
		for _, a := range byPort[l.port] {
			if a.udp == b.udp && listenerOf(a.addr).overlaps(l) {
				d.fail(CodeDuplicate, b.at, "%s and %s, at %s, cannot both listen on their address", b.what, a.what, a.at).Hint = "give each its own port"
				break
			}
		}
		byPort[l.port] = append(byPort[l.port], b)
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

// ranked is what checkPriorities needs to know of a router.
type ranked struct {
	name  string
	r     *Router
	paths []string // arguments of Path and PathPrefix; nil when the rule is no plain conjunction
}

// maxComparisons bounds checkPriorities: a warning is not worth a slow reload of ten thousand routers.
const maxComparisons = 1 << 20

// checkPriorities warns where a rule without a host outranks a rule with one by its length alone: the request for
// that host then goes to the wrong router, which nobody who writes rules expects.
func (d *decoder) checkPriorities(cfg *Config) {
	var hosts, paths []ranked
	for _, name := range sortedKeys(cfg.Routers) {
		r := cfg.Routers[name]
		switch {
		case r.Rule == nil || r.Priority > 0 || r.Protocol != HTTP:
		case r.Rule.HasHost():
			hosts = append(hosts, ranked{name, r, plainPaths(r.Rule)})
		case r.Rule.HasPath():
			paths = append(paths, ranked{name, r, plainPaths(r.Rule)})
		}
	}
	slices.SortStableFunc(paths, func(a, b ranked) int { return b.r.Rule.DefaultPriority() - a.r.Rule.DefaultPriority() })
	left := maxComparisons
	for _, host := range hosts {
		short := host.r.Rule.DefaultPriority()
		for _, path := range paths {
			long := path.r.Rule.DefaultPriority()
			if left--; long < short || left < 0 {
				break
			}
			if long == short && path.name > host.name || !shareEntrypoint(host.r, path.r) || disjoint(host.paths, path.paths) {
				continue
			}
			d.warn(WarnPriority, host.r.refs.rule.at, "the rule of routers %s, for a host, is outranked by the longer rule of routers %s, for a path, at %s",
				strconv.Quote(host.name), strconv.Quote(path.name), path.r.refs.rule.at).Hint =
				"longer rules come first: set priority on routers " + strconv.Quote(host.name) + " if that is not meant"
			break
		}
	}
}

// plainPaths returns the paths that a rule asks for when it is a conjunction without negation.
func plainPaths(rule *route.Rule) []string {
	if strings.ContainsAny(rule.Text(), "|!") {
		return nil
	}
	var out []string
	for _, m := range rule.Matchers() {
		if m.Name == "Path" || m.Name == "PathPrefix" {
			out = append(out, m.Args[0])
		}
	}
	return out
}

// disjoint reports whether no path fulfils both lists of prefixes. It errs on the side of false.
func disjoint(a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			if !strings.HasPrefix(x, y) && !strings.HasPrefix(y, x) {
				return true
			}
		}
	}
	return false
}

func shareEntrypoint(a, b *Router) bool {
	if a.Inside != b.Inside {
		return false
	}
	return len(a.Entrypoints) == 0 || len(b.Entrypoints) == 0 ||
		slices.ContainsFunc(a.Entrypoints, func(e string) bool { return slices.Contains(b.Entrypoints, e) })
}
