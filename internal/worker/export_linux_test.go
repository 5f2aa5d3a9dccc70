package worker

import (
	"context"
	"log/slog"
	"net"

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

// AcceptForeign has a capture of one namespace accept from a listener of another until the listener closes.
func AcceptForeign(l *net.TCPListener, gateway *fabric.Namespace, counts *Counts) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	c := &capture{listener: l, gateway: gateway, counts: counts, log: log, refusals: strangersLog{log: log}, ctx: ctx}
	c.accept()
}
