package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
)

// defaultControl is where a control plane serves that is not told where.
const defaultControl = "127.0.0.1:7443"

// dataDir is where a control plane keeps its files that is not told where.
func (c *cli) dataDir() string {
	if dir := c.env("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "sluice", "ateapi")
	}
	if home := c.env("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "sluice", "ateapi")
	}
	return filepath.Join(".sluice", "ateapi")
}

func (c *cli) ateapiCommand() *cobra.Command {
	o := app.AteapiOptions{Listen: defaultControl, DataDir: c.dataDir(), Store: app.StoreSQLite}
	kind := string(o.Store)
	cmd := &cobra.Command{
		Use:   "ateapi",
		Short: "Serve the control plane of actors, for development",
		Long: `Serves the control plane of actors by gRPC with mutual TLS: actors, templates, workers and policies, and certificates
for whoever takes part. It is meant for development and tests.

Below the data directory it makes certificates for each component (pki/admin, pki/router, pki/egress, and
pki/worker-NAME for each --worker); sluice actor, policy and worker use those of admin.`,
		Example: `  sluice ateapi --worker w1 --worker w2
  sluice atespace create demo`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o.Store = app.StoreKind(kind)
			return c.ateapi(o)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Listen, "listen", "l", o.Listen, "address to serve on; port 0 takes a free one")
	f.StringVar(&o.DataDir, "data-dir", o.DataDir, "directory of certificates and records")
	f.StringVar(&kind, "store", kind, "where records are kept: sqlite, or memory, which forgets")
	f.StringVar(&o.EgressGateway, "egress-gateway-address", "", "HOST:PORT where outbound connections of actors go, from their next resume on; none closes them")
	f.StringSliceVar(&o.Workers, "worker", nil, "name of a worker to make certificates for; repeatable")
	f.StringSliceVar(&o.Origins, "origin", nil, "name of an origin for development to make a certificate for, in pki/origins; repeatable")
	f.StringVar(&o.Minter, "minter-socket", "", "Unix socket on which certificates for intercepted names are minted; none mints none")
	_ = cmd.RegisterFlagCompletionFunc("store", cobra.FixedCompletions([]string{"sqlite", "memory"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("data-dir")
	return cmd
}

func (c *cli) ateapi(o app.AteapiOptions) error {
	if o.Store != app.StoreSQLite && o.Store != app.StoreMemory {
		return usagef("unknown --store %q, want sqlite or memory", o.Store)
	}
	if o.EgressGateway != "" {
		host, port, err := net.SplitHostPort(o.EgressGateway)
		if err != nil {
			return usagef("--egress-gateway-address %q: %w", o.EgressGateway, err)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return usagef("--egress-gateway-address %q is not HOST:PORT", o.EgressGateway)
		}
	}
	log, err := c.logger()
	if err != nil {
		return err
	}
	o.Log = log
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a, err := app.StartAteapi(ctx, o)
	switch {
	case errors.Is(err, cert.ErrLocked):
		return fmt.Errorf("%w; give another --data-dir, or end that process", err)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use; choose another address with --listen", o.Listen)
	case err != nil:
		return err
	}
	log.Info("listening", "entrypoint", "ateapi", "address", a.Addr, "data_dir", o.DataDir, "store", string(o.Store))
	failed := a.Wait(ctx)
	stop() // a second signal does not wait
	log.Info("stopping")
	return errors.Join(failed, a.Close())
}
