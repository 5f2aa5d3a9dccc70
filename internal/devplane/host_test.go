package devplane_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/devplane"
	"github.com/sluice-proxy/sluice/internal/store"
)

// signer does something when it signs.
type signer func() ([][]byte, error)

func (s signer) IssueFor([]byte, cert.Leaf) ([][]byte, error) { return s() }

// An actor that leaves while its certificate is made gets none: it is nowhere when it was suspended, and somebody else when it
// was made again.
func TestI17_MintRace(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(p plane) error
		code      actor.Code
	}{
		"nothing happens": {func(plane) error { return nil }, 0},
		"it is suspended": {func(p plane) error { _, err := p.SuspendActor(context.Background(), a1); return err }, actor.PermissionDenied},
		"it is made again": {func(p plane) error {
			_, err := p.DeleteActor(context.Background(), a1, actor.Terms{AnyState: true})
			_, err2 := p.CreateActor(context.Background(), a1, actor.Ref{Atespace: "demo", Name: "echo"}, nil)
			_, _, err3 := p.ResumeActor(context.Background(), a1)
			return errors.Join(err, err2, err3)
		}, actor.Aborted},
		"it is gone": {func(p plane) error {
			_, err := p.DeleteActor(context.Background(), a1, actor.Terms{AnyState: true})
			return err
		}, actor.NotFound},
		"its worker is anew": {func(p plane) error {
			w := worker(0, 1)
			w.Epoch = 2
			_, err := p.AttachWorker(context.Background(), w)
			return err
		}, actor.PermissionDenied},
		"the authority is ill": {func(plane) error { return errors.New("ill") }, actor.Internal},
		"the request is none":  {func(plane) error { return fmt.Errorf("no: %w", cert.ErrRequest) }, actor.InvalidArgument},
	} {
		p := newPlane(t, 1)
		uid := p.create(t, a1).UID
		if _, _, err := p.ResumeActor(t.Context(), a1); err != nil {
			t.Fatal(err)
		}
		p.Signer = signer(func() ([][]byte, error) { return [][]byte{{1}}, tc.meanwhile(p) })
		chain, err := p.MintWorkerCertificate(t.Context(), "spiffe://cluster.local/ns/n/sa/s", a1, uid, []byte("request"))
		code := actor.Code(0)
		if e := (*actor.Error)(nil); errors.As(err, &e) {
			code = e.Code
		} else if err != nil {
			code = actor.Internal // as the server tells it
		}
		if code != tc.code || (len(chain) == 1) != (tc.code == 0) {
			t.Errorf("%s: %v, %v, want %v", name, chain, err, tc.code)
		}
	}
}

