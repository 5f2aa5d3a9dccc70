package actor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// The vectors of the contract's Appendix A that are this room's, each a row of its own. More are beside the parsers.

func TestAppendixA_Target(t *testing.T) {
	at := label63 + "/" + label63
	for in, ok := range map[string]bool{
		"demo/a": true, "d-1/a-b-c": true, at: true,
		"": false, "demo": false, "/a": false, "demo/": false, "demo/a/b": false, "Demo/a": false, "demo/a_b": false, "-d/a": false, "d-/a": false,
		"demo /a": false, " demo/a": false, "demo%2fa": false, "demo/a,demo/b": false, label63 + "a/a": false, "a/" + label63 + "a": false,
		"démo/a": false, "demo/a\x00": false, "demo//a": false, "demo/a\n": false,
	} {
		t.Run(fmt.Sprintf("%q", in), func(t *testing.T) {
			r, err := actor.ParseTarget([]string{in})
			if (err == nil) != ok || ok && r.String() != in || !ok && (!errors.Is(err, actor.ErrTarget) || r != actor.Ref{}) {
				t.Errorf("%v, %v; want ok %v", r, err, ok)
			}
		})
	}
}

// Those of a certificate with two URIs, or with none, are in egress (I12).
func TestAppendixA_TunnelURI(t *testing.T) {
	const base = "spiffe://substrate-actor.local/worker-for-actor/"
	for in, ok := range map[string]bool{
		base + "demo/a1": true,
		"spiffe://substrate-actor.local/actor/demo/a1":           false,
		"spiffe://substrate-actor.local/ateom-for-actor/demo/a1": false,
		base + "demo/a1/": false,
		base + "demo//a1": false,
		"spiffe://substrate-actor.local//worker-for-actor/demo/a1":    false,
		"SPIFFE://substrate-actor.local/worker-for-actor/demo/a1":     false,
		"spiffe://Substrate-Actor.local/worker-for-actor/demo/a1":     false,
		"spiffe://substrate-actor.local:443/worker-for-actor/demo/a1": false,
		"spiffe://u@substrate-actor.local/worker-for-actor/demo/a1":   false,
		base + "demo/a1?x":                                                false,
		base + "demo/a1#x":                                                false,
		base + "demo/%61":                                                 false,
		base + "demo/a1/b":                                                false,
		base + "Demo/a1":                                                  false,
		base + "demo/" + strings.Repeat("a", 64):                          false,
		"spiffe://cluster.local/worker-for-actor/demo/a1":                 false,
		"http://substrate-actor.local/worker-for-actor/demo/a1":           false,
		"spiffe://substrate-actor.local.evil.test/worker-for-actor/d/a":   false,
		"spiffe://evil.test/substrate-actor.local/worker-for-actor/d/a":   false,
		"spiffe://substrate-actor.local/worker-for-actor/demo/a1,demo/a2": false,
	} {
		t.Run(fmt.Sprintf("%q", in), func(t *testing.T) {
			r, err := actor.Tunnels{Domain: actor.ActorDomain}.Parse(in)
			if (err == nil) != ok || ok && r.String() != "demo/a1" || !ok && !errors.Is(err, actor.ErrID) {
				t.Errorf("%v, %v; want ok %v", r, err, ok)
			}
		})
	}
	old := actor.Tunnels{Domain: actor.ActorDomain, AcceptOld: true}
	if r, err := old.Parse("spiffe://substrate-actor.local/ateom-for-actor/demo/a1"); err != nil || r.String() != "demo/a1" {
		t.Errorf("the earlier name, by the switch: %v, %v", r, err)
	}
}

// The rows of ingress of Appendix E, by what decides about a request without any network. What becomes of them with one is in app
// (TestAppendixE_Ingress).
func TestAppendixE_Decisions(t *testing.T) {
	around := func(actorName, authority string) *conn.Info { // a CONNECT that was granted is around the request
		return &conn.Info{Outer: &conn.Info{}, Target: authority, For: actorName}
	}
	for _, tc := range []struct {
		id     string
		conn   *conn.Info
		fields []string
		ref    string
		port   uint16
		status int
	}{
		{"X1", &conn.Info{}, []string{"demo/a1"}, "demo/a1", 80, 0},
		{"X2", &conn.Info{}, nil, "", 0, 404},
		{"X3", &conn.Info{}, []string{"demo/a1", "demo/a1"}, "", 0, 404},
		{"X4", around("demo/a1", "x:9090"), nil, "demo/a1", 9090, 0},
		{"X5", around("demo/a1", "x:9090"), []string{"evil/a2"}, "demo/a1", 9090, 0},
		{"X5 twice", around("demo/a1", "x:9090"), []string{"evil/a2", "evil/a3"}, "demo/a1", 9090, 0},
		{"X5 malformed", around("demo/a1", "x:9090"), []string{"%"}, "demo/a1", 9090, 0},
	} {
		t.Run(tc.id, func(t *testing.T) {
			x := exchange.Exchange{Conn: tc.conn}
			x.Request.Method, x.Request.Normal = []byte("GET"), []byte("/")
			x.Request.Fields.Add("host", "other.example:9999") // which decides nothing
			for _, f := range tc.fields {
				x.Request.Fields.Add(actor.TargetField, f)
			}
			a := actor.Access{Trusted: []string{"spiffe://d/a"}}
			q, d, refused := a.Judge(&x, "spiffe://d/a")
			if tc.status != 0 {
				if refused == nil || refused.Status != tc.status || d.Allowed {
					t.Errorf("%+v %+v %v", q, d, refused)
				}
				return
			}
			if refused != nil || !d.Allowed || q.Ref.String() != tc.ref || q.Port != tc.port {
				t.Errorf("%+v %+v %v", q, d, refused)
			}
		})
	}
}
