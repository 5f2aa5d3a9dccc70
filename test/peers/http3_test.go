//go:build linux

package peers_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// serveHTTP3 starts a gateway whose one entrypoint speaks all three versions.
func serveHTTP3(t *testing.T, backend string) (address, log, certFile string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM, keyPEM := certificate()
	write(t, certFile, certPEM)
	write(t, keyFile, keyPEM)
	log = filepath.Join(dir, "access.log")
	gw := start(t, fmt.Sprintf(`
entrypoints "web" {
  address = "127.0.0.1:0"
  tls {
    cert_file = %q
    key_file  = %q
    alpn      = ["h2", "http/1.1", "h3"]
  }
}
routers "all" {
  rule    = "PathPrefix(`+"`/`"+`)"
  service = "backend"
}
services "backend" {
  load_balancer {
    servers { url = %q }
  }
}
observability {
  access_log { output = %q }
}
shutdown_timeout_secs = 5
`, certFile, keyFile, backend, log))
	return gw.Addr("web"), log, certFile
}

// page looks by which protocol it was loaded, fetches until it has seen the one it is told to wait for, and tells what it
// has seen.
const page = `<!doctype html><title>page</title><script type="module">
const want = new URLSearchParams(location.search).get("want");
const seen = [performance.getEntriesByType("navigation")[0].nextHopProtocol];
for (let i = 0; i < 200 && !seen.includes(want); i++) {
  const url = new URL("/again?" + i, location).href;
  await (await fetch(url, {cache: "no-store"})).text();
  seen.push(performance.getEntriesByName(url).pop().nextHopProtocol);
  await new Promise(r => setTimeout(r, 50));
}
const upload = "0123456789".repeat(50000);
const echoed = await (await fetch("/echo", {method: "POST", body: upload})).text();
await fetch("/done", {method: "POST", body: JSON.stringify({seen, echoed: echoed === upload})});
</script>`

// browsed is what a browser reports.
type browsed struct {
	Seen   []string
	Echoed bool
}

// TestChromium has Chromium load a page through the gateway over each version of HTTP, and find HTTP/3 by Alt-Svc.
func TestChromium(t *testing.T) {
	t.Parallel()
	chromium := gatewaytest.Peer(t, "chromium")
	reports := make(chan browsed, 1)
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, page)
		case "/again":
			_, _ = io.WriteString(w, "again")
		case "/echo":
			_, _ = io.Copy(w, r.Body)
		case "/done":
			var b browsed
			if err := json.NewDecoder(r.Body).Decode(&b); err == nil {
				reports <- b
			}
		default: // icons
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(back.Close)
	address, log, certFile := serveHTTP3(t, back.URL)
	_, port, _ := net.SplitHostPort(address)
	const host = "gateway.test"
	for _, tc := range []struct {
		name, first, want string
		flags             []string
	}{
		{"h1", "http/1.1", "http/1.1", []string{"--disable-http2", "--disable-quic"}},
		{"h2", "h2", "h2", []string{"--disable-quic"}},
		{"h3", "h3", "h3", []string{"--enable-quic", "--origin-to-force-quic-on=" + host + ":" + port}},
		// A port that is not ours has Chromium take a private authority over QUIC for the host, and forces nothing.
		{"h3 by Alt-Svc", "h2", "h3", []string{"--enable-quic", "--origin-to-force-quic-on=" + host + ":1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags := append(tc.flags, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking",
				"--remote-debugging-port=0", // keeps it running
				"--user-data-dir="+t.TempDir(), "--host-resolver-rules=MAP "+host+" 127.0.0.1",
				"--ignore-certificate-errors-spki-list="+spki(t, certFile), "https://"+host+":"+port+"/page?want="+tc.want)
			browse(t, chromium, flags)
			select {
			case b := <-reports:
				if len(b.Seen) == 0 || b.Seen[0] != tc.first || b.Seen[len(b.Seen)-1] != tc.want || !b.Echoed {
					t.Errorf("%+v", b)
				}
			case <-time.After(60 * time.Second):
				text, _ := os.ReadFile(log)
				t.Fatalf("no report; access log:\n%s", text)
			}
		})
	}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"} {
		logged(t, log, protocol)
	}
}

// browse runs a browser, with all that it starts, until the test ends.
func browse(t *testing.T, program string, args []string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
}

// spki is the hash of a certificate's key, as Chromium knows it.
func spki(t *testing.T, certFile string) string {
	t.Helper()
	b, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// TestGTLSClient has ngtcp2's client download and upload over HTTP/3, also over a path that loses packets.
func TestGTLSClient(t *testing.T) {
	t.Parallel()
	client := gatewaytest.Peer(t, "gtlsclient")
	address, log, _ := serveHTTP3(t, "http://"+startEcho(t))
	_, port, _ := net.SplitHostPort(address)
	content := strings.Repeat("0123456789abcdef", 20_000)
	upload := filepath.Join(t.TempDir(), "upload")
	write(t, upload, []byte(content))
	for _, tc := range []struct {
		name string
		args []string
		want echoed
	}{
		{"get", nil, echoed{Method: "GET"}},
		{"upload", []string{"-d", upload, "-m", "POST"}, echoed{Method: "POST", Body: content}},
		{"losses", []string{"-d", upload, "-m", "POST", "-t", "0.05", "-r", "0.05"}, echoed{Method: "POST", Body: content}},
		{"key update", []string{"-d", upload, "-m", "POST", "--key-update", "1ms"}, echoed{Method: "POST", Body: content}},
		{"new address", []string{"-d", upload, "-m", "POST", "--change-local-addr", "1ms"}, echoed{Method: "POST", Body: content}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			args := append(tc.args, "-q", "--exit-on-all-streams-close", "--timeout", "20s", "--download", dir, "127.0.0.1", port, "https://"+address+"/file?b=c")
			command(t, client, args...)
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("%v: downloaded %q", err, files)
			}
			b, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			var saw echoed
			tc.want.URI, tc.want.Host = "/file?b=c", address
			if err := json.Unmarshal(b, &saw); err != nil || saw != tc.want {
				t.Errorf("%v: the backend saw %.200v, want %.200v", err, fmt.Sprint(saw), fmt.Sprint(tc.want))
			}
		})
	}
	logged(t, log, "HTTP/3.0")
}

// logged waits until a protocol stands in the access log.
func logged(t *testing.T, log, protocol string) {
	t.Helper()
	eventually(t, patience, protocol+" is logged", func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), `"protocol":"`+protocol+`"`)
	})
}
