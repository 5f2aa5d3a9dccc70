package config

import (
	"fmt"
	"sort"
	"strings"
)

// View is a text view of a configuration: the argument of `config`.
type View string

// The views. JSON is the seventh, see the function of that name.
const (
	ViewSummary     View = "summary"
	ViewEntrypoints View = "entrypoints"
	ViewRoutes      View = "routes"
	ViewServices    View = "services"
	ViewMiddlewares View = "middlewares"
	ViewProviders   View = "providers"
)

// Views lists the text views in the order of the documentation.
var Views = []View{ViewSummary, ViewEntrypoints, ViewRoutes, ViewServices, ViewMiddlewares, ViewProviders}

// String returns the name.
func (v View) String() string { return string(v) }

// Text prints a text view: lines sorted by name, fields separated by tabs, secrets masked. It is false for a view
// that does not exist.
func Text(cfg *Config, view View) (string, bool) {
	var b strings.Builder
	line := func(parts ...string) { b.WriteString(strings.Join(parts, "\t") + "\n") }
	switch view {
	case ViewSummary:
		return summary(cfg), true
	case ViewEntrypoints:
		for _, name := range sortedKeys(cfg.Entrypoints) {
			e := cfg.Entrypoints[name]
			line(name, cfg.show(e.Address), camel(string(e.Protocol)))
		}
	case ViewRoutes:
		for _, name := range sortedKeys(cfg.Routers) {
			r := cfg.Routers[name]
			line(name, "service="+cfg.show(r.Service), "rule="+cfg.showRule(r), "entrypoints="+cfg.show(strings.Join(r.Entrypoints, ",")))
		}
	case ViewServices:
		for _, name := range sortedKeys(cfg.Services) {
			s := cfg.Services[name]
			revision := 0
			for _, r := range s.Revisions {
				revision += len(r.Servers)
			}
			line(name, fmt.Sprintf("base_backends=%d", len(s.LoadBalancer.Servers)),
				fmt.Sprintf("revision_backends=%d", revision), "strategy="+camel(string(s.LoadBalancer.Strategy)))
		}
	case ViewMiddlewares:
		for _, name := range sortedKeys(cfg.Middlewares) {
			line(name)
		}
	case ViewProviders:
		for _, name := range orNone(providerNames(cfg)) {
			line(name)
		}
	default:
		return "", false
	}
	return b.String(), true
}

func summary(cfg *Config) string {
	node := "disabled"
	if cfg.Management.Enabled {
		node = cfg.show(cfg.Management.Address)
	}
	return fmt.Sprintf("Configuration summary\n"+
		"  Entrypoints: %d\n  Routers:     %d\n  Services:    %d\n  Middlewares: %d\n  Providers:   %s\n  Node API:    %s\n",
		len(cfg.Entrypoints), len(cfg.Routers), len(cfg.Services), len(cfg.Middlewares),
		strings.Join(orNone(providerNames(cfg)), ", "), node)
}

// ValidText is what `validate` prints for a valid configuration that was read from path.
func ValidText(cfg *Config, path string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "✓ Config parsed successfully (%s)\n✓ Configuration is valid\n\n", path)
	fmt.Fprintf(&b, "  Entrypoints: %d\n", len(cfg.Entrypoints))
	for _, name := range sortedKeys(cfg.Entrypoints) {
		e := cfg.Entrypoints[name]
		fmt.Fprintf(&b, "    - %s → %s (%s)\n", name, cfg.show(e.Address), camel(string(e.Protocol)))
	}
	fmt.Fprintf(&b, "  Routers:     %d\n", len(cfg.Routers))
	for _, name := range sortedKeys(cfg.Routers) {
		r := cfg.Routers[name]
		fmt.Fprintf(&b, "    - %s → service:%s rule:%s\n", name, cfg.show(r.Service), cfg.showRule(r))
	}
	fmt.Fprintf(&b, "  Services:    %d\n", len(cfg.Services))
	for _, name := range sortedKeys(cfg.Services) {
		lb := cfg.Services[name].LoadBalancer
		fmt.Fprintf(&b, "    - %s (%d backends, strategy: %s)\n", name, len(lb.Servers), camel(string(lb.Strategy)))
	}
	fmt.Fprintf(&b, "  Middlewares:  %d\n", len(cfg.Middlewares)) // one blank more than the others, as it has always been
	for _, name := range sortedKeys(cfg.Middlewares) {
		fmt.Fprintf(&b, "    - %s\n", name)
	}
	remark := map[string]string{"file": " (hot reload)", "discovery": " (health-based)"}
	for _, name := range providerNames(cfg) {
		fmt.Fprintf(&b, "  Provider:    %s%s\n", name, remark[name])
	}
	if m := cfg.Management; m.Enabled {
		fmt.Fprintf(&b, "  Node API:    %s%s\n", cfg.show(m.Address), cfg.show(m.PathPrefix))
	}
	return b.String()
}

func providerNames(cfg *Config) []string {
	var names []string
	add := func(name string, on bool) {
		if on {
			names = append(names, name)
		}
	}
	add("file", cfg.Providers.File != nil)
	add("discovery", cfg.Providers.Discovery != nil)
	add("kubernetes", cfg.Providers.Kubernetes != nil)
	add("docker", cfg.Providers.Docker != nil)
	return names
}

func orNone(names []string) []string {
	if len(names) == 0 {
		return []string{"none"}
	}
	return names
}

// camel turns the spelling of the language into the one of the text views: "least-connections" is LeastConnections.
func camel(s string) string {
	var b strings.Builder
	for _, w := range strings.Split(s, "-") {
		if w != "" {
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

// showRule is the rule as written, with the wanted value of a credential field masked.
func (c *Config) showRule(r *Router) string {
	text := r.RuleText
	if r.Rule != nil {
		matchers := r.Rule.Matchers()
		sort.Slice(matchers, func(i, j int) bool { return matchers[i].Pos > matchers[j].Pos })
		for _, m := range matchers {
			if len(m.Args) < 2 || !carriesCredential(m.Args[0]) || m.Pos+m.Len > len(text) {
				continue
			}
			text = text[:m.Pos] + m.Name + "(`" + m.Args[0] + "`, `" + Redacted + "`)" + text[m.Pos+m.Len:]
		}
	}
	return c.show(text)
}
