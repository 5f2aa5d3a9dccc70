package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// TestOneLineAnExchange: however an exchange ends, the access log has exactly one line of it that says so.
func TestOneLineAnExchange(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		site    site
		backend bool
		do      func(t *testing.T, g *gatewaytest.Gateway, b *gatewaytest.Backend, c *gatewaytest.Client)
		status  float64
		outcome string
		code    string
	}{
		{"ok", site{}, true, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) { c.Get("/") }, 200, "ok", ""},
		{"no route", site{rule: "Path(`/x`)"}, true, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Get("/")
		}, 404, "rejected", "no_route"},
		{
			"rate limit",
			site{middlewares: `"l"`, extra: `middlewares "l" { type = "rate-limit", rate = 1, burst = 0 }`},
			true,
			func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) { c.Get("/") }, 429, "rejected", "rate_limited",
		},
		{"malformed head", site{}, true, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Send("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n")
			c.Response()
		}, 400, "rejected", "bad_request"},
		{"backend down", site{backends: []string{"http://127.0.0.1:1"}}, false, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Get("/")
		}, 502, "failed", ""},
		{"timeout", site{service: `request_timeout = "50ms"`}, true, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Get("/hang")
		}, 504, "failed", ""},
		{"stream to its end", site{}, true, func(_ *testing.T, _ *gatewaytest.Gateway, b *gatewaytest.Backend, c *gatewaytest.Client) {
			b.Finish()
			c.Get("/sse")
		}, 200, "ok", ""},
		{"client leaves a stream", site{}, true, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
			c.Response()
			c.Close()
		}, 200, "disconnected", ""},
		{"client leaves before the answer", site{}, true, func(t *testing.T, _ *gatewaytest.Gateway, b *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Send("GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
			gatewaytest.Until(t, "dispatched", func() bool { return b.Seen.Load() == 1 })
			c.Close()
		}, 499, "disconnected", ""},
		{"upload given up", site{}, true, func(t *testing.T, _ *gatewaytest.Gateway, b *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Send("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
			gatewaytest.Until(t, "dispatched", func() bool { return b.Seen.Load() == 1 })
			c.Close()
		}, 499, "disconnected", ""},
		{"upgrade", site{}, true, func(_ *testing.T, _ *gatewaytest.Gateway, _ *gatewaytest.Backend, c *gatewaytest.Client) {
			c.Send(websocket)
			c.Response()
			c.Close()
		}, 101, "upgraded", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // each waits for its line to be flushed
			b := gatewaytest.NewBackend(t, "one")
			if tc.backend {
				tc.site.backends = []string{b.URL}
			}
			g := gatewaytest.Start(t, tc.site.String())
			c := gatewaytest.Dial(t, g.Addr("web"))
			tc.do(t, g, b, c)
			_ = c.Close() // or the gateway waits for that
			line := g.Lines.Next(t)
			if line.Number("status") != tc.status || line.Text("outcome") != tc.outcome || tc.code != "" && line.Text("error_code") != tc.code {
				t.Errorf("want %v %s %s, got %v", tc.status, tc.outcome, tc.code, line)
			}
			if line.Text("entrypoint") != "web" || line.Text("request_id") == "" {
				t.Errorf("%v", line)
			}
			g.Stop()
			g.Lines.None(t)
		})
	}
}

