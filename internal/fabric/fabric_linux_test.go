package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// newRun is a run of the test's own. At the end nothing of it may be there any more.
func newRun(t *testing.T) fabric.Run {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	id := fmt.Sprintf("t%d", os.Getpid()%1e7) + strconv.FormatInt(time.Now().UnixNano()%1e3, 36)
	r, err := fabric.NewRun(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := r.Left()
		if err != nil || len(left) > 0 {
			t.Errorf("the test left %v behind (%v)", left, err)
			_ = r.Clean(context.Background())
		}
	})
	return r
}

func namespace(t *testing.T, r fabric.Run, name string) *fabric.Namespace {
	t.Helper()
	n, err := r.CreateNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func TestRunNames(t *testing.T) {
	for _, bad := range []string{"", "a-b", "A", "thirteen-ch", "0123456789abc", "a/b", "..", "a b", "é"} {
		if _, err := fabric.NewRun(bad); !errors.Is(err, fabric.ErrName) {
			t.Errorf("NewRun(%q) = %v", bad, err)
		}
	}
	r, err := fabric.NewRun("0123456789ab")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "../x", "A", "a_b", strings.Repeat("a", 49)} {
		if _, err := r.CreateNamespace(bad); !errors.Is(err, fabric.ErrName) {
			t.Errorf("CreateNamespace(%q) = %v", bad, err)
		}
		if _, err := r.OpenNamespace(bad); !errors.Is(err, fabric.ErrName) {
			t.Errorf("OpenNamespace(%q) = %v", bad, err)
		}
	}
	var none fabric.Run
	if _, err := none.CreateNamespace("a"); !errors.Is(err, fabric.ErrName) {
		t.Errorf("a run without identifier makes namespaces: %v", err)
	}
	if err := none.Clean(t.Context()); !errors.Is(err, fabric.ErrName) {
		t.Errorf("a run without identifier is cleaned: %v", err)
	}
}

