package worker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// patience bounds whatever a test waits for. It is not a duration that anything should take.
const patience = 20 * time.Second

// host is a worker whose egress gateway answers each connection with who dialed what.
type host struct {
	*worker.Worker
	t       *testing.T
	run     fabric.Run
	options worker.Options

	held   atomic.Int64 // credentials that were given out and not given up
	fail   atomic.Pointer[error]
	dialed chan string
	exited chan string
}

func newHost(t *testing.T, r fabric.Run, change func(o *worker.Options)) *host {
	t.Helper()
	h := &host{t: t, run: r, dialed: make(chan string, 1000), exited: make(chan string, 10)}
	clock := conn.NewClock()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = clock.Run(ctx) })
	h.options = worker.Options{
		Run: r, Slots: 2, Clock: clock, SuspendDrain: 300 * time.Millisecond,
		Egress: h.egress,
		Exited: func(a worker.Actor, how string) { h.exited <- a.Ref + " " + how },
	}
	if change != nil {
		change(&h.options)
	}
	h.Worker = worker.New(h.options)
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Errorf("closing the worker: %v", err)
		}
		if n := h.held.Load(); n != 0 {
			t.Errorf("%d credentials were not given up", n)
		}
		stop()
		wg.Wait()
	})
	return h
}

func (h *host) egress(_ context.Context, a worker.Actor) (worker.Egress, func() error, error) {
	if err := h.fail.Load(); err != nil {
		return nil, nil, *err
	}
	h.held.Add(1)
	out := func(_ context.Context, to netip.AddrPort) (conn.Conn, error) {
		h.dialed <- to.String()
		if to.Port() == 25 {
			return nil, errors.New("denied, for reasons that the actor must not know")
		}
		ours, theirs := conn.Pipe()
		go func() {
			defer theirs.Close()
			b := make([]byte, 64)
			n, err := theirs.Read(b)
			switch {
			case err != nil:
			case to.Port() == 26: // fails in the middle
				_, _ = theirs.Write(make([]byte, 100_000))
				conn.Abort(theirs)
			case to.Port() == 27: // ends
				_, _ = theirs.Write(make([]byte, 100_000))
			default:
				_, _ = fmt.Fprintf(theirs, "%s from %s to %s", b[:n], a.Ref, to)
			}
		}()
		return ours, nil
	}
	return out, func() error { h.held.Add(-1); return nil }, nil
}

func (h *host) spec(ref string) worker.Spec {
	h.t.Helper()
	p, _ := program(h.t, "serve")
	p.User += uint32(runs.Add(1)) // of this actor alone
	return worker.Spec{
		Actor:   worker.Actor{Ref: ref, UID: "uid-" + strings.ReplaceAll(ref, "/", "-")},
		Program: *p,
		Probe:   worker.Probe{Port: 80, Path: "/healthz"},
	}
}

