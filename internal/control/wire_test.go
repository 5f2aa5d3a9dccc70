package control_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/egress"
)

var sameAddr = cmp.Comparer(func(x, y netip.Addr) bool { return x == y })

// TestLifeOverTheWire takes an actor through its states, with the codes of each illegal step.
func TestLifeOverTheWire(t *testing.T) {
	s := newSystem(t)
	ctx, c := t.Context(), s.admin
	made := s.create(t, a1)
	if made.State != actor.Suspended || made.Assignment != nil || made.Version != 1 || made.UID == "" || made.Template != echo {
		t.Errorf("created: %+v", made)
	}
	_, _, err := c.ResumeActor(ctx, a1)
	wantCode(t, "resume without a worker", err, actor.ResourceExhausted)
	if err == nil || err.Error() != "no free workers available" {
		t.Errorf("the text is %v", err)
	}
	w := s.attach(t, "w1", 1, 7)
	a, resumed, err := c.ResumeActor(ctx, a1)
	if err != nil || !resumed || a.State != actor.Running || a.UID != made.UID {
		t.Fatalf("resume: %+v, %v, %v", a, resumed, err)
	}
	want := actor.Assignment{Worker: "w1", Epoch: 7, Place: workerOf("w1", 1, 7).Place}
	want.ID = app.WorkerID("w1")
	if d := cmp.Diff(&want, a.Assignment, sameAddr); d != "" {
		t.Errorf("the assignment:\n%s", d)
	}
	if a, resumed, err := c.ResumeActor(ctx, a1); err != nil || resumed || a.State != actor.Running {
		t.Errorf("resume again: %+v, %v, %v", a, resumed, err)
	}
	if len(w.calls) != 1 {
		t.Errorf("the worker was told %q", w.calls)
	}
	_, err = c.DeleteActor(ctx, a1, actor.Terms{})
	wantCode(t, "delete what runs", err, actor.FailedPrecondition)
	_, err = c.UpdateActor(ctx, a1, echo, nil, actor.Terms{UID: a.UID, Version: a.Version + 1})
	wantCode(t, "update another version", err, actor.Aborted)
	_, err = c.UpdateActor(ctx, a1, echo, nil, actor.Terms{})
	wantCode(t, "update without a version", err, actor.InvalidArgument)
	if _, err = c.UpdateActor(ctx, a1, echo, map[string]string{"name": "w1"}, actor.Terms{UID: a.UID, Version: a.Version}); err != nil {
		t.Error(err)
	}
	if a, err = c.PauseActor(ctx, a1); err != nil || a.State != actor.Paused || a.Node != "node-w1" || a.Assignment != nil {
		t.Errorf("pause: %+v, %v", a, err)
	}
	_, err = c.PauseActor(ctx, a1)
	wantCode(t, "pause again", err, actor.FailedPrecondition)
	s.resume(t, a1)
	if a, err = c.SuspendActor(ctx, a1); err != nil || a.State != actor.Suspended {
		t.Errorf("suspend: %+v, %v", a, err)
	}
	if _, err = c.SuspendActor(ctx, a1); err != nil {
		t.Errorf("suspend again: %v", err)
	}
	s.resume(t, a1)
	if a, err = c.RevertActor(ctx, a1); err != nil || a.State != actor.Suspended {
		t.Errorf("revert: %+v, %v", a, err)
	}
	if a, err = c.DeleteActor(ctx, a1, actor.Terms{UID: a.UID}); err != nil || a.State != actor.Deleting {
		t.Errorf("delete: %+v, %v", a, err)
	}
	_, err = c.GetActor(ctx, a1)
	wantCode(t, "get what is gone", err, actor.NotFound)
	if w.runs() != 0 {
		t.Error("something runs")
	}
	_, err = c.CreateActor(ctx, a1, actor.Ref{Atespace: "demo", Name: "none"}, nil)
	wantCode(t, "create from no template", err, actor.FailedPrecondition)
	_, err = c.CreateActor(ctx, actor.Ref{Atespace: "Demo", Name: "x"}, echo, nil)
	wantCode(t, "create with a bad name", err, actor.InvalidArgument)
}

