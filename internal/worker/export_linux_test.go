package worker

import (
	"context"
	"log/slog"
	"net"
	"time"

	"golang.org/x/net/bpf"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Filter is the filter of system calls, for a twin that decides without it.
func Filter() []bpf.Instruction { return filter() }

// Start starts a program as an activation does. The func waits for its end and tells how it was.
func (p *Program) Start(ctx context.Context, hostname string, n *Network, g *fabric.Group) (pid int, wait func() string, err error) {
	started, err := p.start(ctx, hostname, n, g)
	if err != nil {
		return 0, nil, err
	}
	return started.pid, func() string { <-started.ended; return started.how }, nil
}

// OtherNumbers begin the numbers of system calls for which an actor is killed.
const OtherNumbers = otherNumbers

// Children is how many processes a worker has started that it still knows.
func (w *Worker) Children() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.children)
}

// AuditArch is the architecture of the filter.
const AuditArch = auditArch

// Denied are the calls that fail with EPERM.
var Denied = denied

// Pace is how long each of several has to wait that come when they do, after rate and burst.
func Pace(rate, burst float64, when ...time.Duration) []time.Duration {
	p, start := pace{rate: rate, burst: burst}, time.Now()
	var waits []time.Duration
	for _, w := range when {
		waits = append(waits, p.next(start.Add(w)).Round(time.Millisecond))
	}
	return waits
}

// AcceptForeign has a capture of one namespace accept from a listener of another until the listener closes.
func AcceptForeign(l *net.TCPListener, gateway *fabric.Namespace, counts *Counts) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	c := &capture{listener: l, gateway: gateway, counts: counts, log: log, refusals: strangersLog{log: log}, ctx: ctx}
	c.accept()
}

// ErrExpired is a credential that was not renewed in time.
var ErrExpired = errExpired

// Credential is the key of a stay.
type Credential struct{ *credential }

// NewCredential makes one.
func NewCredential(ctx context.Context, a Actor, mint Mint) (Credential, error) {
	c, err := newCredential(ctx, a, mint, slog.New(slog.DiscardHandler))
	return Credential{c}, err
}

// Run renews it until ctx ends.
func (c Credential) Run(ctx context.Context, renewed func()) { c.run(ctx, renewed) }

// Usable is nil as long as tunnels may be opened with it.
func (c Credential) Usable() error { return c.usable() }

// Elapse ages the certificate, as a clock does that is set, or a machine that sleeps while timers stand still.
func (c Credential) Elapse(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.Leaf.NotBefore, c.current.Leaf.NotAfter = c.current.Leaf.NotBefore.Add(-d), c.current.Leaf.NotAfter.Add(-d)
	c.due = c.due.Add(-d)
}
