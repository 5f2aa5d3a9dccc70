package app

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
)

// TestRevert: what was committed can be undone until it is finished: routes, settings, checks, series, sockets.
func TestRevert(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	defer backend.Close()
	text := func(entrypoints, path, router string) string {
		return entrypoints + "\nrouters \"" + router + "\" {\n rule = \"Path(`" + path + "`)\"\n service = \"" + router + "\"\n}\n" +
			"services \"" + router + "\" {\n load_balancer {\n strategy = \"round-robin\"\n servers { url = \"" + backend.URL + "\" }\n" +
			" health_check { path = \"/h\", interval = \"1h\" }\n }\n}\n"
	}
	const web = `entrypoints "web" { address = "127.0.0.1:0" }`
	a, err := Start(t.Context(), Options{Text: text(web, "/old", "old"), Stdout: Discard(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if r := a.Residue(); r != (Residue{}) {
			t.Errorf("left behind: %+v", r)
		}
	}()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	status := func(entrypoint, path string) int {
		t.Helper()
		resp, err := client.Get("http://" + a.Bound()[entrypoint] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	series := func() string {
		w := httptest.NewRecorder()
		a.metrics.Handler(a.log).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w.Body.String()
	}
	if status("web", "/old") != 200 {
		t.Fatal("/old is not served")
	}
	addr := a.Bound()["web"]

	cfg, ds := config.Load(inline(text(web+"\n"+`entrypoints "more" { address = "127.0.0.1:0" }`, "/new", "new")))
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	c, err := a.prepare(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if status("web", "/old") != 200 || status("web", "/new") != 404 {
		t.Error("preparing shows")
	}
	old := a.commit(c)
	if status("web", "/new") != 200 || status("more", "/new") != 200 || status("web", "/old") != 404 {
		t.Error("the commit is not in force")
	}
	if n := a.checker.Len(); n != 2 {
		t.Errorf("%d backends are checked before it is certain which", n)
	}
	if s := series(); !strings.Contains(s, `gateway_router_requests_total{router="old"} 2`) || !strings.Contains(s, `router="new"`) {
		t.Errorf("series while undecided: %v", grepOf(s, "gateway_router_requests_total"))
	}
	moreAddr := a.Bound()["more"]
	a.revert(c, old)
	if status("web", "/old") != 200 || status("web", "/new") != 404 || a.Bound()["web"] != addr {
		t.Error("not reverted")
	}
	// The connection that the reverted entrypoint has taken gets its last request served by what it knew.
	resp, err := client.Get("http://" + moreAddr + "/new")
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("last request at the reverted entrypoint: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if _, err := http.Get("http://" + moreAddr + "/new"); err == nil {
		t.Error("the reverted entrypoint still listens")
	}
	if n := a.checker.Len(); n != 1 {
		t.Errorf("%d backends are checked", n)
	}
	if s := series(); !strings.Contains(s, `gateway_router_requests_total{router="old"} 3`) || strings.Contains(s, `"new"`) {
		t.Errorf("series afterwards: %v", grepOf(s, `"new"`))
	}
	// And again, for good.
	if err := a.ReloadText(t.Context(), text(web, "/new", "new")); err != nil {
		t.Fatal(err)
	}
	if status("web", "/new") != 200 || strings.Contains(series(), `"old"`) {
		t.Error("the next change is not in force")
	}
}
