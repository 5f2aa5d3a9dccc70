package entrypoint

import (
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Defaults of Datagrams.
const (
	DefaultSessionTimeout = 30 * time.Second
	DefaultMaxSessions    = 10000
)

// Datagrams says how the clients of a socket of datagrams are served. All datagrams of one client are a session: they go to
// one backend, whose datagrams come back. With Spread they are one for each backend.
type Datagrams struct {
	Handler exchange.SessionHandler
	// Timeout ends a session in which no datagram comes in either direction, at most a quarter of a second late; 0 is
	// DefaultSessionTimeout.
	Timeout time.Duration
	// MaxSessions bounds the sessions; datagrams of clients beyond are dropped. 0 is DefaultMaxSessions.
	MaxSessions int64
	// Spread divides the datagrams of a client among the backends.
	Spread bool
}

func (d *Datagrams) timeout() time.Duration {
	if d.Timeout > 0 {
		return d.Timeout
	}
	return DefaultSessionTimeout
}

func (d *Datagrams) maxSessions() int64 {
	if d.MaxSessions > 0 {
		return d.MaxSessions
	}
	return DefaultMaxSessions
}

// drop is why a datagram was not passed on.
type drop uint8

const (
	dropFull        drop = iota // MaxSessions
	dropRefused                 // no router takes it
	dropNoBackend               // no backend may be chosen
	dropDraining                // a new client while the gateway stops
	dropUnresolved              // too many came while the backend's name was looked up, or it has no address
	dropUnreachable             // the network refuses to carry it to a backend
	dropTooLarge                // larger than the way to the other side takes
	dropNotSent                 // the system took no more: buffers, descriptors, a packet filter
	drops                       // the number of reasons
)

// String is the word of metrics.
func (d drop) String() string {
	return [...]string{"sessions_full", "no_route", "no_backend", "draining", "unresolved", "unreachable", "too_large", "not_sent"}[d]
}

// DatagramStats are the counters of an entrypoint of datagrams.
type DatagramStats struct {
	In, Out uint64            // passed on: from clients, and to them
	Dropped map[string]uint64 // the others, by reason
}

// datagramCounts are their live form.
type datagramCounts struct {
	in, out atomic.Uint64
	dropped [drops]atomic.Uint64
}

func (c *datagramCounts) stats() *DatagramStats {
	s := &DatagramStats{In: c.in.Load(), Out: c.out.Load(), Dropped: make(map[string]uint64, drops)}
	for d := range drops {
		s.Dropped[d.String()] = c.dropped[d].Load()
	}
	return s
}
