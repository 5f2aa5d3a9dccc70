package service_test

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/service"
)

// lines is a log whose lines are waited for.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func (l lines) next(t *testing.T) string {
	t.Helper()
	select {
	case s := <-l:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("no change of state was logged")
		return ""
	}
}

// check runs the health check of a service on the kernel's network until a state changes, and returns the log line.
func check(t *testing.T, cfg *config.Service) string {
	t.Helper()
	log := make(lines, 100)
	checker := service.NewChecker(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer checker.Close()
	checker.Apply(balancer(t, cfg, service.NewRegistry(conn.NewClock(), nil, nil)).Checks())
	return log.next(t)
}

// backend is a service with one server, checked at base + /health with every threshold 1.
func backend(t *testing.T, rawURL string) *config.Service {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return &config.Service{Name: "api", LoadBalancer: config.LoadBalancer{
		Transport: transport(),
		Servers: []config.Server{{
			URL: rawURL, Scheme: u.Scheme, Addr: u.Host, Host: u.Host, Base: strings.TrimSuffix(u.Path, "/"), Weight: 1,
		}},
		HealthCheck: &config.HealthCheck{
			Path: "/health?full=1", Interval: time.Hour, Timeout: 5 * time.Second, UnhealthyThreshold: 1, HealthyThreshold: 1,
		},
	}}
}

// TestProbeRequest looks at what a backend is asked (KF-LB-07).
func TestProbeRequest(t *testing.T) {
	// Never followed: a probe asks the backend itself.
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	got := make(chan *http.Request, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	if line := check(t, backend(t, s.URL+"/base")); !strings.Contains(line, "passed") {
		t.Errorf("logged %s", line)
	}
	r := <-got
	if r.Method != "GET" || r.RequestURI != "/base/health?full=1" || "http://"+r.Host != s.URL {
		t.Errorf("asked %s %s with Host %s", r.Method, r.RequestURI, r.Host)
	}
	if ua := r.Header.Get("User-Agent"); ua != "sluice-health-check" || len(r.Header) > 2 {
		t.Errorf("fields are %v", r.Header)
	}
}

func TestProbeStatus(t *testing.T) {
	for status, healthy := range map[int]bool{200: true, 204: true, 299: true, 302: false, 404: false, 503: false} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked++; r.URL.Path == "/moved" {
				return // 200, but nobody may come here
			}
			w.Header().Set("Location", "/moved")
			w.WriteHeader(status)
		}))
		line := check(t, backend(t, s.URL))
		if got := strings.Contains(line, "passed"); got != healthy || asked != 1 {
			t.Errorf("status %d, asked %d times: %s", status, asked, line)
		}
		s.Close()
	}
}

func TestProbeTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
		}
	}))
	defer s.Close()
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	write(t, roots, pemOf(s.Certificate()))
	for _, c := range []struct {
		name, roots, serverName, want string
	}{
		{"trusted", roots, "", "passed"},
		{"trusted by name", roots, "example.com", "passed"},
		{"wrong name", roots, "other.test", "unhealthy"},
		{"not trusted", "", "", "unhealthy"},
	} {
		cfg := backend(t, s.URL)
		cfg.LoadBalancer.Transport.CAFile, cfg.LoadBalancer.Transport.ServerName = c.roots, c.serverName
		if line := check(t, cfg); !strings.Contains(line, c.want) {
			t.Errorf("%s: logged %s", c.name, line)
		}
	}
}

func TestProbeUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "localhost" || r.RequestURI != "/health?full=1" {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	defer s.Close()
	cfg := backend(t, "http://localhost")
	cfg.LoadBalancer.Servers[0].Addr = "unix:" + path
	if line := check(t, cfg); !strings.Contains(line, "passed") {
		t.Errorf("logged %s", line)
	}
}

func TestProbeFailures(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	_ = l.Close()
	if line := check(t, backend(t, closed)); !strings.Contains(line, "refused") || strings.Contains(line, "//backend") {
		t.Errorf("a closed port: %s", line)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in its backlog, answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	cfg := backend(t, "http://"+silent.Addr().String())
	cfg.LoadBalancer.HealthCheck.Timeout = 50 * time.Millisecond
	if line := check(t, cfg); !strings.Contains(line, "timed out") {
		t.Errorf("a silent port: %s", line)
	}
}

// Backends of HTTP/2 are probed over HTTP/2.
func TestProbeHTTP2(t *testing.T) {
	proto := make(chan string, 1)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto <- r.Proto })
	plain := httptest.NewUnstartedServer(h)
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Start()
	defer plain.Close()
	secure := httptest.NewUnstartedServer(h)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	roots := filepath.Join(t.TempDir(), "ca.pem")
	write(t, roots, pemOf(secure.Certificate()))
	https := func(offer config.Protocols) *config.Service {
		cfg := backend(t, secure.URL)
		tr := &cfg.LoadBalancer.Transport
		tr.CAFile, tr.ServerName, tr.ALPN = roots, "example.com", offer
		return cfg
	}
	for want, cfgs := range map[string][]*config.Service{
		"HTTP/2.0": {backend(t, strings.Replace(plain.URL, "http:", "h2c:", 1)), https(config.HTTP2), https(config.HTTP1 | config.HTTP2)},
		"HTTP/1.1": {https(config.HTTP1)},
	} {
		for _, cfg := range cfgs {
			if line := check(t, cfg); !strings.Contains(line, "passed") {
				t.Fatalf("logged %s", line)
			}
			if got := <-proto; got != want {
				t.Errorf("probed over %s, want %s", got, want)
			}
		}
	}
}
