package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// short is parking that ends soon.
const short = `parking { budget = "300ms", retry_interval = "20ms" }`

// told checks an answer that is the gateway's own.
func (r reply) told(t *testing.T, what string, status int, body, reason string) {
	t.Helper()
	if r.status != status || r.body != body || r.header.Get("Ate-Router-Reason") != reason || (status == 503) != (r.header.Get("Retry-After") == "1") {
		t.Errorf("%s: %d %q %v", what, r.status, r.body, r.header)
	}
}

// Whatever is missing on the way, the client is told exactly what, and never hears anybody else.
func TestActorFaults(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, iAm)
	n.create("a", "b")
	g := gatewaytest.Start(t, n.config(allowed(short))+management)
	defer g.Stop()
	url, c := "https://"+g.Addr("web")+"/", n.httpClient("admin")
	ask := func(name string) reply { return get(t, c, url, "ate-target-actor", "demo/"+name) }
	ask("none").told(t, "no such actor", 404, "actor demo/none not found", "actor_not_found")
	ask("a").told(t, "no worker", 503, "actor demo/a unavailable: no free workers available", "actor_unavailable")

	w := n.attach("w1", 1, 1)
	if r := ask("a"); r.status != 200 || r.body != "a" {
		t.Fatalf("%+v", r)
	}
	ask("b").told(t, "the pool is full", 503, "actor demo/b unavailable: no free workers available", "actor_unavailable")
	_ = w.stays[demo("a")].server.Close()
	ask("a").told(t, "a closed port", 502, "bad gateway", "connect_failed")
	w.stop()
	ask("a").told(t, "a killed worker", 503, "actor demo/a unavailable", "actor_unavailable")
	if err := n.Ateapi.Close(); err != nil {
		t.Error(err)
	}
	ask("a").told(t, "a dead control plane", 503, "actor demo/a unavailable", "actor_unavailable")
	ask("-").told(t, "a malformed name", 404, "invalid actor reference", "invalid_actor_reference")
	checkActorMetrics(t, g)
}

// A worker that is another one than the control plane says gets no tunnel, and nothing of a request.
func TestKF_ACT_09_WrongWorker(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, iAm)
	n.create("a")
	w := n.attachAs("w1", "worker-w2", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed(short)))
	defer g.Stop()
	r := get(t, n.httpClient("admin"), "https://"+g.Addr("web")+"/", "ate-target-actor", "demo/a")
	r.told(t, "a wrong worker", 503, "actor demo/a unavailable", "actor_unavailable")
	if w.tunnels.Load() > 0 {
		t.Error("it was asked for tunnels")
	}
	if s := g.ActorStats(); s.Stale == 0 {
		t.Errorf("%+v", s)
	}
}

// A full lot turns away who would have to wait, at once, and nobody else; who leaves makes room.
func TestI5_ActorLotFull(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b", "c")
	n.attach("w1", 1, 1)
	n.resume("a")
	g := gatewaytest.Start(t, n.config(allowed(`parking { budget = "20s", max = 1 }`)))
	defer g.Stop()
	url, c := "https://"+g.Addr("web")+"/", n.httpClient("admin")
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(strings.Repeat("x", 16<<10)))
		req.Header.Set("ate-target-actor", "demo/b")
		resp, err := c.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		gone <- err
	}()
	gatewaytest.Until(t, "one is parked", func() bool { return g.ActorStats().Parked == 1 })
	get(t, c, url, "ate-target-actor", "demo/c").told(t, "no place", 503, `actor "demo/c" unavailable: router at capacity`, "actor_parking_full")
	if r := get(t, c, url, "ate-target-actor", "demo/a"); r.status != 200 {
		t.Errorf("an actor that runs: %+v", r)
	}
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	gatewaytest.Until(t, "the place is free", func() bool { s := g.ActorStats(); return s.Parked == 0 && s.Waiting == 0 })
	n.suspend("a")
	gatewaytest.Until(t, "the flight has gone on", func() bool {
		a, err := n.admin.GetActor(t.Context(), demo("b"))
		return err == nil && a.State == actor.Running
	})
}

