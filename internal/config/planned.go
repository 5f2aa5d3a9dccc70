package config

import (
	"net/netip"
	"time"
)

// The types of this file hold what the language knows and this release does not run. They are decoded and checked in
// full, so that an error in them is found today, and then refused with CodeUnsupported.

// Mirror copies a share of the traffic to another service.
type Mirror struct {
	Service    string
	Percentage int // 0–100; default 100
}

// Revision is one static share of a service.
type Revision struct {
	Name           string
	TrafficPercent int // default 100; all revisions of a service sum to 100
	Servers        []Server
	Strategy       Strategy
}

// Rollout is refused in every mode; static revisions take its place.
type Rollout struct {
	From, To           string
	StepPercent        int
	StepInterval       time.Duration
	ErrorRateThreshold float64
	LatencyThreshold   time.Duration
}

// Scaling is local scale-to-zero and autoscaling.
type Scaling struct {
	MinReplicas, MaxReplicas int
	ContainerConcurrency     int // 0: no limiter and no autoscaling
	TargetUtilization        float64
	ScaleDownDelay           time.Duration
	BufferEnabled            bool
	BufferTimeout            time.Duration
	BufferSize               int
	ExecutorTimeout          time.Duration
	Executor                 string // box or k8s
	ExecutorEndpoint         string
}

// Sticky binds a client to a backend by a cookie.
type Sticky struct{ Cookie string }

// Target is the managed identity of a server.
type Target struct {
	TargetID, UnitID string
	Generation       uint64
}

// JWT validates bearer tokens. Value is the HMAC secret.
type JWT struct {
	Header string // default Authorization
	Value  Secret
}

// APIKey requires one of the keys in a field.
type APIKey struct {
	Header string // default X-API-Key
	Keys   []Secret
}

// BasicAuth requires one user.
type BasicAuth struct {
	Username string
	Password Secret
}

// ForwardAuth asks another service. URL is secret since it may hold credentials.
type ForwardAuth struct {
	URL             Secret
	ResponseHeaders []string
}

// RateLimitRedis is a token bucket shared through Redis. URL is secret since it may hold a password.
type RateLimitRedis struct {
	RateLimit
	URL Secret
}

// CORS answers preflights and marks responses.
type CORS struct {
	Origins, Methods, Headers []string
	MaxAge                    time.Duration
}

// BodyLimit bounds request bodies.
type BodyLimit struct{ MaxBytes uint64 }

// Retry repeats an exchange before its response has begun.
type Retry struct {
	MaxRetries int
	Interval   time.Duration
}

// CircuitBreaker stops sending to a failing service.
type CircuitBreaker struct {
	FailureThreshold, SuccessThreshold int
	Cooldown                           time.Duration
}

// IPAllow admits listed peers only.
type IPAllow struct{ Allowed []netip.Prefix }

// DiscoveryProvider polls well-known service documents.
type DiscoveryProvider struct {
	Seeds        []string
	PollInterval time.Duration
	Timeout      time.Duration
}

// DockerProvider reads container labels.
type DockerProvider struct {
	Host, LabelPrefix string
	PollInterval      time.Duration
}

// KubernetesProvider reads Ingress objects.
type KubernetesProvider struct {
	Namespace, LabelSelector string
	WatchInterval            time.Duration
	IngressRouteCRD          bool
}

// Managed is the identity and local storage of a managed gateway.
type Managed struct {
	GatewayID  string // canonical UUID; "" none
	StateFile  string
	UsageSpool *UsageSpool
}

// UsageSpool is the local durable usage journal.
type UsageSpool struct {
	Directory string
	MaxBytes  uint64
}

// Inference is the authorization projection of a managed snapshot.
type Inference struct {
	ExpiresAt   time.Time
	Credentials []Credential
	Routes      []InferenceRoute
}

// Credential is one inference key, known by its prefix and verifier only.
type Credential struct {
	ID, EnvironmentID, Audience, Prefix string
	VerifierHash                        Secret
	Generation                          uint64
	ExpiresAt                           time.Time
	Revoked                             bool
}

// InferenceRoute binds a router to models and grants.
type InferenceRoute struct {
	ID, Router, EnvironmentID string
	PolicyRevision            uint64
	Models                    []InferenceModel
	Grants                    []Grant
}

// InferenceModel is one external alias.
type InferenceModel struct {
	Alias, ModelID string
	Targets        []ModelTarget
}

// ModelTarget is one service that serves a model.
type ModelTarget struct {
	ID, Service, UpstreamModel string
	Priority, Weight           uint64
}

// Grant is what one credential may do on a route.
type Grant struct {
	CredentialID         string
	CredentialGeneration uint64
	Models, Endpoints    []string
	Limits               Limits
}

// Limits bound one grant on one gateway.
type Limits struct {
	MaxConcurrentRequests, RequestsPerMinute, RequestBurst, TokensPerMinute uint64
}
