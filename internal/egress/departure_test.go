package egress_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// asker is an actor's end of a request: it takes the answer.
type asker struct {
	exchange.Downstream // nil: a method that no test needs would panic
}

func (asker) SendHead(*exchange.Exchange, []byte, bool) error { return nil }

// sent is what an origin would have got.
type sent struct {
	backend, host string
}

// steps is a world in which one step of a route changes the request in any way.
type steps struct {
	g      *egress.Gateway
	t      egress.Entered
	change func(x *exchange.Exchange)
	routed bool
	got    *sent
}

func newSteps(t *testing.T, port uint16, rules ...egress.Rule) *steps {
	w := &steps{}
	w.g = gateway(t, egress.Options{
		Policies: &policies{rules: rules, version: 1}, Clock: conn.NewClock(),
		Route: func(x *exchange.Exchange, _ string) error {
			w.routed = true
			w.change(x)
			return x.Origin.Serve(x)
		},
		Forward: func(b *service.Balancer) exchange.Handler {
			return exchange.HandlerFunc(func(x *exchange.Exchange) error {
				w.got = &sent{b.AppendStats(nil)[0].URL, string(x.Request.Host)}
				if !x.Direct {
					t.Error("fields that tell of the actor would be added")
				}
				x.Response.Status = 200
				return x.Send(nil, true)
			})
		},
	})
	w.t = w.g.Enter(demoA1, "u1", netip.AddrPortFrom(netip.MustParseAddr("93.184.216.34"), port))
	t.Cleanup(w.t.Leave)
	return w
}

// ask is one request for a host, which a step changes; it returns the status that it was answered with.
func (w *steps) ask(t *testing.T, leg egress.Leg, host string, change func(x *exchange.Exchange)) int {
	x := &exchange.Exchange{}
	x.Begin(asker{}, &conn.Alarm{}, &conn.Info{Remote: netip.MustParseAddrPort("192.0.2.1:1000")}, time.Now())
	x.Request.Method, x.Request.Host = []byte("GET"), []byte(host)
	x.Request.Target, x.Request.Path = []byte("/"), []byte("/")
	x.Request.Fields.Add("Host", host)
	w.change, w.routed, w.got = change, false, nil
	sni := egress.Host{}
	if leg == egress.LegIntercepted {
		sni = name(t, simple(host))
	}
	if err := w.t.Ask(x, leg, sni); err != nil {
		t.Fatal(err)
	}
	return x.Record.Status
}

// simple is the name that an authority names, found in a simple way; "" for what is none.
func simple(authority string) string {
	host, _, _ := strings.Cut(strings.ToLower(authority), ":")
	host = strings.TrimSuffix(host, ".")
	if !slices.Contains([]string{"a.example", "b.example", "c.example", "never.example"}, host) {
		return ""
	}
	return host
}

// Whatever steps of a route make of a request, it goes to the host that was allowed, and says no other: every change of a list against a
// simple statement of what may pass.
func TestStepsDoNotGetAround(t *testing.T) {
	credential := https(nil, "c.example")
	credential.HTTPS.Effects = &egress.Effects{ReplaceHeaders: []egress.CredentialHeader{secret("X-Key")}}
	worlds := map[egress.Leg]*steps{
		egress.LegCleartext:   newSteps(t, 80, http(nil, "a.example", "b.example")),
		egress.LegIntercepted: newSteps(t, 443, https(nil, "a.example", "b.example"), credential),
	}
	allowed := map[egress.Leg][]string{
		egress.LegCleartext: {"a.example", "b.example"}, egress.LegIntercepted: {"a.example", "b.example", "c.example"},
	}
	type change struct {
		host            string // "" unchanged
		none            bool   // the host is taken away
		method, upgrade string
		field           string
		target, path    string
	}
	var changes []change
	for _, host := range []string{"", "a.example", "A.Example:8080", "a.example.", "b.example", "c.example", "never.example", "127.0.0.1", "0x7f.1", "a.example@b.example", "[::1]"} {
		for _, method := range []string{"", "POST", "CONNECT"} {
			for _, upgrade := range []string{"", "websocket", "h2c"} {
				changes = append(changes, change{host: host, method: method, upgrade: upgrade})
			}
		}
		changes = append(changes, change{host: host, field: "X-Key"}, change{host: host, target: "http://never.example/"},
			change{host: host, path: "//never.example/"}, change{host: host, path: "http://never.example/"})
	}
	changes = append(changes, change{none: true})
	for leg, w := range worlds {
		for _, host := range []string{"a.example", "B.example:81", "c.example", "never.example"} {
			may := slices.Contains(allowed[leg], simple(host))
			for _, c := range changes {
				status := w.ask(t, leg, host, func(x *exchange.Exchange) {
					r := &x.Request
					if c.host != "" || c.none {
						r.Host = []byte(c.host)
					}
					if c.method != "" {
						r.Method = []byte(c.method)
					}
					if c.upgrade != "" {
						r.Fields.Add("Upgrade", c.upgrade)
					}
					if c.field != "" {
						r.Fields.Set(c.field, "1")
					}
					if c.target != "" {
						r.Target = []byte(c.target)
					}
					if c.path != "" {
						r.Path, r.Rewritten = []byte(c.path), true
					}
				})
				said := host
				if c.host != "" || c.none {
					said = c.host
				}
				passes := may && simple(said) == simple(host) && c.method != "CONNECT" && c.upgrade != "websocket" && (c.field == "" || simple(host) != "c.example") &&
					c.target == "" && !strings.HasPrefix(c.path, "http:")
				switch {
				case w.routed != may:
					t.Errorf("%s %s: routers were asked: %v", leg, host, w.routed)
				case passes != (w.got != nil), passes != (status == 200), !passes && status != 403:
					t.Errorf("%s %s %+v: %d, sent %+v", leg, host, c, status, w.got)
				case passes && (!strings.Contains(w.got.backend, "//"+simple(host)+":") || simple(w.got.host) != simple(host)):
					t.Errorf("%s %s %+v: sent %+v", leg, host, c, w.got)
				}
			}
		}
	}
	rewritten := uint64(0)
	for _, w := range worlds {
		w.g.Decisions(func(_ egress.Leg, r egress.Reason, n uint64) {
			if r == egress.Rewritten {
				rewritten += n
			}
		})
	}
	if rewritten == 0 {
		t.Error("nothing was refused for having been rewritten")
	}
}
