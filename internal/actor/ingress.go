package actor

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Ingress leads requests to actors. It belongs to a generation, which closes it when its last exchange has ended. Safe for
// concurrent use.
type Ingress struct {
	name    string
	access  Access
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
	lb := &cfg.LoadBalancer
	return &Ingress{
		name: cfg.Name, access: AccessOf(cfg.Actor), ways: ways, way: way, forward: forward,
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

// defaultPort is an actor's, where no tunnel asked for another one.
const defaultPort = 80

// Ask reads of a request which actor it is for, and what decides about it. The path is in normal form. An error is ErrTarget.
func Ask(x *exchange.Exchange) (Asked, error) {
	var lines []string
	for v := range x.Request.Fields.Values(TargetField) {
		lines = append(lines, string(v))
	}
	ref, err := ParseTarget(lines)
	path := x.Request.Normal
	if x.Request.Rewritten {
		path = x.Request.Path
	}
	return Asked{Caller: caller(x.Conn), Ref: ref, Port: defaultPort, Method: string(x.Request.Method), Path: string(path)}, err
}

// caller is who has opened a connection, or the tunnel that it came out of, by a certificate with exactly one URI that is
// valid at this moment; "" nobody knows.
func caller(info *conn.Info) string {
	for ; info != nil; info = info.Outer {
		if info.TLS == nil || len(info.TLS.VerifiedChains) == 0 {
			continue
		}
		leaf, now := info.TLS.VerifiedChains[0][0], time.Now()
		if len(leaf.URIs) != 1 || now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
			return ""
		}
		return leaf.URIs[0].String()
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
