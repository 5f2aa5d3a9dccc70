package atelet_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/atelet"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// An actor is made to run, reached, suspended, and goes on where it was, on another worker; what it dials is its own.
func TestActorMovesWithItsMemory(t *testing.T) {
	s := newSite(t)
	w1, w2 := s.host("w1", 1), s.host("w2", 1)
	a := s.create("a", "counter")
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
	w1.says("a", "/", "a 2")
	if _, err := w1.get("a", "/dial?to=203.0.113.7:443"); err != nil {
		t.Error(err)
	}
	if got, want := <-s.gate.knock, "spiffe://substrate-actor.local/worker-for-actor/demo/a"; got != want {
		t.Errorf("%s knocks at the egress gateway, want %s", got, want)
	}
	s.suspend("a")
	w1.gone("a")
	s.create("b", "counter")
	s.resume("b", "w1") // which leaves the other worker alone
	s.resume("a", "w2")
	w2.says("a", "/", "a 3")
	w1.says("b", "/", "b 1")
	// And back, again with its memory.
	s.suspend("b")
	s.suspend("a")
	s.resume("a", "w1")
	w1.says("a", "/", "a 4")
	s.resume("b", "w2")
	w2.says("b", "/", "b 2")
	for _, name := range []string{"a", "b"} {
		if _, err := s.admin.DeleteActor(t.Context(), demo(name), actor.Terms{AnyState: true}); err != nil {
			t.Error(err)
		}
	}
	if left := s.left(a.UID); len(left) > 0 {
		t.Errorf("deleted actors have left %v", left)
	}
	text, err := os.ReadFile(atelet.OutputFile(s.path("logs"), demo("a")))
	if err != nil || !strings.Contains(string(text), "listening") {
		t.Errorf("the output is %q, %v", text, err)
	}
	if files, err := os.ReadDir(s.path("state/" + s.run.String() + "/actors")); err != nil || len(files) != 1 { // the lock
		t.Errorf("what is written down is %v, %v", files, err)
	}
}

// A paused actor goes on, too, and what it is told of itself is there.
func TestWhatActorsAreGiven(t *testing.T) {
	s := newSite(t)
	if err := os.WriteFile(s.path("hosts"), []byte("# names\n203.0.113.7 api.test www.test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.template("informed", func(x *actor.Template) {
		x.Containers[0].Env = []actor.EnvVar{{Name: "COLOUR", Value: "blue"}}
		x.Containers[0].Resources = []actor.Limit{{Name: "memory", Quantity: "256Mi"}}
		x.Containers[0].Mounts = []actor.Mount{{Volume: "info", Path: "/info"}}
		x.Volumes = []actor.Volume{{Name: "info", SystemInfo: []actor.DataSource{
			{Items: []actor.MetadataItem{{Field: actor.FieldUID, Path: "me/uid"}}},
			{Bundles: []string{"egress-mitm.ate.dev"}, Path: "ca.pem"},
		}}}
	})
	w1 := s.host("w1", 1)
	a := s.create("a", "informed")
	s.resume("a", "w1")
	for path, want := range map[string]string{
		"/env?name=COLOUR": "blue", "/env?name=ATE_ACTOR_UID": a.UID, "/env?name=SSL_CERT_FILE": "/ate/ca-bundle.pem", "/file?name=/info/me/uid": a.UID,
	} {
		w1.says("a", path, want)
	}
	for _, name := range []string{"/ate/ca-bundle.pem", "/info/ca.pem"} {
		if got, err := w1.get("a", "/file?name="+name); err != nil || !strings.Contains(got, "BEGIN CERTIFICATE") {
			t.Errorf("%s: %.100q, %v", name, got, err)
		}
	}
	w1.says("a", "/", "a 1")
	if _, err := s.admin.PauseActor(t.Context(), demo("a")); err != nil {
		t.Fatal(err)
	}
	s.resume("a", "w1")
	w1.says("a", "/", "a 2")
	// Reverted, it begins anew.
	if _, err := s.admin.RevertActor(t.Context(), demo("a")); err != nil {
		t.Fatal(err)
	}
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
}

// An actor that ends is crashed with the reason, and can be had anew.
func TestCrash(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	s.create("a", "counter")
	s.resume("a", "w1")
	_, _ = w1.get("a", "/exit")
	if a := s.becomes("a", actor.Crashed); a.Crash != "the actor ended: exit status 5" {
		t.Errorf("it is %q", a.Crash)
	}
	if _, err := s.admin.RevertActor(t.Context(), demo("a")); err != nil {
		t.Fatal(err)
	}
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
}

