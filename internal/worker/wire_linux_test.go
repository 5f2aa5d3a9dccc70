package worker_test

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
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/tunnel"
	"github.com/sluice-proxy/sluice/internal/worker"
)

const (
	routerURI  = "spiffe://cluster.local/ns/ate-system/sa/atenet-router"
	workerURI  = "spiffe://cluster.local/ns/demo/sa/default"
	gatewayURI = "spiffe://substrate-actor.local/worker-for-actor/"
)

// installation is the authorities of one, with the processes around a worker.
type installation struct {
	t     *testing.T
	hub   *cert.Hub
	clock *conn.Clock
	mints atomic.Int64
	fail  atomic.Pointer[error]
	life  time.Duration // of actors' certificates
}

func install(t *testing.T) *installation {
	t.Helper()
	hub, err := cert.OpenHub(cert.HubOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	in := &installation{t: t, hub: hub, clock: conn.NewClock()}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = in.clock.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait(); _ = hub.Close() })
	return in
}

// mutual are the files of a process that was issued a leaf by an authority, and believes another.
func (in *installation) mutual(dir, issuer string, leaf cert.Leaf, peers string, protocols ...string) mutual.TLS {
	in.t.Helper()
	err := errors.Join(
		in.hub.Mount(cert.Mount{Dir: dir, Authority: issuer, Leaf: &leaf}),
		in.hub.Mount(cert.Mount{Dir: dir + "-peers", Authority: peers}),
	)
	if err != nil {
		in.t.Fatal(err)
	}
	own, err := mutual.OpenCredential(in.hub.Path(dir, cert.CredentialFile))
	if err != nil {
		in.t.Fatal(err)
	}
	trust, err := mutual.OpenTrust(in.hub.Path(dir+"-peers", cert.TrustFile))
	if err != nil {
		in.t.Fatal(err)
	}
	return mutual.TLS{Own: own, Peers: trust, Protocols: protocols}
}

// mint certifies as the node's broker does.
func (in *installation) mint(_ context.Context, a worker.Actor, request []byte) ([][]byte, error) {
	if err := in.fail.Load(); err != nil {
		return nil, *err
	}
	in.mints.Add(1)
	leaf := cert.TunnelLeaf(gatewayURI + a.Ref)
	if in.life > 0 {
		leaf.Life = in.life
	}
	return in.hub.Authority(cert.ActorAuthority).IssueFor(request, leaf)
}

// gateway is an egress gateway that knows who opens each tunnel by the certificate, and answers with it.
func (in *installation) gateway() (addr string, connections *atomic.Int64) {
	in.t.Helper()
	m := in.mutual("gateway", cert.ServiceAuthority, cert.ServiceLeaf("egress.test"), cert.ActorAuthority, "h2", "http/1.1")
	m.Check = func(string) error { return nil }
	s := tunnel.NewServer(tunnel.ServerConfig{Accept: func(_ context.Context, a *tunnel.Ask) (tunnel.Accepted, error) {
		if strings.HasSuffix(a.Authority, ":25") {
			return tunnel.Accepted{}, &tunnel.Refusal{Status: 403, Body: "egress denied"}
		}
		uri, err := mutual.URIOf(a.Conn.TLS.PeerCertificates[0])
		return tunnel.Accepted{Serve: func(c conn.Conn) {
			b := make([]byte, 64)
			if n, err := c.Read(b); err == nil {
				_, _ = fmt.Fprintf(c, "%s from %s to %s", b[:n], strings.TrimPrefix(uri, gatewayURI), a.Authority)
			}
		}}, err
	}}, in.clock)
	connections = &atomic.Int64{}
	return in.serve(m.Server(), func(c *tls.Conn, live *drain.Tracker) {
		connections.Add(1)
		state := c.ConnectionState()
		s.ServeHTTP2(conn.NewPlain(c, conn.Info{TLS: &state}), live)
	}), connections
}

// serve accepts TLS on loopback until the test ends.
func (in *installation) serve(config *tls.Config, each func(c *tls.Conn, live *drain.Tracker)) string {
	in.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		in.t.Fatal(err)
	}
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
				each(secure, &live)
			})
		}
	})
	in.t.Cleanup(func() { _ = l.Close(); live.Force(); wg.Wait() })
	return l.Addr().String()
}

