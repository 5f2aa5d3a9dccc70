package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/provider"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/snapshot"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// starting is the reason of the first proposal.
const starting = "start"

// ErrStopping refuses proposals once shutdown has begun.
var ErrStopping = errors.New("gateway is stopping")

// ConfigError is a configuration that cannot be used, with everything that is wrong with it.
type ConfigError struct {
	Diagnostics acl.Diagnostics
	// Sources are the texts by file name, for excerpts.
	Sources map[string][]byte
}

// Error is the first finding and the number of the others.
func (e *ConfigError) Error() string { return e.Diagnostics.Error() }

// proposal asks the applier for another configuration: the given texts, or those that are there now.
type proposal struct {
	reason  string
	sources provider.Sources // nil: read them
	err     error            // reading them failed
	reply   chan error       // nil: nobody waits
}

// propose asks for the configuration that is there now.
func (a *App) propose(ctx context.Context, reason string) error {
	return a.submit(ctx, proposal{reason: reason})
}

// submit hands a proposal to the applier and waits for the answer. The work goes on when ctx ends.
func (a *App) submit(ctx context.Context, p proposal) error {
	p.reply = make(chan error, 1)
	select {
	case a.proposals <- p:
	case <-a.stopping:
		return ErrStopping
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-p.reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// apply is the one goroutine that changes the configuration.
func (a *App) apply(ctx context.Context) error {
	var watch *watcher
	defer func() { watch.stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-a.proposals:
			err := a.replace(ctx, p)
			if err == nil {
				watch = a.rewatch(watch, a.Config())
			}
			if p.reply != nil {
				p.reply <- err
			}
		}
	}
}

// change is a configuration on its way into force. prepare has done everything that can fail, and nothing shows yet;
// commit puts it into force and can be undone by revert until finish retires what it replaces.
type change struct {
	gen     *snapshot.Generation
	certs   map[string]*cert.Source // by entrypoint
	updates []func()                // settings of the protocol servers
	plan    *entrypoint.Plan
	admin   *admin.Pending
	log     *telemetry.LogChange
	egress  map[string]*egressGateway // by entrypoint
}

// replace loads the configuration and puts it into force, or leaves everything as it was.
func (a *App) replace(ctx context.Context, p proposal) error {
	start, reason := p.reason == starting, p.reason
	if !start {
		if !a.moveState(stateRunning, stateReloading) {
			return ErrStopping
		}
		defer a.moveState(stateReloading, stateRunning) // unless shutdown has begun meanwhile
	}
	began := time.Now()
	sources, err := a.proposed(p)
	var cfg *config.Config
	if err == nil {
		cfg, err = a.load(sources)
	}
	var c *change
	if err == nil {
		c, err = a.prepare(ctx, cfg)
	}
	if err != nil {
		a.metrics.Reloaded(false)
		if !start {
			a.log.Error("configuration refused; the running one stays in force", "reason", reason, "error", err)
		}
		return err
	}
	old := a.commit(c)
	a.finish(c, old)
	a.shown.Store(c.gen)
	if a.opts.ConfigPath == "" {
		a.opts.Text = string(sources[0].Text)
	}
	a.metrics.Reloaded(true)
	a.log.Info("configuration in force", "reason", reason, "generation", c.gen.ID, "digest", cfg.Digest, "took", time.Since(began).Round(time.Microsecond))
	return nil
}

// load decodes and checks the configuration.
func (a *App) load(sources provider.Sources) (*config.Config, error) {
	cfg, ds := config.LoadHere(sources)
	if ds.HasErrors() {
		return nil, &ConfigError{Diagnostics: ds, Sources: sources.Texts()}
	}
	for _, d := range ds {
		a.log.Warn("configuration", "code", d.Code, "file", d.Span.File, "line", d.Span.Start.Line, "message", d.Message)
	}
	if a.opts.Listen != "" {
		ep := cfg.Entrypoints["web"]
		if ep == nil {
			return nil, fmt.Errorf("there is no entrypoint web to listen at %s", a.opts.Listen)
		}
		ep.Address = a.opts.Listen
	}
	return cfg, nil
}

// prepare does everything that can fail, so that commit cannot. On an error it has undone all of it.
func (a *App) prepare(ctx context.Context, cfg *config.Config) (*change, error) {
	c := &change{}
	err := a.prepareAll(ctx, cfg, c)
	if err != nil {
		c.abort()
		if cur := a.active.Load(); cur != nil {
			a.metrics.Retain(cur.gen.Topology()) // without what compiling has added
		}
		return nil, err
	}
	return c, nil
}

func (a *App) prepareAll(ctx context.Context, cfg *config.Config, c *change) error {
	var err error
	if c.egress, err = a.openEgress(cfg); err != nil {
		return err
	}
	c.gen, err = snapshot.Compile(cfg, snapshot.Deps{
		Services: a.registry, Limits: a.limits, Channels: a.channels, Metrics: a.metrics, Access: a.access, Log: a.log,
		Actors: a.actors, Dial: a.dialFunc(), Reenter: a.sockets.Serve, Egress: handlersOf(c.egress),
	})
	if err != nil {
		return err
	}
	if err = a.loadCertificates(cfg, c); err != nil {
		return err
	}
	if c.log, err = a.access.Prepare(cfg.Observability); err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	if c.admin, err = a.admin.Prepare(cfg.Management); err != nil {
		return err
	}
	wanted := make(map[string]*entrypoint.Options, len(cfg.Entrypoints))
	for name, ep := range cfg.Entrypoints {
		o, update := a.servers.options(ep)
		if src := c.certs[name]; src != nil {
			o.TLS = src.Config
		}
		wanted[name] = o
		c.updates = append(c.updates, func() { update(c.plan.Addr(name)) })
	}
	c.plan, err = a.sockets.Prepare(ctx, wanted)
	return err
}

// loadCertificates reads what the entrypoints serve.
func (a *App) loadCertificates(cfg *config.Config, c *change) error {
	c.certs = make(map[string]*cert.Source)
	var errs []error
	for name, ep := range cfg.Entrypoints {
		if ep.TLS == nil {
			continue
		}
		src, err := a.certs.Load(certOptions(ep.TLS))
		if err != nil {
			errs = append(errs, fmt.Errorf("entrypoint %s: %w", name, err))
			continue
		}
		c.certs[name] = src
	}
	return errors.Join(errs...)
}

// certOptions translates a tls block.
func certOptions(t *config.TLS) cert.Options {
	o := cert.Options{StrictSNI: t.StrictSNI, MinVersion: t.MinVersion, Protocols: overTCP(t.ALPN), ClientCAFile: t.ClientCAFile, ACME: t.ACME}
	for _, p := range t.Pairs() {
		o.Files = append(o.Files, cert.Files{CertFile: p.CertFile, KeyFile: p.KeyFile})
	}
	switch t.ClientAuth {
	case config.ClientAuthRequest:
		o.ClientAuth = cert.RequestClientCert
	case config.ClientAuthRequire:
		o.ClientAuth = cert.RequireClientCert
	}
	return o
}

// overTCP is what is offered to clients of TLS over TCP: h3 has only QUIC.
func overTCP(alpn []string) []string {
	return slices.DeleteFunc(slices.Clone(alpn), func(p string) bool { return p == config.HTTP3 })
}

// abort undoes what prepare has done so far.
func (c *change) abort() {
	if c.plan != nil {
		c.plan.Abort()
	}
	if c.admin != nil {
		c.admin.Abort()
	}
	if c.log != nil {
		c.log.Abort()
	}
	c.close()
}

// close gives back what a configuration that is not in force any more holds, beside its generation.
func (c *change) close() {
	for _, src := range c.certs {
		_ = src.Close()
	}
	for _, g := range c.egress {
		g.release()
	}
	if c.plan == nil && c.gen != nil { // never in force
		c.gen.Close()
	}
}

// commit puts a prepared change into force and returns the one it replaces, nil at the start. It cannot fail. What
// only the old one needs is still there.
func (a *App) commit(c *change) *change {
	old := a.active.Load()
	if old != nil {
		a.servers.keep(old.gen, c.gen)
	}
	a.active.Store(c)
	a.store.Swap(c.gen)
	a.enforce(c)
	a.observe(c, old)
	c.plan.Commit()
	return old
}

// enforce puts the settings of the protocol servers into force.
func (a *App) enforce(c *change) {
	for _, update := range c.updates {
		update()
	}
}

// observe measures and checks what c names, and what beside does, which may be nil.
func (a *App) observe(c, beside *change) {
	topology, checks := c.gen.Topology(), checksOf(c.gen)
	if beside != nil {
		topology = joined(topology, beside.gen.Topology())
		checks = append(checksOf(beside.gen), checks...) // of two for one backend the last one holds
	}
	a.metrics.Retain(topology)
	a.checker.Apply(checks)
}

func checksOf(g *snapshot.Generation) []service.Check {
	var checks []service.Check
	for _, b := range g.Balancers() {
		checks = append(checks, b.Checks()...)
	}
	return checks
}

// joined is what either of two topologies names.
func joined(t, other telemetry.Topology) telemetry.Topology {
	t.Entrypoints = append(t.Entrypoints, other.Entrypoints...)
	t.TCP, t.UDP = append(t.TCP, other.TCP...), append(t.UDP, other.UDP...)
	t.Routers = append(t.Routers, other.Routers...)
	t.Middlewares = append(t.Middlewares, other.Middlewares...)
	at := make(map[string]int, len(t.Services))
	for i, s := range t.Services {
		at[s.Name] = i
	}
	for _, s := range other.Services {
		if i, both := at[s.Name]; both {
			t.Services[i].Backends = append(t.Services[i].Backends, s.Backends...)
		} else {
			t.Services = append(t.Services, s)
		}
	}
	return t
}

// revert undoes commit: old is in force again.
//
//lint:ignore U1000 a managed proposal that cannot be recorded durably takes this way; files finish at once
func (a *App) revert(c, old *change) {
	bound := c.gen.Config.ShutdownTimeout
	a.servers.keep(c.gen, old.gen)
	a.active.Store(old)
	a.store.Swap(old.gen)
	a.servers.let(old.gen)
	a.enforce(old)
	a.observe(old, nil)
	c.plan.Revert(bound)
	a.servers.letAfter(c.gen, bound)
	a.store.Retire(c.gen)
	c.admin.Abort()
	c.log.Abort()
	c.close()
}

// finish retires what the change has replaced, and changes what cannot be changed back.
func (a *App) finish(c, old *change) {
	bound := c.gen.Config.ShutdownTimeout
	c.log.Commit()
	c.admin.Commit()
	a.observe(c, nil)
	c.plan.Finish(bound)
	for _, src := range c.certs {
		src.Start()
	}
	if old != nil {
		a.servers.letAfter(old.gen, bound)
		a.store.Retire(old.gen)
		old.close()
	}
	a.servers.prune(c.gen.Config)
}
