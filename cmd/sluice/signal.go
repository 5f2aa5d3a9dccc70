package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/app"
)

// signaled does what signals ask of a running gateway.
type signaled struct {
	app      *app.App
	log      *slog.Logger
	stopping bool // only loop's goroutine
	// handedOver says, once loop has returned, that another process serves in place of this one.
	handedOver bool

	// What takes time is asked of the worker, so that an order to stop is never late. Each has room for one: whoever
	// asks again before it has begun gets the same.
	reload, reopen, upgrade chan struct{}
}

func newSignaled(a *app.App, log *slog.Logger) *signaled {
	return &signaled{
		app: a, log: log,
		reload: make(chan struct{}, 1), reopen: make(chan struct{}, 1), upgrade: make(chan struct{}, 1),
	}
}

// loop handles signals, those that came early first, until the gateway has ended.
func (s *signaled) loop(early []os.Signal, signals <-chan os.Signal) {
	ctx, cancel := context.WithCancel(context.Background())
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		s.work(ctx)
	}()
	defer func() {
		cancel()
		<-worked
	}()
	for _, sig := range early {
		s.handle(sig)
	}
	for {
		select {
		case sig := <-signals:
			s.handle(sig)
		case <-s.app.Done():
			return
		}
	}
}

func (s *signaled) handle(sig os.Signal) {
	ask := func(what chan struct{}) {
		select {
		case what <- struct{}{}:
		default:
		}
	}
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM:
		if s.stopping {
			s.log.Warn("stopping at once", "signal", sig.String())
			s.app.Force()
			return
		}
		s.stopping = true
		s.log.Info("stopping; a second signal does not wait for connections", "signal", sig.String())
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.app.Shutdown(gone) // begins it; the loop waits for its end
	case syscall.SIGHUP:
		ask(s.reload)
	case syscall.SIGUSR1:
		ask(s.reopen)
	case syscall.SIGUSR2:
		ask(s.upgrade)
	}
}

// work does what handle asks for. The app logs the outcome of what it refuses itself.
func (s *signaled) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reload:
			if err := s.app.Reload(ctx); errors.Is(err, app.ErrStopping) {
				s.log.Warn("not reloaded", "error", err)
			}
		case <-s.reopen:
			if err := s.app.ReopenLogs(); err != nil {
				s.log.Error("opening the log files anew", "error", err)
			} else {
				s.log.Info("log files opened anew")
			}
		case <-s.upgrade:
			switch err := s.app.Upgrade(ctx); {
			case err == nil:
				s.handedOver = true
			case errors.Is(err, app.ErrUpgrading):
				s.log.Warn("not upgraded", "error", err)
			}
		}
	}
}
