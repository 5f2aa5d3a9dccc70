package app_test

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

const pythonGet = `
import http.client, socket, ssl, sys
port, ca, host, secure = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "s"
s = socket.create_connection(("127.0.0.1", port), 10)
if secure:
    c = ssl.create_default_context(cafile=ca)
    c.verify_flags |= ssl.VERIFY_X509_STRICT
    s = c.wrap_socket(s, server_hostname=host)
h = http.client.HTTPConnection(host)
h.sock = s
h.request("POST", "/from-python", body=b"x" * 100000)
r = h.getresponse()
print(r.status, r.read().decode())
`

const nodeGet = `
const [port, caFile, host, secure] = process.argv.slice(1);
const options = {host: '127.0.0.1', port, servername: host, headers: {Host: host}, path: '/from-node', ca: require('fs').readFileSync(caFile), agent: false};
require(secure === 's' ? 'https' : 'http').get(options, (r) => {
  let text = '';
  r.on('data', (d) => text += d);
  r.on('end', () => console.log(r.statusCode, text));
}).on('error', (e) => console.log('error', e.code));
`

// Foreign programs, which know nothing of a gateway, reach what the policy allows with the projected authority alone, and nothing
// else.
func TestKF_MITM_01_EgressForeignClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("api.example.com", "93.184.216.34:443", true)
	canary := w.origin("metadata", "169.254.169.254:80", false)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org","metadata.example.com"]}},{"https":{"hostnames":["api.example.com"]}}`)
	clear, secure := portOf(t, p.captured("93.184.216.34:80")), portOf(t, p.captured("93.184.216.34:443"))
	curl := func(to string, more ...string) []string {
		return append([]string{"-sS", "-w", " %{http_code}", "--cacert", w.projectedCA(), "--connect-to", "::127.0.0.1:" + to}, more...)
	}
	for _, tc := range []struct {
		name, program string
		args          []string
		want          string // in what it prints
	}{
		{"curl in clear text", "curl", curl(clear, "http://web.example.org/"), "web.example.org HTTP/1.1 0 200"},
		{"curl that asks for h2c", "curl", curl(clear, "--http2", "http://web.example.org/"), "web.example.org HTTP/1.1 0 200"},
		{"curl that knows of HTTP/2", "curl", curl(clear, "--http2-prior-knowledge", "http://web.example.org/"), "web.example.org HTTP/1.1 0 200"},
		{"curl with a method of its own", "curl", curl(clear, "-X", "PROPFIND", "http://web.example.org/"), "web.example.org HTTP/1.1 0 200"},
		{"curl over HTTP/2", "curl", curl(secure, "https://api.example.com/"), "api.example.com HTTP/2.0 0 200"},
		{"curl over HTTP/1.1", "curl", curl(secure, "--http1.1", "https://api.example.com/"), "api.example.com HTTP/2.0 0 200"},
		{"curl to a name that is not allowed", "curl", curl(clear, "http://other.example.com/"), `"code":"egress_denied"`},
		{"curl to metadata", "curl", curl(clear, "http://metadata.example.com/latest/"), `"code":"egress_denied"`},
		{"curl in TLS to a name that is not allowed", "curl", curl(secure, "https://other.example.com/"), "curl: (35)"},
		{"curl without the authority", "curl", []string{"-sS", "--connect-to", "::127.0.0.1:" + secure, "https://api.example.com/"}, "curl: (60)"},
		{"Python", "python3", []string{"-c", pythonGet, secure, w.projectedCA(), "api.example.com", "s"}, "200 api.example.com HTTP/2.0 100000"},
		{"Python in clear text", "python3", []string{"-c", pythonGet, clear, w.projectedCA(), "web.example.org", "-"}, "200 web.example.org HTTP/1.1 100000"},
		{"Python to a name that is not allowed", "python3", []string{"-c", pythonGet, clear, w.projectedCA(), "other.example.com", "-"}, `"code":"egress_denied"`},
		{"Node", "node", []string{"-e", nodeGet, secure, w.projectedCA(), "api.example.com", "s"}, "200 api.example.com HTTP/2.0 0"},
		{"Node in clear text", "node", []string{"-e", nodeGet, clear, w.projectedCA(), "web.example.org", "-"}, "200 web.example.org HTTP/1.1 0"},
		{"Node to a name that is not allowed", "node", []string{"-e", nodeGet, secure, w.projectedCA(), "other.example.com", "s"}, "error"},
		{
			"KF_MITM_01 OpenSSL, strictly", "openssl",
			[]string{"s_client", "-connect", "127.0.0.1:" + secure, "-servername", "api.example.com", "-verify_hostname", "api.example.com", "-CAfile", w.projectedCA(), "-x509_strict", "-verify_return_error", "-brief"},
			"Verification: OK",
		},
		{"OpenSSL without a name", "openssl", []string{"s_client", "-connect", "127.0.0.1:" + secure, "-noservername", "-brief"}, "unexpected eof"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			program := gatewaytest.Peer(t, tc.program)
			ctx, cancel := context.WithTimeout(t.Context(), gatewaytest.Patience)
			defer cancel()
			out, _ := exec.CommandContext(ctx, program, tc.args...).CombinedOutput()
			if !strings.Contains(string(out), tc.want) {
				t.Errorf("it prints\n%s\nwant %q", out, tc.want)
			}
		})
	}
	if canary.seen.Load() > 0 {
		t.Error("metadata was reached")
	}
	for _, why := range []egress.Reason{egress.NoRule, egress.AddressDenied, egress.SNIMissing} {
		gatewaytest.Until(t, "something is refused for "+string(why), func() bool {
			return slices.ContainsFunc(w.audit(20), func(r egress.Record) bool { return r.Verdict == "deny" && r.Reason == why })
		})
	}
}
