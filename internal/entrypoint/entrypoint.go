// Package entrypoint owns the named listening sockets: it binds them, takes connections from them within limits, does
// the TLS handshake and hands each connection to a server, a func it is given. A Set lives as long as the process;
// what the configuration wants of it changes by plans that are prepared, committed, and then finished or reverted,
// and a socket outlives every configuration that names its address. The package knows no route, handler or
// certificate; it must not import cert, and it keeps no configuration.
package entrypoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

var (
	// ErrStopped is returned for plans after the set has begun to drain.
	ErrStopped = errors.New("entrypoints are being stopped")
	// ErrBusy is returned for a plan while another one is neither finished, reverted nor aborted.
	ErrBusy = errors.New("another change of the entrypoints is under way")
)

// Serve serves one connection until it has ended, and closes it. What may have to be told to drain enters live when
// it starts to be served and leaves when it ends; nothing of the connection runs once Serve has returned.
type Serve func(c conn.Conn, live *drain.Tracker)

// Defaults of Options.
const (
	DefaultMaxConnections   = 10000
	DefaultHandshakeTimeout = 10 * time.Second
)

// Options are what is wanted of one entrypoint. They are not changed once they have been given to Prepare.
type Options struct {
	// Address is IP:port, [IPv6]:port, :port, name:port or unix:/path. Port 0 lets the system choose. `0.0.0.0` and
	// `[::]` are every address of that one family, an empty host is every address of both. A name is resolved when
	// it is bound, and its first IPv4 address is preferred.
	Address string
	// HTTP serves connections; required unless Streams or Datagrams is set. In clear text it also gets those that speak HTTP/2 from their first byte on.
	HTTP Serve
	// Streams, if set, serves connections as they are, instead of HTTP and H2.
	Streams *Streams
	// Datagrams, if set, makes it an entrypoint of datagrams: nothing else but Address counts then.
	Datagrams *Datagrams
	// H2 serves TLS connections that agreed on h2; nil gives them to HTTP.
	H2 Serve
	// HTTP3 has the UDP socket of the same address served as well, by Setup.QUIC. It needs TLS and an IP address.
	HTTP3 bool
	// Passes reports whether a connection goes to Streams as it is, by the server name that its client asks for, before TLS
	// ends here; nil: none does, and Streams serves all or is nil.
	Passes func(client netip.Addr, serverName string) bool
	// TLS is asked for the configuration of each new connection; nil is clear text. A nil configuration refuses the
	// connection.
	TLS func() *tls.Config
	// AllowedIPs are the peers that are served, empty all; those of others are closed at once.
	AllowedIPs []netip.Prefix
	// ProxyTrusted are the peers whose connections must begin with a PROXY protocol header, which is believed. Of others
	// such a header is no more than bytes.
	ProxyTrusted []netip.Prefix
	// MaxConnections bounds the open ones; those beyond are closed at once. 0 is DefaultMaxConnections.
	MaxConnections int
	// MaxPerClient bounds the open ones of one client address, or of one /64 of IPv6; 0 is no bound. It counts those that
	// began under a bound.
	MaxPerClient int
	// HandshakeTimeout bounds the TLS handshake; 0 is DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
}

func (o *Options) maxConnections() int64 {
	if o.MaxConnections > 0 {
		return int64(o.MaxConnections)
	}
	return DefaultMaxConnections
}

// allows reports whether a client may connect.
func (o *Options) allows(client netip.Addr) bool {
	return len(o.AllowedIPs) == 0 || config.Among(o.AllowedIPs, client)
}

// proxied reports whether a peer speaks for others.
func (o *Options) proxied(peer netip.Addr) bool { return config.Among(o.ProxyTrusted, peer) }

func (o *Options) handshakeTimeout() time.Duration {
	if o.HandshakeTimeout > 0 {
		return o.HandshakeTimeout
	}
	return DefaultHandshakeTimeout
}

// Stats are the counters of one entrypoint. They go on over reloads as long as the name exists.
type Stats struct {
	Name              string
	Address           string // as bound; "" when only old connections are left
	Open              int64  // connections
	Accepted          uint64 // connections taken, without the refused
	Refused           uint64 // closed at once: not allowed, or too many
	HandshakeFailures uint64
	ProxyFailures     uint64 // closed: no PROXY protocol header, or a bad one
	AcceptErrors      uint64 // out of descriptors or memory; accepting paused
	Panics            uint64 // connections that ended in a recovered panic
	// Datagrams of an entrypoint of them, whose sessions are counted as connections; nil of others.
	Datagrams *DatagramStats
}

// counts are the live form of Stats.
type counts struct {
	open                                                  atomic.Int64
	accepted, refused, handshakes, acceptErrors, panicked atomic.Uint64
	proxied                                               atomic.Uint64
	clients                                               clients
	datagrams                                             datagramCounts
}

// Setup is what a Set is made with.
type Setup struct {
	// Logger gets what operators should see; nil discards.
	Logger *slog.Logger
	// Sockets is the number of listening sockets for an IP address, on Linux, where the kernel spreads connections
	// over them; 0 is the number of processors Go uses. Elsewhere there is one.
	Sockets int
	// Listen replaces the kernel, for in-memory networks; nil binds sockets. Its network is tcp, tcp4, tcp6 or unix.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// QUIC serves UDP sockets; nil: no entrypoint can have HTTP/3.
	QUIC OpenQUIC
	// Inherited sockets are used instead of binding; nil is none. The set closes those it takes.
	Inherited *Inherited
}

