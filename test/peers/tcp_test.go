package peers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/gateway"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// run starts a gateway with a configuration, until the test ends, and returns it.
func run(t *testing.T, config string) *gateway.Gateway {
	t.Helper()
	return start(t, config+"\nshutdown_timeout_secs = 5\nobservability { access_log_enabled = false }\n")
}

// tcpConfig is a tcp entrypoint "db" before one backend.
func tcpConfig(entrypoint, transport, backend string) string {
	return fmt.Sprintf(`
entrypoints "db" {
  address  = "127.0.0.1:0"
  protocol = "tcp"
  %s
}
routers "r" {
  rule    = "HostSNI(`+"`*`"+`)"
  service = "s"
}
services "s" {
  load_balancer {
    servers { url = "tcp://%s" }
  }
  transport {
    %s
  }
}
`, entrypoint, backend, transport)
}

const fromHere = `proxy_protocol { trusted_ips = ["127.0.0.1"] }`

// startHAProxy sends what comes to each of its ports to the gateway, with a header of either version.
func startHAProxy(t *testing.T, to string) (v1, v2 string) {
	program := gatewaytest.Peer(t, "haproxy")
	file, one, two := filepath.Join(t.TempDir(), "haproxy.cfg"), freePort(t), freePort(t)
	write(t, file, fmt.Appendf(nil, `
defaults
  mode tcp
  timeout connect 5s
  timeout client 30s
  timeout server 30s
listen one
  bind 127.0.0.1:%d
  server s %s send-proxy
listen two
  bind 127.0.0.1:%d
  server s %[2]s send-proxy-v2
`, one, to, two))
	p := gatewaytest.Run(t, program, "-db", "-f", file)
	return strings.TrimPrefix(launch(t, p, one), "http://"), strings.TrimPrefix(launch(t, p, two), "http://")
}

// startNginxBehind answers with the client that the header in front of each connection names.
func startNginxBehind(t *testing.T) string {
	program := gatewaytest.Peer(t, "nginx")
	dir, port := t.TempDir(), freePort(t)
	file := filepath.Join(dir, "nginx.conf")
	write(t, file, fmt.Appendf(nil, `
daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log info;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen 127.0.0.1:%[2]d proxy_protocol;
    location / { return 200 "$proxy_protocol_addr:$proxy_protocol_port"; }
  }
}
`, dir, port))
	p := gatewaytest.Run(t, program, "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
	return strings.TrimPrefix(launch(t, p, port), "http://")
}

// askFrom sends a request and returns its own address and the body of the answer.
func askFrom(t *testing.T, address string) (me, body string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("status %d, %q, %v", res.StatusCode, b, err)
	}
	return c.LocalAddr().String(), string(b)
}

// HAProxy tells the gateway who the client is, and the gateway tells nginx, in either version of the PROXY protocol.
func TestProxyProtocol(t *testing.T) {
	nginx := startNginxBehind(t)
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			gw := run(t, tcpConfig(fromHere, fmt.Sprintf("send_proxy = %q", version), nginx))
			one, two := startHAProxy(t, gw.Addr("db"))
			for _, haproxy := range []string{one, two} {
				if me, told := askFrom(t, haproxy); told != me {
					t.Errorf("nginx was told %s of %s", told, me)
				}
			}
		})
	}
}

// The same before an http entrypoint, whose backend reads it from the usual field.
func TestProxyProtocolHTTP(t *testing.T) {
	var mu sync.Mutex
	var ports []string
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		ports = append(ports, r.Header.Get("X-Forwarded-For"))
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	gw := run(t, fmt.Sprintf(`
entrypoints "web" {
  address = "127.0.0.1:0"
  %s
}
routers "r" {
  rule    = "PathPrefix(`+"`/`"+`)"
  service = "s"
}
services "s" {
  load_balancer {
    servers { url = "http://%s" }
  }
}
`, fromHere, l.Addr()))
	one, two := startHAProxy(t, gw.Addr("web"))
	for _, haproxy := range []string{one, two} {
		askFrom(t, haproxy)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Join(ports, ",") != "127.0.0.1,127.0.0.1" {
		t.Errorf("told %q", ports)
	}
}

// OpenSSL's client speaks TLS with the gateway, and through it with OpenSSL's server, by the name that it asks for.
func TestOpenSSL(t *testing.T) {
	program := gatewaytest.Peer(t, "openssl")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM, keyPEM := certificate()
	write(t, certFile, certPEM)
	write(t, keyFile, keyPEM)
	port := freePort(t)
	server := gatewaytest.Run(t, program, "s_server", "-quiet", "-rev", "-accept", fmt.Sprint("127.0.0.1:", port), "-cert", certFile, "-key", keyFile)
	behind := strings.TrimPrefix(launch(t, server, port), "http://")
	plain := startReverser(t)
	gw := run(t, fmt.Sprintf(`
entrypoints "tls" {
  address  = "127.0.0.1:0"
  protocol = "tcp"
  tls {
    cert_file = %q
    key_file  = %q
  }
}
routers "through" {
  rule    = "HostSNI(`+"`through.example`"+`)"
  service = "through"
  tls     = "passthrough"
}
routers "here" {
  rule    = "HostSNI(`+"`here.example`"+`)"
  service = "here"
}
services "through" {
  load_balancer {
    servers { url = "tcp://%s" }
  }
}
services "here" {
  load_balancer {
    servers { url = "tcp://%s" }
  }
}
`, certFile, keyFile, behind, plain))
	for _, name := range []string{"through.example", "here.example"} {
		for _, version := range []string{"-tls1_2", "-tls1_3"} {
			t.Run(name+version, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				cmd := exec.CommandContext(ctx, program, "s_client", "-quiet", version, "-connect", gw.Addr("tls"), "-servername", name)
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(in, "hello\n")
				line, err := bufio.NewReader(out).ReadString('\n')
				if strings.TrimSpace(line) != "olleh" {
					t.Errorf("%q, %v", line, err)
				}
				cancel()
				_ = in.Close()
				_ = cmd.Wait()
			})
		}
	}
	if err := exec.CommandContext(t.Context(), program, "s_client", "-connect", gw.Addr("tls"), "-servername", "nobody.example").Run(); err == nil {
		t.Error("a handshake for a name that nobody has")
	}
}

// startReverser answers each line backwards.
func startReverser(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					b := []byte(strings.TrimSpace(line))
					for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
						b[i], b[j] = b[j], b[i]
					}
					_, _ = c.Write(append(b, '\n'))
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}
