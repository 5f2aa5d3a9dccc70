package netns_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/dev"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// server builds the other binary once.
var server = sync.OnceValues(func() (string, error) {
	root, err := gatewaytest.RepositoryRoot()
	if err != nil {
		return "", err
	}
	return gatewaytest.Build(filepath.Join(root, ".cache", "netns"), "sluice", "v0.0.0-test")
})

// devRun is a development network by its commands. At the end of the test nothing of it may be there any more.
type devRun struct {
	t    *testing.T
	name string
	dir  string
	path string // of the binary
}

func newDevRun(t *testing.T) *devRun {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("the development network needs root, which CI has")
		}
		t.Skip("SKIPPED: the development network needs root")
	}
	path, err := server()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	d := &devRun{t: t, path: path, name: fmt.Sprintf("v%d", time.Now().UnixNano()/1e6%1e9)}
	d.dir = "/run/sluice-" + d.name
	run, err := fabric.NewRun(d.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := run.Left()
		if _, there := os.Stat(d.dir); err != nil || len(left) > 0 || there == nil {
			t.Errorf("the test left %v behind (%v), directory: %v", left, err, there == nil)
			_ = run.Clean(context.Background())
			_ = os.RemoveAll(d.dir)
		}
	})
	return d
}

// start begins a command that goes on.
func (d *devRun) start(what string) *gatewaytest.Process {
	d.t.Helper()
	worker, _ := binary() // built before
	return d.startWith(what, worker)
}

func (d *devRun) startWith(what, worker string) *gatewaytest.Process {
	d.t.Helper()
	return gatewaytest.Run(d.t, d.path, "dev", what, "--run", d.name, "--worker-binary", worker)
}

