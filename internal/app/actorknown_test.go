package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// Turns take as long as they take: a limit that nobody has set cuts none, one that is set is obeyed and the answer says that the actor
// had got the request (KF-ACT-02); neither waking nor an answer that has begun counts towards it (KF-ACT-07).
func TestKF_ACT_02_07_LongTurns(t *testing.T) {
	t.Parallel()
	const limit, more = 2 * time.Second, 2500 * time.Millisecond
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		rest := func() {
			select {
			case <-time.After(more):
			case <-r.Context().Done():
			}
		}
		if r.URL.Path == "/late" {
			rest()
		}
		_, _ = io.WriteString(w, "began ")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/long" {
			rest()
		}
		_, _ = io.WriteString(w, "ended")
	})
	n.create("a", "b")
	w := n.attach("w1", 1, 2)
	w.orders = func(context.Context, bool, actor.Ref) error { time.Sleep(more); return nil }
	g := gatewaytest.Start(t, n.config(allowed(`parking { budget = "20s" }`)))
	defer g.Stop()
	limited := gatewaytest.Start(t, n.config(allowed(fmt.Sprintf("parking { budget = \"20s\" }\nrequest_timeout = %q", limit))))
	defer limited.Stop()
	c := n.httpClient("admin")
	for _, tc := range []struct {
		name, url, actor, body, reason string
		status                         int
	}{
		{"a sleeper, late and long", "https://" + g.Addr("web") + "/late", "demo/a", "began ended", "", 200},
		{"a limit, and a sleeper that is woken for longer", "https://" + limited.Addr("web") + "/", "demo/b", "began ended", "", 200},
		{"a limit, and an answer that lasts longer", "https://" + limited.Addr("web") + "/long", "demo/b", "began ended", "", 200},
		{"a limit, and no answer", "https://" + limited.Addr("web") + "/late", "demo/b", "actor demo/b request timed out", "response_timeout", 504},
	} {
		r := get(t, c, tc.url, "ate-target-actor", tc.actor)
		if r.status != tc.status || r.body != tc.body || r.header.Get("Ate-Router-Reason") != tc.reason {
			t.Errorf("%s: %d %q %v", tc.name, r.status, r.body, r.header)
		}
	}
}

// A request that is under way when its actor is suspended may end within the bound; one that is cut is answered with 503, a reason
// and when to come again, and never sent a second time.
func TestKF_ACT_03_SuspendedUnderWay(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	came, goOn := make(chan struct{}, 2), make(chan struct{}, 1)
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		came <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "answered")
	})
	n.create("a")
	w := n.attach("w1", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed(short)))
	defer g.Stop()
	url, c := "https://"+g.Addr("web")+"/", n.httpClient("admin")
	replies := make(chan reply, 1)
	ask := func() {
		go func() {
			r, err := tell(c, "POST", url, nil, "ate-target-actor", "demo/a")
			if err != nil {
				r.body = err.Error()
			}
			replies <- r
		}()
		<-came
	}
	ask()
	var suspending sync.WaitGroup
	suspending.Go(func() { n.suspend("a") })
	gatewaytest.Until(t, "the worker takes no tunnels", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.stays[demo("a")] == nil
	})
	goOn <- struct{}{}
	if r := <-replies; r.status != 200 || r.body != "answered" {
		t.Errorf("within the bound: %+v", r)
	}
	suspending.Wait()
	ask()
	w.mu.Lock()
	again := w.stays[demo("a")]
	w.mu.Unlock()
	_ = again.server.Close() // as a worker does at the end of the bound
	(<-replies).told(t, "cut", 503, "actor demo/a unavailable", "backend_reset")
	if got := asked.Load(); got != 2 {
		t.Errorf("the actor was asked %d times", got)
	}
}

// What may pass is tried again within the budget, what does not is said at once and asked for once.
func TestKF_ACT_05_WakingFails(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, iAm)
	n.create("late", "broken")
	w := n.attach("w1", 1, 10)
	var orders sync.Map // by name, to *atomic.Int64
	w.orders = func(_ context.Context, start bool, ref actor.Ref) error {
		c, _ := orders.LoadOrStore(ref.Name, new(atomic.Int64))
		count := c.(*atomic.Int64).Add(1)
		switch {
		case start && ref.Name == "late" && count < 4:
			return fmt.Errorf("not yet: %w", actor.ErrUnavailable)
		case start && ref.Name == "broken":
			return errors.New("its program is missing")
		}
		return nil
	}
	g := gatewaytest.Start(t, n.config(allowed(`parking { budget = "20s", retry_interval = "20ms" }`)))
	defer g.Stop()
	url, c := "https://"+g.Addr("web")+"/", n.httpClient("admin")
	if r := get(t, c, url, "ate-target-actor", "demo/late"); r.status != 200 || r.body != "late" {
		t.Errorf("one that comes late: %+v", r)
	}
	get(t, c, url, "ate-target-actor", "demo/broken").told(t, "one that cannot start", 500, "error resuming actor demo/broken", "actor_resume_failed")
	get(t, c, url, "ate-target-actor", "demo/nobody").told(t, "one that is not there", 404, "actor demo/nobody not found", "actor_not_found")
	for name, want := range map[string]int64{"late": 4, "broken": 1} {
		if c, ok := orders.Load(name); !ok || c.(*atomic.Int64).Load() != want {
			t.Errorf("%s: %v orders, want %d", name, c, want)
		}
	}
}

// The application sees the Host that the client has asked for, in each protocol, and no field that chose the actor.
func TestKF_ACT_11_HostUnchanged(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, func(w http.ResponseWriter, r *http.Request) {
		saw := fmt.Sprintf("%s %q", r.Host, r.Header.Values("Ate-Target-Actor"))
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, saw)
			return
		}
		s, err := ws.Accept(w, r, nil)
		if err != nil {
			return
		}
		_ = s.Write(r.Context(), ws.MessageText, []byte(saw))
		_ = s.Close(ws.StatusNormalClosure, "")
	})
	n.create("a")
	n.attach("w1", 1, 1)
	g := gatewaytest.Start(t, n.config(allowed("")))
	defer g.Stop()
	const host, want = "shop.example:8443", "shop.example:8443 []"
	for _, two := range []bool{false, true} {
		c := n.httpClient("admin")
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = two
		if r := get(t, c, "https://"+g.Addr("web")+"/", "Host", host, "ate-target-actor", "demo/a"); r.status != 200 || r.body != want {
			t.Errorf("HTTP/2 %v: %d %q", two, r.status, r.body)
		}
	}
	s, _, err := ws.Dial(t.Context(), "wss://"+g.Addr("web")+"/", &ws.DialOptions{
		HTTPClient: n.httpClient("admin"), Host: host, HTTPHeader: http.Header{"Ate-Target-Actor": {"demo/a"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.CloseNow() }()
	if _, b, err := s.Read(t.Context()); string(b) != want || err != nil {
		t.Errorf("WebSocket: %q %v", b, err)
	}
}
