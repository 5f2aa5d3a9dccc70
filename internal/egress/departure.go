package egress

import (
	"errors"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// departure is one allowed request on its way to its origin: the end of the routes that lead there. It lives as long as the request.
type departure struct {
	*requests
	record *Record
	rules  *Rules // that have allowed it
	host   Host   // that was allowed
}

// Serve sends the request to its origin, by the name that was allowed, and relays the answer.
func (d *departure) Serve(x *exchange.Exchange) error {
	r := d.record
	if v := d.again(x); !v.OK() {
		r.decided(v)
		return refusal(v)
	}
	os := &d.t.actor.origins
	o, err := os.use(originKey{leg: d.leg, host: d.host, port: d.t.dialed.Port()})
	if err == nil {
		defer os.done(o)
		x.Direct = true
		err = o.handler.Serve(x)
		r.Upstream = o.upstream()
	}
	if err == nil {
		return nil
	}
	e := (*exchange.Error)(nil)
	if !errors.As(err, &e) {
		e = &exchange.Error{Status: 503, Code: exchange.CodeEgressUnavailable, Public: "egress unavailable", Outcome: exchange.OutcomeFailed, Err: err}
	}
	if r.blame(err); r.Verdict != "allow" {
		e = refusal(Verdict{Status: r.Status, Reason: r.Reason, Detail: r.Detail})
	}
	return e
}

// again decides once more, about the request as the steps of its route have left it: what was allowed is what goes out. The
// connection leads to the host that was allowed, whatever they do; but many hosts may share an address, and are told apart by what the request says.
func (d *departure) again(x *exchange.Exchange) Verdict {
	q := d.input(x)
	q.HostField = "" // is not sent: the target's authority is, which steps change
	v := Judge(d.rules, q)
	if v.OK() && v.Host == d.host && pathOnly(&x.Request) {
		return v
	}
	changed := refuse(403, Rewritten, string(v.Reason))
	if v.OK() {
		changed.Detail = "to " + v.Host.String() + ", or with a target that is no path"
	}
	changed.Match, changed.Ruled, changed.Host = v.Match, v.Ruled, d.host
	return changed
}

// pathOnly reports whether the target that will be sent is a path, and names no host beside the one that is decided about.
func pathOnly(r *exchange.Request) bool {
	target := r.Target
	if r.Rewritten {
		target = r.Path
	}
	return len(target) > 0 && (target[0] == '/' || string(target) == "*")
}
