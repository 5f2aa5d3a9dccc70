package app_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// behind is a gateway whose backend is reached through a proxy.
func behind(proxy, backend string) string {
	return `entrypoints "web" { address = "127.0.0.1:0" }
routers "all" {
  rule    = "PathPrefix(` + "`/`" + `)"
  service = "far"
}
services "far" {
  load_balancer {
    servers { url = "` + backend + `" }
    health_check {
      path     = "/health"
      interval = "50ms"
    }
  }
  transport { proxy = "` + proxy + `" }
}
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
`
}

// Backends are reached through a proxy, here another gateway, by both versions; health checks, too.
func TestViaProxy(t *testing.T) {
	backend := gatewaytest.NewBackend(t, "far")
	port := portOf(t, strings.TrimPrefix(backend.URL, "http://"))
	for _, scheme := range []string{"http", "h2c"} {
		t.Run(scheme, func(t *testing.T) {
			proxy := gatewaytest.Start(t, tunnelConfig(port, "http://127.0.0.1:1", ""))
			g := gatewaytest.Start(t, behind(scheme+"://"+proxy.Addr("proxy"), "http://localhost:"+port))
			c := gatewaytest.Dial(t, g.Addr("web"))
			for range 3 {
				if res, body := c.Get("/a"); res.StatusCode != 200 || body != "far" {
					t.Fatalf("%d %q", res.StatusCode, body)
				}
			}
			gatewaytest.Until(t, "a health check has come through", func() bool {
				return strings.Contains(g.Process.String(), "passed its first health check")
			})
			g.Stop()
			for _, of := range []string{"a health check", "the requests"} { // in either order: whose connection ends first is open
				if line := proxy.Lines.Next(t); line.Text("host") != "localhost:"+port || line.Number("status") != 200 {
					t.Errorf("%s: line of the proxy %v", of, line)
				}
			}
		})
	}
}

// KF_TUN_05: a proxy in front that answers with more than a status, or refuses.
func TestKF_TUN_05_ProxyInFront(t *testing.T) {
	answers := map[string]struct {
		head   string
		status int
	}{
		"200 with fields, and first bytes in the same packet": {"HTTP/1.1 200 Connection established\r\nVia: 1.1 corp\r\nContent-Length: 5\r\n\r\n", 200},
		"1.0":              {"HTTP/1.0 200 OK\r\n\r\n", 200},
		"407":              {"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 4\r\n\r\nno!\n", 502},
		"closes":           {"", 502},
		"no HTTP":          {"SSH-2.0-x\r\n", 502},
		"503 without body": {"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 502},
	}
	for name, a := range answers {
		t.Run(name, func(t *testing.T) {
			addr := tcpBackend(t, func(c *net.TCPConn) {
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil || req.Method != "CONNECT" || req.Host != "far.test:80" || a.head == "" {
					return
				}
				if a.status != 200 {
					_, _ = io.WriteString(c, a.head)
					return
				}
				// The backend speaks at once: its bytes come with the head of the proxy.
				_, _ = io.WriteString(c, a.head+"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, br)
			})
			text := strings.ReplaceAll(behind("http://"+addr, "tcp://far.test:80"), "web\" { address = \"127.0.0.1:0\" }", "web\" {\n  address = \"127.0.0.1:0\"\n  protocol = \"tcp\"\n}")
			text = strings.Replace(text, "PathPrefix(`/`)", "HostSNI(`*`)", 1)
			text = text[:strings.Index(text, "    health_check")] + text[strings.Index(text, "  }\n  transport"):]
			g := gatewaytest.Start(t, text)
			c := gatewaytest.Dial(t, g.Addr("web"))
			got, _ := io.ReadAll(io.LimitReader(c, 1<<10))
			if ok := strings.HasSuffix(string(got), "\r\n\r\nok"); ok != (a.status == 200) {
				t.Errorf("%q", got)
			}
			_ = c.Close()
			if line := g.Lines.Next(t); a.status != 200 && line.Text("error_code") != "connect_failed" {
				t.Errorf("line %v", line)
			}
		})
	}
}