func TestNetworkCarriesBytesBetweenHostsOnly(t *testing.T) {
	r := newRun(t)
	w, err := r.CreateNetwork(netip.MustParsePrefix("10.88.0.1/24"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Remove(); err != nil {
			t.Error(err)
		}
	}()
	public := netip.MustParsePrefix("198.51.100.7/32")
	a := attach(t, w, "a", netip.MustParsePrefix("10.88.0.10/24"))
	b := attach(t, w, "b", netip.MustParsePrefix("10.88.0.11/24"), public)
	for _, addr := range []netip.Addr{netip.MustParseAddr("10.88.0.11"), public.Addr()} {
		echo(t, a, b, netip.AddrPortFrom(addr, 7))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := a.Dial(ctx, netip.MustParseAddrPort("198.51.100.8:7")); err == nil {
		c.Close()
		t.Error("an address that nobody has was reached")
	}
	links, err := w.Hub().Links()
	if err != nil || len(links) != 4 {
		t.Errorf("the hub has the links %v (%v), want lo, the bridge and two cables", links, err)
	}
}

func attach(t *testing.T, w *fabric.Network, name string, addresses ...netip.Prefix) *fabric.Namespace {
	t.Helper()
	n, err := w.Attach(name, addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// echo moves bytes from one namespace into another and checks that both sockets are where they belong.
func echo(t *testing.T, from, to *fabric.Namespace, at netip.AddrPort) {
	t.Helper()
	l, err := to.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := from.Dial(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rc, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.CheckConn(rc); err != nil {
		t.Errorf("the accepted socket: %v", err)
	}
	if err := from.CheckConn(rc); !errors.Is(err, fabric.ErrForeign) {
		t.Errorf("the accepted socket also passes as one of the dialer's namespace: %v", err)
	}
	if err := from.Check(c.FD()); err != nil {
		t.Errorf("the dialed socket: %v", err)
	}
	if _, err := c.Write([]byte("over the fabric")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(s)
	if err != nil || string(got) != "over the fabric" {
		t.Errorf("read %q, %v", got, err)
	}
}

// Another handle is the same namespace, and the namespace outlives its handles until it is removed.
func TestNamespaceIsFoundByName(t *testing.T) {
	r := newRun(t)
	n := namespace(t, r, "one")
	if _, err := r.CreateNamespace("one"); !errors.Is(err, os.ErrExist) {
		t.Errorf("a name was given twice: %v", err)
	}
	again, err := r.OpenNamespace("one")
	if err != nil {
		t.Fatal(err)
	}
	if again.Cookie() != n.Cookie() || again.Inode() != n.Inode() {
		t.Errorf("another handle is namespace %d (%d), not %d (%d)", again.Inode(), again.Cookie(), n.Inode(), n.Cookie())
	}
	if err := errors.Join(again.Close(), again.Close()); err != nil {
		t.Error(err)
	}
	if err := again.Do(func() error { return nil }); !errors.Is(err, fabric.ErrClosed) {
		t.Errorf("a closed handle works: %v", err)
	}
	if _, err := r.OpenNamespace("two"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a namespace that was never made was opened: %v", err)
	}
}

// The first `ip netns add` of a machine mounts the directory of names onto itself. What was made before must not be hidden
// by that. The machine is a mount namespace of the test's own, with nothing in /run.
func TestNamesBeforeThoseOfIP(t *testing.T) {
	const inside = "SLUICE_TEST_FRESH_RUN"
	if os.Getenv(inside) == "" {
		newRun(t) // or skip
		cmd := exec.Command("unshare", "--mount", os.Args[0], "-test.run=^TestNamesBeforeThoseOfIP$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := syscall.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	r := newRun(t)
	namespace(t, r, "ours") // is removed at the end, which must go well
	theirs := fmt.Sprintf("t%d", os.Getpid())
	for _, verb := range []string{"add", "del"} {
		if out, err := exec.Command("ip", "netns", verb, theirs).CombinedOutput(); err != nil {
			t.Fatalf("ip netns %s: %v\n%s", verb, err, out)
		}
	}
}

// No goroutine but the handle's own ever runs on the thread inside: not while it lives, nor after.
func TestThreadsInsideAreNeverUsedAgain(t *testing.T) {
	r := newRun(t)
	home := netOfThread(t)
	for range 20 {
		n, err := r.CreateNamespace("thread")
		if err != nil {
			t.Fatal(err)
		}
		inside := ""
		if err := n.Do(func() (err error) { inside, err = os.Readlink("/proc/thread-self/ns/net"); return err }); err != nil {
			t.Fatal(err)
		}
		if inside == home || !strings.Contains(inside, strconv.FormatUint(n.Inode(), 10)) {
			t.Fatalf("Do ran in %s; home is %s, the namespace %d", inside, home, n.Inode())
		}
		if err := n.Remove(); err != nil {
			t.Fatal(err)
		}
		found := make(chan string, 32)
		for range cap(found) {
			go func() { found <- netOfThread(t) }()
		}
		for range cap(found) {
			if at := <-found; at != home {
				t.Fatalf("a goroutine runs in %s instead of %s", at, home)
			}
		}
	}
	noThreadElsewhere(t)
}

func netOfThread(t *testing.T) string {
	at, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return at
}

// noThreadElsewhere waits until every thread of this process is in its first namespace.
func noThreadElsewhere(t *testing.T) {
	t.Helper()
	home := netOfThread(t)
	deadline := time.Now().Add(gatewaytest.Patience)
	for {
		away := 0
		tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
		for _, task := range tasks {
			if at, err := os.Readlink(task); err == nil && at != home {
				away++
			}
		}
		if away == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d threads are still in another namespace", away)
		}
		time.Sleep(time.Millisecond) // threads end after their goroutine; nothing tells when
	}
}

func sleeper(t *testing.T, g *fabric.Group) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	done, err := g.Attach(cmd.SysProcAttr)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), done()); err != nil {
		t.Fatal(err)
	}
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestGroupFreezesAndKills(t *testing.T) {
	r := newRun(t)
	g, err := r.CreateGroup("actor", fabric.Limits{Processes: 8, Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	cmd := sleeper(t, g)
	if pids, err := g.Processes(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("the group has the processes %v (%v), want %d", pids, err, cmd.Process.Pid)
	}
	if err := g.Remove(); err == nil {
		t.Error("a group with a process was removed")
	}
	for range 3 {
		expectFrozen(t, g, true, g.Freeze(t.Context()))
		expectFrozen(t, g, false, g.Thaw(t.Context()))
	}
	expectFrozen(t, g, true, g.Freeze(t.Context()))
	reaped := make(chan error, 1)
	go func() { reaped <- cmd.Wait() }()
	if err := g.Kill(t.Context()); err != nil { // while frozen
		t.Fatal(err)
	}
	if err := <-reaped; !strings.Contains(fmt.Sprint(err), "killed") {
		t.Errorf("the process ended by %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

func expectFrozen(t *testing.T, g *fabric.Group, want bool, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := g.Frozen(); err != nil || got != want {
		t.Fatalf("frozen is %v (%v), want %v", got, err, want)
	}
}

func TestGroupBoundsProcesses(t *testing.T) {
	r := newRun(t)
	g, err := r.CreateGroup("few", fabric.Limits{Processes: 3})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "read go; for i in 1 2 3 4 5; do sleep 1000 & done")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "stderr")) // a pipe would be kept open by the sleepers
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	done, err := g.Attach(cmd.SysProcAttr)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), done(), g.Join(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if said, err := os.ReadFile(out.Name()); err != nil || !strings.Contains(strings.ToLower(string(said)), "fork") {
		t.Errorf("five children beside a limit of three processes: %q, %v", said, err)
	}
	if err := errors.Join(g.Kill(t.Context()), g.Remove()); err != nil {
		t.Error(err)
	}
	for _, bad := range []fabric.Limits{{}, {Processes: -1}, {Processes: 1, Memory: -1}} {
		if _, err := r.CreateGroup("bad", bad); err == nil {
			t.Errorf("limits %+v were taken", bad)
		}
	}
}

// What a killed process leaves behind is found by the name of the run alone, and removed.
func TestCleanAfterKill(t *testing.T) {
	r := newRun(t)
	w, err := r.CreateNetwork(netip.MustParsePrefix("10.88.0.1/24"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := w.Attach("host", netip.MustParsePrefix("10.88.0.2/24"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := r.CreateGroup("actor", fabric.Limits{Processes: 8, Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	frozen := sleeper(t, g)
	if err := g.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sleep", "1000") // in a namespace, and in no group
	if err := host.Start(stray); err != nil {
		t.Fatal(err)
	}
	links := []string{fmt.Sprintf("net:[%d]", host.Inode()), fmt.Sprintf("net:[%d]", w.Hub().Inode())}
	if err := errors.Join(host.Close(), w.Hub().Close()); err != nil { // as the kernel does when a process is killed
		t.Fatal(err)
	}
	left, err := r.Left()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"namespace sluice-" + r.String() + "-host", "namespace sluice-" + r.String() + "-fabric",
		fmt.Sprint("process ", frozen.Process.Pid), fmt.Sprint("process ", stray.Process.Pid),
	} {
		if !strings.Contains(fmt.Sprint(left), want) {
			t.Errorf("%s is not in %v", want, left)
		}
	}
	var reaping sync.WaitGroup
	reaping.Go(func() { _ = frozen.Wait() })
	reaping.Go(func() { _ = stray.Wait() })
	other, err := fabric.NewRun("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if still, err := r.Left(); err != nil || len(still) != len(left) {
		t.Errorf("cleaning another run changed %v into %v (%v)", left, still, err)
	}
	if err := r.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context()); err != nil {
		t.Errorf("cleaning twice: %v", err)
	}
	reaping.Wait() // what we have of them is nothing that a later test counts
	gatewaytest.NamespacesGone(t, links...)
}
