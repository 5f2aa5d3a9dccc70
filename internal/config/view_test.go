package config_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/config"
)

const viewed = `mode { kind = "standalone" }
entrypoints "web"   { address = "0.0.0.0:8080" }
entrypoints "admin" { address = "127.0.0.1:09000" }
routers "z" { rule = "PathPrefix(` + "`/`" + `)"; service = "models" }
routers "api" { rule = "Host(` + "`a`" + `) && Headers(` + "`X-Api-Key`, `" + canary + "`" + `)"; service = "models"; entrypoints = ["web", "admin"] }
services "models" { load_balancer { strategy = "least-connections"; servers = [{ url = "http://a" }, { url = "http://b" }] } }
services "empty"  { load_balancer { servers { url = "http://c" } } }
middlewares "limit" { type = "rate-limit"; rate = 1 }
middlewares "hdr"   { type = "headers"; response_headers = { A = "b" } }
providers { file { } }
management { enabled = true; address = "127.0.0.1:9090"; path_prefix = "/api/gateway/" }
`

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, diags := loader().Load([]config.Source{src("in.acl", text)})
	if cfg == nil {
		t.Fatal(report(diags))
	}
	return cfg
}

// The views are read by scripts: they are pinned to the byte.
func TestTextViews(t *testing.T) {
	cfg := load(t, viewed)
	for view, want := range map[config.View]string{
		config.ViewEntrypoints: "admin\t127.0.0.1:9000\tHttp\nweb\t0.0.0.0:8080\tHttp\n",
		config.ViewRoutes: "api\tservice=models\trule=Host(`a`) && Headers(`X-Api-Key`, `[redacted]`)\tentrypoints=web,admin\n" +
			"z\tservice=models\trule=PathPrefix(`/`)\tentrypoints=\n",
		config.ViewServices: "empty\tbase_backends=1\trevision_backends=0\tstrategy=RoundRobin\n" +
			"models\tbase_backends=2\trevision_backends=0\tstrategy=LeastConnections\n",
		config.ViewMiddlewares: "hdr\nlimit\n",
		config.ViewProviders:   "file\n",
		config.ViewSummary: `Configuration summary
  Entrypoints: 2
  Routers:     2
  Services:    2
  Middlewares: 2
  Providers:   file
  Node API:    127.0.0.1:9090
`,
	} {
		got, ok := config.Text(cfg, view)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s: %v\n%s", view, ok, diff)
		}
	}
	if _, ok := config.Text(cfg, "routers"); ok {
		t.Error("a view that does not exist was printed")
	}
	empty := load(t, "")
	if got, _ := config.Text(empty, config.ViewProviders); got != "none\n" {
		t.Errorf("providers of nothing: %q", got)
	}
	if got, _ := config.Text(empty, config.ViewSummary); got != "Configuration summary\n  Entrypoints: 0\n  Routers:     0\n  Services:    0\n  Middlewares: 0\n  Providers:   none\n  Node API:    disabled\n" {
		t.Errorf("summary of nothing: %q", got)
	}
}

func TestValidText(t *testing.T) {
	want := `✓ Config parsed successfully (etc/gateway.acl)
✓ Configuration is valid

  Entrypoints: 2
    - admin → 127.0.0.1:9000 (Http)
    - web → 0.0.0.0:8080 (Http)
  Routers:     2
    - api → service:models rule:Host(` + "`a`" + `) && Headers(` + "`X-Api-Key`, `[redacted]`" + `)
    - z → service:models rule:PathPrefix(` + "`/`" + `)
  Services:    2
    - empty (1 backends, strategy: RoundRobin)
    - models (2 backends, strategy: LeastConnections)
  Middlewares:  2
    - hdr
    - limit
  Provider:    file (hot reload)
  Node API:    127.0.0.1:9090/api/gateway
`
	if diff := cmp.Diff(want, config.ValidText(load(t, viewed), "etc/gateway.acl")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Values that came from file(...) are masked wherever they stand, also in keys that are not secret.
func TestFileValuesAreMaskedInViews(t *testing.T) {
	cfg := load(t, `entrypoints "e" { address = ":1"; tls { cert_file = file("/run/secrets/token"); key_file = "k" } }`)
	if got := cfg.Entrypoints["e"].TLS.CertFile; got != canary+"file" {
		t.Errorf("cert_file is %q", got)
	}
	out, err := config.JSON(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); !contains(got, `"cert_file": "[redacted]"`) || contains(got, canary) {
		t.Errorf("%s", got)
	}
}
