package egress

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
)

// Bounds, for tests.
const (
	AuditQueue = auditQueue
	MaxLeaves  = maxLeaves
	MaxMinting = maxMinting
	DialRate   = dialRate
	DialBurst  = dialBurst
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
	return Leaves{&leaves{key: key, from: m, kept: map[Host]*leaf{}}}, err
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
