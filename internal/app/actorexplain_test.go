package app_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
)

// What explain says of a request to an actor is what is decided about one, and looking wakes nobody.
func TestActorExplain(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, iAm)
	n.create("a")
	n.attach("w1", 1, 10)
	cfg, ds := config.Load([]config.Source{{File: "gateway.acl", Text: []byte(n.tunnels(`
		allow "shop" { callers = ["spiffe://d/shop"], actors = ["demo/*"], ports = [80], methods = ["GET"], paths = ["/open"] }
		allowed_spiffe_ids = ["` + app.AdminID + `"]`))}})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	for _, tc := range []struct {
		name, entrypoint, method, url, caller, actor string
		status                                       int
		by                                           string
		port                                         uint16
	}{
		{"a rule", "web", "GET", "https://h/open/x", "spiffe://d/shop", "demo/a", 0, "shop", 80},
		{"another path", "web", "GET", "https://h/open/../x", "spiffe://d/shop", "demo/a", 403, "no rule", 80},
		{"everything", "web", "POST", "https://h/", app.AdminID, "demo/a", 0, "allowed_spiffe_ids", 80},
		{"nobody", "web", "GET", "https://h/open", "", "demo/a", 403, "no caller", 80},
		{"no actor", "web", "GET", "https://h/open", app.AdminID, "demo", 404, "", 80},
		{"a tunnel", "tunnels", "CONNECT", "h:9000", app.AdminID, "demo/a", 0, "allowed_spiffe_ids", 9000},
		{"a tunnel to another port", "tunnels", "CONNECT", "h:9000", "spiffe://d/shop", "demo/a", 403, "no rule", 9000},
	} {
		a, err := app.Explain(cfg, app.Question{
			Entrypoint: tc.entrypoint, Method: tc.method, URL: tc.url, Caller: tc.caller, Fields: []config.HeaderValue{{Name: "Ate-Target-Actor", Value: tc.actor}},
		})
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		status := 0
		if a.Refused != nil {
			status = a.Refused.Status
		}
		if status != tc.status || a.Actor == nil || a.Actor.Decision.By != tc.by || a.Actor.Asked.Port != tc.port {
			t.Errorf("%s: %v, %+v", tc.name, a.Refused, a.Actor)
		}
		if tc.status != 0 || t.Failed() {
			continue
		}
		got, err := app.LookAtActor(t.Context(), a, app.ComponentDir(n.dir, "admin"))
		if err != nil || got.State != actor.Suspended || got.Version != 1 {
			t.Errorf("%s: %v version %d, %v", tc.name, got.State, got.Version, err)
		}
		if _, err := app.LookAtActor(t.Context(), a, app.ComponentDir(n.dir, "router")); err == nil {
			t.Errorf("%s: the router's certificate was enough", tc.name)
		}
	}
}
