package dev

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// policyLimit is how old a policy may be by which a request is decided.
const policyLimit = time.Second

// restricted is demoPolicy without clear text.
const restricted = `{"rules":[{"https":{"hostnames":["` + apiName + `"]}}]}`

// policy takes a rule away, and gives it back.
func (t *tour) policy(ctx context.Context) error {
	if !t.has("curl", "another policy counts") {
		return nil
	}
	for _, change := range []struct {
		what, policy, want string
	}{{"a rule that is taken away counts no more", restricted, "403"}, {"one that is given counts", demoPolicy, "200"}} {
		if err := t.replace(ctx, demoActor, change.policy); err != nil {
			return err
		}
		began := time.Now()
		var try, late time.Duration // since the change, of the last try, and of the last one that went by the old policy
		err := until(ctx, eventLimit, "the actor hears "+change.want, func() (bool, error) {
			late, try = try, time.Since(began)
			out, err := t.inside(ctx, demoActor, curl("http://"+apiName+"/")...)
			return err == nil && out.Out == change.want, err
		})
		if err == nil && late > policyLimit {
			err = fmt.Errorf("a request that began %s after the change went by the old policy", late)
		}
		t.check(change.what, err, "a request that began %s after it is %s", try.Round(time.Millisecond), change.want)
	}
	return nil
}

// replace gives an actor another policy.
func (t *tour) replace(ctx context.Context, ref actor.Ref, text string) error {
	p, err := control.ParsePolicy([]byte(text), ref)
	if err != nil {
		return err
	}
	kept, err := t.admin.GetPolicy(ctx, ref)
	if err != nil {
		return err
	}
	_, err = t.admin.UpdatePolicy(ctx, ref, p, actor.Terms{UID: kept.UID, Version: kept.Version})
	return err
}

// cutLimit is how long something of an actor goes on that was cut.
const cutLimit = time.Second

