package peers_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// webSocketServer starts a peer's server and returns its URL.
func webSocketServer(t *testing.T, program string, args ...string) string {
	t.Helper()
	p := gatewaytest.Run(t, program, args...)
	listening := regexp.MustCompile(`listening on (\d+)`)
	var port string
	eventually(t, patience, "the server listens", func() bool {
		m := listening.FindStringSubmatch(p.Output())
		if m != nil {
			port = m[1]
		}
		return m != nil
	})
	return "ws://127.0.0.1:" + port
}

// TestWebSocketFrames passes the frame cases of RFC 6455 between other people's clients and servers, over both versions of
// HTTP: what one end sends, right or wrong, is for the other to judge, and its verdict arrives.
func TestWebSocketFrames(t *testing.T) {
	t.Parallel()
	node, ws, python := gatewaytest.Peer(t, "node"), gatewaytest.Peer(t, gatewaytest.PeerNodeWS), gatewaytest.Peer(t, gatewaytest.PeerPythonWebSockets)
	for server, start := range map[string]func(t *testing.T) string{
		"ws": func(t *testing.T) string {
			return webSocketServer(t, node, filepath.Join("testdata", "wsserver.mjs"), ws)
		},
		"websockets": func(t *testing.T) string { return webSocketServer(t, python, filepath.Join("testdata", "wsserver.py")) },
	} {
		t.Run("server "+server, func(t *testing.T) {
			s := serve(t, start(t))
			for _, c := range []struct {
				name  string
				cases int
				args  []string
			}{
				{"ws over HTTP/1.1", 67, []string{node, filepath.Join("testdata", "wsclient.mjs"), ws, "h1", "http://" + s.clear, s.certFile}},
				{"ws over TLS", 67, []string{node, filepath.Join("testdata", "wsclient.mjs"), ws, "h1", "https://" + s.tls, s.certFile}},
				{"ws over HTTP/2", 67, []string{node, filepath.Join("testdata", "wsclient.mjs"), ws, "h2", "https://" + s.tls, s.certFile}},
				{"ws over HTTP/2 in clear text", 67, []string{node, filepath.Join("testdata", "wsclient.mjs"), ws, "h2", "http://" + s.clear, s.certFile}},
				{"websockets over HTTP/1.1", 24, []string{python, filepath.Join("testdata", "wsclient.py"), "http://" + s.clear, s.certFile}},
				{"websockets over TLS", 24, []string{python, filepath.Join("testdata", "wsclient.py"), "https://" + s.tls, s.certFile}},
			} {
				t.Run("client "+c.name, func(t *testing.T) {
					out := command(t, c.args[0], c.args[1:]...)
					if n := strings.Count(out, "ok "); n != c.cases {
						t.Errorf("%d cases, want %d:\n%s", n, c.cases, out)
					}
				})
			}
			s.empty(t)
		})
	}
}
