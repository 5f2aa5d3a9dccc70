package actor

import (
	"errors"
	"fmt"
	"strings"
)

// ErrID is a SPIFFE ID that does not say what it would have to. Errors wrap it with what was expected.
var ErrID = errors.New("not the expected SPIFFE ID")

// The trust domains of an installation, unless it is configured otherwise.
const (
	// WorkloadDomain is where pods have their identities.
	WorkloadDomain = "cluster.local"
	// ActorDomain is where actors have theirs.
	ActorDomain = "substrate-actor.local"
)

const scheme = "spiffe://"

// ID is the actor's own identity, spiffe://<domain>/actor/<atespace>/<name>. It is told to credential providers, and no
// tunnel may be opened with it.
func (r Ref) ID(domain string) string { return scheme + domain + "/actor/" + r.String() }

// Tunnels are the identities of workers that open tunnels on behalf of actors:
// spiffe://<domain>/worker-for-actor/<atespace>/<name>.
type Tunnels struct {
	// Domain is the trust domain. With an empty one no identity is accepted.
	Domain string
	// AcceptOld also accepts ateom-for-actor, which workers of an earlier generation present.
	AcceptOld bool
}

// ID is the identity of a tunnel for an actor.
func (t Tunnels) ID(r Ref) string { return scheme + t.Domain + "/worker-for-actor/" + r.String() }

// Parse finds the actor that an identity opens tunnels for. The text must be exactly what ID makes, byte for byte: another
// case, a port, user information, a query, a fragment, an escape or one slash too many is ErrID. It is to be taken from
// the certificate as it stands there, since a URL that was parsed and printed again has lost some of that.
func (t Tunnels) Parse(id string) (Ref, error) {
	path, ok := strings.CutPrefix(id, scheme+t.Domain+"/")
	kind, ref, found := strings.Cut(path, "/")
	if !ok || !found || t.Domain == "" || kind != "worker-for-actor" && (kind != "ateom-for-actor" || !t.AcceptOld) {
		return Ref{}, fmt.Errorf("%.200q: %w of a tunnel in %s", id, ErrID, t.Domain)
	}
	r, err := ParseRef(ref)
	if err != nil {
		return Ref{}, fmt.Errorf("%.200q: %w of a tunnel in %s", id, ErrID, t.Domain)
	}
	return r, nil
}

// Workload is the identity of a pod: spiffe://<domain>/ns/<namespace>/sa/<account>. All pods of one account share it.
type Workload struct {
	Namespace string
	Account   string
}

// ID is the identity in a trust domain.
func (w Workload) ID(domain string) string {
	return scheme + domain + "/ns/" + w.Namespace + "/sa/" + w.Account
}

// ParseWorkload reads an identity that must be exactly what ID makes. The names are DNS names of Kubernetes: labels for
// the namespace, labels joined by dots for the account.
func ParseWorkload(domain, id string) (Workload, error) {
	path, ok := strings.CutPrefix(id, scheme+domain+"/ns/")
	namespace, account, found := strings.Cut(path, "/sa/")
	if !ok || !found || domain == "" || !ValidName(namespace) || !validAccount(account) {
		return Workload{}, fmt.Errorf("%.200q: %w of a workload in %s", id, ErrID, domain)
	}
	return Workload{Namespace: namespace, Account: account}, nil
}

// validAccount reports whether s is a DNS subdomain after RFC 1123: labels joined by dots, 253 characters at most.
func validAccount(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !ValidName(label) {
			return false
		}
	}
	return len(s) <= 253
}

// WorkerPin is what the control plane says of the worker that hosts an actor, as far as it has to prove it.
type WorkerPin struct {
	// ID is the worker's identity; empty when the control plane does not name it.
	ID string
	// Namespace is where the worker's pod is. It decides when ID is empty, so that at least a pod of another namespace
	// cannot stand in for the worker.
	Namespace string
}

// Check returns nil if the identity that a worker presented is the pinned one, else an error that wraps ErrID. Only
// identities of workloads are ever accepted.
func (p WorkerPin) Check(domain, presented string) error {
	w, err := ParseWorkload(domain, presented)
	if err != nil {
		return err
	}
	if p.ID != "" && presented != p.ID {
		return fmt.Errorf("%.200q: %w, which is %.200q", presented, ErrID, p.ID)
	}
	if p.ID == "" && w.Namespace != p.Namespace {
		return fmt.Errorf("%.200q: %w of a workload in namespace %.80q", presented, ErrID, p.Namespace)
	}
	return nil
}