// A request that has arrived is not sent again, and what an actor says is passed on, whatever it is.
func TestActorAnswersOnce(t *testing.T) {
	t.Parallel()
	var seen atomic.Int64
	late := make(chan struct{}, 1)
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		if r.URL.Path == "/421" {
			http.Error(w, "not mine", http.StatusMisdirectedRequest)
			return
		}
		if r.URL.Path == "/late" {
			<-r.Context().Done()
			late <- struct{}{}
		}
		panic(http.ErrAbortHandler)
	})
	n.create("a")
	n.attach("w1", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed(short+"\nrequest_timeout = \"3s\"")))
	defer g.Stop()
	url, c := "https://"+g.Addr("web"), n.httpClient("admin")
	get(t, c, url+"/late", "ate-target-actor", "demo/a").told(t, "a late answer", 504, "actor demo/a request timed out", "response_timeout")
	<-late // the actor has learned that nobody waits for it
	r := get(t, c, url+"/421", "ate-target-actor", "demo/a")
	if r.status != 421 || r.body != "not mine\n" || r.header.Get("Ate-Router-Reason") != "" {
		t.Errorf("%+v", r)
	}
	get(t, c, url+"/gone", "ate-target-actor", "demo/a").told(t, "a tunnel that breaks", 503, "actor demo/a unavailable", "backend_reset")
	if seen.Load() != 3 {
		t.Errorf("the actor saw %d requests", seen.Load())
	}
}

// gRPC calls go over HTTP/2, their trailers arrive, and our own answers are statuses.
func TestActorCalls(t *testing.T) {
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("X-Proto", r.Proto)
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
	})
	n.create("a")
	n.attach("w1", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed(short)))
	defer g.Stop()
	c := n.httpClient("admin")
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	call := func(name string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequest("POST", "https://"+g.Addr("web")+"/s/m", bytes.NewReader([]byte("\x00\x00\x00\x00\x02hi")))
		req.Header.Set("Content-Type", "application/grpc+proto")
		req.Header.Set("TE", "trailers")
		req.Header.Set("ate-target-actor", "demo/"+name)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp, string(b)
	}
	for range 3 {
		if resp, body := call("a"); resp.Header.Get("X-Proto") != "HTTP/2.0" || body != "\x00\x00\x00\x00\x02hi" || resp.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("%v %q %v", resp.Header, body, resp.Trailer)
		}
	}
	for name, status := range map[string]string{"none": "5", "-": "3"} {
		if resp, body := call(name); resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != status || resp.Header.Get("Ate-Router-Reason") == "" || body != "" {
			t.Errorf("%s: %v %q", name, resp.Header, body)
		}
	}
	gatewaytest.Until(t, "the tunnels have ended", func() bool { return g.ActorStats().Tunnels == 0 })
}

// A call's own deadline ends its wait for an actor when it passes, wherever it waits, and not the waking.
func TestActorCallDeadline(t *testing.T) {
	t.Parallel()
	const deadline = 2 * time.Second
	n := newActorNet(t, iAm)
	n.create("a", "b")
	w := n.attach("w1", 1, 1)
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	w.orders = func(context.Context, bool, actor.Ref) error { begun <- struct{}{}; <-goOn; return nil }
	g := gatewaytest.Start(t, n.config(allowed(`parking { budget = "20s" }`)))
	defer g.Stop()
	c := n.httpClient("admin")
	c.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	call := func(name string) {
		t.Helper()
		start := time.Now()
		r, err := tell(c, "POST", "https://"+g.Addr("web")+"/s/m", strings.NewReader("\x00\x00\x00\x00\x00"),
			"Content-Type", "application/grpc", "TE", "trailers", "Grpc-Timeout", fmt.Sprintf("%dm", deadline.Milliseconds()), "ate-target-actor", "demo/"+name)
		took := time.Since(start)
		if err != nil || r.status != 200 || r.header.Get("Grpc-Status") != "4" || r.header.Get("Ate-Router-Reason") != "deadline_exceeded" || r.body != "" {
			t.Errorf("%s: %+v %v", name, r, err)
		}
		if took < deadline || took > gatewaytest.Patience/2 {
			t.Errorf("%s: took %s", name, took)
		}
	}
	call("a") // in the first attempt
	<-begun
	call("b") // between attempts, with a place
	gatewaytest.Until(t, "the places are free", func() bool { s := g.ActorStats(); return s.Parked == 0 && s.Waiting == 0 && s.Flights == 2 })
	close(goOn)
	gatewaytest.Until(t, "the flight has gone on", func() bool {
		a, err := n.admin.GetActor(t.Context(), demo("a"))
		return err == nil && a.State == actor.Running
	})
}

