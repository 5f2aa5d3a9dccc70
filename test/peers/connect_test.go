package peers_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// tunnels is a gateway with an entrypoint for CONNECT, in clear text and over TLS, which leads anywhere on this machine
// whose port is the given one, and "inside.test" into itself.
func tunnels(t *testing.T, port, backend string) (clear, secure, certFile string) {
	t.Helper()
	dir := t.TempDir()
	certFile = filepath.Join(dir, "cert.pem")
	keyFile := filepath.Join(dir, "key.pem")
	certPEM, keyPEM := certificate()
	write(t, certFile, certPEM)
	write(t, keyFile, keyPEM)
	gw := start(t, fmt.Sprintf(`
entrypoints "clear" {
  address  = "127.0.0.1:0"
  protocol = "connect"
}
entrypoints "tls" {
  address  = "127.0.0.1:0"
  protocol = "connect"
  tls {
    cert_file = %[1]q
    key_file  = %[2]q
  }
}
entrypoints "inner" {
  address = "tunnel:"
  tls {
    cert_file = %[1]q
    key_file  = %[2]q
  }
}
routers "out" {
  rule        = "Host(`+"`127.0.0.1`"+`) || Host(`+"`localhost`"+`)"
  entrypoints = ["clear", "tls"]
  service     = "out"
}
routers "in" {
  rule        = "Host(`+"`gateway.test`"+`)"
  entrypoints = ["clear", "tls"]
  service     = "in"
}
routers "inner" {
  rule        = "PathPrefix(`+"`/`"+`)"
  entrypoints = ["inner"]
  service     = "backend"
}
services "out" { connect { ports = [%[3]s], allow_cidrs = ["127.0.0.0/8", "::1"] } }
services "in"  { connect { entrypoint = "inner" } }
services "backend" { load_balancer { servers { url = %[4]q } } }
observability { access_log { output = %[5]q } }
shutdown_timeout_secs = 5
`, certFile, keyFile, port, backend, filepath.Join(dir, "access.log")))
	return gw.Addr("clear"), gw.Addr("tls"), certFile
}

// TestCurlConnect has curl tunnel through the gateway, over HTTP/1.1 and 1.0, to a server behind it and into itself.
func TestCurlConnect(t *testing.T) {
	t.Parallel()
	curl := gatewaytest.Peer(t, "curl")
	echo := startEcho(t)
	_, port, _ := net.SplitHostPort(echo)
	clear, secure, cert := tunnels(t, port, "http://"+echo)
	common := []string{"-sS", "--max-time", "20", "--noproxy", "", "--proxytunnel", "--cacert", cert, "--proxy-cacert", cert, "-o", "/dev/null", "-w", "%{http_connect} %{http_code} %{http_version}"}
	viaTLS := []string{"--resolve", "gateway.test:" + portOf(secure) + ":127.0.0.1", "--proxy", "https://gateway.test:" + portOf(secure)}
	for _, tt := range []struct {
		name, url, want string
		args            []string
	}{
		{"clear", "http://" + echo + "/a", "200 200 1.1", []string{"--proxy", "http://" + clear}},
		{"name", "http://localhost:" + port + "/a", "200 200 1.1", []string{"--proxy", "http://" + clear}},
		{"1.0", "http://" + echo + "/a", "200 200 1.1", []string{"--proxy1.0", clear}},
		{"credentials go no further", "http://" + echo + "/a", "200 200 1.1", []string{"--proxy", "http://user:secret@" + clear}},
		{"tls", "http://" + echo + "/a", "200 200 1.1", viaTLS},
		{"inside, h2 in TLS", "https://gateway.test/a", "200 200 2", append([]string{"--http2"}, viaTLS...)},
		{"inside, HTTP/1.1 in TLS", "https://gateway.test/a", "200 200 1.1", []string{"--http1.1", "--proxy", "http://" + clear}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := command(t, curl, append(append(append([]string{}, common...), tt.args...), tt.url)...); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// TestNodeConnect runs Node's HTTP/2 client: many tunnels on one connection, half of them unread, and TLS inside of one.
func TestNodeConnect(t *testing.T) {
	t.Parallel()
	node := gatewaytest.Peer(t, "node")
	echo := startEcho(t)
	bytes := echoBytes(t)
	clear, secure, cert := tunnels(t, portOf(bytes)+", "+portOf(echo), "http://"+echo)
	for name, url := range map[string]string{"h2c": "http://" + clear, "h2 over tls": "https://" + secure} {
		t.Run(name, func(t *testing.T) {
			out := command(t, node, filepath.Join("testdata", "connect.mjs"), url, cert, bytes)
			if n := strings.Count(out, "ok "); n != 6 {
				t.Errorf("%d checks were made:\n%s", n, out)
			}
		})
	}
}

// echoBytes sends back what it gets, until the test ends.
func echoBytes(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().String()
}

// TestEnvoyConnect puts a real Envoy before the gateway, which carries every TCP connection to it as a CONNECT.
func TestEnvoyConnect(t *testing.T) {
	t.Parallel()
	envoy := gatewaytest.Peer(t, gatewaytest.PeerEnvoy)
	bytes := echoBytes(t)
	clear, secure, _ := tunnels(t, portOf(bytes), "http://127.0.0.1:1")
	one, two, three := freePort(t), freePort(t), freePort(t)
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	template, err := os.ReadFile(filepath.Join("testdata", "connect.envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, []byte(strings.NewReplacer("TARGET", bytes, "CLEAR", portOf(clear), "SECURE", portOf(secure),
		"LISTEN_HTTP1", fmt.Sprint(one), "LISTEN_HTTP2", fmt.Sprint(two), "LISTEN_TLS", fmt.Sprint(three)).Replace(string(template))))
	p := gatewaytest.Run(t, envoy, "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warn")
	for name, port := range map[string]int{"HTTP/1.1": one, "h2c": two, "h2 over tls": three} {
		addr := strings.TrimPrefix(launch(t, p, port), "http://")
		t.Run(name, func(t *testing.T) {
			for range 20 {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				sent := strings.Repeat("through two proxies ", 20_000)
				go func() {
					_, _ = io.WriteString(c, sent)
					if name != "HTTP/1.1" { // where Envoy takes the end of one direction for that of both
						_ = c.(*net.TCPConn).CloseWrite()
					}
				}()
				got := make([]byte, len(sent))
				n, err := io.ReadFull(c, got)
				if err != nil || string(got) != sent {
					t.Fatalf("%d bytes, %v", n, err)
				}
				if name != "HTTP/1.1" {
					if n, err := c.Read(got); err != io.EOF {
						t.Fatalf("%d bytes more, %v", n, err)
					}
				}
				_ = c.Close()
			}
		})
	}
}
