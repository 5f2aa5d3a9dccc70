package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/worker"
)

var runs atomic.Int64

// newRun is a run of the test's own. At the end nothing of it may be there any more.
func newRun(t *testing.T) fabric.Run {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: network namespaces and confinement need root")
	}
	r, err := fabric.NewRun(fmt.Sprintf("w%d", (time.Now().UnixNano()/1e6%1e8)*100+runs.Add(1)%100))
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

func network(t *testing.T, r fabric.Run, name string) *worker.Network {
	t.Helper()
	n, err := worker.CreateNetwork(r, name)
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

const actorUser = 700001

// program is the test binary as an actor.
func program(t *testing.T, args ...string) (*worker.Program, *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(filepath.Join(t.TempDir(), "output"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return &worker.Program{
		Path: "/app/actor", Args: append([]string{"as-actor"}, args...), Env: []string{"ACTOR=demo/a"}, User: actorUser,
		Limits: fabric.Limits{Processes: 64, Memory: 512 << 20},
		Hosts:  []worker.Host{{Name: "api.demo.test", Address: netip.MustParseAddr("203.0.113.7")}},
		Mounts: []worker.Mount{{From: self, To: "/app/actor"}},
		Output: out,
	}, out
}

// inside runs a program to its end and returns what it wrote and how it ended.
func inside(t *testing.T, p *worker.Program, out *os.File) (text, how string) {
	t.Helper()
	r := newRun(t)
	n := network(t, r, "a")
	g, err := r.CreateGroup("a", p.Limits)
	if err != nil {
		t.Fatal(err)
	}
	_, wait, err := p.Start(t.Context(), "a", n, g)
	if err != nil {
		t.Fatal(errors.Join(err, g.Kill(t.Context()), g.Remove()))
	}
	how = wait()
	if err := errors.Join(g.Kill(t.Context()), g.Remove()); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b), how
}

func TestI11_ActorSeesAndMayOnlyItsOwn(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o644); err != nil {
		t.Fatal(err)
	}
	paths := []string{secret, "/run/netns", "/sys", "/sys/fs/cgroup", "/root", "/var", "/etc/shadow", "/etc/passwd", "/usr/bin", "/bin/sh", "/proc/1", "/dev/null", "/dev/mem", "/home", "/etc/ssl/private"}
	p, out := program(t, append([]string{"look"}, paths...)...)
	text, how := inside(t, p, out)
	if how != "exit status 0" {
		t.Fatalf("the actor ended by %s: %s", how, text)
	}
	saw := make(map[string]string)
	if err := json.Unmarshal([]byte(text), &saw); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	id := strconv.Itoa(actorUser)
	four := strings.Join([]string{id, id, id, id}, "\t")
	want := map[string]string{
		"status Uid": four, "status Gid": four, "status Groups": "", "status NoNewPrivs": "1", "status Seccomp": "2",
		"status CapInh": none, "status CapPrm": none, "status CapEff": none, "status CapBnd": none, "status CapAmb": none,
		"pid": "1", "pids": "/proc/1", "hostname": "a", "env": "ACTOR=demo/a", "run": "", "fds": "",
		"hosts": "127.0.0.1 localhost\n169.254.17.2 a\n203.0.113.7 api.demo.test\n",
		"links": "lo[127.0.0.1/8]eth0[169.254.17.2/30]",

		"less core":  "ok ok 0", // as if
		"limit core": "ok 1 1", "limit files": "ok 4096 4096", "limit size": "ok 67108864 67108864", "limit locked": "ok 0 0",

		"write /tmp/x": "ok", "write /x": "EROFS", "write /usr/x": "EROFS", "write /etc/hosts": "EROFS", "write /run/x": "EROFS", "write /dev/x": "EROFS",
		"write /proc/sys/kernel/hostname": "EROFS",

		"stat " + secret: "ENOENT", "stat /run/netns": "ENOENT", "stat /sys": "ENOENT", "stat /sys/fs/cgroup": "ENOENT", "stat /root": "ENOENT",
		"stat /var": "ENOENT", "stat /home": "ENOENT", "stat /etc/shadow": "ENOENT", "stat /dev/mem": "ENOENT", "stat /etc/ssl/private": "ENOENT",
		"stat /etc/passwd": "ok", "stat /usr/bin": "ok", "stat /bin/sh": "ok", "stat /proc/1": "ok", "stat /dev/null": "ok",

		// AF_UNIX 1, AF_INET 2, AF_INET6 10, AF_NETLINK 16; SOCK_STREAM 1, SOCK_DGRAM 2, SOCK_RAW 3, SOCK_SEQPACKET 5
		"sockets": "1/1 1/2 1/5 1/3 2/1 2/2 10/1 10/2 16/2 16/3",
		"vsock":   "EAFNOSUPPORT", "vsock, high bits set": "EAFNOSUPPORT", "raw": "EPERM", "socketpair": "ok",

		"call ptrace": "EPERM", "call setns": "EPERM", "call unshare user": "EPERM", "call clone user": "EPERM", "call clone net": "EPERM",
		"call clone3": "ENOSYS", "call mount": "EPERM", "call open_tree": "EPERM", "call fsopen": "EPERM", "call io_uring_setup": "ENOSYS",
		"call bpf": "EPERM", "call keyctl": "EPERM", "call perf_event_open": "EPERM", "call userfaultfd": "EPERM", "call chroot": "EPERM",
		"call sethostname": "EPERM", "call process_vm": "EPERM", "call future": "ENOSYS", "setuid": "EPERM",
	}
	for what, value := range want {
		if saw[what] != value {
			t.Errorf("%s: %q, want %q", what, saw[what], value)
		}
	}
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil || saw["ns "+ns] == "" || saw["ns "+ns] == ours {
			t.Errorf("the actor is in %s namespace %q, and so are we (%q, %v)", ns, saw["ns "+ns], ours, err)
		}
	}
}

