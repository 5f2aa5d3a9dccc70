package egress

import (
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// requests serves HTTP inside the tunnel, to its end.
func (t *tunnel) requests(c conn.Conn, leg Leg, sni Host) {
	if leg == LegCleartext {
		t.becomes(leg, Verdict{}, 0)
	}
	h := &requests{t: t, leg: leg, sni: sni}
	two := c.Info().TLS != nil && c.Info().TLS.NegotiatedProtocol == "h2"
	if err := t.actor.g.o.Serve(c, h, two); err != nil {
		t.actor.g.o.Log.Warn("egress: requests of a tunnel are not served", "actor", t.actor.ref, "error", err)
	}
}

// requests is the handler of everything inside one tunnel. Each request is decided anew, and nothing comes before that: the routers of
// the operator are asked about what is allowed only.
type requests struct {
	t   *tunnel
	leg Leg
	sni Host
}

// Serve decides a request, and has it routed when it is allowed.
func (h *requests) Serve(x *exchange.Exchange) error {
	r := h.begin(x)
	defer h.end(x, r)
	s := h.t.actor.standing(x.Context())
	r.PolicyVersion = s.Version
	v := AdmitPolicy(s)
	if v.OK() {
		v = Judge(s.Rules, h.input(x))
	}
	r.decided(v)
	if !v.OK() {
		x.Fail(refusal(v))
		return nil
	}
	d := &departure{requests: h, record: r, rules: s.Rules, host: v.Host}
	x.Origin = d
	x.OnHead(noAlternatives{})
	if err := h.t.actor.g.o.Route(x, v.Host.authority()); err != nil {
		x.Fail(err)
	}
	return nil
}

// Refuse notes a request that the engine does not let through.
func (h *requests) Refuse(x *exchange.Exchange, err *exchange.Error) {
	r := h.begin(x)
	defer h.end(x, r)
	v := refuse(err.Status, RequestInvalid, err.Error())
	if string(x.Request.Method) == "CONNECT" {
		v = Judge(nil, Request{Method: "CONNECT"})
		err = refusal(v)
	}
	r.decided(v)
	x.Fail(err)
}

// begin begins the line of a request, whose id the answers of the gateway have.
func (h *requests) begin(x *exchange.Exchange) *Record {
	r := h.t.record(h.leg)
	r.SNI, r.Authority, r.Method, r.Path = h.sni.String(), clip(string(x.Request.Host)), clip(string(x.Request.Method)), clip(string(x.Request.Path))
	x.SetRequestID([]byte(r.ID))
	x.Record.Entrypoint = h.t.actor.g.o.Entrypoint
	return r
}

// end ends exchange and line.
func (h *requests) end(x *exchange.Exchange, r *Record) {
	x.End(exchange.OutcomeOK)
	r.Status, r.BytesUp, r.BytesDown = x.Record.Status, x.Record.BytesIn, x.Record.BytesOut
	r.Router, r.Service, r.Middleware = x.Record.Router, x.Record.Service, x.Record.Middleware
	if r.Service != config.OriginService {
		r.Upstream = x.Record.Backend()
	}
	if r.Verdict == "allow" {
		r.Code = string(x.Record.Code)
		if why := h.t.why(); why != "" && x.Record.Code == exchange.CodeClientGone { // to the engine it looks like that
			r.Code = string(why)
		}
	}
	h.t.actor.g.note(r)
}

// input is what of an exchange a decision is made by.
func (h *requests) input(x *exchange.Exchange) Request {
	q := &x.Request
	host, _ := q.Fields.Known(exchange.FieldHost)
	return Request{
		Leg: h.leg, SNI: h.sni, Method: string(q.Method), Authority: string(q.Host), HostField: string(host), Port: h.t.dialed.Port(),
		Upgrade: q.Upgrade != nil || upgrades(&q.Fields), Fronting: h.t.actor.g.o.Settings.AllowFronting,
		Carries: func(name string) bool { _, ok := q.Fields.First(strings.ToLower(name)); return ok },
	}
}

// upgrades reports whether the request asks for a protocol other than h2c, which nobody is asked for in its place: clients ask for
// that without a need, and engines do not pass it on.
func upgrades(f *exchange.Fields) bool {
	for v := range f.Values("upgrade") {
		for protocol := range exchange.Tokens(v) {
			if !exchange.EqualFold(protocol, "h2c") {
				return true
			}
		}
	}
	return false
}

// noAlternatives takes Alt-Svc out of answers (RFC 7838), so that the actor does not try where it would only be refused.
type noAlternatives struct{}

// ResponseHead drops the field.
func (noAlternatives) ResponseHead(x *exchange.Exchange) { x.Response.Fields.Del("alt-svc") }
