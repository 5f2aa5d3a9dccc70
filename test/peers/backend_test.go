package peers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// peer is a foreign server behind the gateway. It answers with what it saw of a request, as JSON.
type peer struct {
	name string
	url  string
	// lines returns the peer's own log: request id, status and request line.
	lines func(t *testing.T) []string
	// refuses are cases that the gateway lets through and that this server answers with a status of its own: it is
	// stricter, or does not know what is asked for. None of them leaves the two at odds about where a request ends.
	refuses map[string]int
}

// echoed is what a peer saw of a request.
type echoed struct{ Method, URI, Host, Body string }

var peers = []struct {
	name  string
	start func(t *testing.T) *peer
}{{"nginx", startNginx}, {"apache2", startApache}, {"node", startNode}}

// startEcho answers for the peers whose own language is configuration: they parse, decode and pass on to it.
func startEcho(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		_ = json.NewEncoder(w).Encode(echoed{r.Method, r.RequestURI, r.Host, string(body)})
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// freePort is a port that nobody listens on.
func freePort(t testing.TB) int {
	t.Helper()
	return gatewaytest.FreePorts(t, 1)[0]
}

// launch runs a server that reads its configuration from a file, until it accepts connections.
func launch(t *testing.T, p *gatewaytest.Process, port int) string {
	t.Helper()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	eventually(t, patience, "the server accepts connections", func() bool {
		if code, err := p.Ended(0); err == nil {
			t.Fatalf("the server ended with %d:\n%s", code, p.Output())
		}
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
	return "http://" + address
}

// logFile returns the lines of a log file.
func logFile(path string) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	}
}

func startNginx(t *testing.T) *peer { return startNginxAs(t, "") }

// startNginxAs starts it with options for its listener.
func startNginxAs(t *testing.T, options string) *peer {
	program := gatewaytest.Peer(t, "nginx")
	dir, port, echo := t.TempDir(), freePort(t), startEcho(t)
	file, log := filepath.Join(dir, "nginx.conf"), filepath.Join(dir, "requests.log")
	write(t, file, fmt.Appendf(nil, `
daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log info;
events { worker_connections 512; }
http {
  log_format seen '$http_x_request_id $status $request';
  access_log %[2]s seen;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  merge_slashes off;
  server {
    listen 127.0.0.1:%[3]d %[5]s;
    location / {
      proxy_pass http://%[4]s;
      proxy_set_header Host $http_host;
    }
  }
}
`, dir, log, port, echo, options))
	run := gatewaytest.Run(t, program, "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
	return &peer{name: "nginx", url: launch(t, run, port), lines: logFile(log), refuses: nginxRefuses}
}

// apacheModules is where distributions keep them.
var apacheModules = []string{"/usr/lib/apache2/modules", "/usr/lib64/httpd/modules", "/usr/lib/httpd/modules"}

func startApache(t *testing.T) *peer { return startApacheAs(t, "http/1.1") }

// startApacheAs starts it for some protocols.
func startApacheAs(t *testing.T, protocols string) *peer {
	program := gatewaytest.Peer(t, "apache2")
	modules := ""
	for _, m := range apacheModules {
		if _, err := os.Stat(filepath.Join(m, "mod_proxy_http.so")); err == nil {
			modules = m
			break
		}
	}
	if modules == "" {
		t.Fatalf("apache2 is there, its modules are in none of %v", apacheModules)
	}
	dir, port, echo := t.TempDir(), freePort(t), startEcho(t)
	file, log := filepath.Join(dir, "apache.conf"), filepath.Join(dir, "requests.log")
	text := fmt.Sprintf(`
ServerRoot "%[1]s"
DefaultRuntimeDir "%[1]s"
PidFile "%[1]s/apache.pid"
ServerName peer.test
Listen 127.0.0.1:%[2]d
ErrorLog "%[1]s/error.log"
HttpProtocolOptions Strict
LogFormat "%%{X-Request-Id}i %%>s %%r" seen
CustomLog "%[3]s" seen
ProxyPass / http://%[4]s/
ProxyPreserveHost On
AllowEncodedSlashes NoDecode
Protocols %[5]s
`, dir, port, log, echo, protocols)
	if os.Getuid() == 0 {
		text += "User www-data\nGroup www-data\n"
	}
	load := ""
	for _, m := range []string{"mpm_event", "authz_core", "unixd", "log_config", "proxy", "proxy_http", "http2"} {
		// Distributions build some of them in.
		load += fmt.Sprintf("<IfModule !%[1]s_module>\nLoadModule %[1]s_module %[2]s/mod_%[1]s.so\n</IfModule>\n", m, modules)
	}
	write(t, file, []byte(load+text))
	run := gatewaytest.Run(t, program, "-X", "-d", dir, "-f", file)
	return &peer{name: "apache2", url: launch(t, run, port), lines: logFile(log), refuses: apacheRefuses}
}

func startNode(t *testing.T) *peer { return startNodeWith(t, "echo.mjs") }

// startNodeWith starts it with one of the servers in testdata.
func startNodeWith(t *testing.T, script string) *peer {
	program := gatewaytest.Peer(t, "node")
	run := gatewaytest.Run(t, program, filepath.Join("testdata", script))
	port := run.Await(t, `(?m)^listening on (\d+)$`)
	return &peer{
		name: "node", url: "http://127.0.0.1:" + port, refuses: nodeRefuses,
		lines: func(*testing.T) []string {
			_, all, _ := strings.Cut(run.Output(), "\n") // behind the port
			return strings.Split(strings.TrimSuffix(all, "\n"), "\n")
		},
	}
}
