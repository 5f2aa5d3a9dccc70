package control_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/control"
)

// The tests over the wire start the control plane as sluice ateapi does, on a free port, with real certificates and real
// files; workers are played by a fake, which behaves like one but makes nothing run.

var (
	a1   = actor.Ref{Atespace: "demo", Name: "a1"}
	echo = actor.Ref{Atespace: "demo", Name: "echo"}
)

type system struct {
	*app.Ateapi
	dir   string
	admin *control.Client
}

func startAteapi(t *testing.T, dir string, kind app.StoreKind) system {
	t.Helper()
	a, err := app.StartAteapi(t.Context(), app.AteapiOptions{
		Listen: "127.0.0.1:0", DataDir: dir, Store: kind, Workers: []string{"w1", "w2"}, EgressGateway: "egress.test:443",
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := system{Ateapi: a, dir: dir}
	t.Cleanup(func() { _ = a.Close() })
	s.admin = s.client(t, "admin")
	return s
}

// newSystem has an atespace and a template, too.
func newSystem(t *testing.T) system {
	t.Helper()
	s := startAteapi(t, t.TempDir(), app.StoreMemory)
	s.seed(t)
	return s
}

func (s system) seed(t *testing.T) {
	t.Helper()
	_, err := s.admin.CreateAtespace(t.Context(), "demo")
	template := actor.Template{Ref: echo, Containers: []actor.Container{{Name: "main", Image: "local:echo"}}}
	_, err2 := s.admin.CreateTemplate(t.Context(), template)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
}

// client calls as a component does.
func (s system) client(t *testing.T, component string) *control.Client {
	t.Helper()
	c, err := app.DialControl(app.ControlOptions{Address: s.Addr, ServerName: app.AteapiName, Credentials: app.ComponentDir(s.dir, component)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s system) create(t *testing.T, ref actor.Ref) actor.Actor {
	t.Helper()
	a, err := s.admin.CreateActor(t.Context(), ref, echo, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (s system) resume(t *testing.T, ref actor.Ref) actor.Actor {
	t.Helper()
	a, _, err := s.admin.ResumeActor(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// worker is a fake: it knows what would run on it, and fails or blocks as it is told to.
type worker struct {
	*control.Client
	name     string
	exits    chan control.Exit
	attached chan actor.Worker
	end      func() // detaches it and waits
	err      error  // of its end

	mu      sync.Mutex
	running map[string]bool // by UID
	calls   []string
	fail    func(ctx context.Context, what string) error // may block
}

func (w *worker) do(ctx context.Context, what, uid string, runs bool) error {
	w.mu.Lock()
	w.calls = append(w.calls, what)
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		if err := fail(ctx, what); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.running, uid); runs {
		w.running[uid] = true
	}
	return nil
}

func (w *worker) Start(ctx context.Context, a actor.Actor, t actor.Template, egress string) error {
	if t.Ref != echo || len(t.Containers) != 1 || egress != "egress.test:443" || a.Assignment == nil || a.Assignment.Worker != w.name {
		return fmt.Errorf("told to start %+v from %+v by %s", a, t, egress)
	}
	return w.do(ctx, "start "+a.Ref.String(), a.UID, true)
}

func (w *worker) Stop(ctx context.Context, a actor.Actor, op actor.Op) error {
	return w.do(ctx, op.String()+" "+a.Ref.String(), a.UID, false)
}

func (w *worker) failing(f func(ctx context.Context, what string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

func (w *worker) runs() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}

func workerOf(name string, room int, epoch int64) actor.Worker {
	return actor.Worker{
		Name: name, Epoch: epoch, Capacity: actor.Capacity{Actors: room}, Labels: map[string]string{"name": name},
		Place: actor.Place{Namespace: "ate-workers", Node: "node-" + name, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
	}
}

// attach lets a fake take part, and returns once it does.
func (s system) attach(t *testing.T, name string, room int, epoch int64) *worker {
	t.Helper()
	w := &worker{Client: s.client(t, "worker-"+name), name: name, exits: make(chan control.Exit), attached: make(chan actor.Worker, 100), running: map[string]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.err = w.Host(ctx, control.HostOptions{
			Worker: workerOf(name, room, epoch), Sandboxes: w, Exits: w.exits, Attached: func(x actor.Worker) { w.attached <- x },
		})
	}()
	w.end = sync.OnceFunc(func() { stop(); <-ended })
	t.Cleanup(w.end)
	select {
	case <-w.attached:
	case <-ended:
		t.Fatalf("worker %s: %v", name, w.err)
	}
	return w
}

func wantCode(t *testing.T, what string, err error, want actor.Code) {
	t.Helper()
	code := actor.Code(0)
	if e := (*actor.Error)(nil); errors.As(err, &e) {
		code = e.Code
	}
	if code != want || (err == nil) != (want == 0) {
		t.Errorf("%s: %v (%v), want %v", what, err, code, want)
	}
}

// until looks again and again, until it is so.
func until(t *testing.T, what string, check func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !check(); {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // looking again, not hoping: the end is check's to say
	}
}

func (s system) path(parts ...string) string {
	return filepath.Join(append([]string{app.PKIDir(s.dir)}, parts...)...)
}
