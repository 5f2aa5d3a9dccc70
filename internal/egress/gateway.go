package egress

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Options are what a Gateway stands on.
type Options struct {
	Entrypoint string // its name
	Settings   config.Egress
	// Roots are whose certificates open tunnels; nil while they cannot be read.
	Roots func() *x509.CertPool
	// Actor reads an actor and changes nothing.
	Actor    func(ctx context.Context, ref actor.Ref) (actor.Actor, error)
	Policies actor.Source[Kept]
	// Minter certifies names whose TLS is opened; nil: no TLS is.
	Minter   cert.Minter
	Resolver Resolver
	// Network dials; nil is the kernel's network.
	Network service.Dialer
	Clock   *conn.Clock
	// Forward makes what forwards to an origin.
	Forward func(b *service.Balancer) exchange.Handler
	// Route takes an allowed request, for a host in normal form, through the routers of the entrypoint: to x.Origin, where it has
	// none, or to where they lead. An error is answered by the caller.
	Route func(x *exchange.Exchange, host string) error
	// Serve has what comes in a tunnel served as HTTP, to its end: HTTP/2 if two, else whatever it begins with.
	Serve func(c conn.Conn, h exchange.Handler, two bool) error
	Audit *Audit
	Log   *slog.Logger
	// Close gives back what the others hold, once the gateway is retired and its last tunnel has ended; may be nil.
	Close func()
}

// Gateway is the way out of actors: the handler of an entrypoint. What leaves an actor is decided here first, and there is no
// other way around or through it: routers are asked about what is allowed, origins are forwarded to by nothing else, and each actor has connections, certificates
// and limits of its own. It lives as long as its settings are in force, and then until its last tunnel has ended. Safe for
// concurrent use.
type Gateway struct {
	o       Options // Close is guarded by mu
	tunnels actor.Tunnels
	key     leafKey
	counts  counts

	mu      sync.Mutex // guards the rest
	actors  map[string]*tenant
	limits  map[string]*limits // of those and of actors that had tunnels a while ago
	serving int                // CONNECTs that are being decided, and tunnels
	retired bool
}

// New makes a gateway.
func New(o Options) (*Gateway, error) {
	key, err := newLeafKey()
	if err != nil {
		return nil, fmt.Errorf("the key for intercepted names: %w", err)
	}
	return &Gateway{
		o: o, tunnels: actor.Tunnels{Domain: o.Settings.TrustDomain}, key: key, actors: map[string]*tenant{}, limits: map[string]*limits{},
	}, nil
}

// Retire tells that no further tunnels come.
func (g *Gateway) Retire() {
	g.mu.Lock()
	g.retired = true
	done := g.takeClose()
	g.mu.Unlock()
	if done != nil {
		done()
	}
}

// takeClose is what is to be called when the last tunnel has ended, once. The gateway is locked.
func (g *Gateway) takeClose() func() {
	if !g.retired || g.serving > 0 {
		return nil
	}
	done := g.o.Close
	g.o.Close = nil
	return done
}

// counts are the decisions so far, by leg and reason.
type counts struct{ of sync.Map } // of countKey to *atomic.Uint64

type countKey struct {
	leg    Leg
	reason Reason
}

func (c *counts) add(leg Leg, r Reason) {
	n, ok := c.of.Load(countKey{leg, r})
	if !ok {
		n, _ = c.of.LoadOrStore(countKey{leg, r}, new(atomic.Uint64))
	}
	n.(*atomic.Uint64).Add(1)
}

// Decisions reports how many decisions there were, of each leg and reason that there was one of.
func (g *Gateway) Decisions(report func(leg Leg, r Reason, n uint64)) {
	g.counts.of.Range(func(k, n any) bool {
		key := k.(countKey)
		report(key.leg, key.reason, n.(*atomic.Uint64).Load())
		return true
	})
}

// AuditLost is how many lines of the audit log were lost.
func (g *Gateway) AuditLost() uint64 { return g.o.Audit.Lost() }

// note writes a decision to the audit log and counts it.
func (g *Gateway) note(r *Record) {
	g.counts.add(r.Leg, r.Reason)
	r.Duration = float64(time.Since(r.Time).Microseconds()) / 1000
	g.o.Audit.Write(r)
}

