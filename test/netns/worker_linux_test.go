package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// Two workers on one machine, two actors, a move between them, and an orderly end that leaves nothing.
func TestWorkersHostActorsAndLeaveNothing(t *testing.T) {
	s := newSite(t)
	one, two := s.start("one"), s.start("two")
	one.activate("demo/a", 700001, false)
	one.activate("demo/b", 700002, false)
	one.works("demo/a")
	one.works("demo/b")
	one.order("suspend", actorOf("demo/a"))
	if _, err := one.get("demo/a", "/"); !stale(err) {
		t.Errorf("a suspended actor: %v", err)
	}
	two.activate("demo/a", 700001, true)
	two.works("demo/a")
	one.works("demo/b")
	if _, err := one.get("demo/a", "/"); !stale(err) {
		t.Errorf("an actor that has moved: %v", err)
	}
	for _, r := range []*running{one, two} {
		r.Stop(t)
	}
	if left, err := s.run.Left(); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// Killed, a worker leaves one actor that runs and one that is frozen; clean finds and removes all of it, and what the
// kernel lists proves it.
func TestCleanAfterKill(t *testing.T) {
	s := newSite(t)
	r := s.start("one")
	r.activate("demo/a", 700001, false)
	r.activate("demo/b", 700002, false)
	r.order("suspend", actorOf("demo/b"))
	links := linksOf(t, s.run)
	if len(links) != 4 {
		t.Fatalf("%d namespaces for two actors", len(links))
	}
	r.Signal(t, syscall.SIGKILL)
	if _, err := r.Ended(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	listed, err := command(t, "left", s.run.String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"namespace sluice-" + s.run.String() + "-demo-a", "-demo-a-at", "-demo-b", "process ", "group "} {
		if !strings.Contains(string(listed), want) {
			t.Errorf("%q is not listed: %s", want, listed)
		}
	}
	for range 2 { // the second time there is nothing to do
		if out, err := command(t, "clean", s.run.String()).CombinedOutput(); err != nil {
			t.Errorf("clean: %v: %s", err, out)
		}
	}
	if listed, err := command(t, "left", s.run.String()).Output(); err != nil || len(listed) > 0 {
		t.Errorf("after cleaning: %s (%v)", listed, err)
	}
	gatewaytest.NamespacesGone(t, links...)
	// The next worker begins where nothing is left of the one before, not even its socket.
	again := s.start("one")
	again.activate("demo/a", 700001, false)
	again.works("demo/a")
	again.order("terminate", actorOf("demo/a"))
}

// linksOf are the run's namespaces as links of /proc show them.
func linksOf(t *testing.T, run fabric.Run) (all []string) {
	t.Helper()
	names, err := filepath.Glob("/run/netns/sluice-" + run.String() + "-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("net:[%d]", info.Sys().(*syscall.Stat_t).Ino))
	}
	return all
}

func TestCommandLine(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: the command needs root")
	}
	for _, c := range []struct {
		name string
		args string
		code int
		want []string
	}{
		{"nothing", "", 2, []string{"no command", "Usage:"}},
		{"help", "help", 0, nil},
		{"another command", "start", 2, []string{`no command "start"`}},
		{"no flags", "run", 2, []string{"--run", "--orders: a path is needed"}},
		{"every flag wrong", "run --run A --orders x --slots 0 --suspend-drain 0s --log-level loud --broker b more", 2, []string{
			`flags only, not "more"`, `--run: run "A"`, "--slots: 0", "--suspend-drain", "--log-level", "--egress-gateway and --broker",
		}},
		{"no such flag", "run --sudo", 2, []string{"sudo"}},
		{"no certificate", "run --run a --orders /nowhere/x --atunnel-credential-bundle /nowhere/c", 1, []string{"--atunnel-credential-bundle", "/nowhere/c"}},
		{"no place for the socket", "run --run a --orders /nowhere/x --atunnel-connect-listen-address=", 1, []string{"starting orders", "/nowhere/x"}},
		{"clean without a run", "clean", 2, []string{"identifier of one run"}},
		{"clean of no run", "clean a-b", 2, []string{`"a-b"`}},
		{"clean of nothing", "clean zzz", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := command(t, strings.Fields(c.args)...).CombinedOutput()
			code := 0
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, out)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q is not in: %s", want, out)
				}
			}
		})
	}
}
