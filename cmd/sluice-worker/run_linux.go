package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// settings are the flags of run.
type settings struct {
	run          string
	orders       string
	slots        int
	suspendDrain time.Duration
	logLevel     string
}

func parse(args []string, errs io.Writer) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("sluice-worker run", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&s.run, "run", "", "`identifier` of the run that everything is named for: 1 to 12 lower-case letters and digits; workers of one machine that hand actors to each other have the same")
	f.StringVar(&s.orders, "orders", "", "`path` of the Unix socket on which orders are taken, for this user alone")
	f.IntVar(&s.slots, "slots", 2, "actors at a time")
	f.DurationVar(&s.suspendDrain, "suspend-drain", 5*time.Second, "how long open tunnels may go on while their actor is suspended")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return s, s.check(f.Args())
}

func (s *settings) check(rest []string) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...))
	}
	if len(rest) > 0 {
		wrong("run takes flags only, not %q", rest[0])
	}
	if _, err := fabric.NewRun(s.run); err != nil {
		wrong("--run: %w", err)
	}
	if s.orders == "" {
		wrong("--orders: a path is needed")
	}
	if s.slots < 1 || s.slots > 1000 {
		wrong("--slots: %d is not between 1 and 1000", s.slots)
	}
	if s.suspendDrain <= 0 {
		wrong("--suspend-drain: %s is not positive", s.suspendDrain)
	}
	return errors.Join(errs...)
}

// closing bounds how long actors may take to be terminated at the end.
const closing = 30 * time.Second

func runCommand(ctx context.Context, args []string, errs io.Writer) error {
	s, err := parse(args, errs)
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return fmt.Errorf("%w: --log-level: %w", errUsage, err)
	}
	if err := needRoot(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: level}))
	group, err := s.parts(log)
	if err != nil {
		return err
	}
	if err := group.Start(ctx); err != nil {
		return err
	}
	log.Info("taking orders", "run", s.run, "socket", s.orders, "slots", s.slots)
	select {
	case <-ctx.Done():
		log.Info("terminating all actors")
	case err = <-group.Failed():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	return errors.Join(err, group.Stop(end))
}

// parts of the process, in the order in which they start.
func (s *settings) parts(log *slog.Logger) (*drain.Group, error) {
	run, err := fabric.NewRun(s.run)
	if err != nil {
		return nil, err
	}
	clock := conn.NewClock()
	orders := worker.NewOrders()
	w := worker.New(worker.Options{
		Run: run, Slots: s.slots, Clock: clock, Log: log, SuspendDrain: s.suspendDrain, Egress: noGateway, Exited: orders.Exited,
	})
	var l net.Listener
	var g drain.Group
	g.Add(drain.Part{Name: "clock", Run: clock.Run})
	g.Add(drain.Part{Name: "worker", Stop: w.Close})
	g.Add(drain.Part{
		Name:  "orders",
		Start: func(context.Context) (err error) { l, err = worker.Listen(s.orders); return err },
		Run:   func(ctx context.Context) error { return orders.Serve(ctx, l, w) },
	})
	return &g, nil
}

// noGateway is the way out where none is set: everything that an actor dials is captured and reset.
func noGateway(context.Context, worker.Actor) (worker.Egress, func() error, error) {
	return nil, nil, errors.New("no egress gateway is set")
}