// WebSocket reaches actors.
func TestActorWebSocket(t *testing.T) {
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		s, err := ws.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = s.CloseNow() }()
		kind, b, err := s.Read(r.Context())
		if err == nil {
			_ = s.Write(r.Context(), kind, append(b, r.Header.Get("X-I-Am")...))
		}
		_ = s.Close(ws.StatusNormalClosure, "")
	})
	n.create("a")
	n.attach("w1", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed(short)))
	defer g.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, _, err := ws.Dial(ctx, "wss://"+g.Addr("web")+"/", &ws.DialOptions{
		HTTPClient: n.httpClient("admin"), HTTPHeader: http.Header{"Ate-Target-Actor": {"demo/a"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.CloseNow() }()
	if err := s.Write(ctx, ws.MessageText, []byte("I am ")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := s.Read(ctx); string(b) != "I am a" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	_ = s.Close(ws.StatusNormalClosure, "")
	gatewaytest.Until(t, "the tunnel has ended", func() bool { return g.ActorStats().Tunnels == 0 })
}

// A reload loses nothing that is known of actors, and ends the way only when nobody uses it any more.
func TestActorReload(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a")
	n.attach("w1", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed("")))
	defer g.Stop()
	c := n.httpClient("admin")
	ask := func() reply { return get(t, c, "https://"+g.Addr("web")+"/", "ate-target-actor", "demo/a") }
	if r := ask(); r.status != 200 {
		t.Fatalf("%+v", r)
	}
	g.Apply(n.config(`allow_anyone = true`))
	if r := ask(); r.status != 200 || g.ActorStats().Resumes != 1 {
		t.Errorf("%+v %+v", r, g.ActorStats())
	}
	g.Apply(n.config(`allowed_spiffe_ids = ["` + app.EgressID + `"]`))
	ask().told(t, "no more", 403, "actor demo/a access denied", "actor_access_denied")
	g.Apply(n.config(allowed(short)))
	if r := ask(); r.status != 200 || g.ActorStats().Resumes != 2 { // one more by the new way
		t.Errorf("%+v %+v", r, g.ActorStats())
	}
	bad := strings.ReplaceAll(n.config(allowed("")), "credential-bundle", "no-such-bundle")
	if err := g.ReloadText(t.Context(), bad); err == nil {
		t.Error("files that are not there were accepted")
	}
}

// abandon asks an actor, and leaves once it is being woken.
func abandon(t *testing.T, g *gatewaytest.Gateway, c *http.Client, name string, begun <-chan struct{}) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://"+g.Addr("web")+"/", nil)
		req.Header.Set("ate-target-actor", name)
		resp, err := c.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		left <- err
	}()
	<-begun
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	gatewaytest.Until(t, "the client has left", func() bool { return g.ActorStats().Waiting == 0 })
}

