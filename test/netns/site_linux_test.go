package netns_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/tunnel"
	"github.com/sluice-proxy/sluice/internal/worker"
)

const (
	routerURI = "spiffe://cluster.local/ns/ate-system/sa/atenet-router"
	workerURI = "spiffe://cluster.local/ns/demo/sa/default"
	actorURI  = "spiffe://substrate-actor.local/worker-for-actor/"
)

// site is what surrounds a worker: authorities, a broker, an egress gateway and a router, all in the test.
type site struct {
	t       *testing.T
	run     fabric.Run
	dir     string
	hub     *cert.Hub
	clock   *conn.Clock
	router  *tls.Config
	gateway string
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: network namespaces and confinement need root")
	}
	run, err := fabric.NewRun(fmt.Sprintf("n%d", time.Now().UnixNano()/1e6%1e9))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, run: run, dir: t.TempDir(), clock: conn.NewClock()}
	t.Cleanup(func() {
		if left, err := run.Left(); err != nil || len(left) > 0 {
			t.Errorf("the test left %v behind (%v)", left, err)
			_ = run.Clean(context.Background())
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.clock.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
	if s.hub, err = cert.OpenHub(cert.HubOptions{Dir: filepath.Join(s.dir, "hub")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Close() })
	s.mount("worker", cert.WorkloadAuthority, cert.WorkloadLeaf(workerURI, true))
	s.mount("router", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI, false))
	s.mount("gateway", cert.ServiceAuthority, cert.ServiceLeaf("localhost"))
	if err := s.hub.Mount(cert.Mount{Dir: "actors", Authority: cert.ActorAuthority}); err != nil {
		t.Fatal(err)
	}
	s.router = s.mutual("router", "router").Client()
	s.serveBroker()
	s.serveGateway()
	return s
}

func (s *site) mount(dir, authority string, leaf cert.Leaf) {
	s.t.Helper()
	if err := s.hub.Mount(cert.Mount{Dir: dir, Authority: authority, Leaf: &leaf}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) mutual(own, peers string) mutual.TLS {
	s.t.Helper()
	c, err := mutual.OpenCredential(s.hub.Path(own, cert.CredentialFile))
	if err != nil {
		s.t.Fatal(err)
	}
	trust, err := mutual.OpenTrust(s.hub.Path(peers, cert.TrustFile))
	if err != nil {
		s.t.Fatal(err)
	}
	return mutual.TLS{Own: c, Peers: trust, Check: func(string) error { return nil }, Protocols: []string{"h2"}}
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) serveBroker() {
	s.t.Helper()
	l, err := net.Listen("unix", s.path("broker"))
	if err != nil {
		s.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/certificate", func(w http.ResponseWriter, r *http.Request) {
		var ask worker.CertificateRequest
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		chain, err := s.hub.Authority(cert.ActorAuthority).IssueFor(ask.Request, cert.TunnelLeaf(actorURI+ask.Ref))
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(worker.CertificateAnswer{Chain: chain})
	})
	server := &http.Server{Handler: mux}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	s.t.Cleanup(func() { _ = server.Close(); wg.Wait() })
}

// serveGateway answers each tunnel with whose it is and where it was to go.
func (s *site) serveGateway() {
	s.t.Helper()
	server := tunnel.NewServer(tunnel.ServerConfig{Accept: func(_ context.Context, a *tunnel.Ask) (tunnel.Accepted, error) {
		uri, err := mutual.URIOf(a.Conn.TLS.PeerCertificates[0])
		return tunnel.Accepted{Serve: func(c conn.Conn) {
			b := make([]byte, 16)
			if n, err := c.Read(b); err == nil {
				_, _ = fmt.Fprintf(c, "%s from %s to %s", b[:n], strings.TrimPrefix(uri, actorURI), a.Authority)
				_ = c.(conn.CloseWriter).CloseWrite()
			}
		}}, err
	}}, s.clock)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s.gateway = net.JoinHostPort("localhost", port)
	config := s.mutual("gateway", "actors").Server()
	var live drain.Tracker
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				secure := tls.Server(c, config)
				if secure.Handshake() != nil {
					_ = c.Close()
					return
				}
				state := secure.ConnectionState()
				server.ServeHTTP2(conn.NewPlain(secure, conn.Info{TLS: &state}), &live)
			})
		}
	})
	s.t.Cleanup(func() { _ = l.Close(); live.Force(); wg.Wait() })
}

