package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
)

func (c *cli) runCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve the configuration (what sluice does without a command)",
		Long: `Serves the configuration until it is told to stop.

  SIGINT, SIGTERM  stop accepting, let requests finish, exit 0; a second one does not wait
  SIGHUP           load the configuration anew; one with an error changes nothing
  SIGUSR1          open log files anew
  SIGUSR2          hand over to the binary that is now installed, losing no connection`,
		Args: notConfig,
		RunE: func(*cobra.Command, []string) error {
			o := app.Options{ConfigPath: c.config.path, Listen: listen, Process: true}
			if listen != "" {
				var err error
				if o.Listen, err = listenAddress(listen); err != nil {
					return err
				}
			}
			return c.serve(o, nil)
		},
	}
	cmd.Flags().StringVarP(&listen, "listen", "l", "", "address of the entrypoint web instead of the configured one, such as 127.0.0.1:8080")
	return cmd
}

// listenAddress is the canonical form of an address given by a flag.
func listenAddress(s string) (string, error) {
	a, err := config.ParseAddress(s)
	if err != nil {
		return "", usagef("--listen %q: %w", s, err)
	}
	return a, nil
}

// caught are the signals that mean something. They are caught before anything can be asked for by one.
var caught = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// serve runs a gateway until it has ended. serving, unless nil, is called once it serves.
func (c *cli) serve(o app.Options, serving func(*app.App)) error {
	log, err := c.logger()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, caught...)
	defer signal.Stop(signals)
	signal.Ignore(syscall.SIGPIPE) // a reader of ours that leaves is an error of one write, not our end

	c.tuneMemory(log)
	o.Version, o.Logger, o.Stdout, o.Stderr = release(), log, c.out.File, c.err.File
	a, early, err := c.start(o, signals)
	if err != nil {
		return c.refused(err)
	}
	removePID, err := writePID(c.pidFile)
	if err != nil {
		a.Force()
		<-a.Done()
		return err
	}
	bound := a.Bound()
	if len(a.Config().Entrypoints) == 0 {
		log.Warn("nothing listens: the configuration has no entrypoint")
	}
	for _, name := range slices.Sorted(maps.Keys(bound)) {
		log.Info("listening", "entrypoint", name, "address", bound[name])
	}
	if serving != nil {
		serving(a)
	}
	s := newSignaled(a, log)
	s.loop(early, signals)
	if !s.handedOver { // else the note is the other's, also when it has not written it yet
		removePID()
	}
	return a.Err()
}

// start starts a gateway. An order to stop that comes meanwhile ends the attempt; other signals that came are returned.
func (c *cli) start(o app.Options, signals <-chan os.Signal) (*app.App, []os.Signal, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	type result struct {
		app *app.App
		err error
	}
	started := make(chan result, 1)
	go func() {
		a, err := app.Start(ctx, o)
		started <- result{a, err}
	}()
	var early []os.Signal
	for {
		select {
		case r := <-started:
			return r.app, early, r.err
		case sig := <-signals:
			if sig == syscall.SIGINT || sig == syscall.SIGTERM {
				cancel(fmt.Errorf("stopped by %v while starting", sig))
			}
			if len(early) < cap(signals) {
				early = append(early, sig)
			}
		}
	}
}

// refused prints a configuration that cannot be used.
func (c *cli) refused(err error) error {
	var at *app.ConfigError
	if errors.As(err, &at) {
		c.diagnose(at.Diagnostics, at.Sources)
		return errTold
	}
	return c.advised(err)
}
