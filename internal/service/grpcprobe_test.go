package service_test

import (
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/service"
)

// grpcServer runs a gRPC server and returns its address.
func grpcServer(t *testing.T, s *grpc.Server, network string) string {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "socket")
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// grpcCheck is a service whose server is asked for the health of a gRPC service.
func grpcCheck(t *testing.T, rawURL, name string) *config.Service {
	t.Helper()
	cfg := backend(t, rawURL)
	h := cfg.LoadBalancer.HealthCheck
	h.Path, h.GRPC, h.GRPCService = "", true, name
	return cfg
}

func TestGRPCProbe(t *testing.T) {
	state := health.NewServer()
	state.SetServingStatus("good", healthpb.HealthCheckResponse_SERVING)
	state.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	state.SetServingStatus("unclear", healthpb.HealthCheckResponse_UNKNOWN)
	state.SetServingStatus("new", 7)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, state)
	addr := grpcServer(t, s, "tcp")
	for name, want := range map[string]string{
		"": "passed", "good": "passed", "bad": "answered NOT_SERVING", "unclear": "answered UNKNOWN", "new": "answered 7",
		"nobody": `grpc-status \"5\": \"unknown service\"`,
	} {
		if line := check(t, grpcCheck(t, "http://"+addr, name)); !strings.Contains(line, want) {
			t.Errorf("%q: logged %s", name, line)
		}
	}
	state.Shutdown()
	if line := check(t, grpcCheck(t, "http://"+addr, "good")); !strings.Contains(line, "NOT_SERVING") {
		t.Errorf("after shutdown: %s", line)
	}
}

func TestGRPCProbePlaces(t *testing.T) {
	t.Run("unix", func(t *testing.T) {
		s := grpc.NewServer()
		healthpb.RegisterHealthServer(s, health.NewServer())
		cfg := grpcCheck(t, "http://localhost", "")
		cfg.LoadBalancer.Servers[0].Addr = "unix:" + grpcServer(t, s, "unix")
		if line := check(t, cfg); !strings.Contains(line, "passed") {
			t.Errorf("logged %s", line)
		}
	})
	t.Run("h2c", func(t *testing.T) {
		s := grpc.NewServer()
		healthpb.RegisterHealthServer(s, health.NewServer())
		if line := check(t, grpcCheck(t, "h2c://"+grpcServer(t, s, "tcp"), "")); !strings.Contains(line, "passed") {
			t.Errorf("logged %s", line)
		}
	})
	t.Run("tls", func(t *testing.T) {
		pair := httptest.NewTLSServer(http.NotFoundHandler())
		pair.Close()
		s := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair.TLS.Certificates[0])))
		healthpb.RegisterHealthServer(s, health.NewServer())
		cfg := grpcCheck(t, "https://"+grpcServer(t, s, "tcp"), "")
		if line := check(t, cfg); !strings.Contains(line, "certificate") {
			t.Errorf("without roots: %s", line)
		}
		roots := filepath.Join(t.TempDir(), "roots.pem")
		write(t, roots, pemOf(pair.Certificate()))
		cfg.LoadBalancer.Transport.CAFile = roots
		if line := check(t, cfg); !strings.Contains(line, "passed") {
			t.Errorf("with roots: %s", line)
		}
	})
	t.Run("no health service", func(t *testing.T) {
		if line := check(t, grpcCheck(t, "http://"+grpcServer(t, grpc.NewServer(), "tcp"), "")); !strings.Contains(line, `grpc-status \"12\"`) {
			t.Errorf("logged %s", line)
		}
	})
}

// TestGRPCProbeOddServers asks servers that speak HTTP/2 and something other than the protocol.
func TestGRPCProbeOddServers(t *testing.T) {
	serving := []byte("\x00\x00\x00\x00\x02\x08\x01")
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"as it should be": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "Grpc-Status")
			if _, err := w.Write(serving); err != nil || r.URL.Path != "/base/grpc.health.v1.Health/Check" || r.Header.Get("Te") != "trailers" {
				return
			}
			w.Header().Set("Grpc-Status", "0")
		}, "passed"},
		"an error status": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "status 503"},
		"no status":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(serving) }, `grpc-status \"\"`},
		"no message":      {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Grpc-Status", "0") }, "other than a gRPC message"},
		"a long story": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Grpc-Status", "2"+strings.Repeat("0", 10000))
			w.Header().Set("Grpc-Message", strings.Repeat("x", 10000))
		}, "xxx"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }, `grpc-status \"\"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(c.serve)
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			defer s.Close()
			if line := check(t, grpcCheck(t, s.URL+"/base", "")); !strings.Contains(line, c.want) || len(line) > 1<<10 {
				t.Errorf("logged %s", line)
			}
		})
	}
}

func TestHealthRequest(t *testing.T) {
	for _, name := range []string{"", "a.B", strings.Repeat("x", 255)} {
		frame := service.HealthRequest(name)
		var m healthpb.HealthCheckRequest
		if err := proto.Unmarshal(frame[5:], &m); err != nil || m.GetService() != name || int(binary.BigEndian.Uint32(frame[1:5])) != len(frame)-5 || frame[0] != 0 {
			t.Errorf("%q became %q, %v", name, frame, err)
		}
	}
}

// FuzzHealthAnswer compares with the protocol buffer library: what we read, it reads in the same way.
func FuzzHealthAnswer(f *testing.F) {
	for _, s := range []string{"", "\x08\x01", "\x08\x02\x08\x01", "\x12\x01x\x08\x01", "\x0d1234", "\x09123456780", "\x0b\x0c", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x08\x80", "\x12\xff\xff\xff\xff\xff\x01", "\x00\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
		got, err := service.HealthAnswer(frame)
		if err != nil {
			return
		}
		var m healthpb.HealthCheckResponse
		if err := proto.Unmarshal(message, &m); err != nil || int32(got) != int32(m.GetStatus()) {
			t.Errorf("%q is %d, to the library %d, %v", message, got, m.GetStatus(), err)
		}
		if _, err := service.HealthAnswer(frame[:len(frame)-1]); err == nil {
			t.Error("a shorter frame is one, too")
		}
	})
}
