package egress

import (
	"context"
	"time"
)

// watchEvery is how often what is passed through is decided again, whether somebody tells of a change or not. It bounds how long one
// goes on that was still being decided when the change was told, and for which no policy was to be had then.
const watchEvery = time.Second

// Watch ends connections that are passed through and whose rule is gone, until ctx ends: nothing else would decide about them
// again. While a policy cannot be read they go on.
func (g *Gateway) Watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case ref := <-g.policies.Changes():
			g.rejudge(ctx, g.passing(func(n *tenant) bool { return n.ref == ref }))
		case <-tick.C:
			g.rejudge(ctx, g.passing(func(*tenant) bool { return true }))
		}
	}
}

// rejudge decides the passed connections of actors once more.
func (g *Gateway) rejudge(ctx context.Context, actors []*tenant) {
	for _, n := range actors {
		s := n.standing(ctx)
		if s.Reason == PolicyUnavailable {
			continue
		}
		g.sever(PolicyChanged, func(t *tunnel) bool {
			if t.actor != n || t.leg != LegPassthrough {
				return false
			}
			mode, _ := JudgeTLS(s.Rules, Handshake{ServerName: t.sni, Port: t.dialed.Port()})
			return mode != ModePassthrough
		})
	}
}

// passing are the tenants that are meant and have connections which are passed through.
func (g *Gateway) passing(which func(n *tenant) bool) (found []*tenant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.actors {
		if !which(n) {
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
