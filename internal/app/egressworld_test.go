package app_test

import (
	"bufio"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// world is a control plane, a gateway of actors, and the origins around them, at public addresses that lead here. What is fake is
// the sandboxes, in which nothing runs, and the way to public addresses.
type world struct {
	t       testing.TB
	dir     string
	plane   *app.Ateapi
	admin   *control.Client
	worker  *control.Client
	gateway *gatewaytest.Gateway
	origins *cert.Authority
	routes  *publicNetwork
}

// publicNetwork leads dials of addresses to listeners of the test, and notes them.
type publicNetwork struct {
	mu    sync.Mutex // guards the rest
	to    map[string]string
	dials []string
	hold  chan struct{} // what every dial waits for; nil: nothing
}

func (n *publicNetwork) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, network, address)
}

func (n *publicNetwork) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, address)
	to, hold := n.to[address], n.hold
	n.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if to == "" {
		return nil, errors.New("nobody is there")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

func (n *publicNetwork) route(address, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.to[address] = to
}

// dialed are the addresses dialed since the last call.
func (n *publicNetwork) dialed() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.dials
	n.dials = nil
	return d
}

// idleBoxes are sandboxes in which nothing runs.
type idleBoxes struct{}

func (idleBoxes) Start(context.Context, actor.Actor, actor.Template, string) error { return nil }
func (idleBoxes) Stop(context.Context, actor.Actor, actor.Op) error                { return nil }

var echoTemplate = actor.Ref{Atespace: "demo", Name: "echo"}

// newWorld starts everything. The hosts file names what the tests want; more goes into the egress block.
func newWorld(t testing.TB, hosts, more string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), routes: &publicNetwork{to: map[string]string{}}}
	var err error
	minter := filepath.Join(w.dir, "minter.sock")
	w.plane, err = app.StartAteapi(context.Background(), app.AteapiOptions{
		Listen: "127.0.0.1:0", DataDir: filepath.Join(w.dir, "plane"), Store: app.StoreMemory, Workers: []string{"w1"}, Minter: minter,
		Log: slog.New(slog.DiscardHandler),
	})
	w.must(err)
	t.Cleanup(func() { _ = w.plane.Close() })
	w.admin, w.worker = w.client("admin"), w.client("worker-w1")
	_, err = w.admin.CreateAtespace(t.Context(), "demo")
	w.must(err)
	_, err = w.admin.CreateTemplate(t.Context(), actor.Template{Ref: echoTemplate, Containers: []actor.Container{{Name: "main", Image: "local:echo"}}})
	w.must(err)
	w.attach()
	w.origins, err = cert.OpenAuthority(cert.AuthorityOptions{Name: "origins", MinSigningAge: time.Nanosecond})
	w.must(err)
	w.write("origins.pem", string(w.origins.Bundle()))
	w.write("hosts", hosts)
	w.gateway = gatewaytest.Start(t, w.config(minter, more), gatewaytest.With(func(o *app.Options) { o.Network = w.routes }))
	return w
}

// config is the gateway's, as an operator would write it.
func (w *world) config(minter, more string) string {
	at := app.ComponentDir(filepath.Join(w.dir, "plane"), "egress")
	own := filepath.Join(at, "servicedns.podcert.ate.dev", cert.CredentialFile)
	return fmt.Sprintf(`entrypoints "egress" {
  address  = "127.0.0.1:0"
  protocol = "connect"
  tls {
    cert_file = %q
    key_file  = %q
    client_auth = "require"
    client_ca_file = %q
  }
  egress {
    control { address = %q, server_name = %q, credential_file = %q, ca_file = %q }
    minter_socket  = %q
    hosts_file     = %q
    origin_ca_file = %q
    audit_log      = %q
    %s
  }
}
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
`, own, own, filepath.Join(at, "actor-id-ca-certs", "ca.crt"), w.plane.Addr, app.AteapiName,
		filepath.Join(at, podIdentity, cert.CredentialFile), filepath.Join(at, serviceDNS, cert.TrustFile), minter, filepath.Join(w.dir, "hosts"), filepath.Join(w.dir, "origins.pem"), filepath.Join(w.dir, "audit"), more)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600))
}

