// Package middleware is the small steps of policy, one file each: a limit, changed fields, a rewritten path. A
// step is a handler built around its next and lives as long as its generation; what must survive a reload (the
// buckets of rate limits, open connections) lives in Limits, as long as the process. The package knows neither routes nor services.
package middleware

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Deps is what a step is given by its generation.
type Deps struct {
	// Router is the name of the router that the step is built for: state is kept for each router apart.
	Router string
	// Limits holds the generation's references to what survives it.
	Limits *Scope
}

// step makes one handler.
type step struct {
	kind  string // config.Middleware.Type
	build func(cfg *config.Middleware, d Deps, next exchange.Handler) (exchange.Handler, error)
}

// builtin is every kind of step there is.
var builtin = []step{
	{"rate-limit", newRateLimit},
	{"headers", newHeaders},
	{"strip-prefix", newStripPrefix},
}

// Build makes the handler of a middleware around next. The error is about the definition, and means that validation
// let something through.
func Build(cfg *config.Middleware, d Deps, next exchange.Handler) (exchange.Handler, error) {
	for _, s := range builtin {
		if s.kind != cfg.Type {
			continue
		}
		h, err := s.build(cfg, d, next)
		if err != nil {
			return nil, fmt.Errorf("middleware %q: %w", cfg.Name, err)
		}
		return h, nil
	}
	return nil, fmt.Errorf("middleware %q: type %q is not available", cfg.Name, cfg.Type)
}

// BuildConn is Build for a router of connections: there is one kind of step.
func BuildConn(cfg *config.Middleware, d Deps, next exchange.ConnHandler) (exchange.ConnHandler, error) {
	if cfg.Type != "tcp-filter" {
		return nil, fmt.Errorf("middleware %q: type %q does not serve connections", cfg.Name, cfg.Type)
	}
	h, err := newTCPFilter(cfg, d, next)
	if err != nil {
		return nil, fmt.Errorf("middleware %q: %w", cfg.Name, err)
	}
	return h, nil
}

// errNoBlock is a middleware without the block that its type needs.
func errNoBlock(kind string) error { return fmt.Errorf("type %s has no settings", kind) }
