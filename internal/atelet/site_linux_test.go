package atelet_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/atelet"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// site is one machine: a control plane, and workers with their agents. All of it is what is shipped; only the egress gateway
// is left out, since it is enough to see who knocks there.
type site struct {
	t     *testing.T
	run   fabric.Run
	dir   string
	plane *app.Ateapi
	addr  string
	admin *control.Client
	log   gatewaytest.Output // of all agents
	clock *conn.Clock
	gate  *gate
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: network namespaces and confinement need root")
	}
	run, err := fabric.NewRun(fmt.Sprintf("l%d", time.Now().UnixNano()/1e6%1e9))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, run: run, dir: t.TempDir(), clock: conn.NewClock(), addr: "127.0.0.1:0"}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.log.String())
		}
		_ = run.Clean(context.Background())
	})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.clock.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
	s.gate = newGate(t)
	s.startPlane()
	s.admin = s.client("admin")
	t.Cleanup(func() { _ = s.plane.Close() })
	if _, err := s.admin.CreateAtespace(t.Context(), "demo"); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(s.path("programs"), 0o755), os.Symlink(self, s.path("programs/counter"))); err != nil {
		t.Fatal(err)
	}
	s.template("counter", func(*actor.Template) {})
	return s
}

// startPlane starts the control plane, the second time with the records and at the address of the first.
func (s *site) startPlane() {
	s.t.Helper()
	var plane *app.Ateapi
	var err error
	gatewaytest.Until(s.t, "the port is nobody else's", func() bool { // who was given any port may have got this one meanwhile
		plane, err = app.StartAteapi(context.Background(), app.AteapiOptions{
			Listen: s.addr, DataDir: s.path("plane"), Store: app.StoreSQLite, Workers: []string{"w1", "w2"}, EgressGateway: s.gate.addr,
			Log: slog.New(slog.DiscardHandler),
		})
		return !errors.Is(err, syscall.EADDRINUSE)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.plane, s.addr = plane, plane.Addr
	s.gate.serve(s.credential("egress", "servicedns.podcert.ate.dev"))
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) options(component string) app.ControlOptions {
	return app.ControlOptions{Address: s.addr, ServerName: app.AteapiName, Credentials: app.ComponentDir(s.path("plane"), component)}
}

func (s *site) client(component string) *control.Client {
	s.t.Helper()
	c, err := app.DialControl(s.options(component))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *site) credential(component, mount string) *mutual.Credential {
	s.t.Helper()
	c, err := mutual.OpenCredential(filepath.Join(app.ComponentDir(s.path("plane"), component), mount, cert.CredentialFile))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *site) template(name string, change func(t *actor.Template)) {
	s.t.Helper()
	t := actor.Template{Ref: demo(name), Containers: []actor.Container{{
		Name: "main", Image: "local:counter", Args: []string{"as-actor"}, Probe: &actor.Probe{Path: "/healthz", Port: 80, Timeout: 20 * time.Second},
	}}}
	change(&t)
	if _, err := s.admin.CreateTemplate(s.t.Context(), t); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) create(name, template string) actor.Actor {
	s.t.Helper()
	a, err := s.admin.CreateActor(s.t.Context(), demo(name), demo(template), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// resume makes an actor run, and wants it on a worker.
func (s *site) resume(name, on string) actor.Actor {
	s.t.Helper()
	a, _, err := s.admin.ResumeActor(s.t.Context(), demo(name))
	if err != nil {
		s.t.Fatalf("resuming %s: %v", name, err)
	}
	if a.Assignment.Worker != on {
		s.t.Fatalf("%s is on %s, want %s", name, a.Assignment.Worker, on)
	}
	return a
}

func (s *site) suspend(name string) {
	s.t.Helper()
	if _, err := s.admin.SuspendActor(s.t.Context(), demo(name)); err != nil {
		s.t.Fatalf("suspending %s: %v", name, err)
	}
}

// becomes waits for a state.
func (s *site) becomes(name string, want actor.State) (a actor.Actor) {
	s.t.Helper()
	gatewaytest.Until(s.t, fmt.Sprintf("%s is %s", name, want), func() bool {
		var err error
		a, err = s.admin.GetActor(s.t.Context(), demo(name))
		return err == nil && a.State == want
	})
	return a
}

// workerBinary builds the worker once.
var workerBinary = sync.OnceValues(func() (string, error) { return gatewaytest.BuildWorker("atelet") })

// host is a worker: its process and its agent.
type host struct {
	*site
	name  string
	addr  string
	slots int
	mute  bool // its agent serves no broker
	// attached is how often it has been attached.
	attached int
	process  *gatewaytest.Process
	leave    func() // ends the agent, and waits
}

// host starts a worker that is attached.
func (s *site) host(name string, slots int) *host {
	s.t.Helper()
	h := &host{site: s, name: name, slots: slots, addr: gatewaytest.FreeAddress(s.t)}
	h.start()
	h.attach()
	return h
}

// start starts the worker's process.
func (h *host) start() {
	h.t.Helper()
	path, err := workerBinary()
	if err != nil {
		h.t.Fatal(err)
	}
	pki := app.ComponentDir(h.path("plane"), "worker-"+h.name)
	h.process = gatewaytest.Run(h.t, path, "run", "--run", h.run.String(), "--orders", h.path(h.name), "--slots", fmt.Sprint(h.slots),
		"--suspend-drain", "300ms", "--atunnel-connect-listen-address", h.addr,
		"--atunnel-credential-bundle", filepath.Join(pki, "podidentity.podcert.ate.dev", cert.CredentialFile),
		"--atunnel-trust-bundle", filepath.Join(pki, "podidentity.podcert.ate.dev", cert.TrustFile),
		"--egress-gateway", h.gate.addr, "--broker", h.path(h.name+"-broker"),
		"--atunnel-egress-trust-bundle", filepath.Join(pki, "servicedns.podcert.ate.dev", cert.TrustFile))
	h.process.Await(h.t, "taking orders")
}

// attach starts the agent, and waits until orders may come.
func (h *host) attach() {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- app.RunAtelet(ctx, h.agent()) }()
	h.leave = sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			h.t.Errorf("the agent of %s: %v", h.name, err)
		}
	})
	h.t.Cleanup(h.leave)
	h.ready()
}

