package actor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// Link is how a way reaches other processes.
type Link struct {
	Control Control
	// WorkerTLS makes the configuration for a connection to a worker, which check has to approve of by its identity.
	WorkerTLS func(check func(id string) error) *tls.Config
	// Dial replaces the kernel's network on the way to workers; nil does not.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Close ends the link; the way that has it does so.
	Close func() error
}

// Ways are the ways to actors that generations use. One lives as long as the process: what is known of actors, the requests
// that wait for them and the tunnels to them outlive a generation. Safe for concurrent use.
type Ways struct {
	clock *conn.Clock
	open  func(config.ActorWay) (Link, error)

	measures measures

	stop     chan struct{}  // closed by Close
	retiring sync.WaitGroup // ways without a reference

	mu     sync.Mutex // guards the fields below, and the references
	all    map[config.ActorWay]*way
	ended  Stats // counts of ways that have ended; no gauges
	closed bool
}

// NewWays returns none yet. open makes the link of each.
func NewWays(clock *conn.Clock, open func(config.ActorWay) (Link, error)) *Ways {
	return &Ways{
		clock: clock, open: open, all: make(map[config.ActorWay]*way), stop: make(chan struct{}),
		measures: measures{routes: make(map[RouteKey]*Distribution), waits: make(map[string]*Distribution)},
	}
}

// acquire returns the way of a configuration, with a reference to it.
func (w *Ways) acquire(cfg config.ActorWay) (*way, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.all[cfg]; known != nil {
		known.refs++
		return known, nil
	}
	link, err := w.open(cfg)
	if err != nil {
		return nil, err
	}
	n := newWay(cfg, link, w.clock)
	n.refs = 1
	w.all[cfg] = n
	return n, nil
}

// release gives a reference back. Without any the way ends, once nothing flies that its requests have begun.
func (w *Ways) release(n *way) {
	w.mu.Lock()
	n.refs--
	last, closed := n.refs == 0, w.closed
	if last && !closed {
		w.retiring.Go(func() { w.retire(n) })
	}
	w.mu.Unlock()
	if last && closed {
		w.retire(n)
	}
}

// retire ends a way that has no reference, unless it gets one meanwhile. What is being woken is awaited first: given up by us
// it would be left half way, though whoever asked for it only came at the wrong moment.
func (w *Ways) retire(n *way) {
	for !w.end(n) {
		select {
		case <-n.lot.Quiet():
		case <-w.stop:
		}
	}
}

// end ends a way on which nothing flies, or that Close has had enough of. It reports false when the way is to be looked at again.
func (w *Ways) end(n *way) bool {
	w.mu.Lock()
	if n.refs > 0 || w.all[n.cfg] != n { // it has got one, or was ended by who gave the one before back
		w.mu.Unlock()
		return true
	}
	if !w.closed && n.lot.Stats().Flights > 0 {
		w.mu.Unlock()
		return false
	}
	delete(w.all, n.cfg)
	w.ended.count(n)
	w.mu.Unlock()
	n.close()
	return true
}

// Close ends the ways without a reference, with the attempts under way on them, and waits until they have ended; the others end
// when they lose their last one. It is for the end of the process.
func (w *Ways) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	w.retiring.Wait()
}

// Stats are gauges of all ways together, and counts of those and of the ways that have ended.
type Stats struct {
	Ways, Parked, Flights, Waiting, Remembered, Tunnels int
	Rejected, Resumes, Hits, Stale                      uint64
}

// Stats returns the counts of now.
func (w *Ways) Stats() (s Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s = w.ended
	s.Ways = len(w.all)
	for _, n := range w.all {
		lot := n.lot.Stats()
		s.Parked, s.Flights, s.Waiting = s.Parked+lot.Parked, s.Flights+lot.Flights, s.Waiting+lot.Waiting
		s.Remembered, s.Tunnels = s.Remembered+n.known.len(), s.Tunnels+n.tunnels.Stats().Tunnels
		s.count(n)
	}
	return s
}

// count adds the counts of a way.
func (s *Stats) count(n *way) {
	s.Rejected += n.lot.Stats().Rejected
	s.Resumes, s.Hits, s.Stale = s.Resumes+n.resumes.Load(), s.Hits+n.hits.Load(), s.Stale+n.stale.Load()
}

// workerKey tells connections to workers apart: one is used for the tunnels to every actor of a worker, and never for a worker
// that has begun anew, or is to prove something else.
type workerKey struct {
	worker string
	epoch  int64
	addr   netip.AddrPort
	pin    WorkerPin
}

// way is how actors are found and reached.
type way struct {
	cfg     config.ActorWay
	parking service.Parking
	link    Link
	known   *assignments
	lot     *service.Lot[Ref, located]
	tunnels *tunnel.Pool[workerKey]
	singles *service.Singles
	ends    sync.WaitGroup // of tunnels that are being ended

	resumes, hits, stale atomic.Uint64

	refs int // guarded by Ways.mu
}

