package app_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// pretended are fields in which proxies report what a client's certificate says.
var pretended = []string{
	"X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert", "X-Forwarded-Tls-Client-Cert-Info", "X_Forwarded_Client_Cert",
}

// KF_TLS_03: what a client says of its certificate in a field never reaches a backend, whether or not it has one, also on a
// session that is resumed; who it is stands in the log only when it was verified.
func TestKF_TLS_03(t *testing.T) {
	seen := make(chan http.Header, 1)
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	t.Cleanup(backend.Close)
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	caFile := filepath.Join(dir, "clients.pem")
	mine := clientCertificate(t, caFile, "agent.test")
	g := gatewaytest.Start(t, fmt.Sprintf(`
entrypoints "web" {
  address = "127.0.0.1:0"
  tls { cert_file = %q, key_file = %q, client_ca_file = %q, client_auth = "request" }
}
routers "r" {
  rule    = "PathPrefix(`+"`/`"+`)"
  service = "s"
}
services "s" { load_balancer { servers { url = %q } } }
`, certFile, keyFile, caFile, backend.URL))
	for _, c := range []struct {
		name  string
		certs []tls.Certificate
		want  string
	}{{"with a certificate", []tls.Certificate{mine}, "agent.test"}, {"without", nil, ""}} {
		tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, ServerName: "gateway.test", Certificates: c.certs, ClientSessionCache: tls.NewLRUClientSessionCache(1),
		}}
		for _, resumed := range []bool{false, true} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.Addr("web")+"/", http.NoBody)
			for _, name := range pretended {
				req.Header[name] = []string{`Subject="CN=admin"`}
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != 200 || resp.TLS.DidResume != resumed {
				t.Errorf("%s: status %d, resumed %v", c.name, resp.StatusCode, resp.TLS.DidResume)
			}
			h := <-seen
			for _, name := range pretended {
				if v, ok := h[http.CanonicalHeaderKey(name)]; ok {
					t.Errorf("%s, resumed %v: the backend is told %s: %s", c.name, resumed, name, v)
				}
			}
			if l := g.Lines.Next(t); l.Text("client_identity") != c.want {
				t.Errorf("%s, resumed %v: %v", c.name, resumed, l)
			}
		}
	}
}
