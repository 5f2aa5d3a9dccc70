package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// settings are the flags of run. Those that begin with atunnel are spelled as those of other workers of the same contract.
type settings struct {
	run          string
	orders       string
	slots        int
	suspendDrain time.Duration
	dials        int // of one actor, a second
	logLevel     string

	listen     string // for tunnels of routers; "" takes none
	credential string
	trust      string
	client     string // who may open tunnels

	gateway      string // host:port; "" there is none
	gatewayTrust string
	broker       string
}

func parse(args []string, errs io.Writer) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("sluice-worker run", flag.ContinueOnError)
	f.SetOutput(errs)
	s.define(f)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return s, s.check(f.Args())
}

func (s *settings) define(f *flag.FlagSet) {
	f.StringVar(&s.run, "run", "", "`identifier` that everything is named for, 1 to 12 lower-case letters and digits; workers of one machine that hand actors to each other have the same")
	f.StringVar(&s.orders, "orders", "", "`path` of the Unix socket on which orders are taken, for this user alone")
	f.IntVar(&s.slots, "slots", 2, "`number` of actors at a time")
	f.DurationVar(&s.suspendDrain, "suspend-drain", 5*time.Second, "how long open tunnels may go on when their actor's stay ends")
	f.IntVar(&s.dials, "dials-per-second", worker.DefaultBounds.Rate, "`number` of connections that an actor may open a second, and twice as many at once; further ones wait")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.listen, "atunnel-connect-listen-address", ":8443", "`address` where routers open tunnels to actors; empty takes none")
	f.StringVar(&s.credential, "atunnel-credential-bundle", "/run/podidentity.podcert.ate.dev/credential-bundle.pem", "`file` of this worker's key and certificate")
	f.StringVar(&s.trust, "atunnel-trust-bundle", "/run/podidentity.podcert.ate.dev/trust-bundle.pem", "`file` of who signs routers' certificates")
	f.StringVar(&s.client, "atunnel-client-identity", "spiffe://cluster.local/ns/ate-system/sa/atenet-router", "the `URI` of the only router that may open tunnels")
	f.StringVar(&s.gateway, "egress-gateway", "", "`host:port` of the egress gateway; without one everything that actors dial is reset")
	f.StringVar(&s.gatewayTrust, "atunnel-egress-trust-bundle", "/run/servicedns.podcert.ate.dev/trust-bundle.pem", "`file` of who signs the gateway's certificate")
	f.StringVar(&s.broker, "broker", "", "`path` of the Unix socket of this machine's agent, which certifies actors' keys")
}

func (s *settings) check(rest []string) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...))
	}
	if len(rest) > 0 {
		wrong("run takes flags only, not %q", rest[0])
	}
	if s.run == "" {
		wrong("--run: an identifier is needed, 1 to 12 lower-case letters and digits")
	} else if _, err := fabric.NewRun(s.run); err != nil {
		wrong("--run: %w", err)
	}
	if s.orders == "" {
		wrong("--orders: a path is needed")
	}
	if s.slots < 1 || s.slots > 1000 {
		wrong("--slots: %d is not between 1 and 1000", s.slots)
	}
	if s.dials < 1 || s.dials > 1_000_000 {
		wrong("--dials-per-second: %d is not between 1 and 1000000", s.dials)
	}
	if s.suspendDrain <= 0 {
		wrong("--suspend-drain: %s is not positive", s.suspendDrain)
	}
	if (s.gateway == "") != (s.broker == "") {
		wrong("--egress-gateway and --broker need each other: the gateway knows actors by the certificates that the broker gets")
	}
	if err := new(slog.Level).UnmarshalText([]byte(s.logLevel)); err != nil {
		wrong("--log-level: %w", err)
	}
	return errors.Join(errs...)
}

// closing bounds how long actors may take to be terminated at the end, besides what their tunnels may.
const closing = 30 * time.Second

// collectionPercent is how much the heap may grow over what is live until it is collected, unless GOGC says otherwise. What is live
// is a few MB; collecting it at the runtime's 100 took a tenth of the processor time that tunnels cost.
const collectionPercent = 400

func runCommand(ctx context.Context, args []string, errs io.Writer) error {
	s, err := parse(args, errs)
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectionPercent)
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.logLevel)) // checked
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
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.suspendDrain+closing)
	defer cancel()
	return errors.Join(err, group.Stop(end))
}