// TestSandboxFailures: what a worker answers is what the actor becomes.
func TestSandboxFailures(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	w := s.attach(t, "w1", 5, 1)
	for _, tc := range []struct {
		name  string
		fail  error
		code  actor.Code
		state actor.State
		crash string
	}{
		{"unavailable", fmt.Errorf("the image is being fetched: %w", actor.ErrUnavailable), actor.Unavailable, actor.Resuming, ""},
		{"broken", errors.New("no such image"), actor.Internal, actor.Crashed, "resume failed: no such image"},
	} {
		ref := actor.Ref{Atespace: "demo", Name: tc.name}
		s.create(t, ref)
		w.failing(func(context.Context, string) error { return tc.fail })
		_, _, err := s.admin.ResumeActor(ctx, ref)
		wantCode(t, tc.name, err, tc.code)
		a, err := s.admin.GetActor(ctx, ref)
		if err != nil || a.State != tc.state || a.Crash != tc.crash || (a.Assignment != nil) != (tc.state == actor.Resuming) || a.CrashTime.IsZero() != (tc.crash == "") {
			t.Errorf("%s: %+v, %v", tc.name, a, err)
		}
	}
	w.failing(nil)
	s.resume(t, actor.Ref{Atespace: "demo", Name: "unavailable"})
	broken := actor.Ref{Atespace: "demo", Name: "broken"}
	_, _, err := s.admin.ResumeActor(ctx, broken)
	wantCode(t, "resume what is crashed", err, actor.FailedPrecondition)
	if _, err := s.admin.RevertActor(ctx, broken); err != nil {
		t.Error(err)
	}
	w.failing(func(context.Context, string) error { panic("a fault of the worker's") })
	_, _, err = s.admin.ResumeActor(ctx, broken)
	wantCode(t, "a worker with a fault", err, actor.Internal)
	w.failing(nil)
	s.resume(t, actor.Ref{Atespace: "demo", Name: "unavailable"}) // it goes on all the same
}

// KF_ACT_04: fifty callers of a cold actor, one sandbox.
func TestKF_ACT_04_FiftyResumes(t *testing.T) {
	s := newSystem(t)
	s.create(t, a1)
	w := s.attach(t, "w1", 5, 1)
	hold := make(chan struct{})
	w.failing(func(context.Context, string) error { <-hold; return nil })
	router := s.client(t, "router")
	var did, aborted, found atomic.Int64
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			_, resumed, err := router.ResumeActor(t.Context(), a1)
			e := (*actor.Error)(nil)
			switch {
			case errors.As(err, &e) && e.Code == actor.Aborted:
				if aborted.Add(1) == 49 {
					close(hold)
				}
			case err != nil:
				t.Error(err)
			case resumed:
				did.Add(1)
			default:
				found.Add(1)
			}
		})
	}
	callers.Wait()
	if did.Load() != 1 || aborted.Load() != 49 || w.runs() != 1 || len(w.calls) != 1 {
		t.Errorf("%d did, %d aborted, %d found, %d run; told %q", did.Load(), aborted.Load(), found.Load(), w.runs(), w.calls)
	}
}

// A caller that leaves does not end what it has begun.
func TestCallerLeavesOverTheWire(t *testing.T) {
	s := newSystem(t)
	s.create(t, a1)
	w := s.attach(t, "w1", 1, 1)
	under, hold := make(chan struct{}), make(chan struct{})
	w.failing(func(context.Context, string) error { close(under); <-hold; return nil })
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := s.admin.ResumeActor(ctx, a1)
		ended <- err
	}()
	<-under
	leave()
	wantCode(t, "who has left", <-ended, actor.Canceled)
	close(hold)
	until(t, "the actor runs", func() bool {
		a, err := s.admin.GetActor(t.Context(), a1)
		return err == nil && a.State == actor.Running
	})
}

func TestPolicyOverTheWire(t *testing.T) {
	s := newSystem(t)
	ctx, c := t.Context(), s.admin
	policy := egress.Policy{Name: "default", Atespace: "demo", Rules: []egress.Rule{
		{HTTPS: &egress.WebRule{Hostnames: []string{"api.example.com"}}},
		{Passthrough: &egress.PassthroughRule{Hostnames: []string{"*.b.test"}, Ports: &egress.Ports{All: true}}},
		{HTTP: &egress.WebRule{Hostnames: []string{"c.test"}, Ports: &egress.Ports{Numbers: []int32{80, 8080}}, Effects: &egress.Effects{ReplaceHeaders: []egress.CredentialHeader{
			{Header: "authorization", Prefix: "Bearer ", CredentialURI: "ate-secret://a/b/c"},
			{Header: "x-token", JWT: &egress.JWTSource{Audiences: []string{"a"}, ExpirationSeconds: 300}},
		}}}},
	}}
	_, err := c.CreatePolicy(ctx, a1, policy)
	wantCode(t, "of no actor", err, actor.FailedPrecondition)
	_, err = c.GetPolicy(ctx, a1)
	wantCode(t, "there is none", err, actor.NotFound)
	s.create(t, a1)
	k, err := c.CreatePolicy(ctx, a1, policy)
	if d := cmp.Diff(policy.WithDefaults(), k.Policy); err != nil || d != "" || k.Version != 1 {
		t.Fatalf("created: %v\n%s", err, d)
	}
	_, err = c.CreatePolicy(ctx, a1, policy)
	wantCode(t, "again", err, actor.AlreadyExists)
	if got, err := s.client(t, "egress").GetPolicy(ctx, a1); err != nil || cmp.Diff(k, got) != "" {
		t.Errorf("as the egress gateway reads it: %v\n%s", err, cmp.Diff(k, got))
	}
	_, err = c.UpdatePolicy(ctx, a1, policy, actor.Terms{UID: k.UID})
	wantCode(t, "update without a version", err, actor.InvalidArgument)
	_, err = c.UpdatePolicy(ctx, a1, policy, actor.Terms{UID: k.UID, Version: 2})
	wantCode(t, "update another version", err, actor.Aborted)
	bad := policy
	bad.Rules = append([]egress.Rule{{}}, policy.Rules...)
	_, err = c.UpdatePolicy(ctx, a1, bad, actor.Terms{UID: k.UID, Version: 1})
	wantCode(t, "update to what is not valid", err, actor.InvalidArgument)
	bad = policy
	bad.Name = "other"
	_, err = c.UpdatePolicy(ctx, a1, bad, actor.Terms{UID: k.UID, Version: 1})
	wantCode(t, "update to another name", err, actor.InvalidArgument)
	policy.Rules = nil
	if k, err = c.UpdatePolicy(ctx, a1, policy, actor.Terms{UID: k.UID, Version: 1}); err != nil || k.Version != 2 || len(k.Rules) != 0 {
		t.Errorf("updated: %+v, %v", k, err)
	}
	if _, err = c.DeletePolicy(ctx, a1, actor.Terms{Version: 1}); err == nil {
		t.Error("another version was deleted")
	}
	if _, err = c.CreatePolicy(ctx, a1, policy); err == nil {
		t.Error("it was not there any more")
	}
	// An actor that is made again starts with none.
	if _, err := c.DeleteActor(ctx, a1, actor.Terms{}); err != nil {
		t.Fatal(err)
	}
	s.create(t, a1)
	_, err = c.GetPolicy(ctx, a1)
	wantCode(t, "of who was made again", err, actor.NotFound)
}

