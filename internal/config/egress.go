package config

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Egress makes an entrypoint of protocol connect the way out of actors: what a tunnel may reach is decided by the policy of the
// actor that it is opened for, before anything else, and nothing in a configuration adds to that. Routers that name the entrypoint
// get the requests inside, once they are allowed.
type Egress struct {
	Pos            acl.Span
	IdentityCAFile string         // PEM; whose certificates open tunnels; default the client_ca_file of tls
	TrustDomain    string         // of actors; default substrate-actor.local
	Control        ControlPlane   // that knows actors and policies
	MinterSocket   string         // where certificates are minted for names whose TLS is opened; "": none is
	HostsFile      string         // names are resolved by it alone; "": by the system
	OriginCAFile   string         // PEM roots for origins, beside the system's; "" none
	AllowPrivate   []netip.Prefix // special addresses that may be dialed all the same
	DenyCIDRs      []netip.Prefix // addresses that never are
	AllowFronting  bool           // a request may name another host than its connection did
	ConnectTimeout time.Duration  // resolution, connecting and TLS; default 5 s
	MaxTunnels     int            // open at a time for one actor; default 256
	AuditLog       string         // "stdout", "stderr" or a file; default stdout

	identityPos, originPos acl.Span
	controlFiles           [2]text // for CheckFiles: credential_file, ca_file
}

// Placeless is a copy that knows nothing of where it was written: equal ones say the same.
func (g *Egress) Placeless() Egress {
	c := *g
	c.Pos, c.identityPos, c.originPos, c.controlFiles = acl.Span{}, acl.Span{}, acl.Span{}, [2]text{}
	return c
}

func (d *decoder) egress(o *object, e *Entrypoint) *Egress {
	o.kind = "egress"
	g := &Egress{Pos: o.at, TrustDomain: "substrate-actor.local", AuditLog: "stdout"}
	ca := o.str("identity_ca_file", false)
	g.IdentityCAFile, g.identityPos = ca.s, ca.at
	if t := o.str("trust_domain", false); t.ok {
		g.TrustDomain = t.s
		if t.s == "" {
			d.bad(t, CodeRange, "trust_domain in %s is empty", o.title)
		}
	}
	g.Control, g.controlFiles = d.controlPlane(o)
	g.MinterSocket, g.HostsFile = o.str("minter_socket", false).s, o.str("hosts_file", false).s
	roots := o.str("origin_ca_file", false)
	g.OriginCAFile, g.originPos = roots.s, roots.at
	g.AllowPrivate, g.DenyCIDRs = o.prefixes("allow_private"), o.prefixes("deny_cidrs")
	g.AllowFronting = o.boolean("allow_fronting", false)
	g.ConnectTimeout = o.duration("connect_timeout", 5*time.Second)
	g.MaxTunnels = o.count("max_tunnels_per_actor", 256, 1, 65_536)
	if t := o.str("audit_log", false); t.ok {
		g.AuditLog = t.s
		if t.s == "" {
			d.bad(t, CodeRange, "audit_log in %s is empty", o.title)
		}
	}
	o.finish(nil)
	d.checkEgress(g, e)
	return g
}

// checkEgress reports what an entrypoint of actors must have.
func (d *decoder) checkEgress(g *Egress, e *Entrypoint) {
	title := "entrypoints " + strconv.Quote(e.Name)
	switch {
	case e.Protocol != CONNECT:
		d.fail(CodeOtherType, g.Pos, "egress in %s has an effect on protocol connect only", title)
		return
	case e.TLS == nil || e.TLS.ClientAuth != ClientAuthRequire:
		d.fail(CodeConflict, g.Pos, "%s lets actors out and does not require a client certificate", title).Hint = `write tls { client_auth = "require", client_ca_file = "…" }`
		return
	}
	if g.IdentityCAFile == "" {
		g.IdentityCAFile, g.identityPos = e.TLS.ClientCAFile, e.TLS.ClientCAPos
	}
}

func egressTree(g *Egress) any {
	if g == nil {
		return nil
	}
	return tree{
		"identity_ca_file": g.IdentityCAFile, "trust_domain": g.TrustDomain,
		"control":       controlTree(g.Control),
		"minter_socket": orNull(g.MinterSocket), "hosts_file": orNull(g.HostsFile), "origin_ca_file": orNull(g.OriginCAFile),
		"allow_private": prefixes(g.AllowPrivate), "deny_cidrs": prefixes(g.DenyCIDRs), "allow_fronting": g.AllowFronting,
		"connect_timeout": dur(g.ConnectTimeout), "max_tunnels_per_actor": g.MaxTunnels, "audit_log": g.AuditLog,
	}
}
