package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
)

// The route that does something is there only with a token, and by POST.
func TestCut(t *testing.T) {
	var cut []string
	with := func(d *admin.Deps) {
		d.Views.Cut = func(ref string) (int, bool) {
			cut = append(cut, ref)
			return 3, ref == "demo/a1"
		}
	}
	guarded := open(t, block(func(c *config.Management) { c.TokenEnv = "TOKEN" }), with)
	free := open(t, block(nil), with)
	for name, tc := range map[string]struct {
		server *admin.Server
		method string
		path   string
		token  string
		status int
		body   string
	}{
		"done":           {guarded, "POST", "/actors/demo/a1/cut", "s3cret", 200, `"closed": 3`},
		"nobody":         {guarded, "POST", "/actors/demo/cut", "s3cret", 404, "Not found"},
		"GET":            {guarded, "GET", "/actors/demo/a1/cut", "s3cret", 405, "Method not allowed"},
		"another token":  {guarded, "POST", "/actors/demo/a1/cut", "other", 401, "Unauthorized"},
		"without tokens": {free, "POST", "/actors/demo/a1/cut", "", 404, "Not found"},
	} {
		cut = nil
		var head http.Header
		if tc.token != "" {
			head = bearer(tc.token)
		}
		got := call{method: tc.method, url: base(tc.server) + "/api/gateway" + tc.path, header: head}.do(t)
		if got.status != tc.status || !strings.Contains(got.body, tc.body) || len(cut) > 0 && tc.status != 200 && name != "nobody" {
			t.Errorf("%s: %d %s, cut %v", name, got.status, got.body, cut)
		}
	}
}