// TestRestart ends the control plane and starts another over the same files.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s := startAteapi(t, dir, app.StoreSQLite)
	s.seed(t)
	ctx := t.Context()
	for i := range 3 {
		s.create(t, actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)})
	}
	w := s.attach(t, "w1", 5, 3)
	ran := s.resume(t, a1)
	if _, err := s.admin.CreatePolicy(ctx, a1, egress.Policy{Name: "default", Atespace: "demo"}); err != nil {
		t.Fatal(err)
	}
	before, err := s.admin.ListActors(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	w.end()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = startAteapi(t, dir, app.StoreSQLite)
	after, err := s.admin.ListActors(ctx, "")
	if d := cmp.Diff(before, after, sameAddr); err != nil || d != "" || len(after) != 3 {
		t.Errorf("%v\n%s", err, d)
	}
	if k, err := s.admin.GetPolicy(ctx, a1); err != nil || k.Version != 1 {
		t.Errorf("the policy: %+v, %v", k, err)
	}
	// The worker comes again with the epoch it had: its actor is still its own.
	w = s.attach(t, "w1", 5, 3)
	if a, _, err := s.admin.ResumeActor(ctx, a1); err != nil || a.UID != ran.UID || a.State != actor.Running || len(w.calls) != 0 {
		t.Errorf("%+v, %v, told %q", a, err, w.calls)
	}
	if _, err := s.admin.SuspendActor(ctx, a1); err != nil || len(w.calls) != 1 {
		t.Errorf("%v, told %q", err, w.calls)
	}
}

// A control plane that ends while an actor is resumed leaves it as after any failure, also when its caller has left.
func TestStopDuringResume(t *testing.T) {
	dir := t.TempDir()
	s := startAteapi(t, dir, app.StoreSQLite)
	s.seed(t)
	s.create(t, a1)
	w := s.attach(t, "w1", 1, 1)
	under := make(chan struct{})
	w.failing(func(ctx context.Context, _ string) error { close(under); <-ctx.Done(); return ctx.Err() })
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := s.admin.ResumeActor(ctx, a1)
		ended <- err
	}()
	<-under
	leave()
	wantCode(t, "who has left", <-ended, actor.Canceled)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.end()
	s = startAteapi(t, dir, app.StoreSQLite)
	if a, err := s.admin.GetActor(t.Context(), a1); err != nil || a.State != actor.Resuming || a.Assignment == nil {
		t.Errorf("%v on %+v, %v", a.State, a.Assignment, err)
	}
	s.attach(t, "w1", 1, 1)
	if a := s.resume(t, a1); a.State != actor.Running {
		t.Errorf("%v", a.State)
	}
}

// Pages are short, and together everything.
func TestPagesOverTheWire(t *testing.T) {
	s := newSystem(t)
	if _, err := s.admin.CreateAtespace(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	want := 0
	for i := range 230 {
		for _, at := range []string{"demo", "other"} {
			s.create(t, actor.Ref{Atespace: at, Name: fmt.Sprint("a", i)})
			want++
		}
	}
	for at, n := range map[string]int{"": want, "demo": want / 2, "nobody": 0} {
		all, err := s.admin.ListActors(t.Context(), at)
		seen := map[actor.Ref]bool{}
		for _, a := range all {
			seen[a.Ref] = true
		}
		if err != nil || len(all) != n || len(seen) != n {
			t.Errorf("in %q: %d, of which %d are different, want %d, %v", at, len(all), len(seen), n, err)
		}
	}
	_, err := s.admin.ListActors(t.Context(), "No")
	wantCode(t, "in a bad name", err, actor.InvalidArgument)
}
