package egress

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// retryWatch is how long after a policy could not be read it is tried again.
const retryWatch = time.Second

// Watch ends connections that are passed through and whose rule is gone, until ctx ends: nothing else would decide about them
// again. While a policy cannot be read they go on.
func (g *Gateway) Watch(ctx context.Context) {
	again := map[actor.Ref]bool{}
	tick := time.NewTicker(retryWatch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case ref := <-g.policies.Changes():
			if !g.rejudge(ctx, ref) {
				again[ref] = true
			}
		case <-tick.C:
			for ref := range again {
				if g.rejudge(ctx, ref) {
					delete(again, ref)
				}
			}
		}
	}
}

// rejudge decides the passed connections of an actor once more; false when that must be tried again.
func (g *Gateway) rejudge(ctx context.Context, ref actor.Ref) bool {
	for _, n := range g.passing(ref) {
		s := n.standing(ctx)
		if s.Reason == PolicyUnavailable {
			return false
		}
		g.sever(PolicyChanged, func(t *tunnel) bool {
			if t.actor != n || t.leg != LegPassthrough {
				return false
			}
			mode, _ := JudgeTLS(s.Rules, Handshake{ServerName: t.sni, Port: t.dialed.Port()})
			return mode != ModePassthrough
		})
	}
	return true
}

// passing are the tenants of that name that have connections which are passed through.
func (g *Gateway) passing(ref actor.Ref) (found []*tenant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.actors {
		if n.ref != ref {
			continue
		}
		for t := range n.tunnels {
			if t.leg == LegPassthrough {
				found = append(found, n)
				break
			}
		}
	}
	return found
}