func (w *world) client(component string) *control.Client {
	w.t.Helper()
	c, err := app.DialControl(app.ControlOptions{
		Address: w.plane.Addr, ServerName: app.AteapiName, Credentials: app.ComponentDir(filepath.Join(w.dir, "plane"), component),
	})
	w.must(err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// attach has the worker take part.
func (w *world) attach() {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	attached, ended := make(chan struct{}, 16), make(chan error, 1)
	go func() { // ends with stop
		ended <- w.worker.Host(ctx, control.HostOptions{
			Worker: actor.Worker{
				Name: "w1", Epoch: 1, Capacity: actor.Capacity{Actors: 16},
				Place: actor.Place{Node: "n1", Namespace: "ate-workers", Pool: "p", Pod: "w1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			},
			Sandboxes: idleBoxes{}, Attached: func(actor.Worker) { attached <- struct{}{} },
		})
	}()
	w.t.Cleanup(func() { stop(); <-ended })
	select {
	case <-attached:
	case err := <-ended:
		ended <- nil
		w.t.Fatal(err)
	}
}

// player is an actor that runs, with the certificate of its worker's tunnels.
type player struct {
	w    *world
	ref  actor.Ref
	uid  string
	cert tls.Certificate
	open func(dialed string) (net.Conn, error) // in the place of ask; nil: ask
}

// run makes an actor run.
func (w *world) run(name string) *player {
	w.t.Helper()
	p := w.create(name)
	p.resume()
	return p
}

// create makes an actor that sleeps.
func (w *world) create(name string) *player {
	w.t.Helper()
	p := &player{w: w, ref: actor.Ref{Atespace: "demo", Name: name}}
	_, err := w.admin.CreateActor(w.t.Context(), p.ref, echoTemplate, nil)
	w.must(err)
	return p
}

// resume wakes it.
func (p *player) resume() {
	w := p.w
	w.t.Helper()
	a, _, err := w.admin.ResumeActor(w.t.Context(), p.ref)
	w.must(err)
	p.uid = a.UID
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	w.must(err)
	chain, err := w.worker.MintWorkerCertificate(w.t.Context(), p.ref, p.uid, csr)
	w.must(err)
	p.cert = tls.Certificate{Certificate: chain, PrivateKey: key}
}

// may gives the actor a policy, in the JSON of the wire.
func (p *player) may(rules string) {
	p.w.t.Helper()
	policy, err := control.ParsePolicy([]byte(`{"rules":[`+rules+`]}`), p.ref)
	p.w.must(err)
	kept, err := p.w.admin.GetPolicy(p.w.t.Context(), p.ref)
	if err != nil {
		_, err = p.w.admin.CreatePolicy(p.w.t.Context(), p.ref, policy)
	} else {
		_, err = p.w.admin.UpdatePolicy(p.w.t.Context(), p.ref, policy, actor.Terms{UID: kept.UID, Version: kept.Version})
	}
	p.w.must(err)
}

// tunnel asks for a tunnel as the worker does, and returns what it was answered.
func (p *player) tunnel(dialed string) (net.Conn, int) {
	p.w.t.Helper()
	c, status, err := p.ask(dialed)
	p.w.must(err)
	return c, status
}

func (p *player) ask(dialed string) (net.Conn, int, error) {
	c, err := tls.Dial("tcp", p.w.gateway.Addr("egress"), &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{p.cert}, NextProtos: []string{"http/1.1"},
	})
	if err != nil {
		return nil, 0, err
	}
	_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", dialed, dialed)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, &http.Request{Method: "CONNECT"})
	if err != nil {
		_ = c.Close()
		return nil, 0, err
	}
	if resp.StatusCode != 200 {
		defer func() { _ = c.Close() }()
	}
	return &buffered{Conn: c, r: in}, resp.StatusCode, nil
}

type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func (b *buffered) CloseWrite() error { return b.Conn.(*tls.Conn).CloseWrite() }

// captured listens where a foreign client connects to in the place of what it dials, and sends it on as a worker would.
func (p *player) captured(dialed string) string {
	p.w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	p.w.must(err)
	var all sync.WaitGroup
	p.w.t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.carry(c, dialed) })
		}
	})
	return l.Addr().String()
}

func (p *player) carry(c net.Conn, dialed string) {
	defer func() { _ = c.Close() }()
	up, status, err := p.ask(dialed)
	if err != nil || status != 200 {
		return
	}
	defer func() { _ = up.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.(*buffered).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	<-done
}

// projectedCA is the file that an actor gets to verify what it is shown.
func (w *world) projectedCA() string {
	return filepath.Join(app.ComponentDir(filepath.Join(w.dir, "plane"), "worker-w1"), "egress-mitm.ate.dev", cert.TrustFile)
}

// httpClient is a Go program in the actor: it dials one address, whatever the name.
func (p *player) httpClient(dialed string, protocols func(*http.Protocols)) *http.Client {
	p.w.t.Helper()
	text, err := os.ReadFile(p.w.projectedCA())
	p.w.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true, Protocols: new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if p.open != nil {
				return p.open(dialed)
			}
			c, status, err := p.ask(dialed)
			if err == nil && status != 200 {
				err = fmt.Errorf("CONNECT: %d", status)
			}
			return c, err
		},
	}
	protocols(tr.Protocols)
	p.w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: gatewaytest.Patience}
}

// origin is a web server of the public Internet.
type origin struct {
	name string
	seen atomic.Int64
	last atomic.Pointer[http.Request]
}

// origin starts one at an address, in clear text or with a certificate for its name.
func (w *world) origin(name, address string, secure bool) *origin {
	w.t.Helper()
	o := &origin{name: name}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.routes.route(address, l.Addr().String())
	s := &http.Server{Handler: o, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: gatewaytest.Patience}
	var serving sync.WaitGroup
	serving.Go(func() {
		if !secure {
			_ = s.Serve(l)
			return
		}
		c, err := w.origins.Certificate(cert.ServiceLeaf(name))
		if err != nil {
			w.t.Error(err)
			return
		}
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*c}}
		_ = s.ServeTLS(l, "", "")
	})
	w.t.Cleanup(func() { _ = s.Close(); serving.Wait() })
	return o
}

func (o *origin) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	o.seen.Add(1)
	o.last.Store(r)
	n, _ := io.Copy(io.Discard, r.Body)
	rw.Header().Set("Alt-Svc", `h3=":443"`)
	fmt.Fprintf(rw, "%s %s %d", o.name, r.Proto, n)
}

// audit returns the lines written so far, once there are n.
func (w *world) audit(n int) []egress.Record {
	w.t.Helper()
	var all []egress.Record
	gatewaytest.Until(w.t, fmt.Sprintf("%d lines of the audit log", n), func() bool {
		text, err := os.ReadFile(filepath.Join(w.dir, "audit"))
		w.must(err)
		all = nil
		for line := range strings.Lines(string(text)) {
			var r egress.Record
			if json.Unmarshal([]byte(line), &r) == nil {
				all = append(all, r)
			}
		}
		return len(all) >= n
	})
	return all
}