// run runs a command to its end, and returns its exit code and what it has printed.
func (d *devRun) run(what string, args ...string) (int, string) {
	d.t.Helper()
	cmd := exec.Command(d.path, append([]string{"dev", what, d.name}, args...)...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		d.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// want runs a command and wants its exit code and part of what it prints.
func (d *devRun) want(code int, part, what string, args ...string) string {
	d.t.Helper()
	got, out := d.run(what, args...)
	if got != code || !strings.Contains(out, part) {
		d.t.Errorf("dev %s: exit %d, want %d and %q:\n%s", what, got, code, part, out)
	}
	return out
}

func ends(t *testing.T, p *gatewaytest.Process, within time.Duration, code int) {
	t.Helper()
	if got, err := p.Ended(within); err != nil || got != code {
		t.Errorf("exit %d (%v), want %d:\n%s", got, err, code, p.Output())
	}
}

// The tour asserts every step by itself, and ends in less than two minutes.
func TestDevTour(t *testing.T) {
	d := newDevRun(t)
	for _, client := range []string{"curl", "openssl", "python3", "node"} {
		gatewaytest.Peer(t, client)
	}
	p := d.start("demo")
	ends(t, p, 2*time.Minute, 0)
	out := p.Output()
	for _, never := range []string{"FAILED", "absent", "\x1b"} {
		if strings.Contains(out, never) {
			t.Errorf("the tour says %q:\n%s", never, out)
		}
	}
	for _, step := range []string{"A cold actor", "No ways out", "Canaries", "Moves", "nothing is left", "assertions of 13 steps hold"} {
		if !strings.Contains(out, step) {
			t.Errorf("the tour does not say %q:\n%s", step, out)
		}
	}
}

// What needs a client that actors have not is shown as absent, all along.
func TestDevTourWithoutClients(t *testing.T) {
	d := newDevRun(t)
	worker, _ := binary() // built before
	at := t.TempDir()
	script := `mount -t tmpfs tmpfs "$1"; mkdir "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$1/upper,workdir=$1/work" /usr || exit 77
for c in curl openssl python3 node; do rm -f "/usr/bin/$c" "/usr/local/bin/$c"; done
shift; exec "$@"`
	p := gatewaytest.Run(t, "unshare", "--mount", "sh", "-uc", script, "sh", at, d.path, "dev", "demo", "--run", d.name, "--worker-binary", worker)
	code, err := p.Ended(2 * time.Minute)
	out := p.Output()
	if code == 77 && os.Getenv("CI") == "" {
		t.Skip("SKIPPED: this machine has no overlay file system: " + out)
	}
	if err != nil || code != 0 || strings.Contains(out, "FAILED") {
		t.Errorf("exit %d (%v):\n%s", code, err, out)
	}
	for _, what := range []string{"another policy counts", "a stream is cut", "nothing new gets out", "and running ones get out"} {
		if !strings.Contains(out, "absent  "+what) {
			t.Errorf("%s is not absent:\n%s", what, out)
		}
	}
}

// A tour in which something fails shows the log that tells why, and removes everything.
func TestDevTourFails(t *testing.T) {
	d := newDevRun(t)
	worker := filepath.Join(t.TempDir(), "worker")
	if err := os.WriteFile(worker, []byte("#!/bin/sh\necho this worker is broken\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := d.startWith("demo", worker)
	ends(t, p, time.Minute, 1)
	for _, part := range []string{"FAILED  it is up", "w1 ended before it was ready: exit status 3 this worker is broken", "the end of the log of w1", "nothing is left", "do not hold"} {
		if out := p.Output(); !strings.Contains(out, part) {
			t.Errorf("no %q in:\n%s", part, out)
		}
	}
}

// A tour that is interrupted says so, and removes everything.
func TestDevTourInterrupted(t *testing.T) {
	d := newDevRun(t)
	p := d.start("demo")
	p.Await(t, "it is up")
	p.Signal(t, syscall.SIGINT)
	ends(t, p, time.Minute, 1)
	if out := p.Output(); !strings.Contains(out, "do not hold") || !strings.Contains(out, "nothing is left") {
		t.Error(out)
	}
}

// One that is told to end while it still starts does.
func TestDevUpInterrupted(t *testing.T) {
	d := newDevRun(t)
	p := d.start("up")
	gatewaytest.Until(t, "the first part is started", func() bool { _, err := os.Stat(filepath.Join(d.dir, "logs", "ateapi.log")); return err == nil })
	p.Signal(t, syscall.SIGTERM)
	ends(t, p, time.Minute, 0)
}

// A terminal that is closed hangs up more than once: its shell does, and then the kernel. That is one wish to end, not two.
func TestDevUpHungUp(t *testing.T) {
	d := newDevRun(t)
	p := d.start("up")
	p.Await(t, "An actor network runs")
	p.Signal(t, syscall.SIGHUP)
	gatewaytest.Until(t, "it has ended", func() bool { return syscall.Kill(p.PID(), syscall.SIGHUP) != nil })
	ends(t, p, time.Minute, 0)
}

// A reader that leaves, as head does, costs what it does not read, and nothing else.
func TestDevReaderLeaves(t *testing.T) {
	d := newDevRun(t)
	worker, _ := binary() // built before
	cmd := exec.Command(d.path, "dev", "up", "--run", d.name, "--worker-binary", worker)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = w, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("it said:\n%s", text)
		}
	}()
	if err := errors.Join(r.Close(), w.Close()); err != nil { // before it has written anything
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	gatewaytest.Until(t, "the supervisor answers", func() bool { code, _ := d.run("status"); return code == 0 })
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestDevUpAndDown(t *testing.T) {
	d := newDevRun(t)
	d.want(1, "no development network runs", "status")
	d.want(1, "no development network runs", "down")
	p := d.start("up")
	p.Await(t, "An actor network runs")
	var st dev.Status
	if err := json.Unmarshal([]byte(d.want(0, "", "status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	if st.Run != d.name || st.Supervisor != p.PID() || len(st.Parts) != 7 || len(st.Actors) != 1 || st.ActorsError != "" {
		t.Errorf("%+v", st)
	}
	d.want(0, "demo/a1   SUSPENDED", "status")
	d.want(1, "runs already", "clean")
	d.greeted(p.Output())
	for _, part := range st.Parts {
		if part.Name == "w2" {
			if err := syscall.Kill(part.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.Await(t, `w2 \(process \d+\) has ended by itself: signal: killed`)
	d.want(0, "ended: signal: killed", "status")
	second := d.start("up")
	ends(t, second, time.Minute, 1)
	d.want(0, "nothing of run "+d.name+" is left", "down")
	ends(t, p, time.Minute, 0)
}

// greeted does what the greeting says that one can.
func (d *devRun) greeted(greeting string) {
	d.t.Helper()
	gatewaytest.Peer(d.t, "curl")
	_, ask, _ := strings.Cut(greeting, "wakes up for it:\n")
	ask, _, _ = strings.Cut(ask, "\n\n")
	_, more, _ := strings.Cut(greeting, "change it:\n")
	more, _, _ = strings.Cut(more, "\n\n")
	for _, c := range []struct{ script, want string }{
		{ask, `"actor":"demo/a1"`},
		{strings.TrimSpace(ask) + "run -d '[\"curl\",\"-sS\",\"https://api.demo.test/hello\"]'", "api.demo.test GET api.demo.test /hello"},
		{more, "0 tunnels of actor demo/a1 closed"},
	} {
		cmd := exec.Command("sh", "-ec", c.script)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
			d.t.Errorf("%s\n%v, want %q:\n%s", c.script, err, c.want, out)
		}
	}
}

// operate gives commands to the control plane of a network that is up.
func (d *devRun) operate(commands ...string) {
	d.t.Helper()
	var st dev.Status
	if err := json.Unmarshal([]byte(d.want(0, "", "status", "--json")), &st); err != nil {
		d.t.Fatal(err)
	}
	env := append(os.Environ(), "SLUICE_CREDENTIALS="+filepath.Join(st.Dir, "pki", "admin"))
	for _, a := range st.Addresses {
		if a.Name == "ateapi" {
			env = append(env, "SLUICE_CONTROL="+a.Host)
		}
	}
	for _, c := range commands {
		cmd := exec.Command(d.path, strings.Fields(c)...)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			d.t.Fatalf("sluice %s: %v: %s", c, err, out)
		}
	}
}

// What a supervisor leaves that was killed, with actors that run and others that are frozen, is found by its run, kept from another
// one, and removed.
func TestDevClean(t *testing.T) {
	d := newDevRun(t)
	p := d.start("up")
	p.Await(t, "An actor network runs")
	d.operate("actor create demo/b1 --template echo", "actor resume demo/b1", "actor resume demo/a1", "actor suspend demo/a1")
	p.Signal(t, syscall.SIGKILL)
	ends(t, p, time.Minute, -1)
	d.want(1, "sluice dev clean "+d.name, "status")
	second := d.start("up")
	ends(t, second, time.Minute, 1)
	if out := second.Output(); !strings.Contains(out, "sluice dev clean "+d.name) {
		t.Error(out)
	}
	out := d.want(0, "nothing of run "+d.name+" is left", "clean")
	for _, found := range []string{"found namespace sluice-" + d.name + "-router", "found process ", "found group ", "found directory " + d.dir} {
		if !strings.Contains(out, found) {
			t.Errorf("no %q in:\n%s", found, out)
		}
	}
	if again := d.want(0, "nothing of run", "clean"); strings.Contains(again, "found") {
		t.Error(again)
	}
}
