// Package service is named destinations: the backends of a service, which of them takes an exchange, whether they are
// healthy, and the connection pools that reach them. The Registry and the Checker live as long as the process and
// hold what a reload must not lose: health, counts and pools, as does a Lot, in which requests wait for what has to be
// woken first. A Balancer lives as long as its generation and hands out Leases, which last one attempt. The package moves
// no request or response byte, and knows no route.
package service

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// State is what is known of a backend's health.
type State uint32

// States. A backend that no health check looks at is Healthy.
const (
	Healthy State = iota
	// Unknown is a backend whose health check has not passed yet: it gets traffic only while no other is healthy.
	Unknown
	// Unhealthy is a backend that gets no traffic.
	Unhealthy
)

// String is the word of logs and the management API.
func (s State) String() string { return [...]string{"healthy", "unknown", "unhealthy"}[s] }

// Policy is how exchanges with a service are conducted; see config.LoadBalancer.
type Policy struct {
	RequestTimeout      time.Duration
	StreamIdleTimeout   time.Duration
	StreamTotalTimeout  time.Duration
	UpstreamErrorStatus int
	PassHost            bool
	ConnectTimeout      time.Duration
	WebSocket           config.WebSocket
	WebSocketOnly       bool // backends speak nothing else, or there are none
	SendProxy           int  // version of the PROXY protocol header that connections begin with; 0 none
	// Private says which fields are never passed on, in either direction; nil: none but those of one connection.
	Private Names
}

// Names is a set of field names, in any case.
type Names interface{ Has(name []byte) bool }

// Backend is one server of a service in one generation. Immutable.
type Backend struct {
	ID     string // opaque, for metrics; see BackendID
	URL    string // as configured, without credentials
	Scheme string // http, https, tcp or udp
	Addr   string // host:port, or unix:/path
	Host   string // authority, for when the client's is not passed on
	Base   string // path prefix without trailing slash; "" none
	Weight int
	Pool   *Pool // shared by every generation and service that reaches the same place the same way

	names  *names // for datagrams
	index  int    // among the backends that can get traffic
	vitals *vitals
}

// Active is the number of leases that are not done, over all generations.
func (b *Backend) Active() int64 { return b.vitals.active.Load() }

// State is the backend's health.
func (b *Backend) State() State { return State(b.vitals.state.Load()) }

// BackendStats is one backend at one moment.
type BackendStats struct {
	Service string
	ID      string
	URL     string
	Weight  int
	State   State
	Healthy bool   // State is not Unhealthy
	Active  int64  // leases not done
	Open    int    // connections, of every service that shares the pool; those in Idle are among them
	Idle    int    // connections that wait for a request
	Refused uint64 // attempts that could not connect, since the backend is known
	Skipped bool   // it refused a moment ago and is passed over
}

// backendScope begins what a backend id is the hash of.
const backendScope = "a3s-gateway-backend-slot-v1"

// BackendID is the identity of the backend at a position (from 0) of a scope, for metrics: it says nothing about the
// address. The scope is the name of the service.
func BackendID(scope string, index int) string {
	b := make([]byte, 0, len(backendScope)+len(scope)+10)
	b = append(b, backendScope...)
	b = append(b, 0)
	b = append(b, scope...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(index))
	sum := sha256.Sum256(b)
	return "b_" + hex.EncodeToString(sum[:])
}

// publicURL is the URL without user and password.
func publicURL(u string) string {
	scheme, rest, ok := strings.Cut(u, "://")
	if !ok {
		return u
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	return scheme + "://" + authority + path
}