func (h *host) activate(ref string) worker.Spec {
	h.t.Helper()
	s := h.spec(ref)
	if err := h.Activate(within(h.t, patience), s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// open is a tunnel to an actor; ended delivers how it ended.
func (h *host) open(ref string, port uint16) (client *conn.MemoryConn, ended <-chan error) {
	client, far := conn.Pipe()
	done := make(chan error, 1)
	to, err := h.Dial(context.Background(), ref, port)
	if err != nil {
		_ = far.Close()
		done <- err
		return client, done
	}
	go func() {
		to.Relay(far)
		done <- nil
	}()
	return client, done
}

// get asks an actor by a tunnel of its own.
func (h *host) get(ref, path string) (string, error) {
	client, ended := h.open(ref, 80)
	defer func() { _ = client.Close(); <-ended }()
	_ = client.SetDeadline(time.Now().Add(2 * patience)) // the actor, too, waits for what it does
	if _, err := fmt.Fprintf(client, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", path); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func (h *host) dial(ref, network, to string) string {
	h.t.Helper()
	return h.dialWithin(ref, network, to, patience)
}

func (h *host) dialWithin(ref, network, to string, wait time.Duration) string {
	h.t.Helper()
	got, err := h.get(ref, "/dial?"+url.Values{"network": {network}, "to": {to}, "wait": {wait.String()}}.Encode())
	if err != nil {
		h.t.Fatalf("asking the actor to dial %s: %v", to, err)
	}
	return got
}

// expectDial has an actor dial and wants one of several ends, with | between them. Silence alone is not waited for with patience.
func (h *host) expectDial(t *testing.T, ref, network, to, want string) {
	t.Helper()
	wait := patience
	if strings.Contains(want, "timeout") {
		wait = 2 * time.Second
	}
	if got := h.dialWithin(ref, network, to, wait); !strings.Contains("|"+want+"|", "|"+got+"|") {
		t.Errorf("%s to %s: %q, want %q", network, to, got, want)
	}
}

// reset is how a connection ends that the kernel has taken and we have not.
const reset = "dial ECONNRESET|write ECONNRESET|write EPIPE|read ECONNRESET"

func TestI11_EveryDialIsCapturedOrEndsInside(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	for _, c := range []struct{ name, network, to, want string }{
		{"a usual port", "tcp", "203.0.113.7:443", "hello from demo/a to 203.0.113.7:443"},
		{"the lowest port", "tcp", "203.0.113.7:1", "hello from demo/a to 203.0.113.7:1"},
		{"the highest port", "tcp", "203.0.113.7:65535", "hello from demo/a to 203.0.113.7:65535"},
		{"the port of the capture elsewhere", "tcp", "203.0.113.7:15001", "hello from demo/a to 203.0.113.7:15001"},
		{"a DNS server by TCP", "tcp", "192.0.2.53:53", "hello from demo/a to 192.0.2.53:53"},
		{"a private address", "tcp", "10.0.0.1:80", "hello from demo/a to 10.0.0.1:80"},
		{"metadata of the machine", "tcp", "169.254.169.254:80", "hello from demo/a to 169.254.169.254:80"},
		{"beside the own subnet", "tcp", "169.254.17.5:80", "hello from demo/a to 169.254.17.5:80"},
		{"by name", "tcp", "api.demo.test:8443", "hello from demo/a to 203.0.113.7:8443"},
		{"refused by the gateway", "tcp", "203.0.113.7:25", reset},
		{"the capturing listener itself", "tcp", "169.254.17.1:15001", reset},
		{"another port of the gateway", "tcp", "169.254.17.1:80", "dial timeout"},
		{"DNS at the gateway", "udp", "169.254.17.1:53", "read timeout"},
		{"QUIC", "udp", "203.0.113.7:443", "read ECONNREFUSED"},
		{"DNS elsewhere", "udp", "192.0.2.53:53", "read ECONNREFUSED"},
		{"IPv6", "tcp", "[2001:db8::1]:443", "dial ENETUNREACH|dial EADDRNOTAVAIL"},
		{"IPv4 in IPv6", "tcp", "[::ffff:203.0.113.7]:443", "hello from demo/a to 203.0.113.7:443"},
		{"over several paths", "mptcp", "203.0.113.7:443", "hello from demo/a to 203.0.113.7:443"},
		{"own loopback", "tcp", "127.0.0.1:81", "dial ECONNREFUSED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.expectDial(t, "demo/a", c.network, c.to, c.want)
		})
	}
	counts := h.Counts()
	if carried, loops, failed := counts.Carried.Load(), counts.Loops.Load(), counts.Failed.Load(); carried != 11 || loops != 1 || failed != 1 {
		t.Errorf("%d carried, %d loops, %d failed; want 11, 1 and 1", carried, loops, failed)
	}
	if others := counts.Foreign.Load() + counts.Unknown.Load() + counts.Full.Load(); others != 0 {
		t.Errorf("%d counted as something else", others)
	}
}

// KF_TUN_03: how the far end of a connection ends arrives at the actor at once, as what it is: an end behind all that was sent, or a
// reset.
func TestKF_TUN_03_EndsOfOthersArrive(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	for to, want := range map[string]string{"203.0.113.7:26": "ECONNRESET", "203.0.113.7:27": "100000 bytes"} {
		began := time.Now()
		if got := h.dial("demo/a", "all", to); got != want {
			t.Errorf("%s: %q, want %q", to, got, want)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: after %s", to, took)
		}
	}
}

// An actor that dials the moment it starts is captured as one that dials later: its way out is there before it.
func TestI14_FirstDialIsCaptured(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	p, _ := program(t, "early")
	s := worker.Spec{Actor: worker.Actor{Ref: "demo/early", UID: "early"}, Program: *p}
	if err := h.Activate(within(t, patience), s); err != nil {
		t.Fatal(err)
	}
	if got := <-h.dialed; got != "203.0.113.7:443" {
		t.Errorf("dialed %s", got)
	}
	if got := <-h.exited; got != "demo/early exit status 0" {
		t.Errorf("%s", got)
	}
}

// Two actors with the same addresses and ports never meet.
func TestI10_ActorsAreApart(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	h.activate("demo/b")
	var wg sync.WaitGroup
	for i := range 40 {
		ref := []string{"demo/a", "demo/b"}[i%2]
		wg.Go(func() {
			want := fmt.Sprintf("hello from %s to 203.0.113.7:%d", ref, 1000+i)
			if got := h.dial(ref, "tcp", fmt.Sprintf("203.0.113.7:%d", 1000+i)); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	wg.Wait()
	if _, ended := h.open("demo/c", 80); !errors.Is(<-ended, worker.ErrStale) {
		t.Error("an actor that is not here is not stale")
	}
	if _, ended := h.open("demo/a", 81); !errors.Is(<-ended, worker.ErrRefused) {
		t.Error("a port that nobody listens on is not refused")
	}
	if err := h.Activate(t.Context(), h.spec("demo/a")); !errors.Is(err, worker.ErrActive) {
		t.Errorf("activating twice: %v", err)
	}
	if err := h.Activate(t.Context(), h.spec("demo/c")); !errors.Is(err, worker.ErrSlots) {
		t.Errorf("activating a third: %v", err)
	}
}

// Each step of an activation may fail; whichever does, nothing is left.
func TestActivationIsUndone(t *testing.T) {
	wrong := errors.New("on purpose")
	for _, c := range []struct {
		name, want string
		change     func(h *host, s *worker.Spec, k *kernel)
	}{
		{"no name", "not an actor", func(_ *host, s *worker.Spec, _ *kernel) { s.Ref = "a" }},
		{"a name for no kernel object", "not an actor", func(_ *host, s *worker.Spec, _ *kernel) { s.UID = "../x" }},
		{"rules", "capturing connections: on purpose", func(_ *host, _ *worker.Spec, k *kernel) { k.fail = wrong }},
		{"limits", "making the control group", func(_ *host, s *worker.Spec, _ *kernel) { s.Program.Limits.Processes = 0 }},
		{"credentials", "getting credentials: the actor's key was not certified: on purpose", func(h *host, _ *worker.Spec, _ *kernel) { h.fail.Store(&wrong) }},
		{"program", "starting the program", func(_ *host, s *worker.Spec, _ *kernel) { s.Program.Path = "/nowhere" }},
		{"program that ends", "waiting for the actor: the actor did not get ready: its program ended: exit status 3", func(_ *host, s *worker.Spec, _ *kernel) {
			s.Program.Args = []string{"as-actor", "exit", "3"}
		}},
		{"probe", "answered 404", func(_ *host, s *worker.Spec, _ *kernel) { s.Probe.Path = "/other" }},
		{"nothing to thaw", "making the network", func(_ *host, s *worker.Spec, _ *kernel) { s.Thaw = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &kernel{}
			h := newHost(t, newRun(t), func(o *worker.Options) { o.Rules = k })
			s := h.spec("demo/a")
			c.change(h, &s, k)
			ctx, giveUp := context.WithCancel(within(t, patience))
			defer giveUp()
			if s.Probe.Path == "/other" {
				go untilRefused(ctx, s.Program.Output.Name(), giveUp)
			}
			err := h.Activate(ctx, s)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
			if left, err := h.run.Left(); err != nil || len(left) > 0 {
				t.Errorf("%v is left (%v)", left, err)
			}
			if k.installed != 0 || h.held.Load() != 0 || len(h.Actors()) != 0 {
				t.Errorf("%d rules, %d credentials and the stays %v are left", k.installed, h.held.Load(), h.Actors())
			}
			h.fail.Store(nil)
			k.fail = nil
			if s.Ref == "demo/a" && !s.Thaw && len(s.UID) > 4 { // the same actor, without the fault
				h.activate("demo/a")
			}
		})
	}
}

// untilRefused gives up once an actor's probe was answered that there is no such page: the answers before the last one that the
// output tells of have been read.
func untilRefused(ctx context.Context, output string, giveUp func()) {
	for ctx.Err() == nil {
		if text, err := os.ReadFile(output); err == nil && strings.Count(string(text), "asked") >= 3 {
			giveUp()
		}
		time.Sleep(time.Millisecond) // looking again, not hoping
	}
}

// kernel is Rules that only remember.
type kernel struct {
	fail      error
	installed int
}

func (k *kernel) Install(*fabric.Namespace) error {
	if k.fail == nil {
		k.installed++
	}
	return k.fail
}

func (k *kernel) Remove(*fabric.Namespace) error { k.installed--; return nil }

func TestSuspendedActorMovesToAnotherWorker(t *testing.T) {
	r := newRun(t)
	first, second := newHost(t, r, nil), newHost(t, r, nil)
	s := first.activate("demo/a")
	count(t, first, 1)
	hosts := []*host{first, second, second, first, second}
	for i, to := range hosts[1:] {
		from := hosts[i]
		if err := from.Suspend(within(t, patience), s.UID); err != nil {
			t.Fatal(err)
		}
		if _, ended := from.open("demo/a", 80); !errors.Is(<-ended, worker.ErrStale) {
			t.Error("a suspended actor takes tunnels")
		}
		if from.held.Load() != 0 || len(from.Actors()) != 0 {
			t.Error("a suspended actor keeps its credentials or its slot")
		}
		s.Thaw = true
		if err := to.Activate(within(t, patience), s); err != nil {
			t.Fatal(err)
		}
		count(t, to, i+2)
		if got := to.dial("demo/a", "tcp", "203.0.113.7:443"); got != "hello from demo/a to 203.0.113.7:443" {
			t.Errorf("after moving %q", got)
		}
		if n := len(from.dialed); from != to && n > 0 {
			t.Errorf("%d dials went to the worker before", n)
		}
		clear(to)
	}
	// It ends by itself on a worker that has not started it.
	_, _ = second.get("demo/a", "/exit")
	if got := <-second.exited; got != "demo/a ended" {
		t.Errorf("exited: %s", got)
	}
}

func clear(h *host) {
	for len(h.dialed) > 0 {
		<-h.dialed
	}
}

// count has the actor count in its memory.
func count(t *testing.T, h *host, want int) {
	t.Helper()
	if got, err := h.get("demo/a", "/count"); err != nil || got != fmt.Sprint(want) {
		t.Fatalf("the actor counts %q (%v), want %d", got, err, want)
	}
}

func TestSuspendedActorIsTerminated(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	s := h.activate("demo/a")
	if err := h.Suspend(within(t, patience), s.UID); err != nil {
		t.Fatal(err)
	}
	if err := h.Suspend(t.Context(), s.UID); !errors.Is(err, worker.ErrStale) {
		t.Errorf("suspending twice: %v", err)
	}
	for range 2 {
		if err := h.Terminate(within(t, patience), s.UID); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := h.run.Left(); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// KF_TUN_04: tunnels do not outlive their actor.
func TestKF_TUN_04_CrashRemovesEverything(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	h.activate("demo/a")
	client, ended := echo(t, h)
	_, _ = h.get("demo/a", "/exit")
	if got := <-h.exited; got != "demo/a exit status 7" {
		t.Errorf("exited: %s", got)
	}
	<-ended
	_ = client.Close()
	if left, err := h.run.Left(); err != nil || len(left) > 0 || h.held.Load() != 0 {
		t.Errorf("%v and %d credentials are left (%v)", left, h.held.Load(), err)
	}
	h.activate("demo/a")
}

// A worker that was killed leaves an actor; the next one that activates it begins afresh.
func TestActivationOverWhatWasLeft(t *testing.T) {
	r := newRun(t)
	dead, h := newHost(t, r, nil), newHost(t, r, nil)
	dead.activate("demo/a")
	count(t, dead, 1)
	h.activate("demo/a")
	count(t, h, 1)
	if got := <-dead.exited; got != "demo/a signal: killed" {
		t.Errorf("exited: %s", got)
	}
	count(t, h, 2)
}
