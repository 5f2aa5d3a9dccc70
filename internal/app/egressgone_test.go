package app_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// An actor that leaves while its request is being served is missed within a second, wherever the request has gone: a tunnel over
// HTTP/1.1 has nobody who reads meanwhile.
func TestEgressDeparture(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	begun, left := make(chan struct{}), make(chan time.Time, 3)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
		left <- time.Now()
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	at := strings.TrimPrefix(s.URL, "http://")
	w.routes.route(at, at)
	w.routes.route("93.184.216.34:80", at)
	w.routed(fmt.Sprintf(`
services "llm" { load_balancer { servers { url = %q } } }
routers "models" {
  rule        = "PathPrefix(%s)"
  entrypoints = ["egress"]
  service     = "llm"
}
`, s.URL, "`/v1`"))
	p := w.run("a1")
	p.may(everythingAllowed)
	for _, tc := range []struct {
		name, path string
		port       int
		secure     bool
	}{
		{"to the origin", "/", 80, false},
		{"to the operator's", "/v1", 80, false},
		{"to the operator's, in TLS", "/v1", 443, true},
	} {
		c, status := p.tunnel(fmt.Sprintf("93.184.216.34:%d", tc.port))
		if status != 200 {
			t.Fatal(status)
		}
		inside := net.Conn(c)
		if tc.secure {
			inside = tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "api.example.com"})
		}
		host := map[bool]string{false: "web.example.org", true: "api.example.com"}[tc.secure]
		fmt.Fprintf(inside, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", tc.path, host)
		select {
		case <-begun:
		case <-time.After(gatewaytest.Patience):
			resp, err := http.ReadResponse(bufio.NewReader(inside), nil)
			t.Fatalf("%s: %+v %v", tc.name, resp, err)
		}
		gone := time.Now()
		_ = c.Close()
		select {
		case at := <-left:
			if took := at.Sub(gone); took > 5*time.Second { // one, and a slow machine
				t.Errorf("%s: missed after %s", tc.name, took)
			}
		case <-time.After(gatewaytest.Patience):
			t.Fatalf("%s: not missed", tc.name)
		}
	}
}
