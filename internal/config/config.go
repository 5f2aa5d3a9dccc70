// Package config is the typed configuration: decoded from an acl tree, defaulted, validated, plain data
// without behaviour. Every value that an error may point at keeps its position. A Config is immutable once
// Load has returned it; parts receive their own block by value or pointer and never keep the whole.
package config

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Config is one complete configuration. Maps are keyed by block name.
type Config struct {
	Mode          Mode
	Entrypoints   map[string]*Entrypoint
	Routers       map[string]*Router
	Services      map[string]*Service
	Middlewares   map[string]*Middleware
	Providers     Providers
	Observability Observability
	Management    Management
	Managed       *Managed   // nil: absent; always nil in this release
	Inference     *Inference // nil: absent; always nil in this release
	// ShutdownTimeout bounds the drain; 0 forces at once. Default 30 s.
	ShutdownTimeout time.Duration
	// ShutdownDelay keeps serving with readiness false before the drain. Default 0.
	ShutdownDelay time.Duration
	// UpgradeDrain bounds how long a process replaced by a binary upgrade keeps its open streams. Default 3600 s.
	UpgradeDrain time.Duration
	// Digest is the lower-case hex SHA-256 over the source texts, in load order.
	Digest string

	// hidden holds the values that came from file(...): views mask them wherever they stand.
	hidden []string
}

// Mode says who owns the desired state.
type Mode string

// The two modes. Only standalone runs in this release.
const (
	Standalone   Mode = "standalone"
	CloudManaged Mode = "cloud-managed"
)

// Entrypoint is a named listening socket.
type Entrypoint struct {
	Name    string
	Pos     acl.Span
	Address string // canonical: IP:port, [IPv6]:port, :port, name:port, unix:/path, or TunnelAddress
	// AddressPos is the place of the address.
	AddressPos acl.Span
	Protocol   Protocol // http, tcp, connect or udp
	TLS        *TLS     // nil: clear text

	MaxConnections    int           // concurrent connections; default 10000
	MaxPerClient      int           // of them from one address, or one /64 of IPv6; 0 no bound
	HeaderTimeout     time.Duration // first byte of a head to its end, and the TLS handshake; default 10 s
	BodyIdleTimeout   time.Duration // between two request body reads; default 30 s
	WriteIdleTimeout  time.Duration // a write that makes no progress; default 60 s
	KeepAliveTimeout  time.Duration // idle between requests; default 75 s
	MaxHeaderBytes    int           // request line and fields; default 65536
	MaxHeaders        int           // number of fields; default 256
	Forwarded         Forwarded
	Shared            bool           // http with tls: routers of connections name it, and take those that ask for their names
	ProxyProtocol     []netip.Prefix // http and tcp: peers whose PROXY protocol header is required and believed; empty nobody's
	AllowEncodedSlash bool           // encoded_slashes = "allow"; default reject

	Egress *Egress // connect only: tunnels are those of actors; nil: routers decide about them

	TCPAllowedIPs       []netip.Prefix // tcp and connect; empty allows all
	TCPHelloTimeout     time.Duration  // tcp only; for the ClientHello, where a router asks for a server name; default 3 s
	TCPIdleTimeout      time.Duration  // tcp and connect; no byte in either direction; 0 no bound, the default
	TCPHalfCloseTimeout time.Duration  // tcp and connect; the same once one side has ended; default 30 s
	UDPSessionTimeout   time.Duration  // udp only, without a datagram in either direction; default 30 s; 0 otherwise
	UDPMaxSessions      uint64         // udp only, at a time; default 10000; 0 otherwise
	UDPBalance          UDPBalance     // udp only; default ByClient; "" otherwise
}

// Protocol is what an entrypoint speaks.
type Protocol string

// Protocols of entrypoints.
const (
	HTTP    Protocol = "http"
	TCP     Protocol = "tcp"
	UDP     Protocol = "udp"
	CONNECT Protocol = "connect" // HTTP, but CONNECT only
)

// Forwarded says whose forwarding headers are believed. Empty: nobody's.
type Forwarded struct {
	TrustedIPs []netip.Prefix
}

