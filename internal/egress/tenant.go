package egress

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/conn"
)

// tenant is one actor that has tunnels, by its UID, with everything that is its own but its limits. It lives from the first tunnel to the end of
// the last one.
type tenant struct {
	g       *Gateway
	ref     actor.Ref
	uid     string
	origins origins
	leaves  leaves

	// Guarded by g.mu.
	tunnels map[*tunnel]struct{}
	looked  time.Time // when Watch has looked at it last
	looking bool      // Watch is at it
	hurried bool      // Watch was told of a change

	mu    sync.Mutex // guards the rest
	kept  policyKey  // of stands
	stood Standing
}

// policyKey is one version of a policy.
type policyKey struct {
	uid     string
	version int64
}

// tunnel is one tunnel, from its admission to its end.
type tunnel struct {
	actor  *tenant
	dialed netip.AddrPort
	worker string
	since  time.Time

	// Guarded by g.mu.
	conn    conn.Conn // nil until it is open
	up      conn.Conn // to the origin of what is passed through, which could go on without conn; nil until then
	ended   Reason    // why somebody has ended it; "" nobody has
	leg     Leg
	sni     string
	rule    int // -1: decided for each request
	version int64
}

// enter counts a tunnel of an actor; false when it has too many.
func (g *Gateway) enter(c Claim, a actor.Actor) (*tunnel, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.actors[a.UID]
	if n == nil {
		n = &tenant{g: g, ref: c.Ref, uid: a.UID, tunnels: map[*tunnel]struct{}{}}
		l := g.limitsOf(a.UID)
		n.origins = origins{g: g, dials: &l.dials, kept: map[originKey]*origin{}}
		n.leaves = leaves{key: g.key, from: g.o.Minter, minting: l.minting, kept: map[Host]*leaf{}}
		g.actors[a.UID] = n
	}
	if len(n.tunnels) >= g.o.Settings.MaxTunnels {
		return nil, false
	}
	t := &tunnel{actor: n, dialed: c.Dialed, since: time.Now(), leg: LegUnknown, rule: -1}
	n.tunnels[t] = struct{}{}
	return t, true
}

// leave ends what enter began. With the last tunnel everything of the actor goes.
func (t *tunnel) leave() {
	n, g := t.actor, t.actor.g
	g.mu.Lock()
	delete(n.tunnels, t)
	last := len(n.tunnels) == 0
	if last {
		delete(g.actors, n.uid)
		g.forgetLater(n.uid)
	}
	g.mu.Unlock()
	if last {
		n.origins.close()
	}
}

// open tells what ends the tunnel; false when it is to end already.
func (t *tunnel) open(c conn.Conn) bool {
	g := t.actor.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.conn = c
	return t.ended == ""
}

// joins tells what else ends with the tunnel; false when it is to end already.
func (t *tunnel) joins(up conn.Conn) bool {
	g := t.actor.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.up = up
	return t.ended == ""
}

// becomes tells what the tunnel carries.
func (t *tunnel) becomes(leg Leg, v Verdict, version int64) {
	g := t.actor.g
	g.mu.Lock()
	defer g.mu.Unlock()
	t.leg, t.version = leg, version
	if v.Ruled {
		t.sni, t.rule = v.Host.String(), v.Match.Rule
	}
}

// why is why somebody has ended it; "" when nobody has.
func (t *tunnel) why() Reason {
	g := t.actor.g
	g.mu.Lock()
	defer g.mu.Unlock()
	return t.ended
}

// Tunnel is one tunnel, for views.
type Tunnel struct {
	Ref     actor.Ref
	UID     string
	Worker  string
	Dialed  netip.AddrPort
	Since   time.Time
	Leg     Leg
	SNI     string
	Rule    int // that decided the connection; -1 when each request is decided
	Version int64
}

// Each reports the open tunnels of an actor, or with an empty UID of all.
func (g *Gateway) Each(uid string, report func(Tunnel)) {
	g.mu.Lock()
	var all []Tunnel
	for _, n := range g.actors {
		if uid != "" && n.uid != uid {
			continue
		}
		for t := range n.tunnels {
			all = append(all, Tunnel{n.ref, n.uid, t.worker, t.dialed, t.since, t.leg, t.sni, t.rule, t.version})
		}
	}
	g.mu.Unlock()
	for _, t := range all {
		report(t)
	}
}

// Cut ends the open tunnels of an actor at once, with all that they carry, whichever of its name it is, and returns how many there
// were. What it opens afterwards is for its policy to say.
func (g *Gateway) Cut(ref actor.Ref) int {
	return g.sever(Cut, func(t *tunnel) bool { return t.actor.ref == ref })
}

// sever ends the tunnels that are meant, and returns how many there were. which is asked with the gateway locked.
func (g *Gateway) sever(why Reason, which func(t *tunnel) bool) int {
	g.mu.Lock()
	var open []conn.Conn
	n := 0
	for _, a := range g.actors {
		for t := range a.tunnels {
			if t.ended != "" || !which(t) {
				continue
			}
			n++
			t.ended = why
			for _, c := range [...]conn.Conn{t.conn, t.up} {
				if c != nil {
					open = append(open, c)
				}
			}
		}
	}
	g.mu.Unlock()
	for _, c := range open {
		conn.Abort(c)
	}
	return n
}

// Actors reports how many actors have tunnels, and how many tunnels there are.
func (g *Gateway) Actors() (actors, tunnels int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.actors {
		tunnels += len(n.tunnels)
	}
	return len(g.actors), tunnels
}

// standing is the actor's policy now, as old as the source of policies says at most. A version is compiled once.
func (n *tenant) standing(ctx context.Context) Standing {
	k, version, err := n.g.o.Policies.Get(ctx, n.ref)
	key := policyKey{k.UID, version}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && key == n.kept && key != (policyKey{}) {
		return n.stood
	}
	s := Stand(n.ref.Atespace, k, err)
	if err == nil {
		n.kept, n.stood = key, s
	}
	return s
}
