//go:build linux

package soak_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gateway is the line of processes that replace each other.
type gateway struct {
	setup    *setup
	versions []string // paths of the binaries, in the order in which they take over
	log      *os.File // of all processes
	pid      int      // the process that serves
	release  int      // index of its binary
	retired  []int    // processes that have been replaced
}

func (g *gateway) binary() string  { return g.setup.folder + "/sluice" }
func (g *gateway) pidFile() string { return g.setup.folder + "/pid" }

// version is the version string of the binary with an index.
func version(i int) string { return fmt.Sprintf("soak-%d", i+1) }

// install puts a binary to where the gateway runs from, in one step.
func (g *gateway) install(i int) error {
	next := g.binary() + ".new"
	if err := os.Link(g.versions[i], next); err != nil {
		return err
	}
	return os.Rename(next, g.binary())
}

// start starts the first process. Those that replace it are its children, and become ours when it ends: that is how
// their exit codes are learnt.
func (g *gateway) start(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := g.install(0); err != nil {
		t.Fatal(err)
	}
	var err error
	if g.log, err = os.Create(g.setup.folder + "/process.log"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(g.binary(), "run", "-c", g.setup.configFile(), "--pid-file", g.pidFile(), "--log-format", "json")
	cmd.Stdout, cmd.Stderr = g.log, g.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g.pid = cmd.Process.Pid
	t.Cleanup(func() {
		for _, pid := range append(g.retired, g.pid) {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				_, _ = exitCode(pid, time.Second)
			}
		}
		_ = g.log.Close()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := g.health(); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatalf("does not serve: %v\n%s", err, g.logged())
		}
	}
}

func (g *gateway) logged() string {
	b, err := os.ReadFile(g.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// health is what the gateway tells of itself.
type health struct {
	State      string `json:"state"`
	Generation uint64 `json:"generation"`
	Version    string `json:"version"`
}

func (g *gateway) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.setup.manage+"/api/gateway"+path, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true // a new connection each time, so that the process that serves answers
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", res.StatusCode, body)
	}
	return body, err
}

func (g *gateway) health() (h health, err error) {
	body, err := g.get("/health")
	if err == nil {
		err = json.Unmarshal(body, &h)
	}
	return h, err
}

// metrics are the samples without labels, by name.
func (g *gateway) metrics() (map[string]float64, error) {
	body, err := g.get("/metrics")
	if err != nil {
		return nil, err
	}
	m := make(map[string]float64)
	lines := bufio.NewScanner(strings.NewReader(string(body)))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			if m[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, err
			}
		}
	}
	return m, lines.Err()
}

// upgrade replaces the binary and has it take over.
func (g *gateway) upgrade() error {
	if err := g.install(g.release + 1); err != nil {
		return err
	}
	if err := syscall.Kill(g.pid, syscall.SIGUSR2); err != nil {
		return err
	}
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(g.pidFile())
		if pid, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil && pid != g.pid {
			g.retired = append(g.retired, g.pid)
			g.pid = pid
			g.release++
			break
		}
		if time.Now().After(end) {
			return errors.New("no new process has taken over")
		}
	}
	// The old process may still answer for a moment, until it has seen that the new one is ready; then never again.
	own, end := 0, time.Now().Add(10*time.Second)
	for ; own < 20 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch h, err := g.health(); {
		case err != nil:
			return fmt.Errorf("management during the upgrade: %w", err)
		case h.Version == version(g.release):
			own++
		default:
			own = 0
		}
	}
	if own < 20 {
		return errors.New("the old process goes on answering for management")
	}
	// As long as it holds the sockets clients may come to it, and none is refused where the new one has closed its own.
	for old, end := g.retired[len(g.retired)-1], time.Now().Add(patience); listens(old); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("the old process %d goes on listening", old)
		}
	}
	return nil
}

// listens reports whether a process holds a listening socket of IPv4; one that has ended does not.
func listens(pid int) bool {
	table, _ := os.ReadFile("/proc/net/tcp")
	listening := make(map[string]bool) // as descriptors name them
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" {
			listening["socket:["+f[9]+"]"] = true
		}
	}
	folder := fmt.Sprintf("/proc/%d/fd/", pid)
	entries, _ := os.ReadDir(folder)
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		target, _ := os.Readlink(folder + e.Name())
		return listening[target]
	})
}

// descriptors tells what the process that serves holds open, each kind with its number.
func (g *gateway) descriptors() string {
	folder := fmt.Sprintf("/proc/%d/fd/", g.pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range entries {
		if target, err := os.Readlink(folder + e.Name()); err == nil {
			all = append(all, e.Name()+" "+target)
		}
	}
	return strings.Join(all, ", ")
}

// errReaped is a process whose exit code its parent has learnt: it ended before the process that it had replaced.
var errReaped = errors.New("its parent knows the exit code")

// exitCode waits for a process to end: a child of ours, or one that becomes one when its parent ends.
func exitCode(pid int, within time.Duration) (int, error) {
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		var status syscall.WaitStatus
		switch got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); {
		case got == pid && status.Exited():
			return status.ExitStatus(), nil
		case got == pid:
			return -1, fmt.Errorf("process %d ended by signal %v", pid, status.Signal())
		case errors.Is(err, syscall.ECHILD) && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH):
			return -1, errReaped
		case err != nil && !errors.Is(err, syscall.ECHILD) && !errors.Is(err, syscall.EINTR):
			return -1, err
		}
		if time.Now().After(end) {
			return -1, fmt.Errorf("process %d still runs after %s", pid, within)
		}
	}
}
