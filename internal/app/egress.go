package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/service"
)

// policyAge is how old the policy of an actor may be that decides.
const policyAge = time.Second

// egresses are the gateways of actors of a process, by entrypoint. They outlive configurations that do not change them.
type egresses struct {
	live sync.Map // *egressGateway to nothing: those that may have tunnels, in force or not

	mu  sync.Mutex // guards the rest, and refs of each
	all map[string]*egressGateway
}

// egressGateway is one gateway, with the configurations that refer to it.
type egressGateway struct {
	*egress.Gateway
	of       *egresses
	name     string
	settings config.Egress
	served   config.Entrypoint // what requests inside are served with
	refs     int
	log      *auditFile
	watching background
}

// background is what runs beside a gateway.
type background struct {
	stop context.CancelFunc
	run  sync.WaitGroup
}

// Close ends it.
func (b *background) Close() error {
	if b.stop != nil {
		b.stop()
	}
	b.run.Wait()
	return nil
}

// watch looks after connections that are open, when policies change.
func (g *egressGateway) watch(policies *control.Source[egress.Kept]) {
	ctx, stop := context.WithCancel(context.Background())
	g.watching.stop = stop
	g.watching.run.Go(func() { policies.Run(ctx) })
	g.watching.run.Go(func() { g.Watch(ctx) })
}

// release gives up a reference. The gateway is retired with the last one.
func (g *egressGateway) release() {
	g.of.mu.Lock()
	g.refs--
	last := g.refs == 0
	if last && g.of.all[g.name] == g {
		delete(g.of.all, g.name)
	}
	g.of.mu.Unlock()
	if last {
		g.Retire()
	}
}

// current are the gateways in force, by name.
func (e *egresses) current() map[string]*egressGateway {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.all)
}

// decisions and tunnels are the figures of all gateways.
func (e *egresses) decisions(report func(entrypoint, leg, reason string, n uint64)) {
	for name, g := range e.current() {
		g.Decisions(func(leg egress.Leg, r egress.Reason, n uint64) { report(name, string(leg), string(r), n) })
	}
}

func (e *egresses) tunnels(report func(entrypoint string, actors, tunnels int, lost uint64)) {
	for name, g := range e.current() {
		actors, tunnels := g.Actors()
		report(name, actors, tunnels, g.AuditLost())
	}
}

// cut ends what an actor has open at all gateways, also at those whose settings are not in force any more.
func (a *App) cut(name string) (closed int, ok bool) {
	ref, err := actor.ParseRef(name)
	if err != nil {
		return 0, false
	}
	a.egress.live.Range(func(g, _ any) bool {
		closed += g.(*egressGateway).Cut(ref)
		return true
	})
	a.log.Warn("egress: an actor was cut", "actor", ref, "tunnels", closed)
	return closed, true
}

// handlersOf are gateways as what serves.
func handlersOf(m map[string]*egressGateway) map[string]exchange.Handler {
	out := make(map[string]exchange.Handler, len(m))
	for name, g := range m {
		out[name] = g
	}
	return out
}

// openEgress returns the gateways that a configuration wants, each with a reference: those that there are, and new ones.
func (a *App) openEgress(cfg *config.Config) (map[string]*egressGateway, error) {
	out := map[string]*egressGateway{}
	for name, ep := range cfg.Entrypoints {
		if ep.Egress == nil {
			continue
		}
		g, err := a.egress.get(a, name, ep)
		if err != nil {
			for _, g := range out {
				g.release()
			}
			return nil, fmt.Errorf("entrypoint %s: egress: %w", name, err)
		}
		out[name] = g
	}
	return out, nil
}

// get returns the gateway of an entrypoint, if its settings are those, or makes one.
func (e *egresses) get(a *App, name string, ep *config.Entrypoint) (*egressGateway, error) {
	settings, served := settingsOf(ep)
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.all[name]; g != nil && reflect.DeepEqual(g.settings, settings) && reflect.DeepEqual(g.served, served) {
		g.refs++
		return g, nil
	}
	g := &egressGateway{of: e, name: name, settings: settings, served: served, refs: 1}
	o, policies, err := a.egressOptions(g)
	if err != nil {
		return nil, err
	}
	end := o.Close
	o.Close = func() { end(); e.live.Delete(g) }
	if g.Gateway, err = egress.New(o); err != nil {
		o.Close()
		return nil, err
	}
	g.watch(policies)
	e.live.Store(g, nil)
	if e.all == nil {
		e.all = map[string]*egressGateway{}
	}
	e.all[name] = g
	return g, nil
}

