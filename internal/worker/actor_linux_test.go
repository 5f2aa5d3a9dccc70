package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// act is what the test binary does as an actor. It never returns.
func act(args []string) {
	defer os.Exit(0)
	switch args[0] {
	case "look":
		_ = json.NewEncoder(os.Stdout).Encode(look(args[1:]))
	case "call": // one system call that ends the process, or does not
		number, _ := strconv.ParseUint(args[1], 0, 64)
		_, _, e := syscall.RawSyscall(uintptr(number), 0, 0, 0)
		fmt.Println("survived", e)
	case "fill":
		fmt.Println(fill(args[1]))
	case "allocate":
		fmt.Println(allocate())
	case "spawn":
		fmt.Println(spawn())
	case "serve":
		serve()
	case "early":
		fmt.Println(dial("tcp", "203.0.113.7:443", patience))
	case "exit":
		code, _ := strconv.Atoi(args[1])
		os.Exit(code)
	}
}

// look reports what there is to see and to do from inside.
func look(paths []string) map[string]string {
	saw := make(map[string]string)
	status, err := os.ReadFile("/proc/self/status")
	saw["status error"] = fmt.Sprint(err)
	for _, line := range strings.Split(string(status), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			saw["status "+name] = strings.TrimSpace(value)
		}
	}
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts", "cgroup"} {
		saw["ns "+ns], _ = os.Readlink("/proc/self/ns/" + ns)
	}
	saw["hostname"], _ = os.Hostname()
	saw["pid"] = strconv.Itoa(os.Getpid())
	pids, _ := filepath.Glob("/proc/[0-9]*")
	saw["pids"] = strings.Join(pids, " ")
	hosts, _ := os.ReadFile("/etc/hosts")
	saw["hosts"] = string(hosts)
	root, _ := filepath.Glob("/*")
	saw["root"] = strings.Join(root, " ")
	run, _ := filepath.Glob("/run/*")
	saw["run"] = strings.Join(run, " ")
	saw["env"] = strings.Join(os.Environ(), " ")
	links, _ := net.Interfaces()
	for _, l := range links {
		addresses, _ := l.Addrs()
		saw["links"] += fmt.Sprint(l.Name, addresses)
	}
	saw["fds"] = descriptors()
	none := unix.Rlimit{}
	saw["less core"] = word(unix.Setrlimit(unix.RLIMIT_CORE, &none)) + " " + word(unix.Prlimit(0, unix.RLIMIT_CORE, &none, nil))
	_, _, e := syscall.RawSyscall(unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&none)), 0)
	saw["less core"] += " " + strconv.Itoa(int(e))
	for name, what := range map[string]int{"core": unix.RLIMIT_CORE, "files": unix.RLIMIT_NOFILE, "size": unix.RLIMIT_FSIZE, "locked": unix.RLIMIT_MEMLOCK} {
		var l unix.Rlimit
		saw["limit "+name] = word(unix.Getrlimit(what, &l)) + fmt.Sprintf(" %d %d", l.Cur, l.Max)
	}
	for _, p := range paths {
		_, err := os.Stat(p)
		saw["stat "+p] = word(err)
	}
	for _, p := range []string{"/x", "/usr/x", "/etc/hosts", "/tmp/x", "/proc/sys/kernel/hostname", "/run/x", "/dev/x"} {
		saw["write "+p] = word(os.WriteFile(p, []byte("x"), 0o644))
	}
	sockets(saw)
	calls(saw)
	return saw
}

func word(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// descriptors that point anywhere but at the standard streams and the runtime's own.
func descriptors() string {
	var odd []string
	entries, _ := filepath.Glob("/proc/self/fd/*")
	for _, e := range entries {
		to, err := os.Readlink(e)
		if n, _ := strconv.Atoi(filepath.Base(e)); n > 2 && err == nil && !strings.HasPrefix(to, "anon_inode:") {
			odd = append(odd, to)
		}
	}
	return strings.Join(odd, " ")
}

// sockets tries every family, and the kinds that need privileges.
func sockets(saw map[string]string) {
	var allowed []string
	for family := range 64 {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET, unix.SOCK_RAW} {
			if fd, err := unix.Socket(family, kind, 0); err == nil {
				allowed = append(allowed, fmt.Sprintf("%d/%d", family, kind))
				_ = unix.Close(fd)
			}
		}
	}
	saw["sockets"] = strings.Join(allowed, " ")
	_, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	saw["vsock"] = word(err)
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	saw["raw"] = word(err)
	_, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	saw["socketpair"] = word(err)
	// The kernel takes an int: what stands above it must not change what the filter sees.
	_, _, e := syscall.RawSyscall(unix.SYS_SOCKET, 1<<40|unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	saw["vsock, high bits set"] = unix.ErrnoName(e)
}

// calls tries what no actor may do.
func calls(saw map[string]string) {
	self, _ := os.Open("/proc/self/ns/net")
	defer self.Close()
	zero := make([]byte, 256)
	p := uintptr(unsafe.Pointer(&zero[0]))
	for name, call := range map[string][4]uintptr{
		"ptrace":          {unix.SYS_PTRACE, unix.PTRACE_TRACEME},
		"setns":           {unix.SYS_SETNS, self.Fd(), unix.CLONE_NEWNET},
		"unshare user":    {unix.SYS_UNSHARE, unix.CLONE_NEWUSER},
		"clone user":      {unix.SYS_CLONE, unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)},
		"clone net":       {unix.SYS_CLONE, unix.CLONE_NEWNET | uintptr(unix.SIGCHLD)},
		"clone3":          {unix.SYS_CLONE3, p, 88},
		"mount":           {unix.SYS_MOUNT, p, p, p},
		"open_tree":       {unix.SYS_OPEN_TREE, ^uintptr(99), p, 0},
		"fsopen":          {unix.SYS_FSOPEN, p, 0},
		"io_uring_setup":  {unix.SYS_IO_URING_SETUP, 4, p},
		"bpf":             {unix.SYS_BPF, 0, p, 48},
		"keyctl":          {unix.SYS_KEYCTL, 0, 0},
		"perf_event_open": {unix.SYS_PERF_EVENT_OPEN, p, 0, 0},
		"userfaultfd":     {unix.SYS_USERFAULTFD, 1},
		"chroot":          {unix.SYS_CHROOT, p},
		"sethostname":     {unix.SYS_SETHOSTNAME, p, 1},
		"process_vm":      {unix.SYS_PROCESS_VM_READV, 1, p, 0},
		"future":          {900},
	} {
		_, _, e := syscall.RawSyscall(call[0], call[1], call[2], call[3])
		saw["call "+name] = unix.ErrnoName(e)
	}
	saw["setuid"] = word(syscall.Setuid(0))
}

