package admin

import (
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Views are what the process shows of itself. Funcs are called from any goroutine and return what is true at that
// moment; the caller does not change what it gets. A nil func has no route.
type Views struct {
	Product, Version string
	Health           func() Health
	// Unready returns why no new traffic should come; empty: ready.
	Unready func() []string
	// Config returns the effective configuration as a JSON document, secrets masked.
	Config   func() any
	Routes   func() []Route
	Services func() []Service
	// Cut ends what an actor, atespace/name, has open, and returns how many tunnels; false when that is no reference.
	Cut func(actor string) (closed int, ok bool)
}

// Health is the health document.
type Health struct {
	State             string `json:"state"` // Created, Starting, Running, Reloading, Stopping, Stopped
	Mode              string `json:"mode"`
	GatewayID         string `json:"gateway_id,omitempty"`
	UptimeSecs        int64  `json:"uptime_secs"`
	ActiveConnections int64  `json:"active_connections"`
	TotalRequests     uint64 `json:"total_requests"`
	UsageSpool        any    `json:"usage_spool,omitempty"`
	Generation        uint64 `json:"generation"`
	ConfigDigest      string `json:"config_digest"`
	Version           string `json:"version"` // filled in when empty
}

// Route is a router as the routes view shows it.
type Route struct {
	Name        string   `json:"name"`
	Rule        string   `json:"rule"`
	Service     string   `json:"service"`
	Entrypoints []string `json:"entrypoints"`
	Middlewares []string `json:"middlewares"`
	Priority    int      `json:"priority"`
}

// Service is a service as the services view takes it.
type Service struct {
	Name     string
	Strategy config.Strategy
	Backends []Backend // in their order
}

// Backend is the state of one backend.
type Backend struct {
	URL               string `json:"url"` // user information is left out
	Weight            int    `json:"weight"`
	Healthy           bool   `json:"healthy"`
	ActiveConnections int64  `json:"active_connections"`
}

type serviceView struct {
	Name            string    `json:"name"`
	Strategy        string    `json:"strategy"`
	BackendsTotal   int       `json:"backends_total"`
	BackendsHealthy int       `json:"backends_healthy"`
	Backends        []Backend `json:"backends"`
}

type backendView struct {
	Service string `json:"service"`
	Backend
}

type versionView struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	APIVersion string `json:"api_version"`
}

type readyView struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons,omitempty"`
}

type liveView struct {
	Live bool `json:"live"`
}

func (v *Views) health() Health {
	h := v.Health()
	if h.Version == "" {
		h.Version = v.Version
	}
	return h
}

// ready returns the readiness document and whether it is good.
func (v *Views) ready() readyView {
	if v.Unready == nil {
		return readyView{Ready: true}
	}
	reasons := v.Unready()
	return readyView{Ready: len(reasons) == 0, Reasons: reasons}
}

// routes returns all routes by name.
func (v *Views) routes() []Route {
	all := slices.Clone(v.Routes())
	for i := range all {
		all[i].Entrypoints = present(all[i].Entrypoints)
		all[i].Middlewares = present(all[i].Middlewares)
	}
	slices.SortFunc(all, func(a, b Route) int { return strings.Compare(a.Name, b.Name) })
	return present(all)
}

// services returns all services by name.
func (v *Views) services() []serviceView {
	var all []serviceView
	for _, s := range v.Services() {
		view := serviceView{Name: s.Name, Strategy: camelCase(string(s.Strategy)), Backends: present(slices.Clone(s.Backends))}
		view.BackendsTotal = len(s.Backends)
		for i := range view.Backends {
			view.Backends[i].URL = withoutUser(view.Backends[i].URL)
			if view.Backends[i].Healthy {
				view.BackendsHealthy++
			}
		}
		all = append(all, view)
	}
	slices.SortFunc(all, func(a, b serviceView) int { return strings.Compare(a.Name, b.Name) })
	return present(all)
}

// backends returns all backends by service, in their order there.
func (v *Views) backends() []backendView {
	var all []backendView
	for _, s := range v.services() {
		for _, b := range s.Backends {
			all = append(all, backendView{s.Name, b})
		}
	}
	return present(all)
}

// present makes an empty list print as one.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// camelCase writes round-robin as RoundRobin, the way existing readers of this view know it.
func camelCase(s string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(s, "-") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// withoutUser removes the user information of a URL.
func withoutUser(s string) string {
	if !strings.Contains(s, "@") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return config.Redacted
	}
	if u.User != nil {
		u.User = nil
		return u.String()
	}
	return s
}