// binary builds the worker once.
var binary = sync.OnceValues(func() (string, error) { return gatewaytest.BuildWorker("netns") })

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// running is a worker's process.
type running struct {
	*site
	*gatewaytest.Process
	addr   string // of its ingress
	orders string
	client *http.Client
}

// start runs the worker and waits until it takes orders.
func (s *site) start(name string) *running {
	s.t.Helper()
	r := &running{site: s, addr: gatewaytest.FreeAddress(s.t), orders: s.path(name)}
	path, err := binary()
	if err != nil {
		s.t.Fatal(err)
	}
	r.Process = gatewaytest.Run(s.t, path, "run", "--run", s.run.String(), "--orders", r.orders, "--suspend-drain", "500ms",
		"--atunnel-connect-listen-address", r.addr,
		"--atunnel-credential-bundle", s.hub.Path("worker", cert.CredentialFile), "--atunnel-trust-bundle", s.hub.Path("worker", cert.TrustFile),
		"--egress-gateway", s.gateway, "--atunnel-egress-trust-bundle", s.hub.Path("gateway", cert.TrustFile), "--broker", s.path("broker"))
	r.Await(s.t, "taking orders")
	r.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.orders)
		},
	}}
	return r
}

func actorOf(ref string) worker.Actor {
	return worker.Actor{Ref: ref, UID: strings.ReplaceAll(ref, "/", "-")}
}

// order gives one and wants it obeyed.
func (r *running) order(what string, body any) {
	r.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := r.client.Post("http://worker/v1/"+what, "application/json", bytes.NewReader(text))
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusNoContent {
		r.t.Fatalf("%s: %s: %s\n%s", what, response.Status, answer, r.Output())
	}
}

func (r *running) activate(ref string, user uint32, thaw bool) {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	a := actorOf(ref)
	r.order("activate", worker.Order{Output: r.path("output-" + a.UID), Spec: worker.Spec{
		Actor: a, Thaw: thaw, Probe: worker.Probe{Port: 80},
		Program: worker.Program{
			Path: "/app/actor", Args: []string{"as-actor"}, Env: []string{"ACTOR=" + ref}, User: user,
			Limits: fabric.Limits{Processes: 64, Memory: 256 << 20},
			Hosts:  []worker.Host{{Name: "api.demo.test", Address: netip.MustParseAddr("203.0.113.7")}},
			Mounts: []worker.Mount{{From: self, To: "/app/actor"}},
		},
	}})
}

// get asks an actor as the router does.
func (r *running) get(ref, path string) (string, error) {
	pool := tunnel.NewPool[string](tunnel.Limits{}, r.clock)
	defer pool.Close()
	open := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := pool.Open(ctx, "w", tunnel.Peer{Addr: r.addr, TLS: func() *tls.Config { return r.router }},
			tunnel.Request{Authority: "actor:80", Fields: []tunnel.Field{{Name: "ate-target-actor", Value: ref}}})
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: open}}
	response, err := client.Get("http://actor" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// works checks both ways through an actor.
func (r *running) works(ref string) {
	r.t.Helper()
	if got, err := r.get(ref, "/"); err != nil || got != ref {
		r.t.Errorf("the way in to %s: %q, %v\n%s", ref, got, err, r.Output())
	}
	want := "hello from " + ref + " to 203.0.113.7:8443<nil>"
	if got, err := r.get(ref, "/dial?"+url.Values{"to": {"api.demo.test:8443"}}.Encode()); err != nil || got != want {
		r.t.Errorf("the way out of %s: %q, %v, want %q\n%s", ref, got, err, want, r.Output())
	}
}

func stale(err error) bool {
	refusal, ok := errors.AsType[*tunnel.Refusal](err)
	return ok && refusal.Status == 421 && refusal.Get("x-ate-assignment-stale") == "true"
}
