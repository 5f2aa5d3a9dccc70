package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
)

func TestCheckOrder(t *testing.T) {
	closed := open(t, block(func(c *config.Management) { c.TokenEnv, c.AllowedIPs = "TOKEN", prefixes("192.0.2.0/24") }), nil)
	guarded := open(t, block(func(c *config.Management) { c.TokenEnv, c.AllowedIPs = "TOKEN", prefixes("127.0.0.1/32", "::1/128") }), nil)
	mapped := open(t, block(func(c *config.Management) { c.AllowedIPs = prefixes("::ffff:127.0.0.0/104") }), nil)
	free := open(t, block(nil), nil)
	const (
		notFound     = `{"error":"Not found"}`
		forbidden    = `{"error":"Forbidden"}`
		unauthorized = `{"error":"Unauthorized"}`
	)
	for name, c := range map[string]struct {
		server *admin.Server
		path   string
		header http.Header
		status int
		body   string // "" any
	}{
		"outside the prefix before the address": {closed, "/", nil, 404, notFound},
		"no slash boundary":                     {guarded, "/api/gatewayx", bearer("s3cret"), 404, notFound},
		"prefix in upper case":                  {guarded, "/API/gateway", bearer("s3cret"), 404, notFound},
		"address before the token":              {closed, "/api/gateway/health", nil, 403, forbidden},
		"address cannot be forwarded":           {closed, "/api/gateway/health", http.Header{"X-Forwarded-For": {"192.0.2.1"}}, 403, forbidden},
		"no token":                              {guarded, "/api/gateway/health", nil, 401, unauthorized},
		"token before the route":                {guarded, "/api/gateway/nothing", nil, 401, unauthorized},
		"wrong token":                           {guarded, "/api/gateway/health", bearer("wrong"), 401, unauthorized},
		"part of the token":                     {guarded, "/api/gateway/health", bearer("s3cre"), 401, unauthorized},
		"token and more":                        {guarded, "/api/gateway/health", bearer("s3cret1"), 401, unauthorized},
		"scheme in lower case":                  {guarded, "/api/gateway/health", http.Header{"Authorization": {"bearer s3cret"}}, 401, unauthorized},
		"token without scheme":                  {guarded, "/api/gateway/health", http.Header{"Authorization": {"s3cret"}}, 401, unauthorized},
		"two tokens":                            {guarded, "/api/gateway/health", http.Header{"Authorization": {"Bearer s3cret", "Bearer s3cret"}}, 401, unauthorized},
		"token in the query":                    {guarded, "/api/gateway/health?token=s3cret", nil, 401, unauthorized},
		"right token":                           {guarded, "/api/gateway/health", bearer("s3cret"), 200, ""},
		"unknown route":                         {guarded, "/api/gateway/nothing", bearer("s3cret"), 404, notFound},
		"below a known route":                   {guarded, "/api/gateway/health/x", bearer("s3cret"), 404, notFound},
		"mapped prefix":                         {mapped, "/api/gateway/health", nil, 200, ""},
		"open":                                  {free, "/api/gateway/health", nil, 200, ""},
		"unknown router":                        {free, "/api/gateway/routes/none", nil, 404, `{"error":"Route not found"}`},
		"unknown service":                       {free, "/api/gateway/services/none", nil, 404, `{"error":"Service not found"}`},
	} {
		for _, h2 := range []bool{false, true} {
			r := call{url: base(c.server) + c.path, header: c.header, h2: h2}.do(t)
			if r.status != c.status || c.body != "" && r.body != c.body {
				t.Errorf("%s (h2 %v): %d %s, want %d %s", name, h2, r.status, r.body, c.status, c.body)
			}
			if got := r.header.Get("Cache-Control"); got != "no-store" {
				t.Errorf("%s: Cache-Control %q", name, got)
			}
			if want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2]; r.proto != want {
				t.Errorf("%s: %s, want %s", name, r.proto, want)
			}
		}
	}
}

const healthDocument = `{
  "state": "Running",
  "mode": "standalone",
  "uptime_secs": 7,
  "active_connections": 3,
  "total_requests": 11,
  "generation": 2,
  "config_digest": "sha256:00",
  "version": "1.2.3"
}
`

const backendsB = `{
      "url": "http://127.0.0.1:2",
      "weight": 2,
      "healthy": true,
      "active_connections": 5
    },
    {
      "url": "http://127.0.0.1:1",
      "weight": 1,
      "healthy": false,
      "active_connections": 0
    }`

