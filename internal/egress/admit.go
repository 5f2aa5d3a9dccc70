package egress

import (
	"crypto/x509"
	"errors"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

// Opening is what somebody brings who wants a tunnel.
type Opening struct {
	Method    string
	Authority string
	// Chain is the certificate that was shown, leaf first.
	Chain []*x509.Certificate
}

// Believed is whose certificates open tunnels.
type Believed struct {
	Roots   *x509.CertPool // nil: they could not be read
	Tunnels actor.Tunnels
}

// Claim is on whose behalf a tunnel is opened, and what was dialed: recorded, and its port decides, but the address never is
// where anything is sent.
type Claim struct {
	Ref    actor.Ref
	Dialed netip.AddrPort
}

// Identify is the first part of admission: who asks, by a certificate that is proven here and now, whatever the handshake has
// proven. Only then may the control plane be asked about the actor.
func Identify(o Opening, b Believed) (Claim, Verdict) {
	if o.Method != "CONNECT" {
		return Claim{}, refuse(405, MethodRefused, o.Method)
	}
	if b.Roots == nil {
		return Claim{}, refuse(503, RootsMissing, "no actor identity is believed")
	}
	id, err := mutual.VerifyURI(o.Chain, b.Roots, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return Claim{}, refuse(403, IdentityInvalid, err.Error())
	}
	ref, err := b.Tunnels.Parse(id)
	if err != nil {
		return Claim{}, refuse(403, IdentityInvalid, err.Error())
	}
	dialed, err := ParseDialed(o.Authority)
	if err != nil {
		return Claim{Ref: ref}, refuse(403, DialedInvalid, err.Error())
	}
	return Claim{Ref: ref, Dialed: dialed}, Verdict{Reason: Allowed}
}

// AdmitActor is the second part: what the control plane has said of the actor.
func AdmitActor(ref actor.Ref, a actor.Actor, err error) Verdict {
	if err != nil {
		switch codeOf(err) {
		case actor.NotFound:
			return refuse(403, ActorUnknown, err.Error())
		case actor.Unavailable, actor.DeadlineExceeded:
			return refuse(503, ActorUnavailable, err.Error())
		case actor.Canceled:
			return refuse(408, CallerLeft, err.Error())
		}
		return refuse(403, ActorRefused, err.Error())
	}
	if a.Ref != ref || a.UID == "" {
		return refuse(403, ActorRefused, "the control plane answers for another actor")
	}
	if a.State != actor.Running && a.State != actor.Resuming {
		return refuse(403, ActorNotRunning, a.State.String())
	}
	return Verdict{Reason: Allowed}
}

// Standing is what an actor's policy comes down to at a moment: rules that decide, or why there are none.
type Standing struct {
	Rules   *Rules // nil unless Reason is Allowed
	Version int64
	Reason  Reason
	Detail  string
}

// Stand judges a policy as it was read for an actor of an atespace. Whatever is wrong with it, nothing of it counts.
func Stand(atespace string, k Kept, err error) Standing {
	faults := actor.Faults(nil)
	switch {
	case err == nil:
	case codeOf(err) == actor.NotFound:
		return Standing{Reason: PolicyNone}
	case errors.As(err, &faults):
		return Standing{Reason: PolicyInvalid, Version: k.Version, Detail: err.Error()}
	default:
		return Standing{Reason: PolicyUnavailable, Detail: err.Error()}
	}
	if len(k.Rules) == 0 {
		return Standing{Reason: PolicyEmpty, Version: k.Version}
	}
	rules, err := Compile(k.Policy, atespace)
	if err != nil {
		return Standing{Reason: PolicyInvalid, Version: k.Version, Detail: err.Error()}
	}
	return Standing{Rules: rules, Version: k.Version, Reason: Allowed}
}

// AdmitPolicy is the last part: there is a policy that allows something.
func AdmitPolicy(s Standing) Verdict {
	switch {
	case s.Reason == PolicyUnavailable:
		return refuse(503, PolicyUnavailable, s.Detail)
	case s.Reason != Allowed || s.Rules == nil:
		return refuse(403, s.Reason, s.Detail)
	}
	return Verdict{Reason: Allowed}
}

// codeOf is why the control plane refuses.
func codeOf(err error) actor.Code {
	if e := (*actor.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return actor.Unknown
}
