package dev_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/dev"
)

func TestOptions(t *testing.T) {
	good := dev.Options{Run: "dev", Workers: 2, Slots: 2}
	for _, c := range []struct {
		name   string
		change func(*dev.Options)
		want   string // of the error; "" none
	}{
		{"as they are", func(*dev.Options) {}, ""},
		{"a run of 12", func(o *dev.Options) { o.Run = "0123456789ab" }, ""},
		{"a run of 13", func(o *dev.Options) { o.Run = "0123456789abc" }, `run "0123456789abc" is not 1 to 12`},
		{"no run", func(o *dev.Options) { o.Run = "" }, "is not 1 to 12"},
		{"a run that is a path", func(o *dev.Options) { o.Run = "../x" }, "is not 1 to 12"},
		{"most workers", func(o *dev.Options) { o.Workers, o.Slots = 16, 64 }, ""},
		{"too many", func(o *dev.Options) { o.Workers, o.Slots = 17, 65 }, "17 workers are not between 1 and 16"},
		{"all at once", func(o *dev.Options) { o.Workers, o.Slots = 17, 65 }, "65 slots are not between 1 and 64"},
		{"none", func(o *dev.Options) { o.Workers = 0 }, "0 workers"},
		{"a long directory", func(o *dev.Options) { o.Dir = "/" + strings.Repeat("x", 80) }, "longer than 80 bytes"},
		{"the longest", func(o *dev.Options) { o.Dir = "/" + strings.Repeat("x", 79) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := good
			c.change(&o)
			err := o.Complete()
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, dev.ErrOptions) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if err := good.Complete(); err != nil || good.Dir != "/run/sluice-dev" {
		t.Errorf("%v, directory %q", err, good.Dir)
	}
}

// Origins have addresses of the public kind: a gateway refuses any other. What must never be reached has one that is refused, or a
// name that no rule allows.
func TestPlan(t *testing.T) {
	gateway, actors := dev.Tables()
	hosts := map[netip.Addr]bool{}
	for _, p := range dev.HostAddresses() {
		if hosts[p.Addr()] {
			t.Errorf("%s belongs to two hosts", p.Addr())
		}
		hosts[p.Addr()] = true
	}
	for line := range strings.Lines(gateway) {
		address, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		a := netip.MustParseAddr(address)
		special := name == "metadata.demo.test" || name == "loopback.demo.test" || name == "private.demo.test"
		if conn.Special(a) != special {
			t.Errorf("%s is at %s: special %v", name, a, conn.Special(a))
		}
		if !a.IsLoopback() && !hosts[a] {
			t.Errorf("%s is at %s, which no host has", name, a)
		}
	}
	if strings.Contains(actors, "127.0.0.1") || strings.Count(actors, "\n") != strings.Count(gateway, "\n") {
		t.Errorf("actors would stay at home:\n%s", actors)
	}
	for _, p := range dev.Policies() {
		if _, err := control.ParsePolicy([]byte(p), actor.Ref{Atespace: "demo", Name: "a1"}); err != nil {
			t.Error(err)
		}
		if strings.Contains(p, "evil") {
			t.Error("a policy allows the name that none may")
		}
	}
}

func TestScreen(t *testing.T) {
	var out strings.Builder
	s := dev.NewScreen(&out, false)
	s.Step("One", "shows it")
	s.Check("this", nil, "3 ms")
	s.Absent("that", "no program")
	s.Check("bad", errors.New("first\nsecond\x1b[31m"), "")
	s.End()
	want := strings.Join([]string{
		"", " 1  One                                                   shows it",
		"    ok      this                                          3 ms",
		"    absent  that                                          no program",
		`    FAILED  bad                                           first second\u001b[31m`,
		"", "1 of 2 assertions do not hold, after 1.5s: bad", "",
	}, "\n")
	if out.String() != want {
		t.Errorf("%s\nwant %s", out.String(), want)
	}
	out.Reset()
	s = dev.NewScreen(&out, true)
	s.Check("this", nil, strings.Repeat("x", 300))
	s.End()
	if got := out.String(); !strings.Contains(got, "\x1b[32mok    \x1b[0m") || !strings.Contains(got, strings.Repeat("x", 200)+"...\n") || !strings.Contains(got, "All 1 assertions") {
		t.Error(got)
	}
}

func TestOneProcess(t *testing.T) {
	now := time.Now()
	answers := func(counts ...int) (all []dev.EchoState) {
		for _, n := range counts {
			all = append(all, dev.EchoState{Started: now, Count: n})
		}
		return all
	}
	two := answers(1, 2)
	two[1].Started = now.Add(time.Second)
	for name, c := range map[string]struct {
		answers []dev.EchoState
		good    bool
	}{"each once": {answers(3, 1, 2), true}, "one twice": {answers(1, 1, 2), false}, "one from before": {answers(2, 3, 4), false}, "two processes": {two, false}} {
		if err := dev.OneProcess(c.answers); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// runName is a run of the test's own: those of two test processes must not meet.
func runName() string { return fmt.Sprintf("t%d", os.Getpid()%1e9) }

// A directory that is somebody's is left alone, whatever is done.
func TestForeignDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root nothing is looked at")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := runName()
	o := dev.Options{Run: name, Dir: dir, Workers: 1, Slots: 1, Self: self, Worker: self, Out: &strings.Builder{}}
	if err := dev.Up(t.Context(), o); !errors.Is(err, dev.ErrOptions) || !strings.Contains(err.Error(), "somebody else's") {
		t.Error(err)
	}
	if found, err := dev.Clean(t.Context(), o); err != nil || len(found) != 0 {
		t.Errorf("%v %v", found, err)
	}
	if err := dev.Down(t.Context(), o); !errors.Is(err, dev.ErrNone) {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if err := dev.Up(t.Context(), dev.Options{Run: name, Workers: 1, Slots: 1, Self: self, Worker: "/no/such/worker"}); !errors.Is(err, dev.ErrOptions) {
		t.Error(err)
	}
}

// Who has not said which network is told which there are.
func TestOtherNetworksAreNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root nothing is looked at")
	}
	other := "x" + runName()
	claim, err := net.Listen("unix", "@sluice-dev-"+other)
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Close()
	o := dev.Options{Run: runName(), Dir: filepath.Join(t.TempDir(), "none")}
	if _, err := dev.Look(t.Context(), o); !errors.Is(err, dev.ErrNone) || !strings.Contains(err.Error(), "there is ") || !strings.Contains(err.Error(), other) {
		t.Error(err)
	}
}

// Who looks keeps nobody from making or cleaning a run.
func TestLookingClaimsNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root nothing is looked at")
	}
	o := dev.Options{Run: runName(), Dir: filepath.Join(t.TempDir(), "none")}
	stop := make(chan struct{})
	var looking sync.WaitGroup
	for range 4 {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := dev.Look(t.Context(), o); !errors.Is(err, dev.ErrNone) {
					t.Error(err)
				}
			}
		})
	}
	for range 30 {
		if _, err := dev.Clean(t.Context(), o); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	looking.Wait()
}

