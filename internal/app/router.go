package app

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// RouterOptions describe an actor ingress as its flags do. It is a gateway like any other: Config is what one would write by
// hand.
type RouterOptions struct {
	HTTPSPort, ConnectPort int    // 0 leaves the one for tunnels out
	ServingCert            string // key and chain of the listeners, in one file
	ClientCA               string
	AllowedIDs             []string

	Ateapi, AteapiName, AteapiCert, AteapiCA string // address, name, our key and chain, who signs its certificate
	WorkerCert, WorkerCA, WorkerPrefix       string

	RouteTimeout, ParkBudget, ParkInterval time.Duration
	ParkMax                                int
	ParkFactor, ParkJitter                 float64

	DrainDelay, DrainTimeout time.Duration // a timeout of 0 is the budget and 15 s
}

// check finds what the configuration would not: bounds between settings, and what it has no key for.
func (o RouterOptions) check() error {
	domain, ok := strings.CutPrefix(o.WorkerPrefix, "spiffe://")
	domain, slash := strings.CutSuffix(domain, "/")
	switch {
	case !ok || !slash || domain == "" || strings.Contains(domain, "/"):
		return fmt.Errorf("the prefix of workers, %q, is not spiffe://DOMAIN/", o.WorkerPrefix)
	case o.RouteTimeout <= 0 || o.ParkBudget <= 0 || o.ParkInterval <= 0 || o.DrainDelay < 0 || o.DrainTimeout < 0:
		return errors.New("times must not be negative, and those of routes and parking must be more than 0")
	case o.DrainTimeout != 0 && o.DrainTimeout < o.ParkBudget:
		return fmt.Errorf("a drain of %s would end before the parking budget of %s", o.DrainTimeout, o.ParkBudget)
	case len(o.AllowedIDs) == 0:
		return errors.New("nobody is allowed: say the SPIFFE IDs of the clients")
	}
	return nil
}

// Config is the configuration.
func (o RouterOptions) Config() (string, error) {
	if err := o.check(); err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(o.Ateapi)
	if err != nil {
		return "", fmt.Errorf("the address of the control plane: %w", err)
	}
	if o.AteapiName == "" {
		o.AteapiName = host
	}
	drain := o.DrainTimeout
	if drain == 0 {
		drain = o.ParkBudget + 15*time.Second
	}
	var b strings.Builder
	tls := fmt.Sprintf("  tls {\n    cert_file = %[1]q\n    key_file = %[1]q\n    client_auth = \"require\"\n    client_ca_file = %[2]q\n  }\n", o.ServingCert, o.ClientCA)
	fmt.Fprintf(&b, "shutdown_timeout_secs = %d\nshutdown_delay_secs = %d\n", seconds(drain), seconds(o.DrainDelay))
	fmt.Fprintf(&b, "entrypoints \"https\" {\n  address = \":%d\"\n%s}\n", o.HTTPSPort, tls)
	entrypoints, inner := `"https"`, ""
	if o.ConnectPort != 0 {
		fmt.Fprintf(&b, "entrypoints \"connect\" {\n  address = \":%d\"\n  protocol = \"connect\"\n%s}\nentrypoints \"inner\" { address = \"tunnel:\" }\n", o.ConnectPort, tls)
		b.WriteString("routers \"connect\" {\n  rule = \"PathPrefix(`/`)\"\n  entrypoints = [\"connect\"]\n  service = \"actors\"\n}\n")
		entrypoints, inner = `"https", "inner"`, "    entrypoint = \"inner\"\n"
	}
	fmt.Fprintf(&b, "routers \"actors\" {\n  rule = \"PathPrefix(`/`)\"\n  entrypoints = [%s]\n  service = \"actors\"\n}\n", entrypoints)
	fmt.Fprintf(&b, "services \"actors\" {\n  actor {\n    control {\n      address = %q\n      server_name = %q\n      credential_file = %q\n      ca_file = %q\n    }\n", o.Ateapi, o.AteapiName, o.AteapiCert, o.AteapiCA)
	fmt.Fprintf(&b, "    workers {\n      trust_domain = %q\n      credential_file = %q\n      ca_file = %q\n    }\n", strings.TrimSuffix(strings.TrimPrefix(o.WorkerPrefix, "spiffe://"), "/"), o.WorkerCert, o.WorkerCA)
	fmt.Fprintf(&b, "    parking {\n      budget = %q\n      max = %d\n      retry_interval = %q\n      retry_factor = %v\n      retry_jitter = %v\n    }\n", millis(o.ParkBudget), o.ParkMax, millis(o.ParkInterval), o.ParkFactor, o.ParkJitter)
	fmt.Fprintf(&b, "    request_timeout = %q\n    stream_idle_timeout = %q\n%s", millis(o.RouteTimeout), millis(max(o.RouteTimeout, 5*time.Minute)), inner)
	fmt.Fprintf(&b, "    allowed_spiffe_ids = [%s]\n  }\n}\n", quotedList(o.AllowedIDs))
	return b.String(), nil
}

// DefaultRouterOptions are what flags say that are not given.
func DefaultRouterOptions() RouterOptions {
	const identity, service = "/run/" + IdentityMount + "/", "/run/" + ServiceMount + "/"
	return RouterOptions{
		HTTPSPort: 8443, ConnectPort: 8444, ServingCert: service + "credential-bundle.pem", ClientCA: identity + "trust-bundle.pem",
		Ateapi: "api.ate-system.svc:443", AteapiCert: identity + "credential-bundle.pem", AteapiCA: service + "trust-bundle.pem",
		WorkerCert: identity + "credential-bundle.pem", WorkerCA: identity + "trust-bundle.pem", WorkerPrefix: "spiffe://" + actor.WorkloadDomain + "/",
		RouteTimeout: 5 * time.Minute, ParkBudget: 5 * time.Second, ParkInterval: 100 * time.Millisecond, ParkMax: 1024, ParkFactor: 1.1, ParkJitter: 0.1,
		DrainDelay: 13 * time.Second,
	}
}

// seconds are whole ones, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// millis spells a duration as configurations do.
func millis(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

func quotedList(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(quoted, ", ")
}
