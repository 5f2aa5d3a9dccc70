// Package app wires a process: one function builds the parts in the order they depend on each other, one goroutine applies
// configurations. An App lives as long as the process, or as the embedding program wants it.
package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/middleware"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/snapshot"
	"github.com/sluice-proxy/sluice/internal/telemetry"
	"github.com/sluice-proxy/sluice/internal/tunnel"
	"github.com/sluice-proxy/sluice/internal/websocket"
)

// Options say how a process is to run. Only what cannot change without a restart is here.
type Options struct {
	// ConfigPath is the main configuration file; its providers block names more. Watched if that says so.
	ConfigPath string
	// Text is the configuration itself, instead of ConfigPath.
	Text string
	// Listen replaces the address of the entrypoint named web; "" leaves it. Kept over reloads.
	Listen string
	// Version is shown by management.
	Version string
	// Logger gets the process log; nil discards.
	Logger *slog.Logger
	// Stdout and Stderr are what outputs of these names stand for in a configuration; nil is the process's own.
	Stdout, Stderr *os.File
	// LogDelay is how long a line of the access log may wait for others to be written with; 0 is a second.
	LogDelay time.Duration
	// Network replaces the kernel's listening sockets and dials, for tests; nil is the kernel.
	Network Network
	// Process lets the app speak to a service manager: readiness, inherited sockets, upgrade. Off for embedders.
	Process bool
}

// App is a running gateway.
type App struct {
	opts  Options
	log   *slog.Logger
	began time.Time

	clock    *conn.Clock
	registry *service.Registry
	proxies  *tunnel.Pool[string] // by the proxy's URL
	limits   *middleware.Limits
	actors   *actor.Ways
	channels *websocket.Hub
	checker  *service.Checker
	metrics  *telemetry.Metrics
	access   *telemetry.AccessLog
	certs    *cert.Store
	store    snapshot.Store
	active   atomic.Pointer[change]
	shown    atomic.Pointer[snapshot.Generation] // what management tells to be in force: all of it is
	sockets  *entrypoint.Set
	admin    *admin.Server
	servers  servers
	egress   egresses
	group    drain.Group

	proposals chan proposal
	state     atomic.Pointer[stateName]
	stopping  chan struct{} // closed when shutdown begins
	forcing   chan struct{} // closed when it must not wait any more
	done      chan struct{} // closed when everything has ended
	once      [2]sync.Once
	err       error       // valid after done
	upgrading atomic.Bool // an upgrade is under way or done
	upgraded  atomic.Bool // a new process serves
	binary    string      // what an upgrade executes
	sessions  *os.File    // where the old process tells of its sessions; nil: there is none
}

// stateName is a state of the process, as health shows it.
type stateName string

// States.
const (
	stateStarting  stateName = "starting"
	stateRunning   stateName = "running"
	stateReloading stateName = "reloading"
	stateStopping  stateName = "stopping"
	stateStopped   stateName = "stopped"
)

func (a *App) setState(s stateName) { a.state.Store(&s) }

// moveState changes the state if it is the expected one.
func (a *App) moveState(from, to stateName) bool {
	s := a.state.Load()
	return *s == from && a.state.CompareAndSwap(s, &to)
}

// State is the state in one lower-case word.
func (a *App) State() string { return string(*a.state.Load()) }

// Start builds a gateway, binds its sockets and serves. ctx bounds the start only. On an error nothing is left behind;
// a configuration at fault is a *ConfigError.
func Start(ctx context.Context, o Options) (*App, error) {
	a := newApp(o)
	a.setState(stateStarting)
	inherited := a.inherit()
	a.sockets = entrypoint.NewSet(entrypoint.Setup{Logger: a.log, Inherited: inherited, Listen: a.listenFunc(), QUIC: a.servers.openQUIC})
	a.admin = admin.New(a.adminDeps(inherited))
	a.addParts()
	if err := a.group.Start(ctx); err != nil {
		return nil, errors.Join(err, inherited.Close())
	}
	if err := a.propose(ctx, starting); err != nil {
		// The proposal may yet have succeeded after ctx ended.
		return nil, errors.Join(err, a.endParts(), a.drainConnections(drain.Prompt, 0), a.release(), inherited.Close())
	}
	_ = inherited.Close() // what nobody wanted; it has been logged
	a.setState(stateRunning)
	a.binary, _ = os.Executable() // now: later the link of the process may name where the file was moved to
	go a.lifecycle()
	a.notifyReady()
	a.takeOver()
	return a, nil
}

