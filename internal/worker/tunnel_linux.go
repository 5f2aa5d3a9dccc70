package worker

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

// Tunnel is a connection to an actor, on which nothing has been sent. It ends with the actor's stay. Exactly one of Relay
// and Close has to be called, sooner or later: the end of the stay waits for it.
type Tunnel struct {
	drain.Ticket
	a    *Activation
	raw  *conn.Raw
	once sync.Once
}

// dial connects to the actor from the other end of its cable. The actor sees the gateway's address.
func (a *Activation) dial(ctx context.Context, port uint16) (*Tunnel, error) {
	select {
	case a.slots <- struct{}{}:
	default:
		return nil, ErrBusy
	}
	raw, err := a.network.Gateway.DialWithin(ctx, netip.AddrPortFrom(actorAddress, port), a.w.o.Bounds.Dial)
	if err != nil {
		<-a.slots
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	t := &Tunnel{a: a, raw: raw}
	a.links.Enter(&t.Ticket, t)
	return t, nil
}

// Relay moves bytes between the actor and who asked for the tunnel, until both have ended, and closes both.
func (t *Tunnel) Relay(from conn.Conn) {
	defer t.Close()
	done := link{tracker: &t.a.links, clock: t.a.w.o.Clock, bounds: t.a.w.o.Bounds}.relay(from, t.raw)
	t.a.log.Debug("a tunnel has ended", "received", done.AtoB, "sent", done.BtoA, "error", done.Err)
}

// Close gives the tunnel up. A second call does nothing.
func (t *Tunnel) Close() {
	t.once.Do(func() {
		t.Leave()
		_ = t.raw.Close() // closed already after Relay
		<-t.a.slots
		t.a.open.Done()
	})
}

// Drain lets the tunnel go on: only its ends know when they have finished.
func (t *Tunnel) Drain(drain.Mode) {}

// Force resets the actor's end; who holds the tunnel finds out.
func (t *Tunnel) Force() { _ = t.raw.Abort() }
