package app_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// TestKF_H1_11: whatever a path looks like, the protected router's middleware judges it, or it is refused: no form
// reaches the backend through the open router. A limit that never refills stands for the protection.
func TestKF_H1_11(t *testing.T) {
	b := gatewaytest.NewBackend(t, "b")
	g := gatewaytest.Start(t, fmt.Sprintf(`
		entrypoints "web" { address = "127.0.0.1:0" }
		routers "admin" { rule = "PathPrefix(%[1]s/admin%[1]s)", service = "s", middlewares = ["closed"] }
		routers "open"  { rule = "PathPrefix(%[1]s/%[1]s)", service = "s" }
		services "s" { load_balancer { servers = [{ url = "%[2]s" }] } }
		middlewares "closed" { type = "rate-limit", rate = 1, burst = 0 }
		management { enabled = false }`, "`", b.URL))
	defer g.Stop()
	if res, _ := gatewaytest.Dial(t, g.Addr("web")).Get("/public"); res.StatusCode != 200 {
		t.Fatalf("the open router answers %d", res.StatusCode)
	}
	seen := b.Seen.Load()
	for _, path := range []string{
		"/admin", "/public/%2e%2e/admin", "/public/../admin", "//admin", "/admin%2F", "/./admin", "/admin%5c", "/a;/../admin",
		"/%61dmin", "/public/..%2fadmin", "/public%2f..%2fadmin", "/..;/admin", "/public/..;/admin", "///public/..//admin", "/public/%2E%2E/%61dmin/x",
	} {
		res, _ := gatewaytest.Dial(t, g.Addr("web")).Get(path)
		if res.StatusCode != 429 && res.StatusCode != 400 {
			t.Errorf("%s: status %d, want the protected router's 429 or 400", path, res.StatusCode)
		}
	}
	if n := b.Seen.Load(); n != seen {
		t.Errorf("the backend saw %d requests around the protection", n-seen)
	}
}

// TestKF_H1_06: a chunk-size line that ends in a bare line feed is refused, and nothing behind it is a request.
func TestKF_H1_06(t *testing.T) {
	b := gatewaytest.NewBackend(t, "b")
	g := gatewaytest.Start(t, fmt.Sprintf(`
		entrypoints "web" { address = "127.0.0.1:0" }
		routers "r" { rule = "PathPrefix(%[1]s/%[1]s)", service = "s" }
		services "s" { load_balancer { servers = [{ url = "%[2]s" }] } }`, "`", b.URL))
	defer g.Stop()
	c := gatewaytest.Dial(t, g.Addr("web"))
	c.Send("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
	res := c.Response()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 400 {
		t.Errorf("status %d, want 400; %v", res.StatusCode, err)
	}
	c.Closed()
	_ = c.Close()
	if r := b.Last.Load(); r != nil && r.URL.Path != "/upload" {
		t.Errorf("the backend saw %s", r.URL.Path)
	}
}
