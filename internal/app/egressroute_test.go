package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// desk is a backend of the operator's, which notes the requests that it gets.
type desk struct {
	*httptest.Server
	mu   sync.Mutex // guards seen
	seen []*http.Request
}

func (w *world) desk() *desk {
	d := &desk{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		d.seen = append(d.seen, r)
		d.mu.Unlock()
		rw.Header().Set("Alt-Svc", `h3=":443"`)
		fmt.Fprintf(rw, "desk %s %s", r.Host, r.URL.RequestURI())
	}))
	w.t.Cleanup(d.Close)
	at := strings.TrimPrefix(d.URL, "http://")
	w.routes.route(at, at)
	return d
}

func (d *desk) last() *http.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.seen) == 0 {
		return nil
	}
	return d.seen[len(d.seen)-1]
}

func (d *desk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.seen)
}

// routed puts routers into force, beside the entrypoint that there is.
func (w *world) routed(text string) {
	w.t.Helper()
	w.gateway.Apply(w.config(filepath.Join(w.dir, "minter.sock"), "") + text)
}

const modelRoutes = `
services "llm" {
  pass_host = false
  load_balancer { servers { url = "DESK/base" } }
}
middlewares "team" {
  type             = "headers"
  request_headers  = { "X-Team" = "red" }
  response_headers = { "X-Answered" = "here", "Alt-Svc" = "h2=\":1\"" }
}
middlewares "host" {
  type            = "headers"
  request_headers = { "Host" = "models.internal" }
}
middlewares "strip" {
  type     = "strip-prefix"
  prefixes = ["/strip"]
}
routers "models" {
  rule        = "Host(` + "`api.example.com`) && PathPrefix(`/v1/chat`) && Method(`POST`)" + `"
  entrypoints = ["egress"]
  service     = "llm"
}
routers "by-field" {
  rule        = "Headers(` + "`X-Fallback`, `yes`" + `)"
  entrypoints = ["egress"]
  service     = "llm"
  middlewares = ["team"]
}
routers "team" {
  rule        = "PathPrefix(` + "`/strip`" + `)"
  entrypoints = ["egress"]
  service     = "@origin"
  middlewares = ["strip", "team"]
}
`

