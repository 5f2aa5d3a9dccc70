package snapshot_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

const insideConfig = `
entrypoints "egress" {
  address  = ":15443"
  protocol = "connect"
  tls {
    cert_file      = "/own.pem"
    key_file       = "/own.pem"
    client_auth    = "require"
    client_ca_file = "/actors.pem"
  }
  egress { control { address = "api:7443", credential_file = "/egress.pem", ca_file = "/api.pem" } }
}
entrypoints "web" { address = ":8080" }
routers "everything" {
  rule    = "PathPrefix(` + "`/`" + `)"
  service = "llm"
}
services "llm" { load_balancer { servers { url = "http://a" } } }
`

func TestExplainInside(t *testing.T) {
	const routers = `
middlewares "strip" {
  type     = "strip-prefix"
  prefixes = ["/v1"]
}
routers "models" {
  rule        = "Host(` + "`api.example.com`) && PathPrefix(`/v1`)" + `"
  entrypoints = ["egress"]
  service     = "llm"
  middlewares = ["strip"]
}
routers "origin" {
  rule        = "Headers(` + "`X-Direct`, `1`" + `)"
  entrypoints = ["egress"]
  service     = "@origin"
}
`
	direct := []config.HeaderValue{{Name: "X-Direct", Value: "1"}}
	for _, tt := range []struct {
		name, routers, url   string
		fields               []config.HeaderValue
		router, service, err string
		code                 string
		chain                int
	}{
		{"to a service", routers, "https://API.example.com:443/x/../v1/a", nil, "models", "llm", "", "", 1},
		{"to a service, with an encoded slash", routers, "https://api.example.com/v1/a%2Fb", nil, "", "", "", "bad_request", 0},
		{"to the origin", routers, "http://other.example.com/%2f", direct, "origin", "", "", "", 0},
		{"by no router", routers, "http://other.example.com/", nil, "", "", "", "", 0},
		{"a bad escape", routers, "http://other.example.com/%2", nil, "", "", "URL", "", 0},
		{"no router at all", "", "https://api.example.com/v1", nil, "", "", "", "", 0},
		{"without a host", "", "/v1", nil, "", "", "a host", "", 0},
	} {
		cfg, ds := config.Loader{}.Load([]config.Source{{File: "t", Text: []byte(insideConfig + tt.routers)}})
		if cfg == nil {
			t.Fatal(ds)
		}
		a, err := snapshot.Explain(cfg, snapshot.Question{Entrypoint: "egress", URL: tt.url, Fields: tt.fields})
		if (err != nil) != (tt.err != "") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil {
			continue
		}
		router, service, code := "", "", ""
		if a.Router != nil {
			router = a.Router.Name
		}
		if a.Service != nil {
			service = a.Service.Name
		}
		if a.Refused != nil {
			code = string(a.Refused.Code)
		}
		if !a.Inside || router != tt.router || service != tt.service || code != tt.code || len(a.Chain) != tt.chain {
			t.Errorf("%s: %+v", tt.name, a)
		}
		if _, err := snapshot.Explain(cfg, snapshot.Question{Entrypoint: "egress", Method: "CONNECT", URL: "1.2.3.4:443"}); err == nil {
			t.Errorf("%s: tunnels are explained by routers", tt.name)
		}
	}
}
