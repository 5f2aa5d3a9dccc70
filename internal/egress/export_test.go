package egress

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Bounds, for tests.
const (
	AuditQueue = auditQueue
	MaxLeaves  = maxLeaves
	MaxMinting = maxMinting
	DialRate   = dialRate
	DialBurst  = dialBurst
	WatchCalls = watchCalls
	WatchRate  = watchCalls * int(time.Second/watchTick)
)

// ErrLeaves is what an actor is told that wants too many certificates.
var ErrLeaves = errLeaves

// ParseHosts reads a hosts file.
var ParseHosts = parseHosts

// Leaves are the certificates of one actor.
type Leaves struct{ *leaves }

// NewLeaves makes them.
func NewLeaves(m cert.Minter) (Leaves, error) {
	key, err := newLeafKey()
	return Leaves{&leaves{key: key, from: m, minting: newLimits().minting, kept: map[Host]*leaf{}}}, err
}

// Get returns one.
var Get = Leaves.get

// Kept is how many there are.
func (l Leaves) Kept() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.kept)
}

// Bucket is a limit of dials.
type Bucket struct{ bucket }

// Take takes one.
func (b *Bucket) Take(now time.Time) bool { return b.take(now) }

// Admit decides about a tunnel, which has ended at once.
func (g *Gateway) Admit(ctx context.Context, o Opening) Verdict {
	t, v := g.admit(ctx, o, &Record{})
	if t != nil {
		t.leave()
	}
	return v
}

// Entered is a tunnel that carries nothing.
type Entered struct{ t *tunnel }

// Enter opens one, which there must be room for.
func (g *Gateway) Enter(ref actor.Ref, uid string, dialed netip.AddrPort) Entered {
	a := actor.Actor{Ref: ref}
	a.UID = uid
	t, _ := g.enter(Claim{Ref: ref, Dialed: dialed}, a)
	return Entered{t}
}

// Leave ends it.
func (e Entered) Leave() { e.t.leave() }

// TakeDial asks whether a connection may be opened.
func (e Entered) TakeDial() bool { return e.t.actor.origins.dials.take(time.Now()) }

// Mint asks for a certificate, and reports whether somebody sees to it.
func (e Entered) Mint(h Host) bool {
	_, err := e.t.actor.leaves.entry(h)
	return err == nil
}

// Decide decides about a connection that is to be passed through, and returns what follows.
func (e Entered) Decide(ctx context.Context, sni string) func() {
	s := e.t.actor.standing(ctx)
	_, v := JudgeTLS(s.Rules, Handshake{ServerName: sni, Port: e.t.dialed.Port()})
	return func() { e.t.becomes(LegPassthrough, v, s.Version) }
}

// Why is why somebody has ended it.
func (e Entered) Why() Reason { return e.t.why() }

// Remembered is of how many actors limits are known.
func (g *Gateway) Remembered() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.limits)
}

// Ask has a request decided inside of a tunnel, and routed if it is allowed.
func (e Entered) Ask(x *exchange.Exchange, leg Leg, sni Host) error {
	return (&requests{t: e.t, leg: leg, sni: sni}).Serve(x)
}
