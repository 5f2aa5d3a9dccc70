package egress

// Leg is where a decision is made.
type Leg string

// Legs. The first is decided once for each tunnel, passthrough once for each connection, the others for each request.
const (
	LegConnect     Leg = "connect"
	LegCleartext   Leg = "cleartext"
	LegIntercepted Leg = "intercepted"
	LegPassthrough Leg = "passthrough"
	// LegUnknown is a tunnel whose first bytes have not told what it carries.
	LegUnknown Leg = "unknown"
)

// Reason is why something is allowed or refused, as the audit log and metrics have it. Reasons are never renamed. The actor
// does not learn them.
type Reason string

// Reasons of a tunnel.
const (
	Allowed           Reason = "allowed"
	MethodRefused     Reason = "method_not_connect"
	RootsMissing      Reason = "identity_roots_missing"
	IdentityInvalid   Reason = "identity_invalid"
	DialedInvalid     Reason = "dialed_invalid"
	ActorUnknown      Reason = "actor_unknown"
	ActorUnavailable  Reason = "actor_unavailable"
	ActorRefused      Reason = "actor_refused" // the control plane does not say what it is
	ActorNotRunning   Reason = "actor_not_running"
	CallerLeft        Reason = "caller_left"
	PolicyUnavailable Reason = "policy_unavailable"
	PolicyNone        Reason = "policy_none"
	PolicyEmpty       Reason = "policy_empty"
	PolicyInvalid     Reason = "policy_invalid"
	LimitTunnels      Reason = "limit_tunnels"
)

// Reasons of what is inside.
const (
	FirstBytesLate         Reason = "first_bytes_timeout"
	NothingSent            Reason = "nothing_sent"
	HelloInvalid           Reason = "hello_invalid"
	SNIMissing             Reason = "sni_missing"
	SNIInvalid             Reason = "sni_invalid"
	NameHidden             Reason = "name_hidden" // by ECH, on a connection that would stay closed
	NoRule                 Reason = "no_rule"
	OtherKind              Reason = "rule_of_other_kind" // the name is allowed, but in clear text or TLS only, or passed through
	OtherPort              Reason = "rule_of_other_port" // the name is allowed, but on other ports
	AuthorityInvalid       Reason = "authority_invalid"
	AuthorityMismatch      Reason = "authority_mismatch" // Host and target differ
	SNIMismatch            Reason = "sni_mismatch"
	UpgradeRefused         Reason = "upgrade"
	NestedConnect          Reason = "nested_connect"
	RequestInvalid         Reason = "request_invalid"
	CredentialsUnsupported Reason = "credentials_unsupported"
	Rewritten              Reason = "rewritten" // by a step of its route, to what was not allowed
	AddressDenied          Reason = "address_denied"
	LimitDials             Reason = "limit_dials"
	LimitOrigins           Reason = "limit_origins"
	LimitLeaves            Reason = "limit_leaves"
	MintFailed             Reason = "mint_failed"
	HandshakeFailed        Reason = "handshake_failed" // of the actor, with the certificate that was minted
	Cut                    Reason = "cut"              // by the operator
	PolicyChanged          Reason = "policy_changed"   // while the connection was open
)

// Reasons lists all of them, so that each has its counter from the start.
var Reasons = []Reason{
	Allowed, MethodRefused, RootsMissing, IdentityInvalid, DialedInvalid, ActorUnknown, ActorUnavailable, ActorRefused, ActorNotRunning,
	CallerLeft, PolicyUnavailable, PolicyNone, PolicyEmpty, PolicyInvalid, LimitTunnels, FirstBytesLate, NothingSent, HelloInvalid,
	SNIMissing, SNIInvalid, NameHidden, NoRule, OtherKind, OtherPort, AuthorityInvalid, AuthorityMismatch, SNIMismatch, UpgradeRefused, NestedConnect,
	RequestInvalid, CredentialsUnsupported, Rewritten, AddressDenied, LimitDials, LimitOrigins, LimitLeaves, MintFailed, HandshakeFailed, Cut, PolicyChanged,
}

// Verdict is a decision. The zero Verdict refuses.
type Verdict struct {
	Reason Reason
	// Status is what is answered where there is somebody to answer; 0 when allowed.
	Status int
	// Detail is for the operator: what was wrong.
	Detail string
	// Match is the rule that decided, if Ruled.
	Match Match
	Ruled bool
	// Host is the destination, once it is known.
	Host Host
}

// OK reports whether it is allowed.
func (v Verdict) OK() bool { return v.Reason == Allowed }

func refuse(status int, r Reason, detail string) Verdict {
	return Verdict{Reason: r, Status: status, Detail: detail}
}