func newWay(cfg config.ActorWay, link Link, clock *conn.Clock) *way {
	p := cfg.Parking
	n := &way{
		cfg: cfg, link: link, known: newAssignments(cfg.AssignmentTTL),
		parking: service.Parking{Budget: p.Budget, Max: p.Max, Interval: p.RetryInterval, Factor: p.RetryFactor, Jitter: p.RetryJitter},
		tunnels: tunnel.NewPool[workerKey](tunnel.Limits{}, clock), singles: service.NewSingles(clock),
	}
	n.lot = service.NewLot(n.parking, n.wake, retryOf)
	return n
}

// close ends everything. No exchange uses the way any more; what still flies is nobody's.
func (n *way) close() {
	n.lot.Close()
	n.tunnels.Close()
	n.singles.Close()
	n.ends.Wait()
	if n.link.Close != nil {
		_ = n.link.Close()
	}
}

// wake is one attempt to have an actor run.
func (n *way) wake(ctx context.Context, ref Ref) (located, error) {
	n.resumes.Add(1)
	a, resumed, err := n.link.Control.ResumeActor(ctx, ref)
	if err != nil {
		return located{}, err
	}
	if a.Ref != ref || a.Assignment == nil || len(a.Assignment.Addrs) == 0 {
		return located{}, fmt.Errorf("actor %s: %w: it does not say where it is", ref, ErrAnswer)
	}
	return n.known.put(a, resumed), nil
}

// retryOf says which refusals of the control plane may pass.
func retryOf(err error) service.Retry {
	var e *Error
	if !errors.As(err, &e) {
		return service.NoRetry
	}
	switch e.Code {
	case Aborted:
		return service.RetryConflict
	case ResourceExhausted, FailedPrecondition, Unavailable:
		return service.RetryParked
	}
	return service.NoRetry
}

// locate finds out where an actor is, and has it woken if it sleeps.
func (n *way) locate(ctx context.Context, ref Ref) (located, service.Stay, error) {
	if at, ok := n.known.get(ref); ok {
		n.hits.Add(1)
		return at, service.Stay{}, nil
	}
	return n.lot.Wait(ctx, ref)
}

// answerLimit bounds a worker's answer to a request for a tunnel: it has 5 s to connect to the actor.
const answerLimit = 6 * time.Second

// tunnel opens a tunnel to a port of an actor. What the worker is told is what the control plane was asked about.
func (n *way) tunnel(ctx context.Context, at located, ref Ref, port uint16) (*carrier, error) {
	to := at.actor.Assignment
	addr := netip.AddrPortFrom(to.Addrs[0], uint16(n.cfg.Workers.Port))
	key := workerKey{worker: to.Worker, epoch: to.Epoch, addr: addr, pin: WorkerPin{ID: to.ID, Namespace: to.Namespace}}
	peer := tunnel.Peer{Addr: addr.String(), TLS: func() *tls.Config {
		return n.link.WorkerTLS(func(id string) error { return key.pin.Check(n.cfg.Workers.TrustDomain, id) })
	}}
	if n.link.Dial != nil {
		peer.Dial = func(ctx context.Context) (net.Conn, error) { return n.link.Dial(ctx, addr.String()) }
	}
	c, err := n.tunnels.Open(ctx, key, peer, tunnel.Request{
		Authority: "actor:" + strconv.Itoa(int(port)), Fields: []tunnel.Field{{Name: TargetField, Value: ref.String()}}, Within: answerLimit,
	})
	if err != nil {
		return nil, err
	}
	return &carrier{Conn: c, way: n}, nil
}

// staleField marks the answer of a worker that does not have the actor.
const staleField = "x-ate-assignment-stale"

// passes reports whether a tunnel that could not be opened may be opened elsewhere: the actor is not there, or the worker
// is not, or is another one. Nothing of the request has been sent.
func passes(err error) bool {
	var r *tunnel.Refusal
	if errors.As(err, &r) {
		return r.Status == 421 && r.Get(staleField) == "true"
	}
	return !errors.Is(err, tunnel.ErrFull)
}

// carrier is a tunnel that carries one exchange.
type carrier struct {
	*tunnel.Conn
	way *way
	cut atomic.Bool
}

// lingering is how long an actor has to end its side once everything was said.
const lingering = time.Second

// Interrupt makes waits fail, for an exchange that will not come to its end.
func (c *carrier) Interrupt() {
	c.cut.Store(true)
	c.Conn.Interrupt()
}

// Close ends the tunnel. After an exchange that has come to its end the actor's end is awaited for a moment: it comes by
// itself, and a reset of each tunnel would be taken for an attack.
func (c *carrier) Close() error {
	if c.cut.Load() {
		return c.Abort()
	}
	c.way.ends.Add(1)
	if err := c.Linger(lingering, c.way.ends.Done); err != nil {
		c.way.ends.Done()
		return c.Abort()
	}
	return nil
}
