package dev

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// coldRequests come at once.
const coldRequests = 50

// cold wakes an actor by many requests.
func (t *tour) cold(ctx context.Context) error {
	before, err := t.admin.GetActor(ctx, demoActor)
	if err != nil {
		return err
	}
	t.check("it sleeps", wantState(before, actor.Suspended), "%s is %s", demoActor, before.State)
	began := time.Now()
	answers := make([]EchoState, coldRequests)
	errs := make([]error, coldRequests)
	var all sync.WaitGroup
	for i := range coldRequests {
		all.Go(func() { answers[i], errs[i] = t.who(ctx, demoActor) })
	}
	all.Wait()
	took := since(began)
	t.check("every request is answered", errors.Join(errs...), "%d of %d within %s", coldRequests, coldRequests, took)
	after, err := t.admin.GetActor(ctx, demoActor)
	if err == nil && after.Version != before.Version+2 {
		err = fmt.Errorf("the actor was written %d times, where RESUMING and RUNNING are two", after.Version-before.Version)
	}
	t.check("it was resumed once", err, "version %d, then %d: RESUMING, RUNNING", before.Version, after.Version)
	t.check("one process answered all", oneProcess(answers), "each was counted once, 1 to %d", coldRequests)
	return nil
}

func wantState(a actor.Actor, want actor.State) error {
	if a.State != want {
		return fmt.Errorf("%s is %s, not %s", a.Ref, a.State, want)
	}
	return nil
}

// oneProcess wants each answer to be another one of the same process.
func oneProcess(answers []EchoState) error {
	counts := map[int]bool{}
	for _, a := range answers {
		if !a.Started.Equal(answers[0].Started) {
			return errors.New("two processes answered")
		}
		if a.Count < 1 || a.Count > len(answers) || counts[a.Count] {
			return fmt.Errorf("an answer says that it is number %d, twice or beyond %d", a.Count, len(answers))
		}
		counts[a.Count] = true
	}
	return nil
}

// connectStatus asks for a tunnel and returns the answer's head.
func connectStatus(ctx context.Context, c *tls.Conn, ref actor.Ref) (*http.Response, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	if _, err := fmt.Fprintf(c, "CONNECT actor:80 HTTP/1.1\r\nHost: actor:80\r\nate-target-actor: %s\r\n\r\n", ref); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	return resp, resp.Body.Close()
}

// suspend sends an actor to sleep and wakes it by a request.
func (t *tour) suspend(ctx context.Context) error {
	before, err := t.who(ctx, demoActor)
	if err != nil {
		return err
	}
	worker, err := t.workerOf(ctx, demoActor)
	if err != nil {
		return err
	}
	began := time.Now()
	_, err = t.admin.SuspendActor(ctx, demoActor)
	t.check("it is suspended", err, "in %s, on %s", since(began), workerName(worker))
	resp, err := t.tunnelStatus(ctx, workerHost(worker), demoActor)
	if err == nil && (resp.StatusCode != http.StatusMisdirectedRequest || resp.Header.Get("X-Ate-Assignment-Stale") != "true") {
		err = fmt.Errorf("the worker answers %d", resp.StatusCode)
	}
	t.check("its worker refuses tunnels", err, "421 Misdirected Request, and the router knows that it has to ask again")
	text, err := t.cli(ctx, "policy", "explain", "--actor", demoActor.String(), "https://"+apiName+"/")
	t.check("and it gets nowhere", wantText(text, err, "actor_not_running"), "sluice policy explain: actor_not_running")
	a, err := t.admin.GetActor(ctx, demoActor)
	t.check("it still sleeps", errors.Join(err, wantState(a, actor.Suspended)), "nobody was woken by looking")
	began = time.Now()
	after, err := t.who(ctx, demoActor)
	took := since(began)
	if err == nil && (!after.Started.Equal(before.Started) || after.Count != before.Count+1) {
		err = fmt.Errorf("it counted to %d before, and to %d after", before.Count, after.Count)
	}
	t.check("a request wakes it, with its memory", err, "in %s; it counts on from %d to %d", took, before.Count, after.Count)
	return nil
}
