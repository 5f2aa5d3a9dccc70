// Package gateway embeds the data plane in a Go program: the same engine, configuration language and lifecycle as the
// sluice binary, without its process (signals, service manager, binary upgrade). A Gateway is started once and shut down
// once.
package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
)

// Options say what a gateway runs with. Exactly one of ConfigFile and Config must be set.
type Options struct {
	// ConfigFile is the path of the main configuration file. It is read at Start and at each Reload, and watched if
	// its providers block says so.
	ConfigFile string
	// Config is the text of the configuration.
	Config string
	// Logger gets the process log; nil discards it.
	Logger *slog.Logger
	// Version is what management shows as the version; "" is "embedded".
	Version string
}

// Errors of calls that do not fit the state.
var (
	ErrStarted    = errors.New("gateway was started before")
	ErrNotStarted = errors.New("gateway has not been started")
)

// Gateway is one data plane. Its methods are safe for concurrent use.
type Gateway struct {
	opts Options

	mu      sync.Mutex // guards the two below
	started bool
	app     *app.App
}

// New checks the configuration and returns a gateway that does nothing until Start. The error names everything that is
// wrong with the configuration, each with its place.
func New(o Options) (*Gateway, error) {
	if (o.ConfigFile == "") == (o.Config == "") {
		return nil, errors.New("set either ConfigFile or Config")
	}
	if o.Config != "" {
		if _, ds := config.Load([]config.Source{{File: "configuration", Text: []byte(o.Config)}}); ds.HasErrors() {
			return nil, ds
		}
	}
	if o.Version == "" {
		o.Version = "embedded"
	}
	return &Gateway{opts: o}, nil
}

// Start binds the sockets and serves. ctx bounds the start only.
func (g *Gateway) Start(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started {
		return ErrStarted
	}
	g.started = true
	a, err := app.Start(ctx, app.Options{
		ConfigPath: g.opts.ConfigFile, Text: g.opts.Config, Logger: g.opts.Logger, Version: g.opts.Version,
	})
	if err != nil {
		g.started = false
		return err
	}
	g.app = a
	return nil
}

func (g *Gateway) running() (*app.App, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.app == nil {
		return nil, ErrNotStarted
	}
	return g.app, nil
}

// Reload puts the configuration file as it is now into force, without losing a request. On an error the running
// configuration stays, untouched.
func (g *Gateway) Reload(ctx context.Context) error {
	a, err := g.running()
	if err != nil {
		return err
	}
	return a.Reload(ctx)
}

// ReloadText puts another configuration text into force, in the same way. For gateways made with Config.
func (g *Gateway) ReloadText(ctx context.Context, text string) error {
	a, err := g.running()
	if err != nil {
		return err
	}
	return a.ReloadText(ctx, text)
}

// Addr is the address that the named entrypoint is bound to; "" if there is none.
func (g *Gateway) Addr(entrypoint string) string {
	a, err := g.running()
	if err != nil {
		return ""
	}
	return a.Bound()[entrypoint]
}

// Shutdown drains as the configuration's shutdown_timeout_secs says and waits for the end, or for ctx: the gateway is
// then told not to wait for connections any more.
func (g *Gateway) Shutdown(ctx context.Context) error {
	a, err := g.running()
	if err != nil {
		return err
	}
	if err := a.Shutdown(ctx); err == nil || ctx.Err() == nil {
		return err
	}
	a.Force()
	<-a.Done()
	return a.Err()
}

// Wait returns when the gateway has ended, with the error that ended it.
func (g *Gateway) Wait() error {
	a, err := g.running()
	if err != nil {
		return err
	}
	<-a.Done()
	return a.Err()
}