// ready waits until the worker is attached once more.
func (h *host) ready() {
	h.t.Helper()
	h.attached++
	gatewaytest.Until(h.t, h.name+" is attached", func() bool {
		return strings.Count(h.log.String(), `msg="the worker is attached" worker=`+h.name) >= h.attached
	})
}

func (h *host) agent() app.AteletOptions {
	broker := h.path(h.name + "-broker")
	if h.mute {
		broker = ""
	}
	return app.AteletOptions{
		Control: h.options("worker-" + h.name), BrokerSocket: broker,
		Options: atelet.Options{
			Worker: actor.Worker{Name: h.name, Place: actor.Place{Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}},
			Orders: h.path(h.name), StateDir: h.path("state"), Programs: h.path("programs"), LogDir: h.path("logs"),
			Users: atelet.Users{First: 710000, Last: 710009}, Log: slog.New(slog.NewTextHandler(&h.log, nil)),
		},
	}
}

// get asks an actor as the router does.
func (h *host) get(name, path string) (string, error) {
	own := h.credential("router", "podidentity.podcert.ate.dev")
	peers, err := mutual.OpenTrust(filepath.Join(app.ComponentDir(h.site.path("plane"), "ateapi"), "podidentity.podcert.ate.dev", cert.TrustFile))
	if err != nil {
		return "", err
	}
	config := mutual.TLS{Own: own, Peers: peers, Check: func(uri string) error {
		if uri != app.WorkerID(h.name) {
			return fmt.Errorf("it is %s", uri)
		}
		return nil
	}, Protocols: []string{"h2"}}.Client()
	pool := tunnel.NewPool[string](tunnel.Limits{}, h.clock)
	defer pool.Close()
	open := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := pool.Open(ctx, "w", tunnel.Peer{Addr: h.addr, TLS: func() *tls.Config { return config }},
			tunnel.Request{Authority: "actor:80", Fields: []tunnel.Field{{Name: "ate-target-actor", Value: "demo/" + name}}})
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	client := http.Client{Timeout: gatewaytest.Patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: open}}
	response, err := client.Get("http://actor" + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// says wants an answer of an actor.
func (h *host) says(name, path, want string) {
	h.t.Helper()
	if got, err := h.get(name, path); err != nil || got != want {
		h.t.Errorf("%s on %s at %s: %q, %v, want %q", name, h.name, path, got, err, want)
	}
}

// gone wants that a worker has an actor no more.
func (h *host) gone(name string) {
	h.t.Helper()
	_, err := h.get(name, "/")
	if r, ok := errors.AsType[*tunnel.Refusal](err); !ok || r.Status != 421 {
		h.t.Errorf("%s on %s: %v", name, h.name, err)
	}
}

// left lists what of an actor exists on the machine.
func (s *site) left(uid string) (out []string) {
	s.t.Helper()
	all, err := s.run.Left()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range all {
		out = append(out, fmt.Sprint(l))
	}
	return out
}

// gate is where the egress gateway would be: it notes who knocks.
type gate struct {
	t     *testing.T
	addr  string
	l     net.Listener
	once  sync.Once
	knock chan string // SPIFFE IDs
	wg    sync.WaitGroup
}

func newGate(t *testing.T) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	g := &gate{t: t, l: l, addr: net.JoinHostPort("localhost", port), knock: make(chan string, 16)}
	t.Cleanup(func() { _ = l.Close(); g.wg.Wait() })
	return g
}

func (g *gate) serve(own *mutual.Credential) {
	g.once.Do(func() {
		config := &tls.Config{Certificates: []tls.Certificate{*own.Certificate()}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"}}
		g.wg.Go(func() {
			for {
				c, err := g.l.Accept()
				if err != nil {
					return
				}
				secure := tls.Server(c, config)
				if secure.Handshake() == nil {
					uri, _ := mutual.URIOf(secure.ConnectionState().PeerCertificates[0])
					g.knock <- uri
				}
				_ = c.Close()
			}
		})
	})
}

func run(ctx context.Context, o app.AteletOptions) error { return app.RunAtelet(ctx, o) }

func signingRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// ask asks the broker for a certificate.
func (h *host) ask(ref, uid string, request []byte) (int, string) {
	h.t.Helper()
	text, err := json.Marshal(map[string]any{"Ref": ref, "UID": uid, "Request": request})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.unix(h.name+"-broker", http.MethodPost, "/v1/certificate", text)
}

// unix asks at a socket.
func (h *host) unix(socket, method, path string, body []byte) (int, string) {
	h.t.Helper()
	client := http.Client{Timeout: gatewaytest.Patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.path(socket))
	}}}
	request, err := http.NewRequestWithContext(h.t.Context(), method, "http://unix"+path, bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}
