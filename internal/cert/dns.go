package cert

import (
	"context"
	"fmt"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/sluice-proxy/sluice/internal/config"
)

// recordLife is how long resolvers may keep a record that proves control over a name, in seconds.
const recordLife = 120

// cleanupTime bounds taking a record away.
const cleanupTime = 30 * time.Second

// zone is where TXT records can be put. Records of the same name with other values are left alone. Names end without a
// dot. Methods are called from several goroutines.
type zone interface {
	add(ctx context.Context, name, value string) error
	remove(ctx context.Context, name, value string) error
}

// dnsSolver answers dns-01 challenges (RFC 8555 section 8.4).
type dnsSolver struct {
	zone zone
	wait time.Duration
}

func newDNSSolver(n *config.DNS) (*dnsSolver, error) {
	s := &dnsSolver{wait: n.Propagation}
	switch n.Provider {
	case config.DNSUpdate:
		s.zone = newUpdateZone(n)
	case config.DNSCloudflare:
		s.zone = newCloudflareZone(n)
	case config.DNSRoute53:
		s.zone = newRoute53Zone(n)
	default:
		return nil, fmt.Errorf("there is no DNS provider %q", n.Provider)
	}
	return s, nil
}

// Present adds the record.
func (s *dnsSolver) Present(ctx context.Context, c acme.Challenge) error {
	name := c.DNS01TXTRecordName()
	if err := s.zone.add(ctx, name, c.DNS01KeyAuthorization()); err != nil {
		return fmt.Errorf("adding the record %s: %w", name, err)
	}
	return nil
}

// Wait gives the servers of the zone time to learn of the record.
func (s *dnsSolver) Wait(ctx context.Context, _ acme.Challenge) error {
	t := time.NewTimer(s.wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CleanUp takes the record away, also when the order was given up.
func (s *dnsSolver) CleanUp(ctx context.Context, c acme.Challenge) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	name := c.DNS01TXTRecordName()
	if err := s.zone.remove(ctx, name, c.DNS01KeyAuthorization()); err != nil {
		return fmt.Errorf("removing the record %s: %w", name, err)
	}
	return nil
}