// TLS is the tls block of an entrypoint, and what management's has of it.
type TLS struct {
	Pos          acl.Span
	KeyPair                // the first certificate; without files when there are only others
	Certificates []KeyPair // the others
	StrictSNI    bool      // refuse clients that name no server, or one that no certificate is for
	MinVersion   uint16    // tls.VersionTLS12 (default) or tls.VersionTLS13
	ALPN         []string  // what is offered, the preferred one first; default h2, http/1.1; empty on protocol tcp. h3 is HTTP3
	ClientAuth   ClientAuth
	ClientCAFile string // PEM; "" without client authentication
	ClientCAPos  acl.Span
	ACME         *ACME // nil: certificates come from the files only
}

// HTTP3 is HTTP/3 in a list of protocols.
const HTTP3 = "h3"

// HTTP3 reports whether HTTP/3 is served on the UDP port of the address.
func (t *TLS) HTTP3() bool { return t != nil && slices.Contains(t.ALPN, HTTP3) }

// KeyPair is a certificate file with the file of its key.
type KeyPair struct {
	CertFile string
	CertPos  acl.Span
	KeyFile  string
	KeyPos   acl.Span
}

// Pairs lists all files of certificates, the first one first.
func (t *TLS) Pairs() []KeyPair {
	if t.CertFile == "" {
		return t.Certificates
	}
	return append([]KeyPair{t.KeyPair}, t.Certificates...)
}

// ClientAuth says whether clients have to show a certificate.
type ClientAuth string

// Policies. With request and require a certificate that is shown must be good.
const (
	ClientAuthOff     ClientAuth = "off"
	ClientAuthRequest ClientAuth = "request"
	ClientAuthRequire ClientAuth = "require"
)

// ACME says how a certification authority is asked for certificates (RFC 8555).
type ACME struct {
	Pos         acl.Span
	Email       string   // contact of the account; "" none
	Domains     []string // lower case; written, or the hosts of the rules of the entrypoint's routers
	Directory   string   // URL of the authority's directory
	CAFile      string   // PEM roots for the directory's own TLS; "" the system's
	CAPos       acl.Span
	StoragePath string    // directory; default /etc/gateway/acme
	Challenge   Challenge // "" means whichever of http-01 and tls-alpn-01 the authority likes
	DNS         *DNS      // set with dns-01 only
	EAB         *EAB      // nil: the authority needs none
}

// Challenge is how control over a name is shown.
type Challenge string

// Challenges.
const (
	ChallengeHTTP Challenge = "http-01"
	ChallengeALPN Challenge = "tls-alpn-01"
	ChallengeDNS  Challenge = "dns-01"
)

// DNSProvider is a kind of DNS service.
type DNSProvider string

// Providers.
const (
	DNSUpdate     DNSProvider = "rfc2136"
	DNSCloudflare DNSProvider = "cloudflare"
	DNSRoute53    DNSProvider = "route53"
)

// DNS is where records that prove control over a name are put.
type DNS struct {
	Pos         acl.Span
	Provider    DNSProvider
	ZoneID      string        // rfc2136: the zone's name; else the service's id of the zone
	Token       Secret        // rfc2136: TSIG secret in base64, "" unsigned; cloudflare: API token; route53: access key id, colon, secret access key
	Propagation time.Duration // wait before the authority is asked to look; default 60 s
	Server      string        // rfc2136: host:port of the primary server
	KeyName     string        // rfc2136: name of the TSIG key
	KeyAlg      string        // rfc2136: default hmac-sha256
	Endpoint    string        // cloudflare, route53: URL of the service's API; "" the public one
}

// EAB ties the account to one that exists at the authority otherwise (RFC 8555 section 7.3.4).
type EAB struct {
	KeyID   string
	HMACKey Secret // base64url
}

// Router binds a rule to a service.
type Router struct {
	Name        string
	Pos         acl.Span
	RuleText    string
	Rule        *route.Rule
	Service     string   // OriginService, or a key of the services
	Entrypoints []string // empty: every entrypoint of the protocol
	Middlewares []string
	Priority    int // > 0 explicit; else the rule's length decides
	// Protocol says whether it routes requests (HTTP), connections (TCP), requests for tunnels (CONNECT) or datagrams (UDP): that of
	// its entrypoints, and where it names none what its rule judges.
	Protocol Protocol
	// Inside says that it routes requests (HTTP) inside the tunnels of actors: all of its entrypoints have egress.
	Inside bool
	TLS    TLSMode // tcp only

	refs routerRefs
}

