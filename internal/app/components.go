package app

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/control"
)

// The components of a development network: what they are called, and the certificates that each is given.
const (
	systemNamespace = "ate-system"
	workerNamespace = "ate-workers"

	// AteapiName is the DNS name of the control plane.
	AteapiName = "api.ate-system.svc"
	// RouterName and EgressName are those of the actor ingress and of the egress gateway.
	RouterName = "atenet-router.ate-system.svc"
	EgressName = "atenet-egress.ate-system.svc"

	// OriginsMount is the directory with the certificate of the origins of a development network.
	OriginsMount = "origins"

	// ServiceMount and IdentityMount are directories of a component, by the authorities that sign what is in them.
	ServiceMount  = "servicedns.podcert.ate.dev"
	IdentityMount = "podidentity.podcert.ate.dev"
)

// Identities of the components.
var (
	RouterID = actor.Workload{Namespace: systemNamespace, Account: "atenet-router"}.ID(actor.WorkloadDomain)
	EgressID = actor.Workload{Namespace: systemNamespace, Account: "atenet-egress"}.ID(actor.WorkloadDomain)
	AdminID  = actor.Workload{Namespace: systemNamespace, Account: "admin"}.ID(actor.WorkloadDomain)
)

// WorkerID is the identity of a worker.
func WorkerID(name string) string {
	return actor.Workload{Namespace: workerNamespace, Account: name}.ID(actor.WorkloadDomain)
}

// PKIDir is where, below a control plane's data directory, the certificates are.
func PKIDir(dataDir string) string { return filepath.Join(dataDir, "pki") }

// ComponentDir is the directory of certificates of a component: "admin", "router", "egress" or "worker-NAME".
func ComponentDir(dataDir, component string) string {
	return filepath.Join(PKIDir(dataDir), component)
}

// mountComponents has the hub write what each component is given.
func mountComponents(h *cert.Hub, o AteapiOptions) error {
	serves := func(component string, names ...string) cert.Mount {
		l := cert.ServiceLeaf(append(names, "localhost")...)
		return cert.Mount{Dir: component + "/" + ServiceMount, Authority: cert.ServiceAuthority, Leaf: &l}
	}
	is := func(component, id string, serves bool) cert.Mount {
		l := cert.WorkloadLeaf(id, serves)
		return cert.Mount{Dir: component + "/" + IdentityMount, Authority: cert.WorkloadAuthority, Leaf: &l}
	}
	trusts := func(dir, authority, file string) cert.Mount {
		return cert.Mount{Dir: dir, Authority: authority, Trust: file}
	}
	mounts := []cert.Mount{
		serves("ateapi", AteapiName), trusts("ateapi/"+IdentityMount, cert.WorkloadAuthority, ""),
		serves("router", RouterName), is("router", RouterID, false),
		egressMount(serves("egress", EgressName), o.EgressGateway), is("egress", EgressID, false),
		trusts("egress/actor-id-ca-certs", cert.ActorAuthority, "ca.crt"), trusts("egress/origins", cert.OriginAuthority, ""),
		is("admin", AdminID, false), trusts("admin/"+ServiceMount, cert.ServiceAuthority, ""),
	}
	if len(o.Origins) > 0 {
		l := cert.ServiceLeaf(o.Origins...)
		mounts = append(mounts, cert.Mount{Dir: OriginsMount, Authority: cert.OriginAuthority, Leaf: &l})
	}
	for _, name := range o.Workers {
		if !actor.ValidName(name) {
			return fmt.Errorf("%.80q is no name of a worker", name)
		}
		component := "worker-" + name
		mounts = append(mounts, is(component, WorkerID(name), true), trusts(component+"/"+ServiceMount, cert.ServiceAuthority, ""),
			trusts(component+"/egress-mitm.ate.dev", cert.InterceptionAuthority, ""))
	}
	for _, m := range mounts {
		if err := h.Mount(m); err != nil {
			return err
		}
	}
	return nil
}

// egressMount lets the certificate of the egress gateway be for the host by which workers are told to reach it, too.
func egressMount(m cert.Mount, gateway string) cert.Mount {
	host, _, err := net.SplitHostPort(gateway)
	if err != nil {
		return m
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		m.Leaf.Addr = addr
	} else if !slices.Contains(m.Leaf.Names, host) {
		m.Leaf.Names = append(m.Leaf.Names, host)
	}
	return m
}

// ControlOptions say how to reach a control plane.
type ControlOptions struct {
	Address string // host:port
	// ServerName is the DNS name in its certificate.
	ServerName string
	// Credentials is the directory of a component, with its identity and what it trusts.
	Credentials string
}

// DialControl makes a client of a control plane, as openControl does.
func DialControl(o ControlOptions) (*control.Client, error) {
	return openControl(config.ControlPlane{
		Address: o.Address, ServerName: o.ServerName, CredentialFile: filepath.Join(o.Credentials, IdentityMount, cert.CredentialFile),
		CAFile: filepath.Join(o.Credentials, ServiceMount, cert.TrustFile),
	})
}