func TestRoutes(t *testing.T) {
	s := open(t, block(nil), nil)
	routeA := `{
  "name": "a/b",
  "rule": "Host(` + "`<a>`" + `)",
  "service": "a",
  "entrypoints": [
    "web"
  ],
  "middlewares": [
    "m"
  ],
  "priority": 9
}
`
	serviceB := `{
  "name": "b",
  "strategy": "LeastConnections",
  "backends_total": 2,
  "backends_healthy": 1,
  "backends": [
    ` + backendsB + `
  ]
}
`
	for path, want := range map[string]string{
		"":              healthDocument,
		"/health":       healthDocument,
		"/livez":        "{\n  \"live\": true\n}\n",
		"/readyz":       "{\n  \"ready\": true\n}\n",
		"/version":      "{\n  \"name\": \"sluice\",\n  \"version\": \"1.2.3\",\n  \"api_version\": \"v1\"\n}\n",
		"/config":       "{\n  \"mode\": \"standalone\",\n  \"secret\": \"[redacted]\"\n}\n",
		"/metrics":      "gateway_requests_total 11\n",
		"/routes/a%2Fb": routeA,
		"/routes/a/b":   routeA,
		"/services/b":   serviceB,
	} {
		for _, slash := range []string{"", "/"} {
			r := call{url: base(s) + "/api/gateway" + path + slash}.do(t)
			if r.status != 200 || r.body != want {
				t.Errorf("%s%s: %d\n%s\nwant\n%s", path, slash, r.status, r.body, want)
			}
			wantType := "application/json"
			if path == "/metrics" {
				wantType = "text/plain; version=0.0.4"
			}
			if got := r.header.Get("Content-Type"); got != wantType {
				t.Errorf("%s: content type %q", path, got)
			}
		}
	}
	// Lists are sorted by name, whatever order the process has them in, and are never null.
	routes := call{url: base(s) + "/api/gateway/routes"}.do(t).body
	if a, z := strings.Index(routes, `"a/b"`), strings.Index(routes, `"z"`); a < 0 || z < a || !strings.Contains(routes, `"middlewares": []`) {
		t.Errorf("routes: %s", routes)
	}
	services := call{url: base(s) + "/api/gateway/services"}.do(t).body
	if a, b := strings.Index(services, `"name": "a"`), strings.Index(services, `"name": "b"`); a < 0 || b < a || !strings.Contains(services, `"backends": []`) {
		t.Errorf("services: %s", services)
	}
	backends := call{url: base(s) + "/api/gateway/backends"}.do(t).body
	if strings.Count(backends, `"service": "b"`) != 2 || strings.Contains(backends, "canary") || strings.Contains(services, "canary") {
		t.Errorf("backends: %s", backends)
	}
}

func TestMethods(t *testing.T) {
	s := open(t, block(nil), nil)
	for _, path := range []string{"", "/health", "/metrics", "/livez", "/readyz", "/version", "/config", "/routes", "/routes/z", "/services", "/services/b", "/backends"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
			r := call{method: method, url: base(s) + "/api/gateway" + path}.do(t)
			if r.status != 405 || r.header.Get("Allow") != "GET, HEAD" || r.body != `{"error":"Method not allowed"}` {
				t.Errorf("%s %s: %d, Allow %q, %s", method, path, r.status, r.header.Get("Allow"), r.body)
			}
		}
		if r := (call{method: "HEAD", url: base(s) + "/api/gateway" + path}).do(t); r.status != 200 || r.body != "" {
			t.Errorf("HEAD %s: %d %q", path, r.status, r.body)
		}
	}
	if r := (call{method: "POST", url: base(s) + "/api/gateway/snapshots/apply"}).do(t); r.status != 404 {
		t.Errorf("a route that is not there: %d, want 404", r.status)
	}
}

func TestRootPrefix(t *testing.T) {
	for _, prefix := range []string{"/", "/ops/"} {
		s := open(t, block(func(c *config.Management) { c.PathPrefix = prefix }), nil)
		for path, status := range map[string]int{"": 200, "health": 200, "health/": 200, "nothing": 404} {
			if r := (call{url: base(s) + prefix + path}).do(t); r.status != status {
				t.Errorf("%s%s: %d, want %d", prefix, path, r.status, status)
			}
		}
	}
}

func TestNotReady(t *testing.T) {
	s := open(t, block(func(c *config.Management) { c.ProbeAddress, c.TokenEnv = "127.0.0.1:0", "TOKEN" }), func(d *admin.Deps) {
		d.Views.Unready = func() []string { return []string{"draining"} }
	})
	want := "{\n  \"ready\": false,\n  \"reasons\": [\n    \"draining\"\n  ]\n}\n"
	probe := "http://" + s.Addr(admin.SocketProbe).String()
	for _, c := range []call{
		{url: base(s) + "/api/gateway/readyz", header: bearer("s3cret")},
		{url: probe + "/readyz"},
		{url: probe + "/api/gateway/readyz/"},
	} {
		if r := c.do(t); r.status != 503 || r.body != want || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s", c.url, r.status, r.body)
		}
	}
	// Draining is no reason to be killed.
	for _, path := range []string{"/livez", "/api/gateway/livez"} {
		if r := (call{url: probe + path}).do(t); r.status != 200 {
			t.Errorf("%s: %d", path, r.status)
		}
	}
	for _, path := range []string{"/", "/health", "/api/gateway", "/api/gateway/health", "/api/gateway/metrics", "/api/gateway/config", "/metrics"} {
		for _, header := range []http.Header{nil, bearer("s3cret")} {
			if r := (call{url: probe + path, header: header}).do(t); r.status != 404 {
				t.Errorf("the probe socket answers %s with %d", path, r.status)
			}
		}
	}
}

func TestPanicAndMissingViews(t *testing.T) {
	s := open(t, block(nil), func(d *admin.Deps) {
		d.Views.Health = func() admin.Health { panic("broken") }
		d.Views.Config, d.Views.Routes, d.Views.Services, d.Metrics, d.Views.Unready = nil, nil, nil, nil, nil
	})
	for path, status := range map[string]int{
		"/health": 500, "/livez": 200, "/readyz": 200, "/config": 404, "/routes": 404, "/routes/a": 404, "/services": 404,
		"/services/a": 404, "/backends": 404, "/metrics": 404,
	} {
		if r := (call{url: base(s) + "/api/gateway" + path}).do(t); r.status != status {
			t.Errorf("%s: %d, want %d", path, r.status, status)
		}
	}
}
