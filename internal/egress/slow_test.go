package egress_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/egress"
)

var demoA1 = actor.Ref{Atespace: "demo", Name: "a1"}

// policies are policies that a test changes.
type policies struct {
	rules   []egress.Rule
	version int64
	changes chan actor.Ref
}

func (p *policies) Get(context.Context, actor.Ref) (egress.Kept, int64, error) {
	k := egress.Kept{Policy: policy(p.rules...)}
	k.UID, k.Version = "p1", p.version
	return k, p.version, nil
}

func (p *policies) Changes() <-chan actor.Ref { return p.changes }

// gateway is one in which only decisions are made.
func gateway(t *testing.T, o egress.Options) *egress.Gateway {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	o.Audit = egress.NewAudit(t.Output(), o.Log)
	o.Settings = config.Egress{TrustDomain: actor.ActorDomain, MaxTunnels: 8, ConnectTimeout: time.Second}
	g, err := egress.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// I29: a control plane that takes the question and does not answer has refused in the end.
func TestI29_AdmitWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		roots := x509.NewCertPool()
		roots.AddCert(a.cert)
		g := gateway(t, egress.Options{
			Roots: func() *x509.CertPool { return roots },
			Actor: func(ctx context.Context, _ actor.Ref) (actor.Actor, error) {
				<-ctx.Done()
				return actor.Actor{}, actor.Refuse(actor.DeadlineExceeded, "no answer")
			},
			Policies: &policies{},
		})
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began := time.Now()
		v := g.Admit(ctx, egress.Opening{Method: "CONNECT", Authority: "93.184.216.34:443", Chain: []*x509.Certificate{a.sign(a.leaf(tunnelID), a.cert)}})
		if took := time.Since(began); v.Status != 503 || v.Reason != egress.ActorUnavailable || took > 5*time.Second {
			t.Errorf("after %s: %+v", took, v)
		}
	})
}

// I5: an actor does not begin anew with its limits by ending its last tunnel.
func TestI5_LimitsOutliveTunnels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMinter(t)
		m.hold = make(chan struct{})
		g := gateway(t, egress.Options{Policies: &policies{}, Minter: m})
		minted, dialed := 0, 0
		for i := range egress.DialBurst + egress.MaxMinting {
			p := g.Enter(demoA1, "u1", netip.MustParseAddrPort("93.184.216.34:443"))
			if p.Mint(name(t, fmt.Sprintf("n%d.test", i))) {
				minted++
			}
			if p.TakeDial() {
				dialed++
			}
			p.Leave()
		}
		if minted != egress.MaxMinting || dialed != egress.DialBurst {
			t.Errorf("%d certificates were being minted at a time, and %d connections opened at once", minted, dialed)
		}
		if actors, tunnels := g.Actors(); actors != 0 || tunnels != 0 {
			t.Errorf("%d actors with %d tunnels", actors, tunnels)
		}
		close(m.hold)
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		if n := g.Remembered(); n != 0 {
			t.Errorf("%d actors are remembered", n)
		}
	})
}

// I15: a connection that is passed through by a rule that went while it was being decided ends as well, whenever that was told.
func TestI15_PassedByAnOldRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &policies{rules: []egress.Rule{passthrough(everywhere, "raw.test")}, version: 1, changes: make(chan actor.Ref)}
		g := gateway(t, egress.Options{Policies: p})
		e := g.Enter(demoA1, "u1", netip.MustParseAddrPort("93.184.216.34:443"))
		defer e.Leave()
		decided := e.Decide(t.Context(), "raw.test")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); g.Watch(ctx) }()
		p.rules, p.version = []egress.Rule{passthrough(everywhere, "other.test")}, 2
		p.changes <- demoA1 // the last time: nobody has asked for the policy since
		synctest.Wait()
		decided()
		time.Sleep(3 * time.Second) // of the bubble
		synctest.Wait()
		if e.Why() != egress.PolicyChanged {
			t.Errorf("it goes on: %q", e.Why())
		}
		stop()
		<-ended
	})
}
