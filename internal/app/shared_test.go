package app_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// sharing is an http entrypoint "web" with TLS, some of whose connections are passed on by name.
func sharing(t testing.TB, keys, web, passed string) string {
	t.Helper()
	certFile, keyFile := certificate(t, t.TempDir())
	return fmt.Sprintf(`
entrypoints "web" {
  address = "127.0.0.1:0"
  tls { cert_file = %q, key_file = %q }
  %s
}
routers "pages" {
  rule    = "PathPrefix(`+"`/`"+`)"
  service = "pages"
}
routers "passed" {
  rule        = "HostSNI(`+"`db.example`"+`)"
  service     = "passed"
  tls         = "passthrough"
  entrypoints = ["web"]
}
services "pages"  { load_balancer { servers { url = %q } } }
services "passed" { load_balancer { servers { url = "tcp://%s" } } }
`, certFile, keyFile, keys, web, passed)
}

// One port serves requests inside TLS, over both versions, and passes other names on to who has their certificate.
func TestSharedPort(t *testing.T) {
	web := gatewaytest.NewBackend(t, "page")
	g := gatewaytest.Start(t, sharing(t, "", web.URL, tlsBackend(t, "db")))
	addr := g.Addr("web")
	for _, alpn := range []string{"h2", "http/1.1"} {
		p := new(http.Protocols)
		p.SetHTTP1(alpn != "h2")
		p.SetHTTP2(alpn == "h2")
		tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "gateway.test"}}
		res, err := (&http.Client{Transport: tr}).Get("https://" + addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		tr.CloseIdleConnections()
		if res.StatusCode != 200 || string(body) != "page" || (res.ProtoMajor == 2) != (alpn == "h2") {
			t.Errorf("%s: %s %d %q", alpn, res.Proto, res.StatusCode, body)
		}
	}
	for _, cuts := range [][]int{nil, {1, 2, 3, 4, 5, 6}, {100}} {
		if got := once(t, startTLS(t, &slowStart{Conn: dialTCP(t, addr), cuts: cuts}, "db.example"), "x"); got != "db db.example x" {
			t.Errorf("cut at %v: %q", cuts, got)
		}
	}
	seen := map[string]int{}
	for range 5 {
		l := g.Lines.Next(t)
		seen[l.Text("router")+" "+l.Text("protocol")]++
	}
	if seen["passed TCP"] != 3 || seen["pages HTTP/2.0"] != 1 || seen["pages HTTP/1.1"] != 1 {
		t.Error(seen)
	}
}

// KF-H2G-07: a name that is passed on to who has its certificate, and its rules, is not asked for on a connection whose TLS
// ended here for another name, as browsers do that share connections: the client is told to open one for it.
func TestKF_H2G_07(t *testing.T) {
	t.Parallel()
	web := gatewaytest.NewBackend(t, "page")
	g := gatewaytest.Start(t, sharing(t, "", web.URL, tlsBackend(t, "db")))
	for _, alpn := range []string{"h2", "http/1.1"} {
		p := new(http.Protocols)
		p.SetHTTP1(alpn != "h2")
		p.SetHTTP2(alpn == "h2")
		tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "gateway.test"}}
		t.Cleanup(tr.CloseIdleConnections)
		for _, tc := range []struct {
			host   string
			status int
		}{{"gateway.test", 200}, {"db.example", 421}, {"DB.example.:443", 421}, {"other.example", 200}} {
			seen := web.Seen.Load()
			req, _ := http.NewRequest("GET", "https://"+g.Addr("web")+"/", nil)
			req.Host = tc.host
			res, err := (&http.Client{Transport: tr}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			refused := strings.Contains(string(body), `"code":"misdirected_request"`)
			if res.StatusCode != tc.status || refused != (tc.status == 421) || (web.Seen.Load() == seen) != refused {
				t.Errorf("%s over %s: %d %s", tc.host, alpn, res.StatusCode, body)
			}
		}
	}
}

// What is no ClientHello, or none in time, ends as on any port with TLS.
func TestSharedPortRefuses(t *testing.T) {
	web := gatewaytest.NewBackend(t, "page")
	g := gatewaytest.Start(t, sharing(t, "", web.URL, tlsBackend(t, "db")))
	c := dialTCP(t, g.Addr("web"))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: gateway.test\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 400 {
		t.Errorf("clear text: %v, %v", res, err)
	}
	g = gatewaytest.Start(t, sharing(t, `header_timeout = "300ms"`, web.URL, tlsBackend(t, "db")))
	for name, first := range map[string]string{"silent": "", "half a hello": "\x16\x03\x01\x02\x00\x01"} {
		began := time.Now()
		c := dialTCP(t, g.Addr("web"))
		_, _ = io.WriteString(c, first)
		_ = over(t, c)
		if d := time.Since(began); d < 300*time.Millisecond || d >= 10*time.Second { // the default
			t.Errorf("%s: closed after %s", name, d)
		}
	}
}

// A client that leaves is noticed inside TLS although its first bytes were read twice.
func TestSharedPortDeparture(t *testing.T) {
	asked, gone := make(chan struct{}, 1), make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
		close(gone)
	})}
	go s.Serve(l)
	t.Cleanup(func() { _ = s.Close() })
	g := gatewaytest.Start(t, sharing(t, "", "http://"+l.Addr().String(), tlsBackend(t, "db")))
	raw := dialTCP(t, g.Addr("web"))
	c := startTLS(t, raw, "gateway.test")
	_, _ = io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: gateway.test\r\n\r\n")
	<-asked
	_ = raw.Close()
	select {
	case <-gone:
	case <-time.After(gatewaytest.Patience):
		t.Error("the backend works on for a client that has left")
	}
	if line := g.Lines.Next(t); !strings.Contains(line.Text("outcome"), "disconnected") {
		t.Error(line)
	}
}
