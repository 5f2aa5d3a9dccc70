package cert

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// CheckRenewals changes how often is looked for certificates to renew, before the first Load.
func (s *Store) CheckRenewals(every time.Duration) { s.renewCheck = every }

// Records puts a record into a zone and takes it away.
type Records interface {
	Add(ctx context.Context, name, value string) error
	Remove(ctx context.Context, name, value string) error
}

type records struct{ zone }

func (r records) Add(ctx context.Context, name, value string) error { return r.add(ctx, name, value) }

func (r records) Remove(ctx context.Context, name, value string) error {
	return r.remove(ctx, name, value)
}

// ZoneOf is the zone of a configuration.
func ZoneOf(n *config.DNS) (Records, error) {
	s, err := newDNSSolver(n)
	if err != nil {
		return nil, err
	}
	return records{s.zone}, nil
}

// Backoff is how long is waited after a failure.
var Backoff = backoff

// Newer is which certificates replace which.
var Newer = newer

// Elapse ages the certificate of a mount, as a clock does that is set, or a machine that sleeps while timers stand still.
func (h *Hub) Elapse(dir string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.mounts[dir]
	m.credential.Leaf.NotBefore, m.credential.Leaf.NotAfter = m.credential.Leaf.NotBefore.Add(-d), m.credential.Leaf.NotAfter.Add(-d)
	m.renew = m.renew.Add(-d)
}
