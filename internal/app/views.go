package app

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// adminDeps is what management shows, and how it gets its sockets.
func (a *App) adminDeps(inherited *entrypoint.Inherited) admin.Deps {
	a.metrics.SetSources(a.measured())
	return admin.Deps{
		Views: admin.Views{
			Product: "sluice", Version: a.opts.Version,
			Health: a.health, Unready: a.unready, Config: a.configView, Routes: a.routes, Services: a.services, Cut: a.cut,
		},
		Metrics: a.metrics.Handler(a.log),
		Log:     a.log,
		Listen: func(name, address string) (net.Listener, error) {
			if l, err := inherited.Listener(name, address); l != nil || err != nil {
				return l, err
			}
			if a.opts.Network != nil {
				return a.opts.Network.Listen(context.Background(), "tcp", address)
			}
			return net.Listen("tcp", address)
		},
	}
}

// stateTitles are the states as the health document spells them.
var stateTitles = map[stateName]string{
	stateStarting: "Starting", stateRunning: "Running", stateReloading: "Reloading", stateStopping: "Stopping", stateStopped: "Stopped",
}

func (a *App) health() admin.Health {
	h := admin.Health{
		State: stateTitles[*a.state.Load()], Mode: string(config.Standalone), UptimeSecs: int64(time.Since(a.began) / time.Second),
		TotalRequests: a.metrics.Requests(), Version: a.opts.Version,
	}
	for _, s := range a.sockets.Stats() {
		h.ActiveConnections += s.Open
	}
	if g := a.shown.Load(); g != nil {
		h.Generation, h.ConfigDigest, h.Mode = g.ID, g.Config.Digest, string(g.Config.Mode)
	}
	return h
}

// unready tells why load balancers should look elsewhere.
func (a *App) unready() []string {
	switch *a.state.Load() {
	case stateRunning, stateReloading:
		return nil
	default:
		return []string{"state is " + a.State()}
	}
}

func (a *App) configView() any {
	cfg := a.Config()
	if cfg == nil {
		return nil
	}
	b, err := config.JSON(cfg)
	if err != nil {
		a.log.Error("showing the configuration", "error", err)
		return nil
	}
	return json.RawMessage(b)
}

func (a *App) routes() []admin.Route {
	cfg := a.Config()
	if cfg == nil {
		return nil
	}
	var all []admin.Route
	for _, name := range slices.Sorted(maps.Keys(cfg.Routers)) {
		r := cfg.Routers[name]
		all = append(all, admin.Route{
			Name: name, Rule: r.RuleText, Service: r.Service, Entrypoints: r.Entrypoints, Middlewares: r.Middlewares, Priority: r.Priority,
		})
	}
	return all
}

func (a *App) services() []admin.Service {
	g := a.store.Current()
	if g == nil {
		return nil
	}
	var all []admin.Service
	for _, b := range g.Balancers() {
		s := admin.Service{Name: b.Name(), Strategy: g.Config.Services[b.Name()].LoadBalancer.Strategy}
		for _, e := range b.AppendStats(nil) {
			s.Backends = append(s.Backends, admin.Backend{URL: e.URL, Weight: e.Weight, Healthy: e.Healthy, ActiveConnections: e.Active})
		}
		all = append(all, s)
	}
	return all
}

// backendStats are the figures of every backend in force, none before the first generation.
func (a *App) backendStats() (all []service.BackendStats) {
	g := a.store.Current()
	if g == nil {
		return nil
	}
	for _, b := range g.Balancers() {
		all = b.AppendStats(all)
	}
	return all
}

// measured are the numbers that other parts keep.
func (a *App) measured() telemetry.Sources {
	return telemetry.Sources{
		Connections: func(report func(string, int64)) {
			for _, s := range a.sockets.Stats() {
				report(s.Name, s.Open)
			}
		},
		Datagrams: func(report func(string, telemetry.DatagramCounts)) {
			for _, s := range a.sockets.Stats() {
				if d := s.Datagrams; d != nil {
					report(s.Name, telemetry.DatagramCounts{In: d.In, Out: d.Out, Dropped: d.Dropped})
				}
			}
		},
		Backends: func(report func(string, bool, int64)) {
			for _, e := range a.backendStats() {
				report(e.ID, e.Healthy, e.Active)
			}
		},
		Upstream: func(report func(string, int64, int64)) {
			for _, e := range a.backendStats() {
				report(e.Service, int64(e.Idle), int64(e.Open-e.Idle))
			}
		},
		Certificates: func(report func(string, time.Time)) {
			if c := a.active.Load(); c != nil {
				for name, src := range c.certs {
					if end := src.Expires(); !end.IsZero() {
						report(name, end)
					}
				}
			}
		},
		CertificateChanges: func() (reloaded, broken, issued, refused uint64) {
			s := a.certs.Stats()
			return s.Reloaded, s.Broken, s.Issued, s.Refused
		},
		Channels: func() (channels, subscriptions int, delivered, skipped uint64) {
			s := a.channels.Stats()
			return s.Channels, s.Subscriptions, s.Delivered, s.Skipped
		},
		Decisions: a.egress.decisions, Egress: a.egress.tunnels,
		Actors:           a.actorMeasures,
		Generations:      a.store.Alive,
		AccessLogDropped: a.access.Dropped,
	}
}