// TestNoCredentials: what clients and operators keep secret reaches no output (KF-OBS-01).
func TestNoCredentials(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	secret := t.TempDir() + "/secret"
	if err := os.WriteFile(secret, []byte("file-canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := site{
		backends: []string{strings.Replace(b.URL, "://", "://user:url-canary@", 1)}, rule: "!Path(`/404`)", middlewares: `"h"`,
		extra: `middlewares "h" { type = "headers", request_headers = { "Authorization" = file("` + secret + `") } }` + "\n" + management,
	}
	if _, err := gatewaytest.TryStart(t, s.String()); err == nil {
		t.Log("credentials in a backend's URL are accepted")
	} else if strings.Contains(err.Error(), "canary") {
		t.Errorf("the refusal quotes a credential: %v", err)
	}
	s.backends = []string{b.URL}
	g := gatewaytest.Start(t, s.String())
	c := gatewaytest.Dial(t, g.Addr("web"))
	fields := []string{"Authorization: Bearer auth-canary", "Cookie: session=cookie-canary", "Referer: http://u:ref-canary@h/p?q=refq-canary", "Proxy-Authorization: Basic proxy-canary"}
	var out strings.Builder
	for _, path := range []string{"/ok?key=query-canary", "/404?key=query-canary", "/%zz?key=query-canary"} {
		resp, body, err := c.TryGet(path, fields...)
		if err != nil {
			c = gatewaytest.Dial(t, g.Addr("web"))
			continue
		}
		_ = resp.Header.Write(&out)
		out.WriteString(body)
		if resp.Close {
			c = gatewaytest.Dial(t, g.Addr("web"))
		}
	}
	if got := b.Last.Load().Header.Get("Authorization"); got != "file-canary" {
		t.Fatalf("the credential did not arrive: %q", got)
	}
	ws := gatewaytest.Dial(t, g.Addr("web"))
	ws.Send(strings.Replace(strings.Replace(websocket, "/upgrade", "/upgrade?key=query-canary", 1), "Host: x\r\n", "Host: x\r\n"+strings.Join(fields, "\r\n")+"\r\n", 1))
	ws.Response()
	ws.Close()
	for range 4 {
		g.Lines.Next(t)
	}
	for _, view := range []string{"health", "metrics", "config", "routes", "services", "nothing"} {
		_, body := ask(t, g.Addr("management"), "/api/gateway/"+view)
		out.WriteString(body)
	}
	_ = g.ReloadText(t.Context(), s.String()+"\nsecret = \"text-canary\"\n")
	g.Stop()
	for name, text := range map[string]string{"access log": g.Lines.String(), "process log": g.Process.String(), "answers and views": out.String()} {
		if i := strings.Index(text, "canary"); i >= 0 {
			t.Errorf("%s: …%s", name, text[max(0, i-80):min(len(text), i+20)])
		}
	}
}

// TestSeriesBudget: what clients choose does not become series (KF-OBS-02).
func TestSeriesBudget(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	g := gatewaytest.Start(t, site{backends: []string{b.URL}, rule: "Method(`GET`)", extra: management}.String())
	c := gatewaytest.Dial(t, g.Addr("web"))
	count := func() int {
		_, text := ask(t, g.Addr("management"), "/api/gateway/metrics")
		return strings.Count(text, "\n")
	}
	c.Get("/")
	c.Send("POST / HTTP/1.1\r\nHost: x\r\n\r\n")
	_, _ = io.Copy(io.Discard, c.Response().Body)
	before := count()
	for i := range 2000 {
		method := []string{"GET", "POST", "PUT", fmt.Sprintf("M%d", i)}[rand.IntN(4)]
		c.Send(fmt.Sprintf("%s /%d HTTP/1.1\r\nHost: h%d.test\r\nX-Model: m%d\r\n\r\n", method, rand.Int(), rand.Int(), rand.Int()))
		resp := c.Response()
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.Close {
			t.Fatalf("%s: %v", method, resp.Status)
		}
	}
	if after := count(); after != before {
		t.Errorf("%d lines of metrics before, %d after", before, after)
	}
}

// TestClientAddress: the log and the backend are told the same client, the one before the trusted proxy (KF-OBS-03).
func TestClientAddress(t *testing.T) {
	for _, tc := range []struct{ name, trusted, want string }{
		{"trusted", `forwarded { trusted_ips = ["127.0.0.0/8", "10.0.0.0/8"] }`, "203.0.113.7"},
		{"not trusted", "", "127.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := gatewaytest.NewBackend(t, "one")
			g := gatewaytest.Start(t, site{entrypoints: `entrypoints "web" { address = "127.0.0.1:0", ` + tc.trusted + ` }`, backends: []string{b.URL}}.String())
			gatewaytest.Dial(t, g.Addr("web")).Get("/", "X-Forwarded-For: 6.6.6.6, 203.0.113.7, 10.1.1.1", "X-Real-IP: 6.6.6.6")
			line, seen := g.Lines.Next(t), b.Last.Load().Header
			if line.Text("client_ip") != tc.want || line.Text("peer_ip") != "127.0.0.1" || seen.Get("X-Real-IP") != tc.want {
				t.Errorf("log %v %v, backend %v", line.Text("client_ip"), line.Text("peer_ip"), seen)
			}
			if xff := seen.Get("X-Forwarded-For"); tc.trusted == "" && xff != tc.want || !strings.Contains(xff, tc.want) {
				t.Errorf("X-Forwarded-For %q", xff)
			}
		})
	}
}