// A directory is of one run: another one may be up in it.
func TestDirectoryOfAnotherRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root nothing is looked at")
	}
	dir := t.TempDir()
	marker := filepath.Join(dir, "sluice-dev")
	if err := os.WriteFile(marker, []byte("run other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := dev.Options{Run: runName(), Dir: dir, Workers: 1, Slots: 1, Self: self, Worker: self, Out: &strings.Builder{}}
	if err := dev.Up(t.Context(), o); !errors.Is(err, dev.ErrOptions) {
		t.Error(err)
	}
	if found, err := dev.Clean(t.Context(), o); err != nil || len(found) != 0 {
		t.Errorf("%v %v", found, err)
	}
	if _, err := os.Stat(marker); err != nil {
		t.Error(err)
	}
}

// A disk that is full in the middle of making the directory leaves none that the next one would take for somebody else's.
func TestNoRoomForTheDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root nothing is looked at")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, inodes := range []int{2, 3} { // of the file system: for the directory, for the marker, for that of logs
		at := t.TempDir()
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("nr_inodes=%d", inodes)); err != nil {
			t.Fatal(err)
		}
		o := dev.Options{Run: runName(), Dir: filepath.Join(at, "d"), Workers: 1, Slots: 1, Self: self, Worker: self, Out: &strings.Builder{}}
		err := dev.Up(t.Context(), o)
		entries, rerr := os.ReadDir(at)
		if !errors.Is(err, syscall.ENOSPC) || rerr != nil || len(entries) > 0 {
			t.Errorf("%d: %v, left %v (%v)", inodes, err, entries, rerr)
		}
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
}

// Actors execute this program, as users of their own.
func TestProgramThatActorsCannotExecute(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root nothing is looked at")
	}
	path := filepath.Join(t.TempDir(), "sluice")
	if err := os.WriteFile(path, []byte("x"), 0o700); err != nil { //nolint:gosec // it is not executed
		t.Fatal(err)
	}
	o := dev.Options{Run: runName(), Workers: 1, Slots: 1, Self: path, Worker: path, Out: &strings.Builder{}}
	if err := dev.Up(t.Context(), o); !errors.Is(err, dev.ErrOptions) || !strings.Contains(err.Error(), "chmod o+rx "+path) {
		t.Error(err)
	}
}