const none = "0000000000000000"

// What is made for an actor is its own to read, also when the worker keeps everything that it makes to itself.
func TestActorOfAWorkerWithAMask(t *testing.T) {
	p, out := program(t, "look", "/app/actor")
	defer syscall.Umask(syscall.Umask(0o077))
	text, how := inside(t, p, out)
	saw := make(map[string]string)
	if err := json.Unmarshal([]byte(text), &saw); err != nil || how != "exit status 0" {
		t.Fatalf("the actor ended by %s (%v): %s", how, err, text)
	}
	if !strings.Contains(saw["hosts"], "api.demo.test") || saw["write /tmp/x"] != "ok" || saw["stat /app/actor"] != "ok" {
		t.Errorf("%q", saw)
	}
}

func TestActorIsKilledForOtherNumbers(t *testing.T) {
	if worker.OtherNumbers == 0xffffffff {
		t.Skip("SKIPPED: this architecture has one set of system calls")
	}
	p, out := program(t, "call", fmt.Sprint(worker.OtherNumbers|39)) // getpid of x32
	text, how := inside(t, p, out)
	if how != "signal: bad system call" && !strings.HasPrefix(how, "signal: bad system call") {
		t.Errorf("the actor ended by %q: %s", how, text)
	}
}

func TestActorIsBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a file", []string{"fill", "/tmp/x"}, "EFBIG"},
		{"memory for files", []string{"fill", "/dev/shm/x"}, "EFBIG"},
		{"output", []string{"fill", "/dev/stdout"}, "EACCES"}, // opened again by name, which only its owner may
		{"processes", []string{"spawn"}, "EAGAIN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, out := program(t, c.args...)
			text, how := inside(t, p, out)
			if !strings.Contains(text, c.want) || how != "exit status 0" {
				t.Errorf("%q, ended by %s; want %s", text, how, c.want)
			}
		})
	}
}

// The bound of a file's size is none of the room that is kept for it beyond its end: by its output, which is on the machine's
// disk, an actor would fill that.
func TestActorKeepsNoRoomBeyondItsFiles(t *testing.T) {
	p, out := program(t, "allocate")
	text, how := inside(t, p, out)
	if want := strings.Repeat("ENOTSUP ", 6) + "ok ok\n"; text != want || how != "exit status 0" {
		t.Errorf("%q, ended by %s; want %q", text, how, want)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(out.Name(), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the output has %d bytes on disk, %v", st.Blocks*512, err)
	}
}

func TestProgramThatCannotStart(t *testing.T) {
	r := newRun(t)
	n := network(t, r, "a")
	g, err := r.CreateGroup("a", fabric.Limits{Processes: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(g.Kill(context.Background()), g.Remove()); err != nil {
			t.Error(err)
		}
	}()
	for name, c := range map[string]struct {
		change func(p *worker.Program)
		want   string
	}{
		"no such file":      {func(p *worker.Program) { p.Path = "/app/other" }, "executing /app/other: no such file"},
		"no executable":     {func(p *worker.Program) { p.Path = "/etc/hosts" }, "permission denied"},
		"no such mount":     {func(p *worker.Program) { p.Mounts[0].From = "/nowhere" }, "building the file system"},
		"relative":          {func(p *worker.Program) { p.Path = "actor" }, "not absolute"},
		"root":              {func(p *worker.Program) { p.User = 0 }, "user 0"},
		"few processes":     {func(p *worker.Program) { p.Limits.Processes = 1 }, "limit of 1 processes"},
		"mount over system": {func(p *worker.Program) { p.Mounts[0].To = "/usr/bin/sh" }, "mount of"},
		"mount at a link":   {func(p *worker.Program) { p.Mounts[0].To = "/app/../etc/hosts" }, "mount of"},
		"mount at the root": {func(p *worker.Program) { p.Mounts[0].To = "/" }, "mount of"},
		"mount in a mount": {func(p *worker.Program) {
			p.Mounts = append(p.Mounts, worker.Mount{From: "/tmp", To: "/data", Writable: true}, worker.Mount{From: "/etc/hosts", To: "/data/x/hosts"})
		}, `mount of "/etc/hosts" at "/data/x/hosts"`},
		"mount around a mount": {func(p *worker.Program) { p.Mounts = append(p.Mounts, worker.Mount{From: "/tmp", To: "/app"}) }, `mount of "/tmp" at "/app"`},
		"mount twice":          {func(p *worker.Program) { p.Mounts = append(p.Mounts, p.Mounts[0]) }, "mount of"},
		"less than no memory":  {func(p *worker.Program) { p.Limits.Memory = -1 }, "limit of -1 bytes"},
		"environment":          {func(p *worker.Program) { p.Env = []string{"A=b\x00"} }, "zero byte"},
		"host with a line":     {func(p *worker.Program) { p.Hosts[0].Name = "a\n1.2.3.4 b" }, "host"},
		"host without place":   {func(p *worker.Program) { p.Hosts[0].Address = netip.Addr{} }, "host"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := program(t, "look")
			c.change(p)
			_, _, err := p.Start(t.Context(), "a", n, g)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
			if pids, err := g.Processes(); err != nil || len(pids) > 0 {
				t.Errorf("processes %v are left (%v)", pids, err)
			}
		})
	}
}
