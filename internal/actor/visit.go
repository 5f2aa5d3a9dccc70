package actor

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Visit is one request on its way to an actor: it chooses where attempts go, and has each carried by a tunnel of its own.
// It belongs to the goroutine of its exchange.
type Visit struct {
	in      *Ingress
	asked   Asked
	x       *exchange.Exchange
	backend service.Backend
	at      located
	carrier *carrier // opened, and not used yet
	picks   int
	began   time.Time // of the first pick
	last    error     // why the last tunnel could not be opened
	stay    service.Stay
}

// maxPicks bounds the tunnels of one request that were opened and ended before anything was sent.
const maxPicks = 8

// admit reads whom the request is for, and decides about it.
func (v *Visit) admit(x *exchange.Exchange) error {
	v.x = x
	asked, _, refused := v.in.access.Judge(x, caller(x.Conn))
	if refused != nil {
		return refused
	}
	v.asked = asked
	if r := &x.Request; v.in.plain && !r.Rewritten { // what the client has sent the actor might read otherwise
		r.Path, r.Rewritten = r.Normal, true
	}
	v.backend = service.Backend{URL: "actor://" + asked.Ref.String(), Scheme: "http", Host: asked.Ref.Name}
	return nil
}

// Policy says how exchanges with actors are conducted.
func (v *Visit) Policy() *service.Policy { return &v.in.policy }

// Exhausted is always true: there is one actor.
func (v *Visit) Exhausted(*service.Tried) bool { return true }

// Pick finds the actor, wakes it if need be, and opens a tunnel. It tries again within the parking budget when the actor is
// not where it was thought to be.
func (v *Visit) Pick(x *exchange.Exchange, _ *service.Tried) (service.Lease, error) {
	began := time.Now()
	lease, err := v.pick(x)
	key := RouteKey{Template: v.at.actor.Template, Outcome: outcomeOf(err), Resume: resumeOf(v.at, v.stay)}
	v.in.ways.measures.route(key, time.Since(began))
	return lease, err
}

func (v *Visit) pick(x *exchange.Exchange) (service.Lease, error) {
	v.discard()
	if v.picks++; v.picks == 1 {
		v.began = time.Now()
	} else if v.picks > maxPicks {
		return service.Lease{}, runOut(v.asked.Ref, v.last)
	}
	way, ctx := v.in.way, x.Context()
	for n := 0; ; n++ {
		at, stay, err := way.locate(ctx, v.asked.Ref)
		v.at, v.stay = at, stay
		v.in.ways.measures.wait(stay)
		if err != nil {
			return service.Lease{}, refused(v.asked.Ref, stay, err)
		}
		c, err := way.tunnel(ctx, at, v.asked.Ref, v.asked.Port)
		if err == nil {
			v.carrier = c
			return service.Lease{Backend: &v.backend, Reach: v}, nil
		}
		if ctx.Err() != nil {
			return service.Lease{}, left(v.asked.Ref, context.Cause(ctx))
		}
		if !passes(err) {
			return service.Lease{}, unreached(v.asked.Ref, err)
		}
		way.stale.Add(1)
		way.known.forget(at)
		v.last = err
		if !v.rest(ctx, n) {
			return service.Lease{}, runOut(v.asked.Ref, err)
		}
	}
}

// rest waits before the actor is looked for again: not at all at first. It reports false when the budget has run out.
func (v *Visit) rest(ctx context.Context, n int) bool {
	p := &v.in.way.parking
	remains := p.Budget - time.Since(v.began)
	if remains <= 0 {
		return false
	}
	if n == 0 {
		return true
	}
	t := time.NewTimer(p.Delay(n-1, remains))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done(): // the next step says so
	}
	return true
}

// discard gives a tunnel up that no attempt has used.
func (v *Visit) discard() {
	if c := v.carrier; c != nil {
		v.carrier = nil
		_ = c.Abort()
	}
}

// open returns the tunnel of the pick; an attempt that asks for another one gets another one to the same place.
func (v *Visit) open(by service.Dialing) (*carrier, error) {
	if c := v.carrier; c != nil {
		v.carrier = nil
		return c, nil
	}
	ctx, cancel := by.DialContext()
	defer cancel()
	return v.in.way.tunnel(ctx, v.at, v.asked.Ref, v.asked.Port)
}

// Get returns a connection for a request.
func (v *Visit) Get(by service.Dialing, _ bool) (service.Upstream, error) {
	c, err := v.open(by)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", conn.ErrConnect, err)
	}
	return v.in.way.singles.Request(c)
}

// GetUpgradable is Get: the connection is one exchange's anyway.
func (v *Visit) GetUpgradable(by service.Dialing, fresh bool) (service.Upstream, error) {
	return v.Get(by, fresh)
}

// GetCall returns a stream for a gRPC call.
func (v *Visit) GetCall(by service.Dialing, _ bool) (service.Upstream, error) {
	c, err := v.open(by)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", conn.ErrConnect, err)
	}
	ctx, cancel := by.DialContext()
	defer cancel()
	u, err := v.in.way.singles.Call(ctx, c)
	if err != nil {
		v.picks = maxPicks // it would not speak HTTP/2 the next time either
	}
	return u, err
}
