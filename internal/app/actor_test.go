package app_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// iAm answers with the actor's name, and shows what of the request came through.
func iAm(w http.ResponseWriter, r *http.Request) {
	for name := range r.Header {
		if actor.HelperField(strings.ToLower(name)) {
			w.Header().Add("X-Leaked", name)
		}
	}
	for _, name := range []string{"ate-router-reason", "X-Ate-Assignment-Stale", "Ate-Endpoint-Cached"} {
		w.Header().Set(name, "forged")
	}
	w.Header().Set("X-Host", r.Host)
	w.Header().Set("Trailer", "X-Ate-Assignment-Stale, X-Sum")
	_, _ = io.WriteString(w, r.Header.Get("X-I-Am"))
	w.Header().Set("X-Ate-Assignment-Stale", "true")
	w.Header().Set("X-Sum", "7")
}

// A request wakes its actor and gets there, and none of the fields that processes of an installation speak gets through.
func TestActorIngress(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b")
	w := n.attach("w1", 1, 10)
	g := gatewaytest.Start(t, n.config(allowed("")))
	defer g.Stop()
	url, c := "https://"+g.Addr("web")+"/x?y", n.httpClient("admin")
	for i := range 4 {
		name := []string{"a", "b"}[i%2]
		r := get(t, c, url, "ATE-Target-Actor", "demo/"+name, "Host", "b.example:9090", "X-Ate-Target-Port", "9", "X-Ate-Original-Dst", "1.2.3.4:5",
			"X-Ate-Original-Host", "h", "Ate-Endpoint-Cached", "x", "X-Ate-Assignment-Stale", "true", "Ate-Router-Reason", "x")
		if r.status != 200 || r.body != name || r.header.Get("X-Host") != "b.example:9090" { // KF-ACT-11
			t.Fatalf("%d %q %v", r.status, r.body, r.header)
		}
		for _, f := range []string{"X-Leaked", "Ate-Router-Reason", "X-Ate-Assignment-Stale", "Ate-Endpoint-Cached"} {
			if v := r.header.Values(f); len(v) > 0 {
				t.Errorf("%s: %v", f, v)
			}
		}
	}
	if got := w.conns.Load(); got != 1 {
		t.Errorf("%d connections to the worker for the tunnels of two actors", got)
	}
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 404 {
		t.Errorf("without a target: %s", resp.Status)
	}
}

// Nobody is woken, or even asked for, by a request that names no actor or whose client may not reach it.
func TestKF_ACT_06_RefusedBeforeResolve(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b")
	n.attach("w1", 1, 10)
	rule := fmt.Sprintf(`
		allow "egress" { callers = [%q], actors = ["demo/b"], methods = ["GET"], paths = ["/open"] }`, app.EgressID)
	g := gatewaytest.Start(t, n.config(allowed(rule)))
	defer g.Stop()
	url := "https://" + g.Addr("web")
	for _, tc := range []struct {
		name, component, path string
		fields                []string
		status                int
		body, reason          string
	}{
		{"no target", "admin", "/", nil, 404, "invalid actor reference", "invalid_actor_reference"},
		{"two targets", "admin", "/", []string{"ate-target-actor", "demo/a", "ate-target-actor", "demo/a"}, 404, "invalid actor reference", "invalid_actor_reference"},
		{"a list", "admin", "/", []string{"ate-target-actor", "demo/a,demo/b"}, 404, "invalid actor reference", "invalid_actor_reference"},
		{"a bad one", "admin", "/", []string{"ate-target-actor", "Demo/a"}, 404, "invalid actor reference", "invalid_actor_reference"},
		{"no certificate", "", "/", []string{"ate-target-actor", "demo/a"}, 403, "actor demo/a access denied", "actor_access_denied"},
		{"an unlisted one", "worker-w1", "/", []string{"ate-target-actor", "demo/a"}, 403, "actor demo/a access denied", "actor_access_denied"},
		{"a rule for another actor", "egress", "/open", []string{"ate-target-actor", "demo/a"}, 403, "actor demo/a access denied", "actor_access_denied"},
		{"a rule for another path", "egress", "/opened", []string{"ate-target-actor", "demo/b"}, 403, "actor demo/b access denied", "actor_access_denied"},
		{"a path that leads elsewhere", "egress", "/open/../x", []string{"ate-target-actor", "demo/b"}, 403, "actor demo/b access denied", "actor_access_denied"},
	} {
		r := get(t, n.httpClient(tc.component), url+tc.path, tc.fields...)
		if r.status != tc.status || r.body != tc.body || r.header.Get("Ate-Router-Reason") != tc.reason || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %d %q %v", tc.name, r.status, r.body, r.header)
		}
	}
	for _, name := range []string{"a", "b"} {
		if a, err := n.admin.GetActor(t.Context(), demo(name)); err != nil || a.State != actor.Suspended || a.Version != 1 {
			t.Errorf("actor %s: %v, version %d, %v", name, a.State, a.Version, err)
		}
	}
	if r := get(t, n.httpClient("egress"), url+"/open/x", "ate-target-actor", "demo/b"); r.status != 200 || r.body != "b" {
		t.Errorf("what the rule allows: %d %q", r.status, r.body)
	}
}

