package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/app"
)

func (c *cli) routerCommand() *cobra.Command {
	o := app.DefaultRouterOptions()
	var mode string
	var show bool
	cmd := &cobra.Command{
		Use:   "router --mode=ingress [flags]",
		Short: "Serve the way to actors, by flags instead of a configuration",
		Long: `Makes a configuration of its flags and serves that: requests to actors over HTTPS, and CONNECT to their ports. Clients must show
a certificate whose SPIFFE ID is allowed. With --show the configuration is printed instead.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if mode != "ingress" {
				return usagef("--mode %q is not supported yet; use --mode=ingress", mode)
			}
			text, err := o.Config()
			if err != nil {
				return usageError{err}
			}
			if show {
				_, err := fmt.Fprint(c.out, text)
				return err
			}
			return c.serve(app.Options{Text: text, Process: true}, nil)
		},
	}
	f := cmd.Flags()
	f.StringVar(&mode, "mode", "all", "what to serve; only ingress is supported yet")
	f.BoolVar(&show, "show", false, "print the configuration instead of serving it")
	f.IntVar(&o.HTTPSPort, "port-https", o.HTTPSPort, "port for requests")
	f.IntVar(&o.ConnectPort, "port-connect-tls", o.ConnectPort, "port for CONNECT; 0 serves none")
	f.StringVar(&o.ServingCert, "envoy-cert-path", o.ServingCert, "key and certificate chain of the listeners, in one file")
	f.StringVar(&o.ClientCA, "ingress-client-ca-file", o.ClientCA, "who signs the certificates of clients")
	f.StringSliceVar(&o.AllowedIDs, "ingress-allowed-spiffe-ids", nil, "SPIFFE IDs of clients that may reach every actor")
	f.StringVar(&o.Ateapi, "ateapi-address", o.Ateapi, "control plane, as host:port")
	f.StringVar(&o.AteapiName, "ateapi-server-name", "", "name in the control plane's certificate, else the host of its address")
	f.StringVar(&o.AteapiCert, "ateapi-client-cert", o.AteapiCert, "our key and certificate chain for the control plane")
	f.StringVar(&o.AteapiCA, "ateapi-ca-file", o.AteapiCA, "who signs the control plane's certificate")
	f.StringVar(&o.WorkerCert, "upstream-credential-bundle", o.WorkerCert, "our key and certificate chain for workers")
	f.StringVar(&o.WorkerCA, "upstream-trust-bundle", o.WorkerCA, "who signs the certificates of workers")
	f.StringVar(&o.WorkerPrefix, "upstream-spiffe-prefix", o.WorkerPrefix, "trust domain of workers, as spiffe://DOMAIN/")
	f.DurationVar(&o.RouteTimeout, "route-timeout", o.RouteTimeout, "until the response head of a request")
	f.DurationVar(&o.ParkBudget, "parked-request-budget", o.ParkBudget, "how long it is tried to wake an actor")
	f.IntVar(&o.ParkMax, "parked-request-max", o.ParkMax, "requests that wait at a time; 0 for none")
	f.DurationVar(&o.ParkInterval, "parked-request-retry-interval", o.ParkInterval, "first delay between two attempts")
	f.Float64Var(&o.ParkFactor, "parked-request-retry-factor", o.ParkFactor, "growth of the delays")
	f.Float64Var(&o.ParkJitter, "parked-request-retry-jitter", o.ParkJitter, "random part of the delays")
	f.DurationVar(&o.DrainDelay, "drain-delay", o.DrainDelay, "serve on for so long after the order to stop")
	f.DurationVar(&o.DrainTimeout, "drain-timeout", 0, "then let requests end for so long; 0 is the parking budget and 15s")
	return cmd
}
