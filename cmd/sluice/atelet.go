package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/atelet"
)

// defaultActorLogs is where the output of actors is, of an agent that is not told where.
const defaultActorLogs = "/var/log/sluice-actors"

// ateletFlags are what has to be read out of words before it is an option.
type ateletFlags struct {
	app.AteletOptions
	addresses []string
	users     string
}

func (c *cli) ateletCommand() *cobra.Command {
	o := &ateletFlags{}
	cmd := &cobra.Command{
		Use:   "atelet --name NAME --orders SOCKET --address IP --programs DIR",
		Short: "Let a worker of this machine take part in a control plane",
		Long: `Attaches the process of a worker (sluice-worker run), which it reaches by its socket of orders, to a control plane: has actors
started and stopped there, certifies their keys, and tells which have ended. Each worker has one; the agents of workers that
hand actors to each other have the same --state-dir. When it ends, actors go on.`,
		Example: `  sluice-worker run --run demo --orders /run/w1/orders --broker /run/w1/broker --egress-gateway egress.test:8443
  sluice atelet --name w1 --orders /run/w1/orders --broker /run/w1/broker --address 10.0.0.7 --programs /opt/actors`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return c.atelet(o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Worker.Name, "name", "", "name of the worker")
	f.StringVar(&o.Control.Address, "control", c.envOr("SLUICE_CONTROL", defaultControl), "address of the control plane, else $SLUICE_CONTROL")
	f.StringVar(&o.Control.Credentials, "credentials", "", "directory of the worker's certificates (default that of a control plane on this machine)")
	f.StringVar(&o.Control.ServerName, "server-name", app.AteapiName, "name in the certificate of the control plane")
	f.StringVar(&o.Orders, "orders", "", "Unix socket where the worker's process takes orders")
	f.StringVar(&o.BrokerSocket, "broker", "", "Unix socket on which keys of actors are certified for it; none certifies none")
	f.StringSliceVar(&o.addresses, "address", nil, "address where routers reach the worker; one of each family at most")
	f.StringVar(&o.Worker.Node, "node", "", "name of this machine, where paused actors are kept (default its host name)")
	f.StringToStringVar(&o.Worker.Labels, "label", nil, "label of the worker, as KEY=VALUE; repeatable")
	f.StringVar(&o.Programs, "programs", "", "directory of the programs that images local:NAME are")
	f.StringVar(&o.users, "users", "700000-709999", "numbers of users that actors get, one each, FIRST-LAST")
	f.StringVar(&o.Hosts, "hosts", "", "table of the names that actors resolve, in the form of /etc/hosts; none is none")
	f.StringSliceVar(&o.Authorities, "actor-authorities", nil, "PEM file of authorities that actors believe besides the public's and that of interception; repeatable")
	f.StringVar(&o.StateDir, "state-dir", "/run/sluice-atelet", "directory for what is known of the actors of this machine; must not outlive its restart")
	f.StringVar(&o.LogDir, "log-dir", defaultActorLogs, "directory for the output of actors; empty discards it")
	for _, dir := range []string{"credentials", "programs", "state-dir", "log-dir"} {
		_ = cmd.MarkFlagDirname(dir)
	}
	return cmd
}

func (c *cli) atelet(o *ateletFlags) (err error) {
	if err := c.completeAtelet(o); err != nil {
		return usageError{err}
	}
	if o.Log, err = c.logger(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err = app.RunAtelet(ctx, o.AteletOptions)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w\nIs %s the --credentials directory of a worker, and are the other paths right? sluice ateapi --worker %s makes one",
			err, o.Control.Credentials, o.Worker.Name)
	}
	return err
}

// completeAtelet tells everything that is wrong at once.
func (c *cli) completeAtelet(o *ateletFlags) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !actor.ValidName(o.Worker.Name) {
		wrong("--name %q is no name of a worker", o.Worker.Name)
	}
	if o.Control.Credentials == "" {
		o.Control.Credentials = app.ComponentDir(c.dataDir(), "worker-"+o.Worker.Name)
	}
	if o.Orders == "" || o.Programs == "" {
		wrong("--orders and --programs are needed")
	}
	for _, path := range []*string{&o.Orders, &o.Programs, &o.StateDir, &o.LogDir} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	if len(o.addresses) == 0 {
		wrong("--address: routers must know where the worker is")
	}
	for _, text := range o.addresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() {
			wrong("--address %q is no address that a router can connect to", text)
		}
		o.Worker.Addrs = append(o.Worker.Addrs, a)
	}
	if o.Worker.Node == "" {
		var err error
		if o.Worker.Node, err = os.Hostname(); err != nil {
			wrong("--node: %w", err)
		}
	}
	users, err := parseUsers(o.users)
	if err != nil {
		wrong("--users %q: %w", o.users, err)
	}
	o.Users = users
	return errors.Join(errs...)
}

// parseUsers reads FIRST-LAST.
func parseUsers(s string) (u atelet.Users, err error) {
	first, last, ok := strings.Cut(s, "-")
	a, err1 := strconv.ParseUint(first, 10, 31)
	b, err2 := strconv.ParseUint(last, 10, 31)
	if !ok || err1 != nil || err2 != nil {
		return u, errors.New("must be two numbers, FIRST-LAST")
	}
	u = atelet.Users{First: uint32(a), Last: uint32(b)}
	return u, u.Check()
}