// TLSMode says what becomes of TLS on a connection.
type TLSMode string

// Modes. The zero mode terminates on entrypoints with a tls block, and passes through on others.
const (
	Terminate   TLSMode = "terminate"
	Passthrough TLSMode = "passthrough"
)

// routerRefs remembers where the names of a router were written, for the checks that need the whole configuration.
type routerRefs struct {
	block                    *object
	rule                     text
	service, tls             text
	entrypoints, middlewares []text
}

// Service is a named destination.
type Service struct {
	Name         string
	Pos          acl.Span
	LoadBalancer LoadBalancer
	WebSocket    WebSocket
	Connect      *Connect // where CONNECTs lead; nil: to the load balancer's backends
	Actor        *Actor   // nil: requests do not go to actors

	// The rest is decoded, and refused in this release.
	Failover  string // another service; "" none
	Mirror    *Mirror
	Revisions []Revision
	Scaling   *Scaling
	Rollout   *Rollout
}

// WebSocket is how sessions of a service are conducted after the handshake.
type WebSocket struct {
	IdleTimeout time.Duration // nothing moves in either direction; 0, the default, is no bound
	Lifetime    time.Duration // from the handshake; 0, the default, is no bound
	// Multiplex has the gateway itself answer handshakes, and pass messages among their clients by named channels. No
	// backend is asked then.
	Multiplex bool
}

// Strategy chooses among the backends of a service.
type Strategy string

// Strategies.
const (
	RoundRobin       Strategy = "round-robin"
	Weighted         Strategy = "weighted"
	LeastConnections Strategy = "least-connections"
	Random           Strategy = "random"
)

// LoadBalancer is the base pool of a service.
type LoadBalancer struct {
	Strategy            Strategy
	RequestTimeout      time.Duration // dispatch (or last upload byte) to response head; default 30 s
	StreamIdleTimeout   time.Duration // between two response body reads; default 5 m
	StreamTotalTimeout  time.Duration // whole exchange from dispatch; default 60 m
	Servers             []Server
	HealthCheck         *HealthCheck // nil: not probed
	UpstreamErrorStatus int          // status for connect-class failures; default 502, 503 restores the reference
	PassHost            bool         // send the client's Host upstream; default true
	Transport           Transport
	CAPos               acl.Span // of transport.ca_file
	ClientPos           KeyPair  // where transport.cert_file and key_file stand
	SendProxyPos        acl.Span // of transport.send_proxy
	Sticky              *Sticky  // nil: not sticky; always nil in this release
}

// Server is one backend address.
type Server struct {
	Pos    acl.Span
	URL    string // as written
	Scheme string // http, https, tcp or udp
	Addr   string // host:port (default port filled in), or unix:/path
	Host   string // authority to send when PassHost is false, and the TLS server name's source
	Base   string // base path without trailing slash; "" when none
	Weight int    // default 1; 0 never gets traffic
	// WebSocket says that the URL begins with ws:// or wss://: nothing else is spoken there. Scheme is what carries it.
	WebSocket bool
	Target    *Target

	bare bool // written without a scheme
}

// HealthCheck is the active probe of a service.
type HealthCheck struct {
	Path               string        // "" for gRPC, and for tcp and udp backends: connecting is the probe, or a datagram without content
	GRPC               bool          // the standard health service of gRPC is asked
	GRPCService        string        // for this service; "" for the backend as a whole
	Interval           time.Duration // default 10 s
	Timeout            time.Duration // default 5 s
	UnhealthyThreshold int           // default 3
	HealthyThreshold   int           // default 1
}

