package egress

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

const (
	// watchEvery is how often what is passed through is decided again, whether somebody tells of a change or not. It bounds how
	// long one goes on that was still being decided when the change was told, and for which no policy was to be had then.
	watchEvery = time.Second
	// watchTick is how often somebody looks whose turn it is.
	watchTick = 100 * time.Millisecond
	// watchCalls is for how many actors the policy is asked for at a time at most, and at each look: 500 a second. With more actors
	// each has its turn less often.
	watchCalls = 50
)

// Watch ends connections that are passed through and whose rule is gone, until ctx ends: nothing else would decide about them
// again. While a policy cannot be read they go on.
func (g *Gateway) Watch(ctx context.Context) {
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	room := make(chan struct{}, watchCalls)
	for {
		select {
		case <-ctx.Done():
			return
		case ref := <-g.o.Policies.Changes():
			g.hurry(ref)
		case now := <-tick.C:
			for _, n := range g.due(now, watchCalls-len(room)) {
				room <- struct{}{} // only this goroutine fills it
				calls.Go(func() {
					g.rejudge(ctx, n)
					<-room
				})
			}
		}
	}
}

// rejudge decides the passed connections of an actor once more.
func (g *Gateway) rejudge(ctx context.Context, n *tenant) {
	s := n.standing(ctx)
	g.mu.Lock()
	n.looking = false
	g.mu.Unlock()
	if s.Reason == PolicyUnavailable {
		return
	}
	g.sever(PolicyChanged, func(t *tunnel) bool {
		if t.actor != n || t.leg != LegPassthrough {
			return false
		}
		mode, _ := JudgeTLS(s.Rules, Handshake{ServerName: t.sni, Port: t.dialed.Port()})
		return mode != ModePassthrough
	})
}

// hurry has an actor looked at though its turn has not come, but not before those that have waited longer: what is known of
// policies is old, and told to be, all the time.
func (g *Gateway) hurry(ref actor.Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.actors {
		if n.ref == ref {
			n.hurried = true
		}
	}
}

// due are up to so many actors with connections which are passed through whose turn it is, those first that have waited longest.
func (g *Gateway) due(now time.Time, most int) (found []*tenant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.actors {
		if !n.looking && (n.hurried || now.Sub(n.looked) >= watchEvery) && n.passes() {
			found = append(found, n)
		}
	}
	slices.SortFunc(found, func(a, b *tenant) int { return cmp.Or(a.looked.Compare(b.looked), cmp.Compare(a.uid, b.uid)) })
	found = found[:min(most, len(found))]
	for _, n := range found {
		n.looked, n.looking, n.hurried = now, true, false
	}
	return found
}

// passes reports whether a connection is passed through. The gateway is locked.
func (n *tenant) passes() bool {
	for t := range n.tunnels {
		if t.leg == LegPassthrough {
			return true
		}
	}
	return false
}
