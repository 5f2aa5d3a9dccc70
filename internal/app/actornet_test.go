package app_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// The tests of the way to actors have a real control plane, real certificates, and workers whose tunnels and orders are
// real; only that the actors are programs of their own is left out: each is a server of net/http.

// actorNet is an installation.
type actorNet struct {
	*app.Ateapi
	t       *testing.T
	dir     string
	admin   *control.Client
	workers map[string]*hostWorker
	serve   http.HandlerFunc // what every actor does; it is told which one by the field X-I-Am
	port    int              // of all workers
	tap     func(b []byte)   // gets what routers send to workers, as it is on the wire; nil: nobody
}

func newActorNet(t *testing.T, serve http.HandlerFunc) *actorNet {
	t.Helper()
	dir := t.TempDir()
	a, err := app.StartAteapi(t.Context(), app.AteapiOptions{
		Listen: "127.0.0.1:0", DataDir: dir, Store: app.StoreMemory, Workers: []string{"w1", "w2"}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &actorNet{Ateapi: a, t: t, dir: dir, workers: map[string]*hostWorker{}, serve: serve, port: gatewaytest.FreePorts(t, 1)[0]}
	t.Cleanup(func() { _ = a.Close() })
	n.admin = n.client("admin")
	_, err = n.admin.CreateAtespace(t.Context(), "demo")
	_, err2 := n.admin.CreateTemplate(t.Context(), actor.Template{Ref: demo("echo"), Containers: []actor.Container{{Name: "main", Image: "local:echo"}}})
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return n
}

func demo(name string) actor.Ref { return actor.Ref{Atespace: "demo", Name: name} }

func (n *actorNet) client(component string) *control.Client {
	n.t.Helper()
	c, err := app.DialControl(app.ControlOptions{Address: n.Addr, ServerName: app.AteapiName, Credentials: app.ComponentDir(n.dir, component)})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (n *actorNet) create(names ...string) {
	n.t.Helper()
	for _, name := range names {
		if _, err := n.admin.CreateActor(n.t.Context(), demo(name), demo("echo"), nil); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *actorNet) file(component, mount, file string) string {
	return filepath.Join(app.ComponentDir(n.dir, component), mount, file)
}

const (
	serviceDNS  = "servicedns.podcert.ate.dev"
	podIdentity = "podidentity.podcert.ate.dev"
)

// mutualOf is the mutual TLS of a component.
func (n *actorNet) mutualOf(component string, check func(string) error, protocols ...string) mutual.TLS {
	n.t.Helper()
	own, err := mutual.OpenCredential(n.file(component, podIdentity, cert.CredentialFile))
	peers, err2 := mutual.OpenTrust(n.file("ateapi", podIdentity, cert.TrustFile))
	if err := errors.Join(err, err2); err != nil {
		n.t.Fatal(err)
	}
	return mutual.TLS{Own: own, Peers: peers, Check: check, Protocols: protocols}
}

// config is that of a router; more goes into its actor block.
func (n *actorNet) config(more string) string {
	service := n.file("router", serviceDNS, cert.CredentialFile)
	return fmt.Sprintf(`
		entrypoints "web" {
			address = "127.0.0.1:0"
			tls { cert_file = %[1]q, key_file = %[1]q, client_auth = "request", client_ca_file = %[2]q }
		}
		routers "actors" { rule = "PathPrefix(%[3]s/%[3]s)", service = "actors" }
		services "actors" {
			actor {
				control { address = %[4]q, server_name = %[5]q, credential_file = %[6]q, ca_file = %[7]q }
				workers { port = %[8]d, credential_file = %[6]q, ca_file = %[2]q }
				%[9]s
			}
		}`, service, n.file("ateapi", podIdentity, cert.TrustFile), "`", n.Addr, app.AteapiName,
		n.file("router", podIdentity, cert.CredentialFile), n.file("admin", serviceDNS, cert.TrustFile), n.port, more)
}

// allowed lets the admin's certificate reach everything.
func allowed(more string) string {
	return fmt.Sprintf("allowed_spiffe_ids = [%q]\n%s", app.AdminID, more)
}

// httpClient shows the certificate of a component; none without one.
func (n *actorNet) httpClient(component string) *http.Client {
	n.t.Helper()
	c := &tls.Config{InsecureSkipVerify: true}
	if component != "" {
		own, err := mutual.OpenCredential(n.file(component, podIdentity, cert.CredentialFile))
		if err != nil {
			n.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{*own.Certificate()}
	}
	tr := &http.Transport{TLSClientConfig: c, MaxIdleConnsPerHost: 100}
	n.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// reply is what a client was told.
type reply struct {
	status int
	body   string
	header http.Header
}

// get asks an actor, or without a name nobody.
func get(t testing.TB, c *http.Client, url string, fields ...string) reply {
	t.Helper()
	r, err := tell(c, "GET", url, nil, fields...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tell(c *http.Client, method, url string, body io.Reader, fields ...string) (reply, error) {
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return reply{}, err
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if req.Header.Add(fields[i], fields[i+1]); fields[i] == "Host" {
			req.Host = fields[i+1]
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(b), resp.Header}, err
}

// hostWorker takes orders of the control plane and tunnels of the router.
type hostWorker struct {
	n       *actorNet
	name    string
	server  *tunnel.Server
	live    drain.Tracker
	orders  func(ctx context.Context, start bool, ref actor.Ref) error // may block, or fail; nil does not
	heard   func(ask *tunnel.Ask)                                      // gets each CONNECT; nil: nobody
	stop    func()
	tunnels atomic.Int64 // asked for
	conns   atomic.Int64 // of routers
	port    atomic.Int64 // of the last tunnel

	mu    sync.Mutex
	stays map[actor.Ref]*stay
}

// stay is an actor on a worker.
type stay struct {
	server *http.Server
	addr   string
	open   sync.WaitGroup // tunnels
}

// attach starts a worker at 127.0.0.number.
func (n *actorNet) attach(name string, number, room int) *hostWorker {
	n.t.Helper()
	return n.attachAs(name, "worker-"+name, number, room)
}

// attachAs has the worker show the certificate of another component on its tunnels.
func (n *actorNet) attachAs(name, component string, number, room int) *hostWorker {
	n.t.Helper()
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	w := &hostWorker{n: n, name: name, stays: map[actor.Ref]*stay{}}
	var run sync.WaitGroup
	run.Go(func() { _ = clock.Run(ctx) })
	w.server = tunnel.NewServer(tunnel.ServerConfig{Accept: w.accept}, clock)
	addr := netip.AddrFrom4([4]byte{127, 0, 0, byte(number)})
	clear, err := net.Listen("tcp", netip.AddrPortFrom(addr, uint16(n.port)).String())
	if err != nil {
		n.t.Fatal(err)
	}
	l := tls.NewListener(tapped{clear, n.tap}, n.mutualOf(component, only(app.RouterID), "h2").Server())
	run.Go(func() { w.listen(l, &run) })
	attached := make(chan actor.Worker, 100)
	client := n.client("worker-" + name)
	run.Go(func() {
		_ = client.Host(ctx, control.HostOptions{
			Worker: actor.Worker{Name: name, Epoch: 1, Labels: map[string]string{"name": name}, Capacity: actor.Capacity{Actors: room}, Place: actor.Place{
				Namespace: "ate-workers", Node: "node-" + name, Addrs: []netip.Addr{addr},
			}},
			Sandboxes: w, Attached: func(x actor.Worker) { attached <- x },
		})
	})
	<-attached
	w.stop = sync.OnceFunc(func() {
		cancel()
		_ = l.Close()
		w.live.Force()
		run.Wait()
		for _, s := range w.stays {
			_ = s.server.Close()
		}
	})
	n.t.Cleanup(w.stop)
	n.workers[name] = w
	return w
}

// tapped is a listener of whose connections somebody else hears what comes in.
type tapped struct {
	net.Listener
	hear func(b []byte)
}

func (l tapped) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.hear != nil {
		c = &tappedConn{c, l.hear}
	}
	return c, err
}

type tappedConn struct {
	net.Conn
	hear func(b []byte)
}

func (c *tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.hear(b[:n])
	return n, err
}

func only(id string) func(string) error {
	return func(got string) error {
		if got != id {
			return fmt.Errorf("%s is not welcome", got)
		}
		return nil
	}
}

func (w *hostWorker) listen(l net.Listener, run *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		run.Go(func() {
			s := c.(*tls.Conn)
			if s.Handshake() != nil {
				_ = c.Close()
				return
			}
			w.conns.Add(1)
			state := s.ConnectionState()
			w.server.ServeHTTP2(conn.NewPlain(s, conn.Info{TLS: &state, Identity: conn.PeerIdentity(&state)}), &w.live)
		})
	}
}

// Start makes an actor run here.
func (w *hostWorker) Start(ctx context.Context, a actor.Actor, _ actor.Template, _ string) error {
	if w.orders != nil {
		if err := w.orders(ctx, true, a.Ref); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	s := &stay{addr: l.Addr().String(), server: &http.Server{Protocols: p, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-I-Am", a.Name)
		w.n.serve(rw, r)
	})}}
	go func() { _ = s.server.Serve(l) }()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stays[a.Ref] = s
	return nil
}

// Stop takes no new tunnels, and lets those that are open end.
func (w *hostWorker) Stop(ctx context.Context, a actor.Actor, _ actor.Op) error {
	w.mu.Lock()
	s := w.stays[a.Ref]
	delete(w.stays, a.Ref)
	w.mu.Unlock()
	if w.orders != nil {
		if err := w.orders(ctx, false, a.Ref); err != nil {
			return err
		}
	}
	if s != nil {
		s.open.Wait()
		_ = s.server.Close()
	}
	return nil
}

// accept is the worker's end of a tunnel.
func (w *hostWorker) accept(_ context.Context, ask *tunnel.Ask) (tunnel.Accepted, error) {
	w.tunnels.Add(1)
	if w.heard != nil {
		w.heard(ask)
	}
	to, err := exchange.ParseAuthority([]byte(ask.Authority))
	if err != nil {
		return tunnel.Accepted{}, &tunnel.Refusal{Status: 400, Body: "bad port"}
	}
	w.port.Store(int64(to.Port))
	ref, err := actor.ParseTarget(ask.Values(actor.TargetField))
	w.mu.Lock()
	s := w.stays[ref]
	if s != nil {
		s.open.Add(1)
	}
	w.mu.Unlock()
	if err != nil || s == nil {
		return tunnel.Accepted{}, &tunnel.Refusal{Status: 421, Fields: []tunnel.Field{{Name: "X-Ate-Assignment-Stale", Value: "true"}}, Body: "misdirected request"}
	}
	up, err := net.Dial("tcp", s.addr)
	if err != nil || to.Port != 80 && to.Port != 9000 {
		s.open.Done()
		if up != nil {
			_ = up.Close()
		}
		return tunnel.Accepted{}, &tunnel.Refusal{Status: 502, Body: "bad gateway"}
	}
	return tunnel.Accepted{To: &visitor{Plain: conn.NewPlain(up, conn.Info{}), leave: sync.OnceFunc(s.open.Done)}}, nil
}

// visitor is a connection to an actor, for which its stay waits.
type visitor struct {
	*conn.Plain
	leave func()
}

// Close ends it.
func (v *visitor) Close() error {
	err := v.Plain.Close()
	v.leave()
	return err
}

// eventually repeats what another operation may stand in the way of.
func (n *actorNet) eventually(what string, do func(ctx context.Context) error) {
	n.t.Helper()
	var err error
	defer func() {
		if n.t.Failed() {
			n.t.Logf("%s: %v", what, err)
		}
	}()
	gatewaytest.Until(n.t, what, func() bool { err = do(n.t.Context()); return err == nil })
}

// place has an actor resumed on a worker the next time.
func (n *actorNet) place(name, worker string) {
	n.t.Helper()
	n.eventually("placing "+name, func(ctx context.Context) error {
		a, err := n.admin.GetActor(ctx, demo(name))
		if err != nil {
			return err
		}
		_, err = n.admin.UpdateActor(ctx, demo(name), demo("echo"), map[string]string{"name": worker}, actor.Terms{UID: a.UID, Version: a.Version})
		return err
	})
}

func (n *actorNet) suspend(name string) {
	n.t.Helper()
	n.eventually("suspending "+name, func(ctx context.Context) error {
		_, err := n.admin.SuspendActor(ctx, demo(name))
		return err
	})
}

func (n *actorNet) resume(name string) {
	n.t.Helper()
	n.eventually("resuming "+name, func(ctx context.Context) error {
		_, _, err := n.admin.ResumeActor(ctx, demo(name))
		return err
	})
}