// Transport is how a service's backends are reached. Comparable: pools are keyed by it.
type Transport struct {
	ConnectTimeout time.Duration // TCP and TLS; default 5 s
	IdleTimeout    time.Duration // an unused connection is closed after; default 60 s
	MaxIdle        int           // kept idle per backend; default 512
	MaxConnections int           // open per backend; default 1024
	CAFile         string        // PEM roots instead of the system's; "" system
	SystemRoots    bool          // CAFile is beside the system's, not instead; no key says so
	ServerName     string        // TLS name to verify and send; "" from the URL
	CertFile       string        // PEM certificate to show to https backends; "" none
	KeyFile        string        // its key
	ALPN           Protocols     // what is offered to https backends; default HTTP/1.1
	PingInterval   time.Duration // HTTP/2: silence after which a connection in use is asked for a sign of life; 0 never
	MaxRequests    int           // requests after which a connection is not used again; 0 no limit
	MaxAge         time.Duration // time after which it is not; 0 no limit
	SendProxy      int           // version of the PROXY protocol header sent to tcp backends; 0 none
	Proxy          string        // http:// or h2c://host:port of an HTTP proxy that backends are reached through by CONNECT; "" none
}

// Middleware is one named policy. Exactly one of the typed blocks is set, chosen by Type.
type Middleware struct {
	Name        string
	Pos         acl.Span
	Type        string
	RateLimit   *RateLimit
	Headers     *Headers
	StripPrefix *StripPrefix
	TCPFilter   *TCPFilter

	// The rest is decoded, and refused in this release.
	JWT            *JWT
	APIKey         *APIKey
	BasicAuth      *BasicAuth
	ForwardAuth    *ForwardAuth
	RateLimitRedis *RateLimitRedis
	CORS           *CORS
	BodyLimit      *BodyLimit
	Retry          *Retry
	CircuitBreaker *CircuitBreaker
	IPAllow        *IPAllow
}

// RateLimit is a token bucket.
type RateLimit struct {
	Rate  uint64 // tokens a second; 0 never refills
	Burst uint64 // bucket size; default Rate
	Per   Per    // who has a bucket
}

// Per says whom a limit counts apart.
type Per string

// Buckets of a rate limit: one for each router, which is the default, or in it one for each identity that clients prove by a
// certificate. Of requests inside the tunnels of actors that is the actor.
const (
	PerRouter   Per = "router"
	PerIdentity Per = "identity"
)

// Headers changes request and response fields.
type Headers struct {
	Request  []HeaderValue
	Response []HeaderValue
}

// HeaderValue is a field to set; an empty value sets an empty field. Printing one never shows a value that is
// Secret; use Value itself only to put it on the wire.
type HeaderValue struct {
	Name, Value string
	Secret      bool // the value came from env(...) or file(...), or the name is one that carries credentials
}

// StripPrefix removes the first matching path prefix.
type StripPrefix struct{ Prefixes []string }

// TCPFilter bounds the connections of a tcp router.
type TCPFilter struct {
	MaxConnections int // 0: no bound
	Allowed        []netip.Prefix
}

// Providers are the dynamic sources.
type Providers struct {
	File *FileProvider // nil: no watching

	// The rest is decoded, and refused in this release.
	Discovery  *DiscoveryProvider
	Docker     *DockerProvider
	Kubernetes *KubernetesProvider
}

// FileProvider watches the main file and a directory of fragments.
type FileProvider struct {
	Watch     bool   // default true
	Directory string // "" none; *.acl below it are fragments, in sorted path order
}

// Observability switches records on and off. All default to on.
type Observability struct {
	Metrics   bool
	AccessLog bool
	Tracing   bool
	Log       AccessLog
}

// AccessLog is where terminal entries go.
type AccessLog struct {
	Output string // "stdout" (default), "stderr" or a file path
	Format string // "json" (default) or "common"
}

// Management is the operator's listener. Off by default.
type Management struct {
	Pos                            acl.Span
	AddressPos, TokenPos, ProbePos acl.Span // of the keys; of the block where they are not written
	Enabled                        bool
	Address                        string         // default 127.0.0.1:9090
	PathPrefix                     string         // default /api/gateway
	TokenEnv                       string         // environment variable with the bearer token; "" no token; default A3S_GATEWAY_ADMIN_TOKEN
	AllowedIPs                     []netip.Prefix // empty: no restriction; default loopback
	TLS                            *ManagementTLS
	ProbeAddress                   string // "" none: serves livez and readyz only, without token
}

// ManagementTLS is the tls block of management.
type ManagementTLS struct {
	TLS
	RequireClientCert bool
}