// fill writes more than one file may hold.
func fill(path string) string {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return word(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for range 100 {
		if _, err := f.Write(block); err != nil {
			return word(err)
		}
	}
	return "filled"
}

// allocate asks for room behind the end of its output and of a file of its own, in each way that leaves their sizes as they are.
func allocate() string {
	f, err := os.Create("/tmp/x")
	if err != nil {
		return word(err)
	}
	defer f.Close()
	var said []string
	for _, fd := range []int{1, int(f.Fd())} {
		for _, mode := range []uint32{unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_UNSHARE_RANGE} {
			said = append(said, word(unix.Fallocate(fd, mode, 0, 256<<20)))
		}
	}
	// What programs use it for stays: room within the bound, and giving room back.
	return strings.Join(append(said, word(unix.Fallocate(int(f.Fd()), 0, 0, 4096)),
		word(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 4096))), " ")
}

// spawn starts processes until it cannot.
func spawn() string {
	for n := range 200 {
		if err := exec.Command("/bin/sleep", "1000").Start(); err != nil {
			return fmt.Sprintf("%d %s", n, word(err))
		}
	}
	return "200 ok"
}

// serve is an actor with a server on port 80: /echo answers with the body, /dial?to=… connects and talks, /count counts in
// memory, and /other is what there is not.
func serve() {
	started := time.Now()
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if time.Since(started) < 50*time.Millisecond {
			w.WriteHeader(http.StatusServiceUnavailable) // listening is not yet being ready
		}
	})
	http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		b := make([]byte, 256)
		for {
			n, err := r.Body.Read(b)
			if _, werr := w.Write(b[:n]); err != nil || werr != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	})
	http.HandleFunc("/dial", func(w http.ResponseWriter, r *http.Request) {
		wait, _ := time.ParseDuration(r.FormValue("wait"))
		_, _ = io.WriteString(w, dial(r.FormValue("network"), r.FormValue("to"), wait))
	})
	http.HandleFunc("/flood", func(_ http.ResponseWriter, r *http.Request) { flood(r.Context(), r.FormValue("to")) })
	var n atomic.Int64
	http.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, n.Add(1)) })
	http.HandleFunc("/other", func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("asked") // who waits for that looks at the output
		http.NotFound(w, r)
	})
	http.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(7) })
	fmt.Println(http.ListenAndServe(":80", nil))
}

// flood opens connections, as fast as it can, and closes them, until ctx ends.
func flood(ctx context.Context, to string) {
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if c, err := new(net.Dialer).DialContext(ctx, "tcp", to); err == nil {
					_ = c.Close()
				}
			}
		})
	}
	wg.Wait()
}

// dial connects, says hello, and returns what it hears or what went wrong. It waits so long for each.
func dial(network, to string, wait time.Duration) string {
	d := net.Dialer{Timeout: wait}
	if network == "mptcp" {
		network = "tcp"
		d.SetMultipathTCP(true)
	}
	if source, ok := strings.CutPrefix(network, "from "); ok { // an address, whosever it is, and a port, which others may have
		network, d.LocalAddr = "tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(source))
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			})
		}
	}
	if network == "to all" {
		network = "udp"
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
		}
	}
	c, err := d.Dial(strings.NewReplacer("large", "udp", "all", "tcp").Replace(network), to)
	if err != nil {
		return "dial " + kind(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(wait))
	said := "hello"
	if network == "large" {
		said = strings.Repeat("fragments ", 5000)
	}
	if _, err := io.WriteString(c, said); err != nil {
		return "write " + kind(err)
	}
	if network == "all" {
		n, err := io.Copy(io.Discard, c)
		if err != nil {
			return kind(err)
		}
		return fmt.Sprintf("%d bytes", n)
	}
	b := make([]byte, 64)
	n, err := c.Read(b)
	if err != nil {
		return "read " + kind(err)
	}
	return string(b[:n])
}

func kind(err error) string {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return "timeout"
	}
	return word(err)
}