// Requests that are allowed go by the routers of the entrypoint: to backends of the operator, or through steps to their origin. What no
// router takes goes to its origin.
func TestEgressRouted(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	d := w.desk()
	w.routed(strings.ReplaceAll(modelRoutes, "DESK", d.URL))
	clear, secure := w.origin("web.example.org", "93.184.216.34:80", false), w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}},{"https":{"hostnames":["api.example.com"]}}`)
	spoofed := http.Header{
		"X-Forwarded-For": {"1.2.3.4"}, "Forwarded": {"for=1.2.3.4"}, "X-Real-Ip": {"1.2.3.4"}, "X-Forwarded-Client-Cert": {"x"}, "X_forwarded_for": {"1.2.3.4"},
		"X-Request-Id": {"mine"}, "X-Mine": {"1"}, "Authorization": {"Bearer of-the-actor"},
	}
	host := strings.TrimPrefix(d.URL, "http://")
	for i, tc := range []struct {
		name, method, url, field string
		protocols                func(*http.Protocols)
		body, router, service    string
		origin                   *origin // nil: the desk
	}{
		{"to the operator's", "POST", "https://api.example.com/v1/chat/completions?q=1", "", two, "desk " + host + " /base/v1/chat/completions?q=1", "models", "llm", nil},
		{"the same over HTTP/1.1", "POST", "https://API.example.com/v1/./chat", "", one, "desk " + host + " /base/v1/chat", "models", "llm", nil},
		{"another method", "GET", "https://api.example.com/v1/chat", "", two, "api.example.com HTTP/2.0 0", "", "@origin", secure},
		{"an encoded slash", "GET", "https://api.example.com/@types%2Fnode", "", two, "api.example.com HTTP/2.0 0", "", "@origin", secure},
		{"by a field, in clear text", "GET", "http://web.example.org/x", "yes", one, "desk " + host + " /base/x", "by-field", "llm", nil},
		{"by a field, HTTP/2", "GET", "http://web.example.org/x", "yes", prior, "desk " + host + " /base/x", "by-field", "llm", nil},
		{"steps to the origin", "GET", "http://web.example.org/strip/a", "", one, "web.example.org HTTP/1.1 0", "team", "@origin", clear},
		{"steps to the origin, in TLS", "GET", "https://api.example.com/strip/a", "", two, "api.example.com HTTP/2.0 0", "team", "@origin", secure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := d.count()
			req, err := http.NewRequestWithContext(t.Context(), tc.method, tc.url, nil)
			w.must(err)
			if req.Header = spoofed.Clone(); tc.field != "" {
				req.Header.Set("X-Fallback", tc.field)
			}
			dialed := "93.184.216.34:443"
			if strings.HasPrefix(tc.url, "http:") {
				dialed = "93.184.216.34:80"
			}
			resp, err := p.httpClient(dialed, tc.protocols).Do(req)
			w.must(err)
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || string(body) != tc.body || resp.Header.Get("Alt-Svc") != "" {
				t.Fatalf("%d %q %v, %v", resp.StatusCode, body, resp.Header, err)
			}
			stepped := tc.router == "team" || tc.router == "by-field"
			if (resp.Header.Get("X-Answered") == "here") != stepped {
				t.Errorf("answered with %v", resp.Header)
			}
			r := w.audit(2 * (i + 1))[2*i+1]
			if r.Verdict != "allow" || r.Reason != egress.Allowed || r.Status != 200 || r.Router != tc.router || r.Service != tc.service || r.Rule == nil || r.Upstream == "" {
				t.Errorf("audit: %+v", r)
			}
			if tc.origin == nil {
				got := d.last()
				if d.count() != before+1 || got.Header.Get("X-Mine") != "1" || got.Header.Get("Authorization") != "Bearer of-the-actor" {
					t.Errorf("the desk got %v", got.Header)
				}
				for _, f := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Client-Cert", "X_forwarded_for", "Forwarded", "X-Real-Ip", "Via"} {
					if v, ok := got.Header[f]; ok {
						t.Errorf("the desk is told %s: %s", f, v)
					}
				}
				if got.Header.Get("X-Request-Id") != "mine" {
					t.Errorf("the desk is told the id %q", got.Header.Get("X-Request-Id"))
				}
				return
			}
			got := tc.origin.last.Load()
			if d.count() != before || got.Host != tc.origin.name || (got.Header.Get("X-Team") == "red") != stepped || stepped && got.URL.Path != "/a" {
				t.Errorf("the origin got %s %s %v", got.Host, got.URL, got.Header)
			}
			for name, want := range spoofed { // as the actor says it: nothing is taken away on the way to origins
				if name != "X_forwarded_for" && !slices.Equal(got.Header[name], want) {
					t.Errorf("the origin is told %s: %q", name, got.Header[name])
				}
			}
		})
	}
	_, exposition := ask(t, w.gateway.Addr("management"), "/api/gateway/metrics")
	for series, want := range map[string]float64{
		`gateway_router_requests_total{router="models"}`:          2,
		`gateway_router_requests_total{router="by-field"}`:        2,
		`gateway_router_requests_total{router="team"}`:            2,
		`gateway_middleware_invocations_total{middleware="team"}`: 4,
	} {
		if got := gatewaytest.Metric(exposition, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
}

// The policy comes before every router: what it refuses reaches neither a step nor a service, whatever routers say.
func TestEgressRoutersAllowNothing(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	d := w.desk()
	w.routed(strings.ReplaceAll(modelRoutes, "DESK", d.URL) + `
