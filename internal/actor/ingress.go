package actor

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Ingress leads requests to actors. It belongs to a generation, which closes it when its last exchange has ended. Safe for
// concurrent use.
type Ingress struct {
	name    string
	access  Access
	plain   bool // paths decide: requests are sent on with the one that was decided about
	policy  service.Policy
	ways    *Ways
	way     *way
	forward func(*Visit) exchange.Handler
}

// NewIngress makes the ingress of a service with an actor block. forward makes the handler that carries a request to where the
// visit leads.
func NewIngress(cfg *config.Service, ways *Ways, forward func(*Visit) exchange.Handler) (*Ingress, error) {
	way, err := ways.acquire(cfg.Actor.Way)
	if err != nil {
		return nil, err
	}
	lb, access := &cfg.LoadBalancer, AccessOf(cfg.Actor)
	return &Ingress{
		name: cfg.Name, access: access, plain: access.byPath(), ways: ways, way: way, forward: forward,
		policy: service.Policy{
			RequestTimeout: lb.RequestTimeout, StreamIdleTimeout: lb.StreamIdleTimeout, StreamTotalTimeout: lb.StreamTotalTimeout,
			UpstreamErrorStatus: 502, PassHost: true, WebSocket: cfg.WebSocket, Private: helpers{},
		},
	}, nil
}

// AccessOf is who may reach which actor by a service.
func AccessOf(cfg *config.Actor) Access {
	a := Access{Anyone: cfg.Anyone, Trusted: cfg.AllowedIDs}
	for _, r := range cfg.Allow {
		rule := AccessRule{Name: r.Name, Callers: r.Callers, Actors: r.Actors, Methods: r.Methods, Paths: r.Paths}
		for _, p := range r.Ports {
			rule.Ports = append(rule.Ports, uint16(p))
		}
		a.Rules = append(a.Rules, rule)
	}
	return a
}

// Close gives back what the ingress holds.
func (i *Ingress) Close() { i.ways.release(i.way) }

// Serve finds out which actor a request is for and whether its client may reach it, before anything is asked of anybody, and
// has it carried there.
func (i *Ingress) Serve(x *exchange.Exchange) error {
	x.PlainErrors = true
	x.Record.Service = i.name
	v := &Visit{in: i}
	x.OnHead(reasons{})
	defer v.discard()
	if err := v.admit(x); err != nil {
		return err
	}
	return v.answer(x, i.forward(v).Serve(x))
}

// Tunnels is the handler of CONNECTs to actors. It decides whether the client may reach the actor on the port at all, and has
// what comes out of the tunnel served by reentry: each request inside is for the same actor and the same port.
func (i *Ingress) Tunnels(reentry exchange.Handler) exchange.Handler {
	return exchange.HandlerFunc(func(x *exchange.Exchange) error {
		x.PlainErrors = true
		x.Record.Service = i.name
		x.OnHead(reasons{})
		if _, _, refused := i.access.JudgeTunnel(x, caller(x.Conn)); refused != nil {
			return refused
		}
		return reentry.Serve(x)
	})
}

// Purpose is what a tunnel of Tunnels is for: the actor, as its opener has named it.
func Purpose(x *exchange.Exchange) string {
	asked, err := ask(x, "")
	if err != nil {
		return ""
	}
	return asked.Ref.String()
}

// defaultPort is an actor's, where no tunnel asked for another one.
const defaultPort = 80

// Judge reads whom a request of a caller's is for, and decides about it. The error is what the client is told of a request that
// goes nowhere.
func (a *Access) Judge(x *exchange.Exchange, caller string) (Asked, Decision, *exchange.Error) {
	asked, err := ask(x, caller)
	if err != nil {
		return asked, Decision{}, badReference(err)
	}
	d := a.Authorize(asked)
	if !d.Allowed {
		return asked, d, denied(asked, d)
	}
	return asked, d, nil
}

// JudgeTunnel is Judge for a CONNECT.
func (a *Access) JudgeTunnel(x *exchange.Exchange, caller string) (Asked, Decision, *exchange.Error) {
	to, err := exchange.ParseAuthority(x.Request.Target)
	if err != nil || to.Port == 0 {
		e := exchange.Reject(400, exchange.CodeBadRequest, "bad port")
		e.Err = err
		return Asked{}, Decision{}, e
	}
	asked, err := ask(x, caller)
	if err != nil {
		return asked, Decision{}, badReference(err)
	}
	asked.Port = to.Port
	d := a.Reaches(asked)
	if !d.Allowed {
		return asked, d, denied(asked, d)
	}
	return asked, d, nil
}

// ask reads of a request which actor it is for, and what decides about it. The path is in normal form. Inside a tunnel that was
// granted for an actor it is for that one, whatever the request says. An error is ErrTarget.
func ask(x *exchange.Exchange, caller string) (Asked, error) {
	q := Asked{Caller: caller, Port: defaultPort, Method: string(x.Request.Method), Path: string(x.Request.Normal)}
	if x.Request.Rewritten {
		q.Path = string(x.Request.Path)
	}
	if x.Request.Upgrade != nil && q.Method == "CONNECT" { // over HTTP/2 (RFC 8441): the actor gets a GET
		q.Method = "GET"
	}
	var lines []string
	if purpose, to := tunnelled(x.Conn); purpose != "" {
		at, err := exchange.ParseAuthority([]byte(to))
		if err != nil {
			return q, ErrTarget
		}
		lines, q.Port = []string{purpose}, at.Port
	} else {
		for v := range x.Request.Fields.Values(TargetField) {
			lines = append(lines, string(v))
		}
	}
	var err error
	q.Ref, err = ParseTarget(lines)
	return q, err
}

// tunnelled is what the tunnel around a connection was granted for, and which authority it was asked for.
func tunnelled(info *conn.Info) (purpose, target string) {
	for ; info != nil; info = info.Outer {
		if info.For != "" {
			return info.For, info.Target
		}
	}
	return "", ""
}

// caller is who has opened a connection, or the tunnel that it came out of, by a certificate with exactly one URI, as it
// stands there, that is valid at this moment; "" nobody knows.
func caller(info *conn.Info) string {
	for ; info != nil; info = info.Outer {
		if info.TLS == nil || len(info.TLS.VerifiedChains) == 0 {
			continue
		}
		leaf, now := info.TLS.VerifiedChains[0][0], time.Now()
		id, err := mutual.URIOf(leaf)
		if err != nil || now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
			return ""
		}
		return id
	}
	return ""
}

// helpers are the fields that only processes of an installation speak.
type helpers struct{}

// Has reports whether a field is one of them.
func (helpers) Has(name []byte) bool {
	var low [24]byte // longer than any of them
	if len(name) > len(low) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		low[i] = c
	}
	return helperFields[string(low[:len(name)])]
}

// ReasonField says on an answer that an actor did not make, and on no other, why that is so.
const ReasonField = "ate-router-reason"

// reasons marks answers that are ours.
type reasons struct{}

// ResponseHead marks the head.
func (reasons) ResponseHead(x *exchange.Exchange) {
	if code := x.Record.Code; code != "" {
		x.Response.Fields.Set(ReasonField, string(code))
	}
}