// settingsOf is what of an entrypoint a gateway depends on, without places in files.
func settingsOf(ep *config.Entrypoint) (config.Egress, config.Entrypoint) {
	return ep.Egress.Placeless(), config.Entrypoint{
		MaxHeaderBytes: ep.MaxHeaderBytes, MaxHeaders: ep.MaxHeaders, HeaderTimeout: ep.HeaderTimeout, BodyIdleTimeout: ep.BodyIdleTimeout,
		WriteIdleTimeout: ep.WriteIdleTimeout, KeepAliveTimeout: ep.KeepAliveTimeout,
	}
}

// egressOptions connects a gateway to the rest. Close of the options ends what was begun.
func (a *App) egressOptions(g *egressGateway) (o egress.Options, policies *control.Source[egress.Kept], err error) {
	s := g.settings
	var closers []io.Closer
	end := func() {
		for _, c := range closers {
			_ = c.Close()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	roots, err := mutual.OpenTrust(s.IdentityCAFile)
	if err != nil {
		return o, nil, err
	}
	client, err := openControl(s.Control)
	if err != nil {
		return o, nil, err
	}
	policies = client.Policies(policyAge)
	closers = append(closers, client)
	audit, out, err := a.openAudit(s.AuditLog)
	if err != nil {
		return o, nil, err
	}
	g.log = out
	closers = append([]io.Closer{&g.watching, out}, closers...)
	o = egress.Options{
		Entrypoint: g.name, Settings: s, Roots: func() *x509.CertPool { return roots.Roots() }, Actor: client.GetActor, Policies: policies,
		Resolver: egress.System{}, Network: a.dialFunc(), Clock: a.clock, Audit: audit, Log: a.log, Close: end, Serve: a.serveInside(g),
		Route:   a.servers.get(g.name).front.Inside,
		Forward: func(b *service.Balancer) exchange.Handler { return proxy.New(b) },
	}
	if s.HostsFile != "" {
		if o.Resolver, err = egress.OpenHosts(s.HostsFile); err != nil {
			return o, nil, err
		}
	}
	if s.MinterSocket != "" {
		m := cert.NewSocketMinter(s.MinterSocket)
		o.Minter = m
		closers = append(closers, m)
	}
	return o, policies, nil
}

// serveInside serves what tunnels carry as HTTP, with the limits of the entrypoint and a handler of each tunnel's own.
func (a *App) serveInside(g *egressGateway) func(c conn.Conn, h exchange.Handler, two bool) error {
	ep := g.served
	return func(c conn.Conn, h exchange.Handler, two bool) error {
		h2 := http2.NewServer(&http2.Settings{
			Handler: h, HeaderTimeout: ep.HeaderTimeout, BodyIdleTimeout: ep.BodyIdleTimeout, WriteIdleTimeout: ep.WriteIdleTimeout,
			KeepAliveTimeout: ep.KeepAliveTimeout, MaxHeaderBytes: ep.MaxHeaderBytes, MaxHeaders: ep.MaxHeaders,
		}, a.clock)
		if two {
			return a.sockets.Within(g.name, c, h2.ServeConn)
		}
		h1 := http1.NewServer(&http1.Settings{
			Limits: http1.Limits{MaxHeaderBytes: ep.MaxHeaderBytes, MaxHeaders: ep.MaxHeaders}, Handler: h, HeaderTimeout: ep.HeaderTimeout,
			BodyIdleTimeout: ep.BodyIdleTimeout, WriteIdleTimeout: ep.WriteIdleTimeout, KeepAliveTimeout: ep.KeepAliveTimeout,
		}, a.clock, h2.ServeConnWith)
		return a.sockets.Within(g.name, c, h1.ServeConn)
	}
}