// TestAllBackendsDown: the router stays and says so (KF-LB-08, KF-CFG-04); the first check comes at once, and a backend that
// fails it gets nothing more (KF-LB-05).
func TestAllBackendsDown(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	b.SetHealthy(false)
	other := gatewaytest.NewBackend(t, "catch-all")
	s := site{
		backends: []string{b.URL}, rule: "PathPrefix(`/api`)",
		service: `    health_check { path = "/health", interval = "20ms", timeout = "10s", unhealthy_threshold = 1, healthy_threshold = 1 }`,
		extra: "routers \"all\" {\n rule = \"PathPrefix(`/`)\"\n service = \"all\"\n}\n" +
			"services \"all\" {\n load_balancer {\n strategy = \"round-robin\"\n servers { url = \"" + other.URL + "\" }\n }\n}\n",
	}
	g := gatewaytest.Start(t, s.String())
	c := gatewaytest.Dial(t, g.Addr("web"))
	gatewaytest.Until(t, "the router answers 503", func() bool { resp, _ := c.Get("/api"); return resp.StatusCode == 503 })
	resp, body := c.Get("/api")
	var doc struct{ Code, Request_ID string }
	if err := json.Unmarshal([]byte(body), &doc); err != nil || doc.Code == "" || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%v %s", resp.Header, body)
	}
	g.Apply(strings.Replace(s.String(), "`/api`", "`/api`) || Path(`/a`", 1)) // a reload keeps what is known of health
	if resp, _ := c.Get("/api"); resp.StatusCode != 503 {
		t.Errorf("after the reload: %v", resp.Status)
	}
	if other.Seen.Load() != 0 {
		t.Error("the catch-all got the requests")
	}
	b.SetHealthy(true)
	gatewaytest.Until(t, "the backend is back", func() bool { resp, _ := c.Get("/api"); return resp.StatusCode == 200 })
	for {
		if line := g.Lines.Next(t); line.Text("router") != "r" {
			t.Errorf("%v", line)
		} else if line.Number("status") == 200 {
			break
		}
	}
}

// TestLogOutputsThatFail: a full disk and a reader that left cost lines, counted, and no request.
func TestLogOutputsThatFail(t *testing.T) {
	r, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer closed.Close()
	for _, tc := range []struct {
		name, extra string
		stdout      *os.File
	}{
		{"full disk", `observability { access_log { output = "/dev/full" } }`, nil},
		{"closed stdout", "", closed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.stdout == nil {
				if _, err := os.Stat("/dev/full"); err != nil {
					t.Skip("no /dev/full here")
				}
			}
			b := gatewaytest.NewBackend(t, "one")
			g := gatewaytest.Start(t, site{backends: []string{b.URL}, extra: tc.extra + "\n" + management}.String(),
				gatewaytest.With(func(o *app.Options) { o.Stdout = tc.stdout }))
			c := gatewaytest.Dial(t, g.Addr("web"))
			for range 500 {
				if _, body := c.Get("/"); body != "one" {
					t.Fatalf("%q", body)
				}
			}
			gatewaytest.Until(t, "lost lines are counted", func() bool {
				_, text := ask(t, g.Addr("management"), "/api/gateway/metrics")
				return gatewaytest.Metric(text, "gateway_access_log_dropped_total") > 0
			})
			if _, body := c.Get("/"); body != "one" {
				t.Fatalf("%q", body)
			}
		})
	}
}

// TestInMemory: the same gateway on a network inside the test.
func TestInMemory(t *testing.T) {
	m := gatewaytest.NewMemory()
	l, err := m.Listen("backend.test:80")
	if err != nil {
		t.Fatal(err)
	}
	b := gatewaytest.NewBackendOn(t, "memory", l)
	g := gatewaytest.Start(t, site{backends: []string{b.URL}}.String(), gatewaytest.InMemory(m))
	nc, err := m.DialNet(t.Context(), "tcp", g.Addr("web"))
	if err != nil {
		t.Fatal(err)
	}
	c := gatewaytest.NewClient(t, nc)
	if _, body := c.Get("/"); body != "memory" {
		t.Errorf("%q", body)
	}
	var buf bytes.Buffer
	c.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
	resp := c.Response()
	b.Finish()
	if _, err := io.Copy(&buf, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v", resp.Status, err)
	}
}