// What an actor is asked for is the path that was decided about: what is merged and cut here, an actor may read otherwise.
func TestActorPathAsDecided(t *testing.T) {
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
	n.create("a")
	n.attach("w1", 1, 10)
	rule := `
		allow "egress" { callers = [%q], actors = ["demo/a"]%s }`
	g := gatewaytest.Start(t, n.config(allowed(fmt.Sprintf(rule, app.EgressID, `, paths = ["/open"]`))))
	defer g.Stop()
	const target = "/shut//../open/%61?q=//../x"
	ask := func() reply {
		return get(t, n.httpClient("egress"), "https://"+g.Addr("web")+target, "ate-target-actor", "demo/a")
	}
	if r := ask(); r.status != 200 || r.body != "/open/a?q=//../x" {
		t.Errorf("decided by its path: %d %q", r.status, r.body)
	}
	g.Apply(n.config(allowed(fmt.Sprintf(rule, app.EgressID, ""))))
	if r := ask(); r.status != 200 || r.body != target {
		t.Errorf("decided without: %d %q", r.status, r.body)
	}
}

// Fifty requests at a cold actor are one resume and fifty answers.
func TestKF_ACT_04_ColdStart(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, iAm)
	n.create("a")
	w := n.attach("w1", 1, 10)
	var starts atomic.Int64
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	w.orders = func(_ context.Context, start bool, _ actor.Ref) error {
		if start {
			starts.Add(1)
			begun <- struct{}{}
			<-goOn
		}
		return nil
	}
	g := gatewaytest.Start(t, n.config(allowed("")))
	defer g.Stop()
	c := n.httpClient("admin")
	var all sync.WaitGroup
	var served atomic.Int64
	for range 50 {
		all.Go(func() {
			if r, err := tell(c, "POST", "https://"+g.Addr("web")+"/", strings.NewReader("hello"), "ate-target-actor", "demo/a"); err != nil || r.status != 200 || r.body != "a" {
				t.Errorf("%+v %v", r, err)
				return
			}
			served.Add(1)
		})
	}
	<-begun
	gatewaytest.Until(t, "fifty wait", func() bool { return g.ActorStats().Waiting >= 50 })
	close(goOn)
	all.Wait()
	if s := g.ActorStats(); starts.Load() != 1 || s.Resumes != 1 || served.Load() != 50 {
		t.Errorf("%d starts, %d calls of ResumeActor, %d answers", starts.Load(), s.Resumes, served.Load())
	}
}