middlewares "never" {
  type  = "rate-limit"
  rate  = 1
  burst = 0
}
routers "all" {
  rule        = "HostRegexp(` + "`.*`) || PathPrefix(`/`" + `)"
  priority    = 1000
  entrypoints = ["egress"]
  service     = "llm"
  middlewares = ["never"]
}
`)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}},{"https":{"hostnames":["api.example.com"]}}`)
	lines := 0
	for _, tc := range []struct {
		name, url, host string
		status          int
		reason          egress.Reason
	}{
		{"by name", "http://other.example.com/v1/chat", "", 403, egress.NoRule},
		{"KF_EGR_05 in TLS for another", "https://api.example.com/v1/chat", "other.example.com", 403, egress.SNIMismatch},
		{"a name for TLS, in clear text", "http://api.example.com/v1/chat", "", 403, egress.OtherKind},
		{"what is allowed, and then refused by a step", "http://web.example.org/", "", 429, egress.Allowed},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", tc.url, nil)
		w.must(err)
		req.Header.Set("X-Fallback", "yes")
		req.Host = tc.host
		dialed := "93.184.216.34:80"
		if strings.HasPrefix(tc.url, "https:") {
			dialed = "93.184.216.34:443"
		}
		resp, err := p.httpClient(dialed, one).Do(req)
		w.must(err)
		_ = resp.Body.Close()
		lines += 2
		r := w.audit(lines)[lines-1]
		if resp.StatusCode != tc.status || r.Status != tc.status || r.Reason != tc.reason || (r.Router != "") != (tc.reason == egress.Allowed) {
			t.Errorf("%s: %d, %+v", tc.name, resp.StatusCode, r)
		}
		if tc.status == 429 && (r.Middleware != "never" || r.Code != "rate_limited" || r.Verdict != "allow") {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
	if d.count() > 0 || len(w.routes.dialed()) > 0 {
		t.Errorf("the desk got %d requests", d.count())
	}
}

// KF_RL_03: one actor does not use up what another has, where a limit counts identities apart.
func TestKF_RL_03_EgressLimitOfEachActor(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	d := w.desk()
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.routed(fmt.Sprintf(`
services "llm" { load_balancer { servers { url = %q } } }
middlewares "each" {
  type  = "rate-limit"
  rate  = 1
  burst = 3
  per   = "identity"
}
routers "models" {
  rule        = "PathPrefix(%s)"
  entrypoints = ["egress"]
  service     = "llm"
  middlewares = ["each"]
}
`, d.URL, "`/v1`"))
	a, b := w.run("a1"), w.run("a2")
	count := func(p *player) (passed int) {
		for range 8 {
			c := p.httpClient("93.184.216.34:80", one) // a tunnel for each
			if status, body, _ := fetched(t, c, "http://web.example.org/v1"); status == 200 {
				passed++
			} else if status != 429 || !strings.Contains(body, "rate_limited") {
				t.Errorf("%d %s", status, body)
			}
			c.CloseIdleConnections()
		}
		return passed
	}
	a.may(everythingAllowed)
	b.may(everythingAllowed)
	for _, p := range []*player{a, b} {
		began := time.Now()
		got := count(p)
		if most := 4 + int(time.Since(began).Seconds()); got < 3 || got > most { // more than the burst drips in if the machine is slow
			t.Errorf("%s: %d of 8 requests passed, where %d may", p.ref, got, most)
		}
	}
}

// Requests in a tunnel that is open go by the configuration that is in force when they begin.
func TestEgressRouteReload(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	d := w.desk()
	w.origin("web.example.org", "93.184.216.34:80", false)
	p := w.run("a1")
	p.may(everythingAllowed)
	c, status := p.tunnel("93.184.216.34:80")
	if status != 200 {
		t.Fatal(status)
	}
	t.Cleanup(func() { _ = c.Close() })
	in := bufio.NewReader(c)
	want := func(when, text string) {
		t.Helper()
		fmt.Fprintf(c, "GET /v1 HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		w.must(err)
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(body), text) {
			t.Errorf("%s: %d %q, %v; want %q", when, resp.StatusCode, body, err, text)
		}
	}
	router := func(service string) string {
		return fmt.Sprintf(`
services "llm" { load_balancer { servers { url = %q } } }
routers "models" {
  rule        = "PathPrefix(%s)"
  entrypoints = ["egress"]
  service     = %q
}
`, d.URL, "`/v1`", service)
	}
	want("before", "web.example.org HTTP/1.1")
	w.routed(router("llm"))
	want("with a router", "desk web.example.org /v1")
	w.routed(router("@origin"))
	want("to the origin", "web.example.org HTTP/1.1")
	w.routed("")
	want("without the router", "web.example.org HTTP/1.1")
	w.routed(router("llm"))
	gatewaytest.Until(t, "old generations have ended", func() bool { return w.gateway.Residue().Generations == 1 })
	// The entrypoint is no way out of actors any more: its routers are not for what is inside the tunnels that are left.
	before := d.count()
	w.gateway.Apply(`entrypoints "egress" { address = "127.0.0.1:0" }` + router("llm"))
	fmt.Fprintf(c, "GET /v1 HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
	if resp, err := http.ReadResponse(in, nil); err == nil && resp.StatusCode != 503 {
		t.Errorf("in a tunnel of then: %d", resp.StatusCode)
	}
	if d.count() > before {
		t.Error("a router of another entrypoint got a request")
	}
}

// KF_H1_11: to a backend of the operator goes no path that it may read in another way than the rule which leads there. Origins are
// the actor's business, and get paths as they are.
func TestKF_H1_11_EgressRoutedPaths(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	d := w.desk()
	at := w.origin("web.example.org", "93.184.216.34:80", false)
	w.routed(fmt.Sprintf(`
services "bare" { load_balancer { servers { url = %q } } }
services "base" { load_balancer { servers { url = %q } } }
middlewares "strip" {
  type     = "strip-prefix"
  prefixes = ["/base/*"]
}
routers "bare" {
  rule        = "PathPrefix(%s)"
  entrypoints = ["egress"]
  service     = "bare"
}
routers "base" {
  rule        = "PathPrefix(%s)"
  entrypoints = ["egress"]
  service     = "base"
  middlewares = ["strip"]
}
`, d.URL, d.URL+"/b", "`/bare`", "`/base`"))
	p := w.run("a1")
	p.may(everythingAllowed)
	c, status := p.tunnel("93.184.216.34:80")
	if status != 200 {
		t.Fatal(status)
	}
	t.Cleanup(func() { _ = c.Close() })
	in := bufio.NewReader(c)
	for path, want := range map[string]string{
		"/bare/a":            "desk web.example.org /bare/a",
		"/x/../bare/a":       "desk web.example.org /x/../bare/a",
		"/bare/a%2Fb":        "bad_request",
		"/bare/a%5cb":        "bad_request",
		"/x%2fadmin/../bare": "bad_request", // /x/bare to a backend that decodes first
		"/base/x/a":          "desk web.example.org /b/a",
		"/base/x/a%2fb":      "bad_request",
		"/base/x%2F..%2Fa":   "bad_request",
		"/else/a%2Fb":        "web.example.org HTTP/1.1",
	} {
		before := at.seen.Load() + int64(d.count())
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: web.example.org\r\n\r\n", path)
		resp, err := http.ReadResponse(in, nil)
		w.must(err)
		body, err := io.ReadAll(resp.Body)
		refused := want == "bad_request"
		if err != nil || !strings.Contains(string(body), want) || (resp.StatusCode == 400) != refused || (at.seen.Load()+int64(d.count()) > before) == refused {
			t.Errorf("%s: %d %q, %v; want %q", path, resp.StatusCode, body, err, want)
		}
	}
}