// Refusals say what to do, where they are asked for.
func TestTemplatesThatCannotRun(t *testing.T) {
	s := newSite(t)
	s.host("w1", 1)
	for name, tc := range map[string]struct {
		change func(*actor.Template)
		want   string
	}{
		"unknown": {func(x *actor.Template) { x.Containers[0].Image = "local:nope" }, `there is no program "nope" in ` + s.path("programs")},
		"outside": {func(x *actor.Template) { x.Containers[0].Image = "local:../nope" }, "does not name a program"},
		"pulled":  {func(x *actor.Template) { x.Containers[0].Image = "docker.io/library/alpine" }, "pulls no images"},
		"two": {func(x *actor.Template) {
			x.Containers = append(x.Containers, actor.Container{Name: "more", Image: "local:counter"})
		}, "containers: are 2"},
		"fast":    {func(x *actor.Template) { x.Resources = []actor.Limit{{Name: "cpu", Quantity: "2"}} }, `bounds memory alone, not "cpu"`},
		"large":   {func(x *actor.Template) { x.Resources = []actor.Limit{{Name: "memory", Quantity: "1.5Gi"}} }, "whole number"},
		"covered": {covered, "which every actor has"},
		"mute": {func(x *actor.Template) {
			x.Containers[0].Probe = &actor.Probe{Path: "/", Port: 81, Timeout: time.Second}
		}, "within 1 s"},
		"failing": {func(x *actor.Template) { x.Containers[0].Command = []string{"/bin/false"} }, "its program ended: exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s.template(name, tc.change)
			s.create(name, name)
			_, _, err := s.admin.ResumeActor(t.Context(), demo(name))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if a := s.becomes(name, actor.Crashed); !strings.Contains(a.Crash, tc.want) {
				t.Errorf("it is %q", a.Crash)
			}
		})
	}
	if left := s.left(""); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	s.create("a", "counter")
	s.resume("a", "w1")
	s.create("b", "counter")
	if _, _, err := s.admin.ResumeActor(t.Context(), demo("b")); err == nil || !strings.Contains(err.Error(), "no free workers") {
		t.Errorf("without a slot: %v", err)
	}
}

func covered(x *actor.Template) {
	x.Volumes = []actor.Volume{{Name: "v", SystemInfo: []actor.DataSource{{Items: []actor.MetadataItem{{Field: actor.FieldName, Path: "n"}}}}}}
	x.Containers[0].Mounts = []actor.Mount{{Volume: "v", Path: "/ate/mine"}}
}

// The agent ends and another one goes on: actors notice nothing, and what happened meanwhile is found out.
func TestAgentIsStartedAgain(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 3)
	for _, name := range []string{"stays", "ends", "sleeps"} {
		s.create(name, "counter")
		s.resume(name, "w1")
		w1.says(name, "/", name+" 1")
	}
	s.suspend("sleeps")
	w1.leave()
	_, _ = w1.get("ends", "/exit")
	w1.attach()
	s.becomes("ends", actor.Crashed)
	w1.says("stays", "/", "stays 2")
	s.resume("sleeps", "w1")
	w1.says("sleeps", "/", "sleeps 2")
	if a, err := s.admin.GetActor(t.Context(), demo("stays")); err != nil || a.State != actor.Running {
		t.Errorf("%+v, %v", a, err)
	}
	// What the control plane has given up meanwhile is not kept running.
	w1.leave()
	if _, err := s.admin.DeleteWorker(t.Context(), "w1", actor.Terms{}); err != nil {
		t.Fatal(err)
	}
	w1.attach()
	gatewaytest.Until(t, "nothing runs", func() bool { return len(s.left("")) == 0 })
	s.becomes("stays", actor.Crashed)
}

// What is written down is lost, and the actors that run are not; those that sleep begin anew.
func TestRecordsAreLost(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 2)
	a := s.create("a", "counter")
	s.create("b", "counter")
	s.resume("a", "w1")
	s.resume("b", "w1")
	w1.says("a", "/", "a 1")
	w1.says("b", "/", "b 1")
	s.suspend("b")
	w1.leave()
	if err := os.RemoveAll(s.path("state")); err != nil {
		t.Fatal(err)
	}
	w1.attach()
	if status, body := w1.ask("demo/a", a.UID, signingRequest(t)); status != 200 {
		t.Errorf("its key: %d %s", status, body)
	}
	s.resume("b", "w1") // as another user than a
	w1.says("b", "/", "b 1")
	s.suspend("a")
	s.resume("a", "w1")
	w1.says("a", "/", "a 2")
}

