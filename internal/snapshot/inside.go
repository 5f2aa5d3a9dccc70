package snapshot

import (
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/service"
)

// notHere is the answer to requests in tunnels whose entrypoint is not one for actors any more.
var notHere = exchange.Reject(503, exchange.CodeDraining, "Gateway not ready")

// Inside is the walk of one request inside a tunnel of an actor, from where it has been allowed, for a host in normal form. As any other
// request it is served by the generation that is current when it begins, however old its tunnel is. A router leads it to
// x.Origin, or to a service of the operator; what no router takes goes to x.Origin. Who has decided about it owns its record, and an
// error that is returned is for that one to answer.
func (f *Front) Inside(x *exchange.Exchange, host string) error {
	g := f.acquire()
	if g == nil {
		return notHere
	}
	defer g.release()
	p, err := g.inside(g.entries[f.entrypoint], x, host)
	if err != nil {
		return err
	}
	if p == nil {
		return g.shielded(x, func() error { return x.Origin.Serve(x) })
	}
	x.Record.Router = p.router
	if err = g.shielded(x, func() error { return p.handler.Serve(x) }); err != nil {
		x.Fail(err)
	}
	if x.End(exchange.OutcomeOK) {
		p.meter.End(x)
	}
	return nil
}

// inside finds the router of a request inside a tunnel; nil when none takes it.
func (g *Generation) inside(e *entry, x *exchange.Exchange, host string) (*plan, error) {
	if e == nil || e.egress == nil {
		return nil, notHere
	}
	if e.table == nil {
		return nil, nil //nolint:nilnil // none is no error: the request goes to its origin
	}
	in, err := insideInput(x, host)
	if err != nil {
		return nil, err
	}
	i := e.table.Match(&in)
	if i < 0 || g.plans[i].handler == nil {
		return nil, nil //nolint:nilnil // as above
	}
	p := &g.plans[i]
	if p.own {
		err = noEncodedSlash(x)
	}
	return p, err
}

// noEncodedSlash refuses a path with an encoded slash, as other entrypoints do: a backend that takes it for a slash would serve what
// the rule which leads there does not cover. Paths that go to origins keep theirs.
func noEncodedSlash(x *exchange.Exchange) error {
	_, err := input(x, false)
	return err
}

// insideInput is what of such a request the rules look at. Encoded slashes are the origin's business, as they are where no router
// is: package names have them, for instance. The client address would be that of a worker.
func insideInput(x *exchange.Exchange, host string) (route.Input, error) {
	in, err := input(x, true)
	in.Host = []byte(host)
	return in, err
}

// insideTable is the table of an entrypoint for actors; nil when no router names it.
func insideTable(cfg *config.Config, entries []route.Entry, ep *config.Entrypoint) *route.Table {
	for _, r := range cfg.Routers {
		for _, name := range r.Entrypoints {
			if name == ep.Name {
				return route.BuildFor(route.Requests, onlyByName(entries), ep.Name)
			}
		}
	}
	return nil
}

// lastInside is the handler that a router of requests inside tunnels leads to.
func lastInside(b *service.Balancer, requests func(*service.Balancer) exchange.Handler) exchange.Handler {
	if b == nil {
		return toOrigin{}
	}
	return &withheld{requests(b)}
}

// toOrigin sends a request to where it was allowed to go.
type toOrigin struct{}

// Serve sends it.
func (toOrigin) Serve(x *exchange.Exchange) error { return x.Origin.Serve(x) }

// withheld sends a request of an actor to a service of the operator. What the actor says of forwarding goes no further, where it might
// be believed, and nothing is said in its place.
type withheld struct{ next exchange.Handler }

// Serve passes the request on.
func (w *withheld) Serve(x *exchange.Exchange) error {
	x.Request.Fields.DelFunc(func(id exchange.FieldID, _, _ []byte) bool { return forwarding.Has(id) })
	x.Direct = true
	return w.next.Serve(x)
}

// forwarding are the fields that tell on whose behalf a request is made.
var forwarding = exchange.SetOf(
	exchange.FieldForwarded, exchange.FieldXForwardedFor, exchange.FieldXForwardedHost, exchange.FieldXForwardedProto, exchange.FieldXForwardedPort,
	exchange.FieldXForwardedOther, exchange.FieldXRealIP, exchange.FieldUnderscored,
)
