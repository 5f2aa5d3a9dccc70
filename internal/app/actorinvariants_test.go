package app_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// The invariants of the threat model on the way in to actors (docs/invariants.md), by their numbers.

// I1, I3: whoever may not reach an actor is refused, whatever it shows, and wakes nobody: nothing is even asked of the control plane.
func TestI1_I3_RefusedCallersWakeNobody(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b", "c")
	n.attach("w1", 1, 10)
	n.resume("c")
	issued := func(authority, uri string, life time.Duration) *tls.Certificate {
		c, err := n.Authority(authority).Certificate(cert.Leaf{URI: uri, Client: true, Life: life, Backdate: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	other, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Certificate(cert.WorkloadLeaf(app.AdminID, false))
	if err != nil {
		t.Fatal(err)
	}
	listed := fmt.Sprintf(`allow "one" { callers = [%q], actors = ["demo/b"] }`, app.EgressID)
	g := gatewaytest.Start(t, n.tunnels(allowed(listed)))
	defer g.Stop()
	callers := map[string]*tls.Certificate{
		"no certificate":                    nil,
		"an unlisted identity":              issued(cert.WorkloadAuthority, app.AdminID+"x", time.Hour),
		"a listed one below":                issued(cert.WorkloadAuthority, app.AdminID+"/x", time.Hour),
		"a listed one in another case":      issued(cert.WorkloadAuthority, strings.Replace(app.AdminID, "ns", "NS", 1), time.Hour),
		"an expired certificate":            issued(cert.WorkloadAuthority, app.AdminID, time.Millisecond), // ends with the second that it begins in
		"an authority of actor identities":  issued(cert.ActorAuthority, app.AdminID, time.Hour),
		"the tunnel identity of the actor":  issued(cert.ActorAuthority, actor.Tunnels{Domain: actor.ActorDomain}.ID(demo("a")), time.Hour),
		"an authority that nobody knows":    foreign,
		"I3 who may reach another actor":    issued(cert.WorkloadAuthority, app.EgressID, time.Hour),
		"the worker's own, who hosts actor": issued(cert.WorkloadAuthority, "spiffe://cluster.local/ns/ate-workers/sa/w1", time.Hour),
	}
	for name, own := range callers {
		t.Run(name, func(t *testing.T) {
			c := &tls.Config{InsecureSkipVerify: true}
			if own != nil {
				c.Certificates = []tls.Certificate{*own}
			}
			tr := &http.Transport{TLSClientConfig: c}
			defer tr.CloseIdleConnections()
			client := &http.Client{Transport: tr, Timeout: gatewaytest.Patience}
			if r, err := tell(client, "GET", "https://"+g.Addr("web")+"/", nil, "ate-target-actor", "demo/a"); err == nil && r.status != 403 {
				t.Errorf("a request: %+v", r)
			}
			s, err := tls.Dial("tcp", g.Addr("tunnels"), c)
			if err != nil {
				return
			}
			defer func() { _ = s.Close() }()
			_ = s.SetDeadline(time.Now().Add(gatewaytest.Patience))
			_, _ = io.WriteString(s, "CONNECT h:9000 HTTP/1.1\r\nHost: h:9000\r\nate-target-actor: demo/a\r\n\r\n")
			head := make([]byte, 12)
			if k, err := io.ReadFull(s, head); err == nil && string(head) != "HTTP/1.1 403" {
				t.Errorf("a tunnel: %q", head[:k])
			}
		})
	}
	if s := g.ActorStats(); s.Resumes != 0 || s.Flights != 0 {
		t.Errorf("%d calls of ResumeActor", s.Resumes)
	}
	for _, name := range []string{"a", "b"} {
		if a, err := n.admin.GetActor(t.Context(), demo(name)); err != nil || a.State != actor.Suspended || a.Version != 1 {
			t.Errorf("actor %s: %v, version %d, %v", name, a.State, a.Version, err)
		}
	}
	if r := get(t, n.httpClient("admin"), "https://"+g.Addr("web")+"/", "ate-target-actor", "demo/a"); r.status != 200 {
		t.Errorf("who may: %+v", r)
	}
}

// I4: no field of a client chooses a worker, a port, or an actor beside ate-target-actor, and none arrives where it could.
func TestI4_HelperFields(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b")
	w := n.attach("w1", 1, 10)
	var mu sync.Mutex
	var asks []string
	w.heard = func(ask *tunnel.Ask) {
		told := ask.Authority
		for _, f := range helperFields {
			told += fmt.Sprintf(" %s=%v", f[0], ask.Values(f[0]))
		}
		mu.Lock()
		asks = append(asks, told)
		mu.Unlock()
	}
	g := gatewaytest.Start(t, n.tunnels(allowed("")))
	defer g.Stop()
	var forged []string
	for _, f := range helperFields {
		forged = append(forged, f[0], f[1])
	}
	named := append([]string{"ate-target-actor", "demo/a"}, forged...)
	check := func(what string, r reply) {
		t.Helper()
		if r.status != 200 || r.body != "a" || r.header.Get("X-Leaked") != "" {
			t.Errorf("%s: %+v", what, r)
		}
	}
	check("a request", get(t, n.httpClient("admin"), "https://"+g.Addr("web")+"/", named...))
	c, r := n.connect(g.Addr("tunnels"), "admin", "h:9000", named...)
	if r.status != 200 {
		t.Fatalf("CONNECT: %+v", r)
	}
	check("inside a tunnel", c.ask(t, "GET", "/", forged...))
	check("inside, for another actor", c.ask(t, "GET", "/", append([]string{"ate-target-actor", "demo/b"}, forged...)...))
	mu.Lock()
	defer mu.Unlock()
	none := ""
	for _, f := range helperFields {
		none += fmt.Sprintf(" %s=[]", f[0])
	}
	for i, got := range asks {
		if want := []string{"actor:80", "actor:9000", "actor:9000"}[i] + none; got != want {
			t.Errorf("the worker was asked %q, want %q", got, want)
		}
	}
	if len(asks) != 3 {
		t.Errorf("the worker was asked %d times", len(asks))
	}
}

// helperFields are what processes of an installation tell each other, with what a client would like to say.
var helperFields = [][2]string{
	{"x-ate-target-port", "9"},
	{"x-ate-original-dst", "10.0.0.9:1"},
	{"x-ate-original-host", "b.demo.actors.resources.substrate.ate.dev"},
	{"ate-endpoint-cached", "true"},
	{"x-ate-assignment-stale", "true"},
	{"ate-router-reason", "forged"},
}

// I6: nothing between processes is in clear text, nor in a TLS of before 1.2.
func TestI6_NothingInClearText(t *testing.T) {
	const canary = "canary-in-clear-text"
	n := newActorNet(t, iAm)
	n.create("a")
	var mu sync.Mutex
	var wire bytes.Buffer
	n.tap = func(b []byte) { mu.Lock(); wire.Write(b); mu.Unlock() }
	w := n.attach("w1", 1, 10)
	g := gatewaytest.Start(t, n.tunnels(allowed("")))
	defer g.Stop()
	if r := get(t, n.httpClient("admin"), "https://"+g.Addr("web")+"/"+canary, "ate-target-actor", "demo/a", "X-"+canary, canary); r.status != 200 {
		t.Fatalf("%+v", r)
	}
	mu.Lock()
	for _, text := range []string{canary, "HTTP/", "CONNECT", "PRI *", "demo/a"} {
		if bytes.Contains(wire.Bytes(), []byte(text)) {
			t.Errorf("%q is to be read between router and worker", text)
		}
	}
	if wire.Len() == 0 {
		t.Error("nothing was heard")
	}
	mu.Unlock()
	worker := fmt.Sprintf("127.0.0.1:%d", n.port)
	for name, addr := range map[string]string{"requests": g.Addr("web"), "tunnels": g.Addr("tunnels"), "the control plane": n.Addr, "a worker": worker} {
		for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
			own := n.httpClient("router").Transport.(*http.Transport).TLSClientConfig.Clone()
			own.MinVersion, own.MaxVersion = version, version
			if c, err := tls.Dial("tcp", addr, own); err == nil {
				_ = c.Close()
				t.Errorf("%s: %s is spoken", name, tls.VersionName(version))
			}
		}
		c := gatewaytest.Dial(t, addr)
		c.Send("GET / HTTP/1.1\r\nHost: h\r\nate-target-actor: demo/a\r\n\r\n")
		_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
		if b, _ := io.ReadAll(c); bytes.Contains(b, []byte("HTTP/1.1 200")) {
			t.Errorf("%s: clear text is answered: %q", name, b)
		}
	}
	if w.tunnels.Load() != 1 {
		t.Errorf("%d tunnels", w.tunnels.Load())
	}
}

// I7: two actors that swap their workers under load are never taken for each other. With SLUICE_SOAK in the environment there are
// 100,000 requests.
func TestI7_SwappedActors(t *testing.T) {
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-I-Am"))
	})
	n.create("a", "b")
	n.attach("w1", 1, 2)
	n.attach("w2", 2, 2)
	n.place("a", "w1")
	n.place("b", "w2")
	g := gatewaytest.Start(t, n.config(allowed(`parking { budget = "20s" }`)))
	defer g.Stop()
	want := int64(1500)
	if os.Getenv("SLUICE_SOAK") != "" {
		want = 100_000
	}
	var served atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 6 {
		name, c := []string{"a", "b"}[i%2], n.httpClient("admin")
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, err := tell(c, "POST", "https://"+g.Addr("web")+"/", strings.NewReader(name), "ate-target-actor", "demo/"+name)
				if err != nil || r.status == 200 && r.body != name || r.status != 200 && r.status != 503 {
					t.Errorf("for %s: %+v %v", name, r, err)
					return
				}
				if r.status == 200 { // 503: a suspension has cut it off
					served.Add(1)
				}
			}
		})
	}
	swaps := 0
	for ; (swaps < 6 || served.Load() < want) && !t.Failed(); swaps++ {
		to := [2]string{"w1", "w2"}
		if swaps%2 == 0 {
			to = [2]string{"w2", "w1"}
		}
		for i, name := range []string{"a", "b"} {
			n.place(name, to[i])
			n.suspend(name)
			gatewaytest.Until(t, "it runs again", func() bool {
				x, err := n.admin.GetActor(t.Context(), demo(name))
				return err == nil && x.State == actor.Running && x.Assignment.Worker == to[i]
			})
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%d requests over %d swaps", served.Load(), swaps)
}

// I8: an actor is chosen by ate-target-actor alone, never by a name, wherever it stands.
func TestI8_NamesDoNotRoute(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b")
	n.attach("w1", 1, 10)
	g := gatewaytest.Start(t, n.config(allowed("")))
	defer g.Stop()
	const ofB = "b.demo.actors.resources.substrate.ate.dev"
	own := n.httpClient("admin").Transport.(*http.Transport).TLSClientConfig
	raw := func(target, host, field string) (int, string) {
		t.Helper()
		c, err := tls.Dial("tcp", g.Addr("web"), own)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		client := gatewaytest.NewClient(t, c)
		client.Send(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, host, field))
		resp := client.Response()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(b)
	}
	for _, tc := range [][2]string{{"/", ofB}, {"/", "demo/b"}, {"/", "b:9090"}, {"http://" + ofB + "/", ofB}} {
		status, body := raw(tc[0], tc[1], "ate-target-actor: demo/a\r\n")
		if tc[1] == "demo/b" { // no name at all
			if status != 400 {
				t.Errorf("%v: %d %q", tc, status, body)
			}
			continue
		}
		if status != 200 || body != "a" {
			t.Errorf("%v: %d %q", tc, status, body)
		}
		if status, body := raw(tc[0], tc[1], ""); status != 404 {
			t.Errorf("%v without a target: %d %q", tc, status, body)
		}
	}
	c := n.httpClient("admin")
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	url := "https://" + g.Addr("web") + "/"
	if r := get(t, c, url, "Host", ofB, "ate-target-actor", "demo/a"); r.status != 200 || r.body != "a" || r.header.Get("X-Host") != ofB {
		t.Errorf("by :authority: %+v", r)
	}
	if r := get(t, c, url, "Host", ofB); r.status != 404 {
		t.Errorf("by :authority alone: %+v", r)
	}
	if a, err := n.admin.GetActor(t.Context(), demo("b")); err != nil || a.State != actor.Suspended {
		t.Errorf("b: %v %v", a.State, err)
	}
}