// Nobody is the empty caller, also where a worker is not bound to anybody yet.
func TestEmptyCaller(t *testing.T) {
	p := newPlane(t)
	p.create(t, a1)
	w := worker(0, 1)
	if _, err := p.CreateWorker(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	a, _, err := p.ResumeActor(t.Context(), a1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.MintWorkerCertificate(t.Context(), "", a1, a.UID, []byte("request"))
	wantCode(t, "mint", err, actor.PermissionDenied, "")
	_, err = p.RequestSuspend(t.Context(), "", "w0", a1, a.UID)
	wantCode(t, "suspend", err, actor.PermissionDenied, "")
	wantCode(t, "exit", p.ExitActor(t.Context(), "", a1, a.UID, ""), actor.PermissionDenied, "")
}

// TestReclaim ends a process in the middle of an operation, which nobody sees but the store.
func TestReclaim(t *testing.T) {
	p := newPlane(t, 1)
	p.create(t, a1)
	stuck, killed := make(chan struct{}), make(chan struct{})
	p.boxes.failing(func(string) error { close(stuck); <-killed; return nil })
	ended := make(chan error, 1)
	go func() {
		_, _, err := p.ResumeActor(context.Background(), a1)
		ended <- err
	}()
	<-stuck
	boxes := &sandboxes{running: map[string]string{}, away: map[string]bool{}}
	next := devplane.New(p.store, boxes)
	_, _, err := next.ResumeActor(t.Context(), a1)
	wantCode(t, "while the other one has the lock", err, actor.Aborted, "under way")
	if n, err := next.Reclaim(t.Context()); n != 1 || err != nil {
		t.Errorf("%d locks, %v", n, err)
	}
	if a, resumed, err := next.ResumeActor(t.Context(), a1); err != nil || !resumed || a.State != actor.Running || boxes.starts != 1 {
		t.Errorf("%v, %v, %v", a.State, resumed, err)
	}
	close(killed) // were it not dead, it could write nothing any more
	wantCode(t, "the one before", <-ended, actor.Aborted, "taken over")
	if n, err := next.Reclaim(t.Context()); n != 0 || err != nil {
		t.Errorf("then %d locks, %v", n, err)
	}
}

// An exit crashes what runs, and nothing that is being suspended.
func TestExit(t *testing.T) {
	p := newPlane(t, 1)
	p.create(t, a1)
	a, _, err := p.ResumeActor(t.Context(), a1)
	if err != nil {
		t.Fatal(err)
	}
	caller := a.Assignment.ID
	p.boxes.failing(func(string) error { return p.ExitActor(context.Background(), caller, a1, a.UID, "killed") })
	if _, err := p.SuspendActor(t.Context(), a1); err != nil {
		t.Errorf("it exits while it is suspended: %v", err)
	}
	p.wantState(t, a1, actor.Suspended, "")
	p.boxes.failing(nil)
	if _, _, err := p.ResumeActor(t.Context(), a1); err != nil {
		t.Fatal(err)
	}
	if err := p.ExitActor(t.Context(), caller, a1, a.UID, "status 3"); err != nil {
		t.Fatal(err)
	}
	if a := p.wantState(t, a1, actor.Crashed, ""); a.Crash != "the actor ended: status 3" {
		t.Errorf("%q", a.Crash)
	}
	wantCode(t, "again", p.ExitActor(t.Context(), caller, a1, a.UID, ""), actor.PermissionDenied, "")
}

// An exit that is told while an operation is under way counts where that leaves the actor running: a process may end as soon as
// it has begun, before it is written down that it runs, or before a pause that then cannot be done.
func TestExitDuringOperation(t *testing.T) {
	for name, tc := range map[string]struct {
		op   actor.Op
		fail error
		code actor.Code
		want actor.State
	}{
		"resume":                     {actor.Resume, nil, actor.Internal, actor.Crashed},
		"resume that may be retried": {actor.Resume, actor.ErrUnavailable, actor.Unavailable, actor.Resuming},
		"pause":                      {actor.Pause, nil, 0, actor.Paused},
		"pause that was not done":    {actor.Pause, actor.ErrUnavailable, actor.Unavailable, actor.Crashed},
		"revert that was not done":   {actor.Revert, actor.ErrUnavailable, actor.Unavailable, actor.Crashed},
		"suspend that was not done":  {actor.Suspend, actor.ErrUnavailable, actor.Unavailable, actor.Suspending},
	} {
		p := newPlane(t, 1)
		uid, caller := p.create(t, a1).UID, worker(0, 1).ID
		if tc.op != actor.Resume {
			if _, _, err := p.ResumeActor(t.Context(), a1); err != nil {
				t.Fatal(err)
			}
		}
		p.boxes.failing(func(string) error {
			return errors.Join(p.ExitActor(context.Background(), caller, a1, uid, "status 3"), tc.fail)
		})
		do := map[actor.Op]func(context.Context, actor.Ref) (actor.Actor, error){
			actor.Resume: func(ctx context.Context, r actor.Ref) (actor.Actor, error) {
				a, _, err := p.ResumeActor(ctx, r)
				return a, err
			},
			actor.Pause: p.PauseActor, actor.Revert: p.RevertActor, actor.Suspend: p.SuspendActor,
		}
		_, err := do[tc.op](t.Context(), a1)
		if err != nil || tc.code != 0 {
			wantCode(t, name, err, tc.code, "")
		}
		a, err := p.GetActor(t.Context(), a1)
		if err != nil || a.State != tc.want || (a.State == actor.Crashed) != strings.HasSuffix(a.Crash, "the actor ended: status 3") {
			t.Errorf("%s: %v, crash %q, %v", name, a.State, a.Crash, err)
		}
		p.boxes.failing(nil)
		if tc.want == actor.Resuming { // what ended before it was started again is over
			if _, _, err := p.ResumeActor(t.Context(), a1); err != nil {
				t.Error(err)
			}
			p.wantState(t, a1, actor.Running, "w0")
		}
	}
}

// A template's labels count, too.
func TestTemplateSelector(t *testing.T) {
	p := newPlane(t, 5, 1)
	template := actor.Template{Ref: actor.Ref{Atespace: "demo", Name: "picky"}, Selector: map[string]string{"n": "1"}, Containers: []actor.Container{{Name: "m", Image: "i"}}}
	if _, err := p.CreateTemplate(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"1": "w1", "0": ""} {
		ref := actor.Ref{Atespace: "demo", Name: "a" + name}
		if _, err := p.CreateActor(t.Context(), ref, template.Ref, map[string]string{"n": name}); err != nil {
			t.Fatal(err)
		}
		a, _, err := p.ResumeActor(t.Context(), ref)
		if want == "" {
			wantCode(t, name, err, actor.ResourceExhausted, "")
		} else if err != nil || a.Assignment.Worker != want {
			t.Errorf("%+v, %v", a.Assignment, err)
		}
	}
	p.boxes.away["w0"] = true
	other := actor.Ref{Atespace: "demo", Name: "other"}
	p.create(t, other)
	_, _, err := p.ResumeActor(t.Context(), other)
	wantCode(t, "on a worker that is away", err, actor.ResourceExhausted, "")
}

// Twenty callers of ten actors over SQLite: as many run as there are places, and nothing is left.
func TestPlaneOverSQLite(t *testing.T) {
	s, err := store.OpenSQLite(t.Context(), t.TempDir()+"/s.db")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	p := devplane.New(s, &sandboxes{running: map[string]string{}, away: map[string]bool{}})
	_, err = p.CreateAtespace(t.Context(), "demo")
	_, err2 := p.CreateTemplate(t.Context(), actor.Template{Ref: actor.Ref{Atespace: "demo", Name: "echo"}, Containers: []actor.Container{{Name: "m", Image: "i"}}})
	_, err3 := p.AttachWorker(t.Context(), worker(0, 3))
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	running := make(chan error, 20)
	for i := range 10 {
		ref := actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)}
		if _, err := p.CreateActor(t.Context(), ref, actor.Ref{Atespace: "demo", Name: "echo"}, nil); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			go func() {
				_, _, err := p.ResumeActor(context.Background(), ref)
				running <- err
			}()
		}
	}
	for range cap(running) {
		e := (*actor.Error)(nil)
		if err := <-running; err != nil && (!errors.As(err, &e) || e.Code != actor.ResourceExhausted && e.Code != actor.Aborted) {
			t.Error(err)
		}
	}
	if w, err := p.GetWorker(t.Context(), "w0"); err != nil || w.Hosted != 3 {
		t.Errorf("%d actors on a worker for 3, %v", w.Hosted, err)
	}
	if err := s.View(t.Context(), func(tx store.Tx) error {
		l, err := tx.List(devplane.KindLock, "demo", "", 100)
		if len(l) > 0 {
			t.Errorf("locks are left: %v", l)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