// cut ends a connection of an actor that would go on.
func (t *tour) cut(ctx context.Context) error {
	if !t.has("curl", "a stream is cut") {
		return nil
	}
	reached := t.origins.count(apiName)
	ended := make(chan time.Time, 1)
	go func() { // ends with ctx at the latest, or with the program's own bound
		_, _ = t.inside(ctx, demoActor, "curl", "-sN", "http://"+apiName+"/stream")
		ended <- time.Now()
	}()
	err := until(ctx, eventLimit, "the stream begins", func() (bool, error) { return t.origins.count(apiName) > reached, nil })
	if !t.check("a stream runs", err, "http://%s/stream", apiName) {
		return nil
	}
	began := time.Now()
	text, err := t.cli(ctx, "actor", "cut", demoActor.String(), "--management", t.management())
	tunnels := 0 // one, and those that have only just come to their end
	if _, serr := fmt.Sscanf(text, "%d tunnels of actor "+demoActor.String()+" closed", &tunnels); err == nil && (serr != nil || tunnels < 1) {
		err = fmt.Errorf("it says: %s", text)
	}
	done := time.Now()
	t.check("it is cut", err, "%d tunnel, in %s", tunnels, since(began))
	select {
	case at := <-ended:
		late := max(0, at.Sub(done)) // how long it takes to give an order is not the stream's
		if err = nil; late > cutLimit {
			err = fmt.Errorf("only %s after the order was carried out", late)
		}
		t.check("and ends in the actor", err, "%s after the order was given", at.Sub(began).Round(time.Millisecond))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// spared is an actor that is on another worker than demoActor.
var spared = actor.Ref{Atespace: demoAtespace, Name: "b1"}

// apart has two actors run, on two workers. It returns the one of demoActor.
func (t *tour) apart(ctx context.Context) (worker int, err error) {
	if err := t.create(ctx, spared, ""); err != nil {
		return 0, err
	}
	for _, ref := range []actor.Ref{demoActor, spared} {
		if _, err := t.who(ctx, ref); err != nil {
			return 0, err
		}
	}
	if worker, err = t.workerOf(ctx, demoActor); err != nil {
		return 0, err
	}
	other, err := t.workerOf(ctx, spared)
	if err == nil && other == worker {
		err = fmt.Errorf("both actors are on %s", workerName(worker))
	}
	t.check("two actors on two workers", err, "%s on %s, %s on %s", demoActor, workerName(worker), spared, workerName(other))
	return worker, err
}

// killed kills the worker of an actor.
func (t *tour) killed(ctx context.Context) error {
	worker, err := t.apart(ctx)
	if err != nil {
		return err
	}
	before, err := t.who(ctx, spared)
	if err != nil {
		return err
	}
	part := t.part(workerName(worker))
	if err := part.kill(); err != nil {
		return err
	}
	_, how := part.ended()
	t.check("the other worker's actor answers on", t.same(ctx, spared, before), "%s, while %s has ended: %s", spared, part.name, how)
	began := time.Now()
	if err := t.startWorker(ctx, worker); err != nil {
		return err
	}
	a, err := t.state(ctx, demoActor, actor.Crashed)
	t.check("the worker comes back without its actors", err, "%s after the start: %s is %s: %s", since(began), demoActor, a.State, a.Crash)
	_, err = t.admin.RevertActor(ctx, demoActor)
	t.check("the crash is reverted", err, "it is as it was made")
	began = time.Now()
	st, err := t.who(ctx, demoActor)
	if err == nil && st.Count != 1 {
		err = fmt.Errorf("it counts %d", st.Count)
	}
	t.check("and a request starts it anew", err, "in %s; it counts from 1", since(began))
	return nil
}

// same wants an actor to be the process that it was.
func (t *tour) same(ctx context.Context, ref actor.Ref, before EchoState) error {
	st, err := t.who(ctx, ref)
	if err == nil && !st.Started.Equal(before.Started) {
		err = fmt.Errorf("%s is another process", ref)
	}
	return err
}

// outage is how long there is no control plane.
const outage = 3 * time.Second

// headless goes on without a control plane.
func (t *tour) headless(ctx context.Context) error {
	before, err := t.who(ctx, demoActor)
	if err != nil {
		return err
	}
	if err := t.part(ateapiPart).stop(grace); err != nil {
		return err
	}
	asked := 0
	for began := time.Now(); err == nil && time.Since(began) < outage; asked++ {
		err = t.same(ctx, demoActor, before)
		if err == nil && !rest(ctx, 50*time.Millisecond) { // a pace, not a wait
			err = context.Cause(ctx)
		}
	}
	t.check("running actors answer", err, "%d of %d requests", asked, asked)
	t.shut(ctx)
	if err := t.startAteapi(ctx); err != nil {
		return err
	}
	t.back(ctx)
	return nil
}

// shut shows that nothing gets out that nobody can decide about.
func (t *tour) shut(ctx context.Context) {
	if !t.has("curl", "nothing new gets out") {
		return
	}
	from := time.Now()
	out, err := t.inside(ctx, demoActor, curl("http://"+apiName+"/")...)
	if err == nil && out.Out == "200" {
		err = fmt.Errorf("it got 200")
	}
	t.check("nothing new gets out", err, "curl: exit status %d, HTTP status %s", out.Code, out.Out)
	rec, err := t.audited(ctx, from, wanted{verdict: "deny", reasons: []string{"actor_unavailable", "policy_unavailable"}})
	t.check("and the audit log says why", err, "%s", rec.Reason)
}

// back shows that everything goes on by itself.
func (t *tour) back(ctx context.Context) {
	back := time.Now()
	err := until(ctx, requestLimit, "a sleeping actor can be woken", func() (bool, error) {
		_, err := t.who(ctx, actor.Ref{Atespace: demoAtespace, Name: "x"})
		return err == nil, err
	})
	t.check("back again, sleeping actors wake", err, "%s after the start", since(back))
	if !t.has("curl", "and running ones get out") {
		return
	}
	err = until(ctx, requestLimit, "the actor gets out", func() (bool, error) {
		out, err := t.inside(ctx, demoActor, curl("http://"+apiName+"/")...)
		return err == nil && out.Out == "200", err
	})
	t.check("and running ones get out", err, "%s after the start", since(back))
}

// drained stops the router under a request.
func (t *tour) drained(ctx context.Context) error {
	slow := make(chan error, 1)
	go func() { slow <- t.ask(ctx, demoActor, http.MethodGet, "/slow?for=3s", nil, nil) }() // received below
	err := until(ctx, eventLimit, "the slow request is with the actor", func() (bool, error) {
		st, err := t.who(ctx, demoActor)
		return st.Busy == 1, err
	})
	if err != nil {
		return err
	}
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- t.part(routerPart).stop(grace) }() // received below
	err = until(ctx, eventLimit, "new connections are refused", func() (bool, error) {
		return t.accepts(routerHost.at(routerPort))(ctx) != nil, nil
	})
	t.check("new connections are refused", err, "%s after SIGTERM", since(began))
	t.check("the request under way ends well", <-slow, "200, %s after SIGTERM", since(began))
	t.check("the router has ended", <-stopped, "exit status 0, %s after SIGTERM", since(began))
	if err := t.startRouter(ctx); err != nil {
		return err
	}
	t.client.CloseIdleConnections()
	_, err = t.who(ctx, demoActor)
	t.check("another one serves on", err, "200")
	return nil
}
