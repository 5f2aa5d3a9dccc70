package egress

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

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
	if err := t.actor.g.serve(c, h, two); err != nil {
		t.actor.g.log.Warn("egress: requests of a tunnel are not served", "actor", t.actor.ref, "error", err)
	}
}

// requests is the handler of everything inside one tunnel. Each request is decided anew, and nothing comes before that.
type requests struct {
	t   *tunnel
	leg Leg
	sni Host
}

// Serve decides a request and forwards it.
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
	h.forward(x, r, v.Host)
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
	x.Record.Entrypoint = h.t.actor.g.entrypoint
	return r
}

// end ends exchange and line.
func (h *requests) end(x *exchange.Exchange, r *Record) {
	x.End(exchange.OutcomeOK)
	r.Status, r.BytesUp, r.BytesDown = x.Record.Status, x.Record.BytesIn, x.Record.BytesOut
	if r.Verdict == "allow" {
		r.Code = string(x.Record.Code)
	}
	h.t.actor.g.note(r)
}

// input is what of an exchange a decision is made by.
func (h *requests) input(x *exchange.Exchange) Request {
	q := &x.Request
	host, _ := q.Fields.Known(exchange.FieldHost)
	return Request{
		Leg: h.leg, SNI: h.sni, Method: string(q.Method), Authority: string(q.Host), HostField: string(host), Port: h.t.dialed.Port(),
		Upgrade: q.Upgrade != nil || upgrades(&q.Fields), Fronting: h.t.actor.g.settings.AllowFronting,
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

// forward sends an allowed request to its origin, by the name that was allowed, and relays the answer.
func (h *requests) forward(x *exchange.Exchange, r *Record, host Host) {
	os := &h.t.actor.origins
	o, err := os.use(originKey{leg: h.leg, host: host, port: h.t.dialed.Port()})
	if err == nil {
		defer os.done(o)
		x.Direct = true
		x.OnHead(noAlternatives{})
		err = h.shielded(x, o)
		r.Upstream = o.upstream()
	}
	if err == nil {
		return
	}
	var e *exchange.Error
	if !errors.As(err, &e) {
		e = &exchange.Error{Status: 503, Code: exchange.CodeEgressUnavailable, Public: "egress unavailable", Outcome: exchange.OutcomeFailed, Err: err}
	}
	if r.blame(err); r.Verdict != "allow" {
		e = refusal(Verdict{Status: r.Status, Reason: r.Reason, Detail: r.Detail})
	}
	x.Fail(e)
}

// shielded runs the handler that forwards. A panic ends this exchange only.
func (h *requests) shielded(x *exchange.Exchange, o *origin) (err error) {
	defer func() {
		if p := recover(); p != nil {
			h.t.actor.g.log.Error("egress: handler panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	return o.handler.Serve(x)
}

// noAlternatives takes Alt-Svc out of answers (RFC 7838), so that the actor does not try where it would only be refused.
type noAlternatives struct{}

// ResponseHead drops the field.
func (noAlternatives) ResponseHead(x *exchange.Exchange) { x.Response.Fields.Del("alt-svc") }