// Set is all entrypoints of a process. Its methods are safe for concurrent use.
type Set struct {
	log       *slog.Logger
	setup     Setup
	acceptRaw rawAccept // tests inject errors here; nil is the kernel

	mu      sync.Mutex // guards all below
	table   map[string]*binding
	retired map[*binding]struct{} // out of the table, with connections left
	counts  map[string]*counts
	packets map[string]*packets // UDP sockets by address, those among them that end
	udp     map[string]*packets // those of the table
	plan    *Plan               // the one under way
	busy    bool                // a plan is being prepared
	stopped bool

	closing sync.WaitGroup // UDP sockets that end
}

// NewSet makes an empty set. It starts nothing.
func NewSet(s Setup) *Set {
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Sockets <= 0 {
		s.Sockets = runtime.GOMAXPROCS(0)
	}
	return &Set{
		log: s.Logger, setup: s, table: map[string]*binding{}, retired: map[*binding]struct{}{}, counts: map[string]*counts{},
		packets: map[string]*packets{},
	}
}

// Addr is the address that the named entrypoint is bound to, nil if there is none.
func (s *Set) Addr(name string) net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.table[name]; b != nil {
		return b.sock.bound
	}
	return nil
}

// Stats returns the counters of every entrypoint, sorted by name. Removed ones are among them until their last
// connection has ended.
func (s *Set) Stats() []Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Stats, 0, len(s.counts))
	for name, c := range s.counts {
		st := Stats{
			Name: name, Open: c.open.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(),
			HandshakeFailures: c.handshakes.Load(), ProxyFailures: c.proxied.Load(), AcceptErrors: c.acceptErrors.Load(), Panics: c.panicked.Load(),
		}
		if b := s.table[name]; b != nil {
			st.Address = b.sock.bound.String()
			if b.sock.addr.udp {
				st.Datagrams = c.datagrams.stats()
			}
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Stats) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// Drain stops accepting and tells every connection to end. Prompt takes what waits in the queues of the listening
// sockets first, and who is just connecting, for up to a second, so that no client that has been promised a connection
// is reset. Gentle is for a process whose
// sockets have been handed over (Files): it closes its own copies and leaves the queues, and unix paths, to the new
// owner. A plan under way is aborted, or finished if it was committed. No plan is accepted afterwards.
func (s *Set) Drain(mode drain.Mode) {
	s.mu.Lock()
	s.stopped = true
	plan := s.plan
	s.mu.Unlock()
	if plan != nil {
		plan.settle()
	}
	s.mu.Lock()
	live := s.bindings()
	table, udp := s.table, s.udp
	s.udp = nil
	s.mu.Unlock()
	for _, pk := range udp {
		if mode == drain.Gentle {
			pk.quic.Cede() // who has come before that is still served
		} else {
			pk.door.owner.Store(nil)
		}
	}
	s.dropPackets(udp, time.Hour) // the drain has its own deadline
	var wg sync.WaitGroup
	for _, b := range table {
		wg.Go(func() {
			switch {
			case b.sock.addr.udp:
				b.sock.drain(b, mode == drain.Gentle)
			case mode == drain.Gentle:
				b.sock.leave()
			default:
				b.sock.retire(b)
			}
		})
	}
	wg.Wait()
	for _, b := range live {
		b.live.Drain(mode)
	}
}

// bindings lists everything that may have connections. The set is locked.
func (s *Set) bindings() []*binding {
	all := make([]*binding, 0, len(s.table)+len(s.retired))
	for _, b := range s.table {
		all = append(all, b)
	}
	for b := range s.retired {
		all = append(all, b)
	}
	return all
}

// Wait returns nil once no connection is left, or the context's error. It is of use after Drain.
func (s *Set) Wait(ctx context.Context) error {
	s.mu.Lock()
	all := s.bindings()
	s.mu.Unlock()
	for _, b := range all {
		if err := b.conns.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Force ends every connection, and each that comes later, at once. It returns how many there were.
func (s *Set) Force() int {
	s.mu.Lock()
	all := s.bindings()
	s.mu.Unlock()
	n := 0
	for _, b := range all {
		n += b.live.Force()
	}
	return n
}

// afterForce bounds how long forced connections may take to end.
const afterForce = 5 * time.Second

// Shutdown drains, waits until ctx ends, and forces what is left then. It returns how many connections were forced,
// and an error when some did not even end then.
func (s *Set) Shutdown(ctx context.Context, mode drain.Mode) (int, error) {
	s.Drain(mode)
	if s.Wait(ctx) == nil {
		s.closing.Wait()
		return 0, nil
	}
	forced := s.Force()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterForce)
	defer cancel()
	if err := s.Wait(ctx); err != nil {
		return forced, fmt.Errorf("waiting for forced connections: %w", err)
	}
	s.closing.Wait()
	return forced, nil
}

// forget drops a retired binding whose last connection has ended.
func (s *Set) forget(b *binding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.retired[b]; !ok || b.conns.Len() > 0 {
		return
	}
	delete(s.retired, b)
	b.timer.Stop()
	if s.table[b.name] != nil {
		return
	}
	for other := range s.retired {
		if other.name == b.name {
			return
		}
	}
	delete(s.counts, b.name)
}