// A reload that changes the way to actors does not end a wake-up that is under way, though nobody waits for it any more: it
// comes to its end, and who gets the old way back finds what it has found.
func TestActorReloadDuringWakeup(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a")
	w := n.attach("w1", 1, 1)
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	w.orders = func(ctx context.Context, start bool, _ actor.Ref) error {
		if start {
			begun <- struct{}{}
			select {
			case <-goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	first := n.config(allowed(""))
	g := gatewaytest.Start(t, first)
	defer g.Stop()
	c, url := n.httpClient("admin"), "https://"+g.Addr("web")+"/"
	abandon(t, g, c, "demo/a", begun)
	g.Apply(n.config(allowed(short)))
	if s := g.ActorStats(); s.Flights != 1 || s.Ways != 2 {
		t.Errorf("after the reload: %+v", s)
	}
	g.Apply(first)
	g.Apply(n.config(allowed(short)))
	g.Apply(first)
	close(goOn)
	if r := get(t, c, url, "ate-target-actor", "demo/a"); r.status != 200 || r.body != "a" {
		t.Errorf("%+v", r)
	}
	gatewaytest.Until(t, "one way is left", func() bool { s := g.ActorStats(); return s.Ways == 1 && s.Flights == 0 })
	if s := g.ActorStats(); s.Resumes != 1 {
		t.Errorf("%+v", s)
	}
	if a, err := n.admin.GetActor(t.Context(), demo("a")); err != nil || a.State != actor.Running {
		t.Errorf("%+v %v", a.State, err)
	}
}

// What is being woken for nobody outlives its way's last use, and does not hold up the end of the process.
func TestActorWayEnds(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b")
	w := n.attach("w1", 1, 2)
	begun, goOn := make(chan struct{}, 2), make(chan struct{})
	w.orders = func(ctx context.Context, start bool, ref actor.Ref) error {
		if !start {
			return nil
		}
		begun <- struct{}{}
		select {
		case <-goOn:
			if ref == demo("b") {
				<-ctx.Done()
			}
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	g := gatewaytest.Start(t, n.config(allowed("")))
	defer g.Stop()
	c := n.httpClient("admin")
	abandon(t, g, c, "demo/a", begun)
	g.Apply(n.config(allowed(short)))
	close(goOn)
	gatewaytest.Until(t, "the old way has ended", func() bool { return g.ActorStats().Ways == 1 })
	if a, err := n.admin.GetActor(t.Context(), demo("a")); err != nil || a.State != actor.Running {
		t.Errorf("%+v %v", a.State, err)
	}
	abandon(t, g, c, "demo/b", begun)
	g.Apply(n.config(allowed("")))
	if s := g.ActorStats(); s.Ways != 2 || s.Flights != 1 {
		t.Errorf("%+v", s)
	}
	g.Stop()
	if s := g.ActorStats(); s.Ways != 0 {
		t.Errorf("after the end: %+v", s)
	}
}

// checkActorMetrics looks for what TestActorFaults has caused.
func checkActorMetrics(t *testing.T, g *gatewaytest.Gateway) {
	t.Helper()
	_, text := ask(t, g.Addr("management"), "/api/gateway/metrics")
	for series, want := range map[string]float64{
		`atenet_router_route_duration_seconds_count{ate_router_outcome="ok",ate_router_resume="triggered",ate_template_atespace="demo",ate_template_name="echo"}`: 1,
		`atenet_router_route_duration_seconds_count{ate_router_outcome="not_found",ate_router_resume="none",ate_template_atespace="",ate_template_name=""}`:       1,
		`atenet_router_route_duration_seconds_count{ate_router_outcome="no_capacity",ate_router_resume="none",ate_template_atespace="",ate_template_name=""}`:     2,
		`atenet_router_parking_active`:         0,
		`atenet_router_parking_rejected_total`: 0,
	} {
		if got := gatewaytest.Metric(text, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if got := gatewaytest.Metric(text, `atenet_router_parking_wait_duration_seconds_count{outcome="budget_exhausted"}`); got < 2 {
		t.Errorf("%v requests had a place until the budget ran out", got)
	}
	if strings.Contains(text, "demo/a") {
		t.Error("an actor is named")
	}
}