// newApp makes the parts that exist once.
func newApp(o Options) *App {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	a := &App{
		opts: o, log: o.Logger, began: time.Now(), clock: conn.NewClock(),
		proposals: make(chan proposal), stopping: make(chan struct{}), forcing: make(chan struct{}), done: make(chan struct{}),
	}
	a.proxies = tunnel.NewPool[string](tunnel.Limits{IdleTimeout: proxyIdle}, a.clock)
	a.registry = service.NewRegistry(a.clock, a.dialFunc(), a.viaProxy)
	a.limits = middleware.NewLimits()
	a.actors = actor.NewWays(a.clock, a.openActors)
	a.channels = websocket.NewHub()
	a.checker = service.NewChecker(a.log)
	a.metrics = telemetry.NewMetrics()
	a.access = telemetry.NewAccessLog(o.Stdout, o.Stderr, a.log)
	a.access.Delay = o.LogDelay
	a.certs = cert.NewStore(a.log)
	a.servers.app = a
	a.servers.all, a.servers.keeping = make(map[string]*server), make(map[*snapshot.Generation]*time.Timer)
	return a
}

// addParts lists what runs beside the connections, in the order it starts; it stops the other way round.
func (a *App) addParts() {
	a.group.Add(drain.Part{Name: "clock", Run: a.clock.Run})
	a.group.Add(drain.Part{Name: "access log", Run: func(ctx context.Context) error { a.access.Run(ctx); return nil }})
	a.group.Add(drain.Part{Name: "certificates", Run: a.certs.Run})
	a.group.Add(drain.Part{Name: "proxies", Stop: func(context.Context) error { a.proxies.Close(); return nil }})
	a.group.Add(drain.Part{Name: "health checks", Stop: func(context.Context) error { a.checker.Close(); return nil }})
	a.group.Add(drain.Part{Name: "management", Stop: func(ctx context.Context) error { a.admin.Close(ctx); return nil }})
	a.group.Add(drain.Part{Name: "applier", Run: a.apply})
}

// Bound is the address of each entrypoint, and of management under its name; empty once everything has ended.
func (a *App) Bound() map[string]string {
	m := make(map[string]string)
	if a.State() == string(stateStopped) {
		return m
	}
	for _, s := range a.sockets.Stats() {
		if s.Address != "" {
			m[s.Name] = s.Address
		}
	}
	for name := range a.admin.Sockets() {
		m[name] = a.admin.Addr(name).String()
	}
	return m
}

// Reload applies the configuration as it is now. On an error the running one stays in force, untouched.
func (a *App) Reload(ctx context.Context) error { return a.propose(ctx, "reload") }

// ReloadText applies another text; it is what later reloads without a text of their own apply, too.
func (a *App) ReloadText(ctx context.Context, text string) error {
	return a.submit(ctx, proposal{reason: "reload", sources: inline(text)})
}

// ReopenLogs opens the files of the access log and of audit logs anew.
func (a *App) ReopenLogs() error { return errors.Join(a.access.Reopen(), a.egress.reopenAudits()) }

// Shutdown begins the drain and waits for its end, or for ctx; the drain goes on then.
func (a *App) Shutdown(ctx context.Context) error {
	a.once[0].Do(func() { close(a.stopping) })
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Force ends a drain under way without waiting for connections.
func (a *App) Force() {
	a.once[1].Do(func() { close(a.forcing) })
	a.once[0].Do(func() { close(a.stopping) })
}

// Done is closed when everything has ended.
func (a *App) Done() <-chan struct{} { return a.done }

// Err tells how it ended; valid after Done.
func (a *App) Err() error { return a.err }

// Config is the configuration in force.
func (a *App) Config() *config.Config {
	if g := a.store.Current(); g != nil {
		return g.Config
	}
	return nil
}