// A killed worker has lost its actors, and its successor begins with a machine where nothing of them runs. Those that slept go on.
func TestWorkerIsKilled(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 2)
	s.create("a", "counter")
	s.create("b", "counter")
	s.resume("a", "w1")
	s.resume("b", "w1")
	w1.says("b", "/", "b 1")
	s.suspend("b")
	w1.process.Signal(t, syscall.SIGKILL)
	if _, err := w1.process.Ended(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	w1.start()
	if a := s.becomes("a", actor.Crashed); !strings.Contains(a.Crash, "began anew") {
		t.Errorf("it is %q", a.Crash)
	}
	w1.ready()
	s.resume("b", "w1")
	w1.says("b", "/", "b 2")
	if _, err := s.admin.RevertActor(t.Context(), demo("a")); err != nil {
		t.Fatal(err)
	}
	s.resume("a", "w1")
	w1.says("a", "/", "a 1")
}

// The control plane is started again: actors run on, and orders come again.
func TestControlPlaneIsStartedAgain(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	s.create("a", "counter")
	s.resume("a", "w1")
	if err := s.plane.Close(); err != nil {
		t.Fatal(err)
	}
	w1.says("a", "/", "a 1")
	s.startPlane()
	w1.ready()
	w1.says("a", "/", "a 2")
	s.suspend("a")
	s.resume("a", "w1")
	w1.says("a", "/", "a 3")
}

// A suspended actor that is deleted has no worker that could be told; its memory is given back all the same.
func TestDeletedWhileSuspended(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	s.create("a", "counter")
	s.resume("a", "w1")
	s.suspend("a")
	if _, err := s.admin.DeleteActor(t.Context(), demo("a"), actor.Terms{}); err != nil {
		t.Fatal(err)
	}
	w1.leave()
	w1.attach() // looks at once, and every half minute
	gatewaytest.Until(t, "nothing is left", func() bool { return len(s.left("")) == 0 })
}

// Nobody but a worker of the name takes part, and a worker that is not there is waited for.
func TestRefusals(t *testing.T) {
	s := newSite(t)
	h := &host{site: s, name: "w1", slots: 1, addr: "127.0.0.1:1"}
	thief := h.agent()
	thief.Worker.Name = "w2"
	s.host("w2", 1).leave()
	thief.Orders = s.path("w2")
	if err := run(t.Context(), thief); err == nil || !strings.Contains(err.Error(), "belongs to another identity") {
		t.Errorf("as another worker: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, h.agent()) }()
	gatewaytest.Until(t, "it says what is missing", func() bool {
		return strings.Contains(s.log.String(), "sluice-worker run must serve the socket")
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("without a worker: %v", err)
	}
}

// An agent that cannot serve its broker any more is over: whoever started it has to know.
func TestTheBrokerEnds(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "broker"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := atelet.New(atelet.Options{
		Orders: filepath.Join(dir, "orders"), StateDir: dir, Programs: dir, Broker: l, Users: atelet.Users{First: 5000, Last: 5001},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := a.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// The broker has keys certified for actors that are on the worker, and says which refusals are for good.
func TestBroker(t *testing.T) {
	s := newSite(t)
	w1 := s.host("w1", 1)
	a, other := s.create("a", "counter"), s.create("other", "counter")
	s.resume("a", "w1")
	good := signingRequest(t)
	for _, tc := range []struct {
		name, ref, uid string
		request        []byte
		want           int
	}{
		{"its own", "demo/a", a.UID, good, 200},
		{"no request", "demo/a", a.UID, []byte("x"), 400},
		{"another UID", "demo/a", other.UID, good, 403},
		{"another name", "demo/other", a.UID, good, 403},
		{"one that sleeps", "demo/other", other.UID, good, 403},
		{"no name", "demo", a.UID, good, 400},
		{"a path", "demo/a", "../../x", good, 400},
	} {
		if status, body := w1.ask(tc.ref, tc.uid, tc.request); status != tc.want {
			t.Errorf("%s: %d %.200s, want %d", tc.name, status, body, tc.want)
		}
	}
	s.suspend("a")
	if status, body := w1.ask("demo/a", a.UID, good); status != 403 {
		t.Errorf("suspended: %d %s", status, body)
	}
	s.resume("a", "w1")
	if err := s.plane.Close(); err != nil {
		t.Fatal(err)
	}
	if status, body := w1.ask("demo/a", a.UID, good); status != 503 {
		t.Errorf("without a control plane: %d %s", status, body)
	}
	s.startPlane()
	w1.process.Signal(t, syscall.SIGKILL)
	gatewaytest.Until(t, "the process of the worker is missed", func() bool {
		status, _ := w1.ask("demo/a", a.UID, good)
		return status == 503
	})
}
