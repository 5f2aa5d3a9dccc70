package devplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/devplane"
	"github.com/sluice-proxy/sluice/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var a1 = actor.Ref{Atespace: "demo", Name: "a1"}

// sandboxes are workers that do nothing, or fail as they are told to. They know who runs where.
type sandboxes struct {
	mu      sync.Mutex
	running map[string]string // worker by UID
	starts  int
	calls   []string
	fail    func(what string) error // may block
	away    map[string]bool         // workers that cannot be told anything
}

func (b *sandboxes) do(ctx context.Context, what string, change func()) error {
	b.mu.Lock()
	b.calls = append(b.calls, what)
	fail := b.fail
	b.mu.Unlock()
	if fail != nil {
		if err := fail(what); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	return nil
}

func (b *sandboxes) Ready(worker string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.away[worker]
}

func (b *sandboxes) Start(ctx context.Context, a actor.Actor, t actor.Template) error {
	if t.Ref != a.Template || t.UID == "" {
		return fmt.Errorf("actor %s with template %+v", a.Ref, t)
	}
	return b.do(ctx, fmt.Sprintf("start %s on %s", a.Ref, a.Assignment.Worker), func() {
		b.starts++
		b.running[a.UID] = a.Assignment.Worker
	})
}

func (b *sandboxes) Stop(ctx context.Context, a actor.Actor, op actor.Op) error {
	where := "node " + a.Node
	if a.Assignment != nil {
		where = a.Assignment.Worker
	}
	return b.do(ctx, fmt.Sprintf("%s %s on %s", op, a.Ref, where), func() { delete(b.running, a.UID) })
}

// failing sets what the next calls do.
func (b *sandboxes) failing(f func(what string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = f
}

func with(err error) func(string) error { return func(string) error { return err } }

type plane struct {
	*devplane.Plane
	store *store.Memory
	boxes *sandboxes
}

// newPlane has an atespace, a template and workers with room for so many actors each: w0 on node n0, and so on.
func newPlane(t *testing.T, room ...int) plane {
	t.Helper()
	s := store.NewMemory()
	err := s.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.Create(store.Key{Kind: devplane.KindAtespace, Name: "demo"}, "u", nil)
		_, err2 := tx.Create(store.Key{Kind: devplane.KindTemplate, Group: "demo", Name: "echo"}, "u", []byte("{}"))
		return errors.Join(err, err2)
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &sandboxes{running: map[string]string{}, away: map[string]bool{}}
	p := plane{devplane.New(s, b), s, b}
	for i, n := range room {
		p.register(t, worker(i, n))
	}
	return p
}

func worker(i, room int) actor.Worker {
	return actor.Worker{
		Name: fmt.Sprint("w", i), Capacity: actor.Capacity{Actors: room}, Epoch: 1, Labels: map[string]string{"n": fmt.Sprint(i)},
		Place: actor.Place{Node: fmt.Sprint("n", i), Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.0.0.", i+1))}, ID: "spiffe://cluster.local/ns/n/sa/s"},
	}
}

func (p plane) register(t *testing.T, w actor.Worker) actor.Worker {
	t.Helper()
	w, err := p.AttachWorker(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (p plane) create(t *testing.T, ref actor.Ref) actor.Actor {
	t.Helper()
	a, err := p.CreateActor(t.Context(), ref, actor.Ref{Atespace: "demo", Name: "echo"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// slots counts who has a place on which worker.
func (p plane) slots(t *testing.T) map[string]int {
	t.Helper()
	got := map[string]int{}
	err := p.store.View(t.Context(), func(tx store.Tx) error {
		workers, err := tx.List(devplane.KindWorker, "", "", 100)
		for _, w := range workers {
			s, err := tx.List(devplane.KindSlot, w.Name, "", 100)
			if err != nil {
				return err
			}
			if len(s) > 0 {
				got[w.Name] = len(s)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (p plane) wantState(t *testing.T, ref actor.Ref, want actor.State, worker string) actor.Actor {
	t.Helper()
	a, err := p.GetActor(t.Context(), ref)
	if err != nil || a.State != want || (a.Assignment != nil) != (worker != "") || a.Assignment != nil && a.Assignment.Worker != worker {
		t.Errorf("%s is %v on %+v, %v; want %v on %q", ref, a.State, a.Assignment, err, want, worker)
	}
	return a
}

func wantCode(t *testing.T, what string, err error, want actor.Code, text string) {
	t.Helper()
	var e *actor.Error
	if !errors.As(err, &e) || e.Code != want || !strings.Contains(e.Error(), text) {
		t.Errorf("%s: %v, want %v saying %q", what, err, want, text)
	}
}

func TestCreate(t *testing.T) {
	p := newPlane(t)
	a := p.create(t, a1)
	if a.State != actor.Suspended || a.Version != 1 || a.Assignment != nil || !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(a.UID) {
		t.Errorf("created: %+v", a)
	}
	if got, err := p.GetActor(t.Context(), a1); err != nil || cmp.Diff(a, got) != "" {
		t.Errorf("read: %+v, %v", got, err)
	}
	template := actor.Ref{Atespace: "demo", Name: "echo"}
	for _, tc := range []struct {
		name          string
		ref, template actor.Ref
		code          actor.Code
		text          string
	}{
		{"again", a1, template, actor.AlreadyExists, "demo/a1"},
		{"in no atespace", actor.Ref{Atespace: "none", Name: "a"}, template, actor.FailedPrecondition, "atespace none"},
		{"of no template", actor.Ref{Atespace: "demo", Name: "b"}, actor.Ref{Atespace: "demo", Name: "none"}, actor.FailedPrecondition, "actor_template none"},
		{"with a bad name", actor.Ref{Atespace: "demo", Name: "B"}, template, actor.InvalidArgument, "actor.metadata.name"},
		{"with bad names", actor.Ref{Name: "b"}, actor.Ref{Atespace: "demo"}, actor.InvalidArgument, "actor.actor_template.name"},
	} {
		_, err := p.CreateActor(t.Context(), tc.ref, tc.template, nil)
		wantCode(t, tc.name, err, tc.code, tc.text)
	}
	_, err := p.GetActor(t.Context(), actor.Ref{Atespace: "demo", Name: "none"})
	wantCode(t, "get", err, actor.NotFound, "actor demo/none not found")
	_, err = p.GetActor(t.Context(), actor.Ref{Atespace: "demo"})
	wantCode(t, "get", err, actor.InvalidArgument, "actor.name")
}

// TestLife takes an actor through all its states.
func TestLife(t *testing.T) {
	p := newPlane(t, 1)
	uid := p.create(t, a1).UID
	ctx := t.Context()
	step := func(what string, f func() error, state actor.State, worker, call string) {
		t.Helper()
		before := len(p.boxes.calls)
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		p.wantState(t, a1, state, worker)
		if got := strings.Join(p.boxes.calls[before:], "; "); got != call {
			t.Errorf("%s calls %q, want %q", what, got, call)
		}
	}
	resume := func(want bool) func() error {
		return func() error {
			a, resumed, err := p.ResumeActor(ctx, a1)
			if resumed != want || a.State != actor.Running || a.Assignment == nil || a.Assignment.Addrs[0].String() != "10.0.0.1" || a.Assignment.ID == "" {
				t.Errorf("resumed %v, %+v", resumed, a)
			}
			return err
		}
	}
	simple := func(f func(context.Context, actor.Ref) (actor.Actor, error)) func() error {
		return func() error { _, err := f(ctx, a1); return err }
	}
	step("resume", resume(true), actor.Running, "w0", "start demo/a1 on w0")
	step("resume again", resume(false), actor.Running, "w0", "")
	step("pause", simple(p.PauseActor), actor.Paused, "", "pause demo/a1 on w0")
	step("resume", resume(true), actor.Running, "w0", "start demo/a1 on w0")
	step("suspend", simple(p.SuspendActor), actor.Suspended, "", "suspend demo/a1 on w0")
	step("suspend again", simple(p.SuspendActor), actor.Suspended, "", "")
	step("resume", resume(true), actor.Running, "w0", "start demo/a1 on w0")
	step("revert", simple(p.RevertActor), actor.Suspended, "", "revert demo/a1 on w0")
	step("resume", resume(true), actor.Running, "w0", "start demo/a1 on w0")
	step("pause", simple(p.PauseActor), actor.Paused, "", "pause demo/a1 on w0")
	step("suspend what is paused", simple(p.SuspendActor), actor.Suspended, "", "suspend demo/a1 on node n0")
	if len(p.slots(t)) != 0 {
		t.Errorf("places are taken: %v", p.slots(t))
	}
	if err := p.store.Update(ctx, func(tx store.Tx) error {
		_, err := tx.Create(store.Key{Kind: devplane.KindPolicy, Group: "demo", Name: "a1"}, "u", nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	a, err := p.DeleteActor(ctx, a1, actor.Terms{})
	if err != nil || a.State != actor.Deleting || a.UID != uid {
		t.Errorf("delete: %+v, %v", a, err)
	}
	_, err = p.GetActor(ctx, a1)
	wantCode(t, "afterwards", err, actor.NotFound, "")
	if again := p.create(t, a1); again.UID == uid {
		t.Error("created again, it has the same UID")
	}
	if err := p.store.View(ctx, func(tx store.Tx) error {
		_, err := tx.Get(store.Key{Kind: devplane.KindPolicy, Group: "demo", Name: "a1"})
		return err
	}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the policy is still there: %v", err)
	}
}

func TestIllegal(t *testing.T) {
	p := newPlane(t, 1)
	p.create(t, a1)
	ctx := t.Context()
	_, err := p.PauseActor(ctx, a1)
	wantCode(t, "pause what is suspended", err, actor.FailedPrecondition, "actor demo/a1 is SUSPENDED: cannot pause")
	_, err = p.RevertActor(ctx, a1)
	wantCode(t, "revert what is suspended", err, actor.FailedPrecondition, "")
	if _, _, err := p.ResumeActor(ctx, a1); err != nil {
		t.Fatal(err)
	}
	_, err = p.DeleteActor(ctx, a1, actor.Terms{})
	wantCode(t, "delete what runs", err, actor.FailedPrecondition, "")
	now := p.wantState(t, a1, actor.Running, "w0")
	for what, terms := range map[string]actor.Terms{
		"another uid":     {AnyState: true, UID: "other"},
		"another version": {AnyState: true, Version: now.Version - 1},
	} {
		_, err = p.DeleteActor(ctx, a1, terms)
		wantCode(t, what, err, actor.Aborted, "")
	}
	if _, err := p.DeleteActor(ctx, a1, actor.Terms{AnyState: true, UID: now.UID, Version: now.Version}); err != nil {
		t.Error(err)
	}
	if len(p.boxes.running) != 0 || len(p.slots(t)) != 0 {
		t.Errorf("left: %v, %v", p.boxes.running, p.slots(t))
	}
	_, _, err = p.ResumeActor(ctx, actor.Ref{Atespace: "demo", Name: "a_1"})
	wantCode(t, "a bad name", err, actor.InvalidArgument, "actor.name")
}

// TestFailures has the sandbox's side fail in each operation.
func TestFailures(t *testing.T) {
	down := fmt.Errorf("dial: %w", actor.ErrUnavailable)
	broken := errors.New("image not found")
	ctx := context.Background()
	ops := map[string]func(p plane) error{
		"resume":  func(p plane) error { _, _, err := p.ResumeActor(ctx, a1); return err },
		"suspend": func(p plane) error { _, err := p.SuspendActor(ctx, a1); return err },
		"pause":   func(p plane) error { _, err := p.PauseActor(ctx, a1); return err },
		"revert":  func(p plane) error { _, err := p.RevertActor(ctx, a1); return err },
		"delete":  func(p plane) error { _, err := p.DeleteActor(ctx, a1, actor.Terms{AnyState: true}); return err },
	}
	for _, tc := range []struct {
		op     string
		err    error
		code   actor.Code
		state  actor.State
		worker string
		again  actor.Code // of the same operation once the failure is over; 0 it succeeds
	}{
		{"resume", down, actor.Unavailable, actor.Resuming, "w0", 0},
		{"resume", broken, actor.Internal, actor.Crashed, "", actor.FailedPrecondition},
		{"suspend", down, actor.Unavailable, actor.Suspending, "w0", 0},
		{"suspend", broken, actor.Internal, actor.Crashed, "", actor.FailedPrecondition},
		{"pause", down, actor.Unavailable, actor.Running, "w0", 0},
		{"pause", broken, actor.Internal, actor.Crashed, "", actor.FailedPrecondition},
		{"revert", down, actor.Unavailable, actor.Running, "w0", 0},
		{"revert", broken, actor.Internal, actor.Crashed, "", 0},
		{"delete", down, actor.Unavailable, actor.Deleting, "w0", 0},
		{"delete", broken, actor.Internal, actor.Crashed, "", 0},
	} {
		t.Run(fmt.Sprint(tc.op, " ", tc.code), func(t *testing.T) {
			p := newPlane(t, 1)
			p.create(t, a1)
			if tc.op != "resume" {
				if _, _, err := p.ResumeActor(ctx, a1); err != nil {
					t.Fatal(err)
				}
			}
			p.boxes.failing(with(tc.err))
			err := ops[tc.op](p)
			wantCode(t, "it", err, tc.code, "actor demo/a1")
			if !errors.Is(err, tc.err) {
				t.Errorf("%v does not say what it comes from", err)
			}
			a := p.wantState(t, a1, tc.state, tc.worker)
			if tc.state == actor.Crashed && (a.Crash != tc.op+" failed: image not found" || a.CrashTime.IsZero()) {
				t.Errorf("the crash: %q at %v", a.Crash, a.CrashTime)
			}
			if n := p.slots(t)["w0"]; (n == 1) != (tc.worker != "") {
				t.Errorf("%d places are taken", n)
			}
			p.boxes.failing(nil)
			if err = ops[tc.op](p); tc.again != 0 {
				wantCode(t, "again", err, tc.again, "")
			} else if err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestLongCrash(t *testing.T) {
	p := newPlane(t, 1)
	p.create(t, a1)
	p.boxes.failing(with(errors.New(strings.Repeat("é", 4096))))
	_, _, err := p.ResumeActor(t.Context(), a1)
	wantCode(t, "resume", err, actor.Internal, "resume failed")
	if a := p.wantState(t, a1, actor.Crashed, ""); len(a.Crash) > 4096 || strings.Contains(a.Crash, "\ufffd") || len(a.Crash) < 4000 {
		t.Errorf("a message of %d bytes: %q", len(a.Crash), a.Crash[len(a.Crash)-5:])
	}
	if _, err := p.RevertActor(t.Context(), a1); err != nil {
		t.Fatal(err)
	}
	if a := p.wantState(t, a1, actor.Suspended, ""); a.Crash != "" || !a.CrashTime.IsZero() {
		t.Errorf("reverted, it still has the crash: %q", a.Crash)
	}
}