// newID is the name of a decision, 128 random bits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// begin counts what is being served; false once everything has been given back.
func (g *Gateway) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retired && g.serving == 0 {
		return false
	}
	g.serving++
	return true
}

func (g *Gateway) end() {
	g.mu.Lock()
	g.serving--
	done := g.takeClose()
	g.mu.Unlock()
	if done != nil {
		done()
	}
}

// Serve is the CONNECT leg: it admits a tunnel or refuses it, and returns when the tunnel has ended.
func (g *Gateway) Serve(x *exchange.Exchange) error {
	if !g.begin() {
		return exchange.Reject(503, exchange.CodeDraining, "Gateway not ready")
	}
	defer g.end()
	r := &Record{Time: time.Now(), ID: newID(), Leg: LegConnect, Authority: clip(string(x.Request.Target)), Method: string(x.Request.Method)}
	r.TraceID = x.Record.TraceID
	o := Opening{Method: r.Method, Authority: string(x.Request.Target)}
	if x.Conn.TLS != nil {
		o.Chain = x.Conn.TLS.PeerCertificates
	}
	if x.Request.Upgrade != nil { // extended CONNECT is another method in effect
		o.Method = "CONNECT " + string(x.Request.Upgrade)
	}
	t, v := g.admit(x.Context(), o, r)
	r.decided(v)
	g.note(r)
	if !v.OK() {
		return refusal(v)
	}
	defer t.leave()
	down, err := x.AcceptTunnel()
	if err != nil {
		return err
	}
	defer func() { _ = down.Close() }()
	outer := x.Conn
	inner := conn.NewInner(down, &conn.Info{
		Entrypoint: g.o.Entrypoint, Local: outer.Local, Remote: outer.Remote, Via: outer.Via, Identity: outer.Identity, Outer: outer, Target: o.Authority,
	})
	if !t.open(inner) {
		conn.Abort(inner) // serve notes why
	}
	t.serve(x, inner)
	x.Record.BytesIn, x.Record.BytesOut = inner.Moved()
	return nil
}

// actorWait is how long the control plane may take to tell of an actor.
const actorWait = 4 * time.Second

// admit decides about a tunnel, step after step: the next one is asked only when the last one has allowed. The tunnel counts as
// open until it leaves.
func (g *Gateway) admit(ctx context.Context, o Opening, r *Record) (*tunnel, Verdict) {
	c, v := Identify(o, Believed{Roots: g.o.Roots(), Tunnels: g.tunnels})
	r.Atespace, r.Actor = c.Ref.Atespace, c.Ref.Name
	if !v.OK() {
		return nil, v
	}
	r.Dialed = c.Dialed.String()
	asking, cancel := context.WithTimeout(ctx, actorWait)
	a, err := g.o.Actor(asking, c.Ref)
	cancel()
	if v = AdmitActor(c.Ref, a, err); !v.OK() {
		return nil, v
	}
	r.UID = a.UID
	if a.Assignment != nil {
		r.Worker = a.Assignment.Worker
	}
	t, ok := g.enter(c, a)
	if !ok {
		return nil, refuse(503, LimitTunnels, fmt.Sprintf("%d tunnels are open", g.o.Settings.MaxTunnels))
	}
	t.worker = r.Worker
	s := t.actor.standing(ctx)
	r.PolicyVersion = s.Version
	if v = AdmitPolicy(s); !v.OK() {
		t.leave()
		return nil, v
	}
	return t, v
}

// refusal is how a verdict is answered. The reason stays with the operator, who finds it by the id of the request.
func refusal(v Verdict) *exchange.Error {
	code, text := exchange.CodeEgressDenied, "egress denied"
	switch {
	case v.Status == 400:
		code, text = exchange.CodeBadRequest, "Malformed request"
	case v.Status == 405:
		code, text = exchange.CodeMethodNotAllowed, "CONNECT required"
	case v.Reason == PolicyUnavailable:
		code, text = exchange.CodeEgressUnavailable, "egress unavailable: policy lookup failed"
	case v.Status != 403:
		code, text = exchange.CodeEgressUnavailable, "egress unavailable"
	}
	e := exchange.Reject(v.Status, code, text)
	e.Err = fmt.Errorf("%s: %s", v.Reason, v.Detail)
	return e
}