// out is a worker's way to the gateway.
func (in *installation) out(addr string) *worker.Gateway {
	in.t.Helper()
	trust := in.mutual("worker-out", cert.WorkloadAuthority, cert.WorkloadLeaf(workerURI, true), cert.ServiceAuthority).Peers
	_, port, _ := net.SplitHostPort(addr)
	g, err := worker.NewGateway(worker.GatewayOptions{
		Address: net.JoinHostPort("egress.test", port), Trust: trust, Mint: in.mint, Clock: in.clock, Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) },
	})
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(g.Close)
	return g
}

// The gateway learns who dials from the certificate of the connection: those of two actors are never shared, those of one
// are.
func TestI13_EgressTunnelsAreTheActors(t *testing.T) {
	in := install(t)
	addr, connections := in.gateway()
	h := newHost(t, newRun(t), func(o *worker.Options) { o.Egress = in.out(addr).Egress })
	h.activate("demo/a")
	h.activate("demo/b")
	var wg sync.WaitGroup
	for i := range 60 {
		ref := []string{"demo/a", "demo/b"}[i%2]
		wg.Go(func() {
			to := fmt.Sprintf("203.0.113.7:%d", 1000+i)
			if got, want := h.dial(ref, "tcp", to), "hello from "+ref+" to "+to; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	wg.Wait()
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections for two actors", n)
	}
	if got := h.dial("demo/a", "tcp", "203.0.113.7:25"); !strings.Contains(reset, got) {
		t.Errorf("refused by the gateway, the actor saw %q", got)
	}
}

func TestCredentialsAreCheckedAndRenewed(t *testing.T) {
	in := install(t)
	addr, _ := in.gateway()
	g := in.out(addr)
	a := worker.Actor{Ref: "demo/a", UID: "u"}
	wrong := errors.New("not today")
	in.fail.Store(&wrong)
	if _, _, err := g.Egress(t.Context(), a); !errors.Is(err, wrong) {
		t.Errorf("without a certificate: %v", err)
	}
	in.fail.Store(nil)
	other := worker.Actor{Ref: "demo/b", UID: "v"}
	in.life = 2 * time.Second // renewed after 1.8 s at the latest
	out, giveUp, err := g.Egress(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort("203.0.113.7:443")
	if got := through(t, out, to); got != "hello from demo/a to 203.0.113.7:443" {
		t.Errorf("%q", got)
	}
	for over := within(t, longer); in.mints.Load() < 3; time.Sleep(10 * time.Millisecond) {
		if over.Err() != nil {
			t.Fatal("the certificate is not renewed")
		}
	}
	if got := through(t, out, to); got != "hello from demo/a to 203.0.113.7:443" {
		t.Errorf("after renewal: %q", got)
	}
	no := fmt.Errorf("aborted: %w", worker.ErrNoLonger)
	in.fail.Store(&no)
	for over := within(t, longer); ; time.Sleep(10 * time.Millisecond) {
		c, err := out(t.Context(), to)
		if errors.Is(err, worker.ErrNoLonger) {
			break
		}
		if err == nil {
			_ = c.Close()
		}
		if over.Err() != nil {
			t.Fatalf("the actor is not the worker's any more, and is carried out: %v", err)
		}
	}
	_ = giveUp()
	in.fail.Store(nil)
	in.life = 0
	if _, giveUp, err = g.Egress(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	_ = giveUp()
}

// longer than patience is the time after which a renewal is tried again that came too late.
const longer = 3 * patience

// through carries something out. A certificate that has expired, since we were held up, is about to be renewed.
func through(t *testing.T, out worker.Egress, to netip.AddrPort) string {
	t.Helper()
	c, err := out(t.Context(), to)
	for over := within(t, longer); expired(err) && over.Err() == nil; c, err = out(t.Context(), to) {
		time.Sleep(10 * time.Millisecond) // looking again, not hoping
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "hello")
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(b[:n])
}

// expired tells, whether it was noticed here or by the gateway.
func expired(err error) bool {
	return errors.Is(err, worker.ErrExpired) || err != nil && strings.Contains(err.Error(), "expired certificate")
}

// ingress serves the tunnels of a worker, and returns a router's configuration.
func (in *installation) ingress(w *worker.Worker) (addr string, router *tls.Config) {
	in.t.Helper()
	m := in.mutual("worker", cert.WorkloadAuthority, cert.WorkloadLeaf(workerURI, true), cert.WorkloadAuthority, "h2", "http/1.1")
	m.Check = func(uri string) error {
		if uri != routerURI {
			return fmt.Errorf("%q: %w", uri, mutual.ErrPeer)
		}
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		in.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := worker.NewIngress(w, m.Server()).Serve(ctx, l); err != nil {
			in.t.Error(err)
		}
	})
	in.t.Cleanup(func() { stop(); wg.Wait() })
	return l.Addr().String(), in.router("router", routerURI).Client()
}

func (in *installation) router(dir, uri string) mutual.TLS {
	m := in.mutual(dir, cert.WorkloadAuthority, cert.WorkloadLeaf(uri, false), cert.WorkloadAuthority, "h2", "http/1.1")
	m.Check = func(string) error { return nil }
	return m
}

func TestIngressTunnels(t *testing.T) {
	in := install(t)
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	addr, config := in.ingress(h.Worker)
	for _, protocol := range []string{"h2", "http/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			config := config.Clone()
			config.NextProtos = []string{protocol}
			pool := tunnel.NewPool[string](tunnel.Limits{}, in.clock)
			defer pool.Close()
			peer := tunnel.Peer{Addr: addr, TLS: func() *tls.Config { return config }}
			target := func(values ...string) []tunnel.Field {
				var f []tunnel.Field
				for _, v := range values {
					f = append(f, tunnel.Field{Name: "Ate-Target-Actor", Value: v})
				}
				return f
			}
			for _, c := range []struct {
				name, authority string
				fields          []tunnel.Field
				status          int
				stale           string
			}{
				{"the actor", "anything.example:80", target("demo/a"), 0, ""},
				{"nobody", "a:80", nil, 421, "true"},
				{"somebody else", "a:80", target("demo/b"), 421, "true"},
				{"twice", "a:80", target("demo/a", "demo/a"), 421, "true"},
				{"other case", "a:80", target("Demo/a"), 421, "true"},
				{"a port that nobody listens on", "a:81", target("demo/a"), 502, ""},
			} {
				t.Run(c.name, func(t *testing.T) {
					got, err := pool.Open(t.Context(), "w", peer, tunnel.Request{Authority: c.authority, Fields: c.fields})
					refusal, _ := errors.AsType[*tunnel.Refusal](err)
					switch {
					case c.status == 0 && err == nil:
						defer got.Close()
						client := http.Client{Transport: &http.Transport{
							DisableKeepAlives: true,
							DialContext:       func(context.Context, string, string) (net.Conn, error) { return got, nil },
						}}
						response, err := client.Post("http://a/echo", "", strings.NewReader("through"))
						if err != nil {
							t.Fatal(err)
						}
						body, err := io.ReadAll(response.Body)
						_ = response.Body.Close()
						if string(body) != "through" || err != nil {
							t.Errorf("%q, %v", body, err)
						}
					case c.status == 0, refusal == nil, refusal.Status != c.status, refusal.Get("x-ate-assignment-stale") != c.stale:
						t.Errorf("%v; want status %d", err, c.status)
					}
				})
			}
		})
	}
}

// KF_ACT_09: only the router may tunnel, by exact identity; nothing of the tunnel is looked at before.
func TestKF_ACT_09_OnlyTheRouterTunnels(t *testing.T) {
	in := install(t)
	h := newHost(t, newRun(t), nil)
	addr, good := in.ingress(h.Worker)
	none := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	tries := map[string]*tls.Config{
		"no certificate":  none,
		"another service": in.router("other", "spiffe://cluster.local/ns/ate-system/sa/atenet-egress").Client(),
		"a longer name":   in.router("longer", routerURI+"x").Client(),
		"a name below":    in.router("below", routerURI+"/x").Client(),
		"another case":    in.router("case", "spiffe://cluster.local/ns/ate-system/sa/Atenet-router").Client(),
	}
	m := in.mutual("actor", cert.ActorAuthority, cert.TunnelLeaf(routerURI), cert.WorkloadAuthority, "h2")
	m.Check = func(string) error { return nil }
	tries["another authority"] = m.Client()
	for name, config := range tries {
		t.Run(name, func(t *testing.T) {
			c, err := tls.Dial("tcp", addr, config)
			if err == nil {
				_ = c.SetDeadline(time.Now().Add(patience))
				_, err = io.ReadAll(c) // with TLS 1.3 the client learns of it behind its handshake
				_ = c.Close()
				if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("it was let in: %v", err)
				}
			}
		})
	}
	c, err := tls.Dial("tcp", addr, good)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if h.Counts().Stale.Load() != 0 {
		t.Error("a tunnel was decided about for somebody who may not ask")
	}
}
