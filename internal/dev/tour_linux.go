package dev

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

// Bounds of a tour.
const (
	tourLimit    = 2 * time.Minute
	requestLimit = 20 * time.Second
	eventLimit   = 15 * time.Second     // something happens, where it does not matter when
	tourPause    = 5 * time.Millisecond // between two looks at something that is waited for
	maxAnswer    = 8 << 20
)

// tour shows what a network does.
type tour struct {
	*supervisor
	*screen
	client *http.Client // of an operator: with the admin's certificate
}

// tourStep is one thing that is shown. An error, or a check that fails, ends the tour: what comes later builds on it.
type tourStep struct {
	name, shows string
	run         func(t *tour, ctx context.Context) error
}

var tourSteps = []tourStep{
	{"A cold actor", "50 requests at once at an actor that sleeps", (*tour).cold},
	{"Ways out", "what the actor may reach, with four clients that know the projected authority alone", (*tour).allowed},
	{"No ways out", "what it may not, each with its line in the audit log", (*tour).refused},
	{"Canaries", "where nobody may ever come", (*tour).canaries},
	{"A change of policy", "takes effect within a second, either way", (*tour).policy},
	{"sluice actor cut", "ends everything that an actor has open", (*tour).cut},
	{"Suspend and wake", "a suspended actor takes nothing, and goes on where it was", (*tour).suspend},
	{"Moves", "an actor moves between workers under 100 requests a second, and another one takes its slot", (*tour).moves},
	{"A worker is killed", "kill -9: its actors crash, others never notice", (*tour).killed},
	{"No control plane", "for three seconds: running actors answer, nothing new gets out", (*tour).headless},
	{"Drain", "the router is told to stop while a request is under way", (*tour).drained},
}

// Tour makes a development network, shows what it does, asserts each step, and removes everything. What does not hold is shown, and
// the error is ErrTour then.
func Tour(ctx context.Context, o Options) (err error) {
	began := time.Now()
	s, err := newSupervisor(o)
	if err != nil {
		return err
	}
	t := &tour{supervisor: s, screen: &screen{out: o.Out, colors: o.Colors}}
	ctx, cancel := context.WithTimeoutCause(ctx, tourLimit, fmt.Errorf("the tour may take %s", tourLimit))
	defer cancel()
	t.guided(ctx)
	if ctx.Err() != nil && len(t.failed) == 0 {
		t.check("the tour comes to its end", context.Cause(ctx), "")
	}
	t.removed()
	t.end(time.Since(began))
	if len(t.failed) > 0 {
		return ErrTour
	}
	return nil
}

// guided goes from step to step, until one fails.
func (t *tour) guided(ctx context.Context) {
	began := time.Now()
	t.step("A network", "a fabric of namespaces, and every part a process in its own")
	ctx, down := context.WithCancel(ctx)
	defer down()
	err := t.up(ctx)
	if err == nil {
		var stop func() error
		if stop, err = t.serve(down); err == nil {
			defer func() { _ = stop() }()
			t.client, err = t.operator()
		}
	}
	if !t.check("it is up", err, "%d namespaces, %d processes in %s", len(t.hosts)+1, len(t.all()), since(began)) {
		t.tails()
		return
	}
	for _, step := range tourSteps {
		t.step(step.name, step.shows)
		before := len(t.failed)
		if err := step.run(t, ctx); err != nil {
			t.check(step.name, err, "")
		}
		t.strays()
		if len(t.failed) > before {
			t.tails()
			return
		}
	}
}

// strays fails for parts that have ended without being told to.
func (t *tour) strays() {
	for {
		select {
		case p := <-t.died:
			_, how := p.ended()
			t.check(p.name+" goes on", fmt.Errorf("it has ended: %s", how), "")
		default:
			return
		}
	}
}

// tails shows the ends of all logs.
func (t *tour) tails() {
	for _, p := range t.all() {
		fmt.Fprintf(t.out, "\n    the end of the log of %s:\n%s\n", p.name, indent(indent(indent(p.tail(8)))))
	}
	if text := (&process{log: t.auditLog()}).tail(8); text != "" {
		fmt.Fprintf(t.out, "\n    the end of the audit log:\n%s\n", indent(indent(indent(text))))
	}
}

