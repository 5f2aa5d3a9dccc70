package snapshot_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

func TestExplainConnect(t *testing.T) {
	cfg, ds := config.Loader{}.Load([]config.Source{{File: "t", Text: []byte(`
entrypoints "proxy" {
  address  = ":3128"
  protocol = "connect"
}
entrypoints "web" { address = ":8080" }
routers "out" {
  rule        = "HostRegexp(` + "`.*`" + `) && !Host(` + "`never.test`" + `)"
  entrypoints = ["proxy"]
  service     = "out"
}
routers "everything" {
  rule    = "PathPrefix(` + "`/`" + `)"
  service = "web"
}
services "out" { connect { ports = [443] } }
services "web" { load_balancer { servers { url = "http://a" } } }
`)}})
	if cfg == nil {
		t.Fatal(ds)
	}
	for _, tt := range []struct{ entrypoint, method, target, code string }{
		{"proxy", "CONNECT", "example.net:443", ""},
		{"proxy", "connect", "example.net:80", "destination_not_allowed"},
		{"proxy", "CONNECT", "169.254.169.254:443", "destination_not_allowed"},
		{"proxy", "CONNECT", "never.test:443", "connect_not_allowed"},
		{"proxy", "GET", "http://example.net/", "method_not_allowed"},
		{"web", "CONNECT", "example.net:443", "not_implemented"},
	} {
		a, err := snapshot.Explain(cfg, snapshot.Question{Entrypoint: tt.entrypoint, Method: tt.method, URL: tt.target})
		if err != nil {
			t.Fatal(err)
		}
		code := ""
		if a.Refused != nil {
			code = string(a.Refused.Code)
		}
		if code != tt.code {
			t.Errorf("%s %s on %s: %q", tt.method, tt.target, tt.entrypoint, code)
		}
	}
	if _, err := snapshot.Explain(cfg, snapshot.Question{Entrypoint: "proxy", Method: "CONNECT", URL: "example.net"}); err == nil {
		t.Error("a target without a port")
	}
}
