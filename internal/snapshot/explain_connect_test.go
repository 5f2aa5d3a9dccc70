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

// Requests for names that are passed on are misdirected, and the question about their connections is another one.
func TestExplainShared(t *testing.T) {
	cfg, ds := config.Loader{}.Load([]config.Source{{File: "t", Text: []byte(`
entrypoints "web" {
  address = ":8443"
  tls { cert_file = "c", key_file = "k" }
}
routers "everything" {
  rule    = "PathPrefix(` + "`/`" + `)"
  service = "web"
}
routers "passed" {
  rule        = "HostSNI(` + "`db.test`" + `)"
  entrypoints = ["web"]
  tls         = "passthrough"
  service     = "db"
}
services "web" { load_balancer { servers { url = "http://a" } } }
services "db" { load_balancer { servers { url = "tcp://b:1" } } }
`)}})
	if cfg == nil {
		t.Fatal(ds)
	}
	for _, tt := range []struct{ method, url, router, code string }{
		{"GET", "https://a.test/", "everything", ""},
		{"GET", "https://db.test/", "", "misdirected_request"},
		{"TCP", "tls://db.test", "passed", ""},
	} {
		a, err := snapshot.Explain(cfg, snapshot.Question{Method: tt.method, URL: tt.url})
		if err != nil {
			t.Fatal(err)
		}
		code, router := "", ""
		if a.Refused != nil {
			code = string(a.Refused.Code)
		}
		if a.Router != nil {
			router = a.Router.Name
		}
		if code != tt.code || router != tt.router {
			t.Errorf("%s %s: router %q, code %q", tt.method, tt.url, router, code)
		}
	}
}
