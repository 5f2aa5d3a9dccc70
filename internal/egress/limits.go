package egress

import (
	"sync"
	"time"
)

// remember is how long the limits of an actor outlive its last tunnel: by then a bucket is full again, and nothing is being minted.
const remember = 10 * time.Second

// limits are what one actor has used up, by its UID. They outlive its tunnels, so that nobody begins anew by ending the last one.
type limits struct {
	dials   bucket
	minting chan struct{} // holds one for each certificate that is being minted
	forget  *time.Timer   // guarded by Gateway.mu; nil while the actor has not been without tunnels
}

func newLimits() *limits { return &limits{minting: make(chan struct{}, maxMinting)} }

// limitsOf are an actor's, who has a tunnel from now on. The gateway is locked.
func (g *Gateway) limitsOf(uid string) *limits {
	l := g.limits[uid]
	if l == nil {
		l = newLimits()
		g.limits[uid] = l
	}
	if l.forget != nil {
		l.forget.Stop()
	}
	return l
}

// forgetLater begins the time after which an actor without tunnels begins anew. The gateway is locked.
func (g *Gateway) forgetLater(uid string) {
	l := g.limits[uid]
	if l.forget != nil {
		l.forget.Reset(remember)
		return
	}
	l.forget = time.AfterFunc(remember, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.actors[uid] == nil && g.limits[uid] == l {
			delete(g.limits, uid)
		}
	})
}

// bucket is a token bucket of dialRate and dialBurst. It starts full.
type bucket struct {
	mu    sync.Mutex // guards the rest
	spent float64
	at    time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(0, b.spent-now.Sub(b.at).Seconds()*dialRate)
	b.at = now
	if b.spent > dialBurst-1 {
		return false
	}
	b.spent++
	return true
}