// removed ends everything and shows that nothing is left.
func (t *tour) removed() {
	t.step("The end", "everything is drained and removed")
	began := time.Now()
	t.check("it drains and is removed", t.close(), "in %s", since(began))
	left, err := t.left()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%w: %v", ErrLeft, left)
	}
	t.check("nothing is left", err, "no namespace, group, process or directory of run %s", t.Run)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

// operator is a client of the router with the admin's certificate.
func (t *tour) operator() (*http.Client, error) {
	own, err := mutual.OpenCredential(filepath.Join(t.component("admin"), app.IdentityMount, cert.CredentialFile))
	if err != nil {
		return nil, err
	}
	trust, err := mutual.OpenTrust(filepath.Join(t.component("admin"), app.ServiceMount, cert.TrustFile))
	if err != nil {
		return nil, err
	}
	at := t.forwarded(routerPart)
	return &http.Client{Timeout: requestLimit, Transport: &http.Transport{
		TLSClientConfig:     mutual.TLS{Own: own, Peers: trust}.ClientOf("localhost"),
		MaxIdleConnsPerHost: 128, DisableCompression: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at)
		},
	}}, nil
}

// ask sends an actor a request through the router, and reads its answer in JSON. Another one than 200 is an error.
func (t *tour) ask(ctx context.Context, ref actor.Ref, method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://localhost"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("ate-target-actor", ref.String())
	resp, err := t.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s: %.200s", resp.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// who asks an actor who it is.
func (t *tour) who(ctx context.Context, ref actor.Ref) (st EchoState, err error) {
	err = t.ask(ctx, ref, http.MethodGet, "/", nil, &st)
	if err == nil && st.Actor != ref.String() {
		err = fmt.Errorf("%s answered in the place of %s", st.Actor, ref)
	}
	return st, err
}

// inside executes a program in an actor.
func (t *tour) inside(ctx context.Context, ref actor.Ref, args ...string) (out EchoRun, err error) {
	err = t.ask(ctx, ref, http.MethodPost, "/run", args, &out)
	return out, err
}

// cli runs a command of ours on this machine, as its operator would.
func (t *tour) cli(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, t.Self, args...)
	cmd.Env = append(os.Environ(), "SLUICE_CONTROL="+t.forwarded(ateapiPart), "SLUICE_CREDENTIALS="+t.component("admin"), managementToken+"="+t.token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("sluice %v: %w: %s", args, err, out)
	}
	return string(out), err
}

// until looks again and again until check is true, at most for a while.
func until(ctx context.Context, within time.Duration, what string, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		ok, err := check()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not within %s: %s", within, what), err)
		case <-time.After(tourPause):
		}
	}
}

// state waits until an actor is in a state.
func (t *tour) state(ctx context.Context, ref actor.Ref, want actor.State) (a actor.Actor, err error) {
	err = until(ctx, requestLimit, ref.String()+" is "+want.String(), func() (bool, error) {
		var err error
		a, err = t.admin.GetActor(ctx, ref)
		return err == nil && a.State == want, err
	})
	return a, err
}

// workerOf is the number of the worker that an actor is on.
func (t *tour) workerOf(ctx context.Context, ref actor.Ref) (int, error) {
	a, err := t.admin.GetActor(ctx, ref)
	if err != nil {
		return 0, err
	}
	return t.workerNumber(a)
}

func (t *tour) workerNumber(a actor.Actor) (int, error) {
	for n := 1; a.Assignment != nil && n <= t.Workers; n++ {
		if workerName(n) == a.Assignment.Worker {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s is on no worker of ours: %s", a.Ref, a.State)
}

// tunnelStatus opens a tunnel to an actor at a worker, as the router does, and returns what the worker says.
func (t *tour) tunnelStatus(ctx context.Context, worker host, ref actor.Ref) (resp *http.Response, err error) {
	at := filepath.Join(t.component("router"), app.IdentityMount)
	own, err := mutual.OpenCredential(filepath.Join(at, cert.CredentialFile))
	if err != nil {
		return nil, err
	}
	trust, err := mutual.OpenTrust(filepath.Join(at, cert.TrustFile))
	if err != nil {
		return nil, err
	}
	raw, err := t.hosts[routerHost.name].Dial(ctx, worker.at(workerPort))
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	config := mutual.TLS{Own: own, Peers: trust, Check: func(string) error { return nil }, Protocols: []string{"http/1.1"}}.Client()
	return connectStatus(ctx, tls.Client(raw, config), ref)
}