// An actor moves twenty times between two workers while a client posts a hundred requests a second. Each is answered
// once, by that actor; another actor takes the place that it has left.
func TestKF_ACT_01_Moves(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Header.Get("X-I-Am")+" "+r.URL.Path]++
		mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(50*time.Millisecond + time.Duration(len(r.URL.Path)%5)*20*time.Millisecond) // the work of an actor
		_, _ = io.WriteString(w, r.Header.Get("X-I-Am")+" "+r.URL.Path)
	})
	n.create("a", "b")
	n.attach("w1", 1, 1)
	n.attach("w2", 2, 1)
	n.place("a", "w1")
	g := gatewaytest.Start(t, n.config(allowed(`parking { budget = "20s" }`)))
	defer g.Stop()
	c, stop := n.httpClient("admin"), make(chan struct{})
	var all sync.WaitGroup
	var sent int
	room := make(chan struct{}, 200) // a slow machine is not given more and more to do
	all.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ; ; sent++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			room <- struct{}{}
			path := fmt.Sprintf("/%d/%s", sent, strings.Repeat("x", sent%5))
			all.Go(func() {
				defer func() { <-room }()
				r, err := tell(c, "POST", "https://"+g.Addr("web")+path, strings.NewReader("work"), "ate-target-actor", "demo/a")
				if err != nil || r.status != 200 || r.body != "a "+path {
					t.Errorf("%s: %+v %v", path, r, err)
				}
			})
		}
	})
	on := "w1"
	for range 20 {
		from, to := on, map[string]string{"w1": "w2", "w2": "w1"}[on]
		n.place("a", to)
		n.suspend("b") // whose place becomes that of a
		n.suspend("a")
		n.place("b", from)
		n.resume("b")
		gatewaytest.Until(t, "the actor has moved", func() bool {
			a, err := n.admin.GetActor(t.Context(), demo("a"))
			return err == nil && a.State == actor.Running && a.Assignment.Worker == to
		})
		on = to
	}
	close(stop)
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	for what, times := range seen {
		if times != 1 {
			t.Errorf("%s: %d times", what, times)
		}
	}
	if len(seen) != sent || sent == 0 {
		t.Errorf("%d requests were sent and %d were seen", sent, len(seen))
	}
	t.Logf("%d requests over 20 moves: %+v", sent, g.ActorStats())
}

// A worker that does not have the actor any more says so before anything is sent: the request is led to the right one, whole.
func TestKF_ACT_08_Stale(t *testing.T) {
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %d", r.Header.Get("X-I-Am"), r.Method, got)
	})
	n.create("a")
	w1, w2 := n.attach("w1", 1, 1), n.attach("w2", 2, 1)
	n.place("a", "w1")
	g := gatewaytest.Start(t, n.config(allowed("assignment_ttl = \"1h\"")))
	defer g.Stop()
	c, on := n.httpClient("admin"), w1
	for i, method := range []string{"GET", "POST", "PUT"} {
		if r, err := tell(c, "GET", "https://"+g.Addr("web")+"/", nil, "ate-target-actor", "demo/a"); err != nil || r.status != 200 {
			t.Fatalf("%+v %v", r, err)
		}
		on = map[*hostWorker]*hostWorker{w1: w2, w2: w1}[on]
		n.place("a", on.name)
		n.suspend("a")
		n.resume("a")
		before := on.tunnels.Load()
		size := map[string]int{"GET": 0}[method]
		if method != "GET" {
			size = 1 << 20
		}
		r, err := tell(c, method, "https://"+g.Addr("web")+"/", strings.NewReader(strings.Repeat("x", size)), "ate-target-actor", "demo/a")
		if want := fmt.Sprintf("a %s %d", method, size); err != nil || r.status != 200 || r.body != want {
			t.Errorf("%s: %+v %v", method, r, err)
		}
		if s := g.ActorStats(); s.Stale != uint64(i+1) || on.tunnels.Load() != before+1 {
			t.Errorf("%s: %+v, %d tunnels", method, s, on.tunnels.Load()-before)
		}
	}
}
