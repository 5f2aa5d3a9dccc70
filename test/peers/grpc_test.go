package peers_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// grpcSite is a gateway before gRPC backends, of the same kind on both sides: in clear text, or over TLS.
type grpcSite struct {
	*site
	secure  bool
	address string // for clients
}

// serveGRPC starts a gateway before a gRPC backend at an address, and another for the service peers.Gone, which is not there.
func serveGRPC(t testing.TB, backend string, secure bool) *grpcSite {
	t.Helper()
	dir := t.TempDir()
	s := &grpcSite{site: &site{log: filepath.Join(dir, "access.log"), certFile: filepath.Join(dir, "cert.pem")}, secure: secure}
	keyFile := filepath.Join(dir, "key.pem")
	certPEM, keyPEM := certificate()
	write(t, s.certFile, certPEM)
	write(t, keyFile, keyPEM)
	url, transport := "h2c://"+backend, ""
	if secure {
		url, transport = "https://"+backend, fmt.Sprintf(`transport { ca_file = %q, server_name = "gateway.test", alpn = ["h2"] }`, s.certFile)
	}
	s.gw = start(t, fmt.Sprintf(`
entrypoints "clear" { address = "127.0.0.1:0" }
entrypoints "tls" {
  address = "127.0.0.1:0"
  tls { cert_file = %[1]q, key_file = %[2]q }
}
routers "all" { rule = "PathPrefix(%[5]s/%[5]s)", service = "backend" }
routers "gone" { rule = "PathPrefix(%[5]s/peers.Gone/%[5]s)", service = "gone" }
services "backend" {
  load_balancer { servers { url = %[3]q } }
  %[4]s
}
services "gone" {
  load_balancer { servers { url = "h2c://127.0.0.1:%[6]d" } }
}
observability { access_log { output = %[7]q } }
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
shutdown_timeout_secs = 60
`, s.certFile, keyFile, url, transport, "`", freePort(t), s.log))
	s.clear, s.tls = s.gw.Addr("clear"), s.gw.Addr("tls")
	s.metrics = "http://" + s.gw.Addr("management") + "/api/gateway/metrics"
	if s.address = s.clear; secure {
		s.address = s.tls
	}
	return s
}

// inGRPCModes runs a test in clear text and over TLS.
func inGRPCModes(t *testing.T, f func(t *testing.T, secure bool)) {
	for name, secure := range map[string]bool{"h2c": false, "tls": true} {
		t.Run(name, func(t *testing.T) { f(t, secure) })
	}
}

// interopCases are those of gRPC's interoperability tests that need no credentials of Google's, as the client of its Go
// implementation has them. pick_first_unary is left out: the server of the same implementation does not say who it is.
var interopCases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
	"timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response", "status_code_and_message",
	"special_status_message", "custom_metadata", "unimplemented_method", "unimplemented_service",
	"rpc_soak", "channel_soak", "orca_per_rpc", "orca_oob",
}

func TestGRPCInterop(t *testing.T) {
	t.Parallel()
	client, server := gatewaytest.Peer(t, gatewaytest.PeerInteropClient), gatewaytest.Peer(t, gatewaytest.PeerInteropServer)
	inGRPCModes(t, func(t *testing.T, secure bool) {
		port := strconv.Itoa(freePort(t))
		s := serveGRPC(t, "127.0.0.1:"+port, secure)
		args := []string{"--port", port}
		if secure {
			args = append(args, "--use_tls", "--tls_cert_file", s.certFile, "--tls_key_file", filepath.Join(filepath.Dir(s.certFile), "key.pem"))
		}
		gatewaytest.Run(t, server, args...)
		eventually(t, patience, "the server listens", func() bool {
			c, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		host, clientPort, _ := net.SplitHostPort(s.address)
		for _, name := range interopCases {
			t.Run(name, func(t *testing.T) {
				args := []string{"--server_host", host, "--server_port", clientPort, "--test_case", name}
				if strings.HasPrefix(name, "orca_") {
					args = append(args, "--service_config_json", `{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}`)
				}
				if secure {
					args = append(args, "--use_tls", "--use_test_ca", "--ca_file", s.certFile, "--server_host_override", "gateway.test")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if out, err := exec.CommandContext(ctx, client, args...).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	})
}

// nodeChecks is how many checks grpc_client.mjs makes.
const nodeChecks = 14

// TestGRPCNode has two of the implementation in JavaScript talk to each other.
func TestGRPCNode(t *testing.T) {
	t.Parallel()
	node, folder := gatewaytest.Peer(t, "node"), gatewaytest.Peer(t, gatewaytest.PeerNodeGRPC)
	inGRPCModes(t, func(t *testing.T, secure bool) {
		args := []string{"testdata/grpc_server.mjs", folder}
		if secure {
			dir := t.TempDir()
			certPEM, keyPEM := certificate()
			for name, b := range map[string][]byte{"cert.pem": certPEM, "key.pem": keyPEM} {
				write(t, filepath.Join(dir, name), b)
				args = append(args, "")
			}
			args[2], args[3] = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		}
		server := gatewaytest.Run(t, node, args...)
		s := serveGRPC(t, "127.0.0.1:"+server.Await(t, `port (\d+)`), secure)
		args = []string{"testdata/grpc_client.mjs", folder, s.address}
		if secure {
			args = append(args, s.certFile)
		}
		out := command(t, node, args...)
		if n := strings.Count(out, "ok "); n != nodeChecks {
			t.Errorf("%d checks: %s", n, out)
		}
		// Calls that the client gives up end at the backend, too, and no other does.
		server.Await(t, `(cancelled unary\ncancelled both\ncancelled unary\n)`)
		if n := strings.Count(server.Output(), "cancelled"); n != 3 {
			t.Errorf("the server has seen:\n%s", server.Output())
		}
	})
}

// TestGRPCurl has a client learn by reflection, in a stream both ways, what it may call, and then call it.
func TestGRPCurl(t *testing.T) {
	t.Parallel()
	grpcurl := gatewaytest.Peer(t, gatewaytest.PeerGRPCurl)
	inGRPCModes(t, func(t *testing.T, secure bool) {
		s := serveGRPC(t, startTestService(t, secure), secure)
		flags := []string{"-plaintext"}
		if secure {
			flags = []string{"-cacert", s.certFile, "-authority", "gateway.test"}
		}
		run := func(args ...string) string { return command(t, grpcurl, append(flags, args...)...) }
		if out := run(s.address, "list"); !strings.Contains(out, "grpc.testing.TestService\n") {
			t.Errorf("services: %s", out)
		}
		out := run("-H", "x-echo: word", "-H", "echo-bin: AAEC/w==", "-v", "-d", `{"payload":{"body":"aGVsbG8="}}`, s.address, "grpc.testing.TestService/UnaryCall")
		for _, want := range []string{`"body": "aGVsbG8="`, "echo-bin: AAEC/w", "x-echo: word"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in\n%s", want, out)
			}
		}
		out = run("-d", `{"response_parameters":[{"size":1},{"size":2},{"size":3}]}`, s.address, "grpc.testing.TestService/StreamingOutputCall")
		if n := strings.Count(out, `"body"`); n != 3 {
			t.Errorf("%d messages in\n%s", n, out)
		}
	})
}
