package app_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// TestRefusalSaysWhy: who looks for the reason of a 4xx finds it in the log, in words of ours, and the key of the limit.
func TestRefusalSaysWhy(t *testing.T) {
	t.Parallel()
	const head = "GET /canary HTTP/1.1\r\nHost: canary\r\n"
	many := strings.Repeat("X-Canary: 1\r\n", 300)
	for _, tc := range []struct{ name, send, code, why, limit string }{
		{"two hosts", head + "Host: y\r\n\r\n", "bad_request", "more than one Host", ""},
		{"TLS where clear text is spoken", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "bad_request", "a TLS handshake, where clear text is spoken", ""},
		{"encoded slash", "GET /canary%2f HTTP/1.1\r\nHost: canary\r\n\r\n", "bad_request", "path has an encoded slash", ""},
		{"no chunk", "POST /canary HTTP/1.1\r\nHost: canary\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n", "bad_request_body", "malformed chunked body", ""},
		{"no handshake", head + "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n", "bad_websocket_handshake", "Sec-WebSocket-Key comes 0 times", ""},
		{"too many fields", head + many + "\r\n", "header_too_large", "", "max_headers"},
		{"too large a field", head + "X-Canary: " + strings.Repeat("a", 70000) + "\r\n\r\n", "header_too_large", "", "max_header_bytes"},
		{"too long a line", "GET /" + strings.Repeat("a", 70000) + " HTTP/1.1\r\n\r\n", "uri_too_long", "", "max_header_bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := gatewaytest.NewBackend(t, "one")
			g := gatewaytest.Start(t, site{backends: []string{b.URL}}.String())
			c := gatewaytest.Dial(t, g.Addr("web"))
			c.Send(tc.send)
			c.Response()
			l := g.Lines.Next(t)
			if l.Text("error_code") != tc.code || !strings.HasSuffix(l.Text("error"), tc.why) || tc.why == "" && l.Text("error") != "" || l.Text("limit") != tc.limit {
				t.Errorf("code %q, error %q, limit %q", l.Text("error_code"), l.Text("error"), l.Text("limit"))
			}
			if strings.Contains(l.Text("error"), "canary") {
				t.Errorf("quotes the client: %q", l.Text("error"))
			}
		})
	}
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		b := gatewaytest.NewBackend(t, "one")
		g := gatewaytest.Start(t, site{backends: []string{b.URL}}.String())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr("web")+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 300 {
			req.Header.Add("X-Canary", "1")
		}
		resp, err := httpClient(t, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if l := g.Lines.Next(t); l.Text("error_code") != "header_too_large" || l.Text("limit") != "max_headers" {
			t.Errorf("code %q, limit %q", l.Text("error_code"), l.Text("limit"))
		}
	})
}
