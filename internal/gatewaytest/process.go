package gatewaytest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Build builds the server binary into folder, with the given version string, and returns its path. RaceBuild in the
// environment (any value) builds it with the race detector.
func Build(folder, name, version string) (string, error) {
	path := filepath.Join(folder, name)
	cmd := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", path)
	if os.Getenv(RaceBuild) != "" {
		cmd.Args = append(cmd.Args, "-race")
	}
	return path, compile(cmd, "./cmd/sluice")
}

// BuildWorker compiles the worker into a folder of the repository's cache, and returns its path.
func BuildWorker(folder string) (string, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, ".cache", folder, "sluice-worker")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return path, compile(cmd, "./cmd/sluice-worker")
}

// compile runs a command that builds a program, which is its last argument.
func compile(cmd *exec.Cmd, program string) (err error) {
	if cmd.Dir, err = RepositoryRoot(); err != nil {
		return err
	}
	cmd.Args = append(cmd.Args, program)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", program, err, out)
	}
	return nil
}

// RaceBuild is the environment variable that asks Build for the race detector.
const RaceBuild = "SLUICE_TEST_RACE"

// Process is a server binary that runs. A test that ends leaves none behind.
type Process struct {
	cmd  *exec.Cmd
	out  Output
	done chan struct{}
	err  error // valid after done
}

// Run starts a binary; its standard output and error go to what Output returns. It is killed when the test ends, if
// Stop has not ended it before.
func Run(t testing.TB, binary string, args ...string) *Process {
	t.Helper()
	return RunCommand(t, exec.Command(binary, args...))
}

// RunCommand is Run of a command with an environment or descriptors of its own.
func RunCommand(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	// A child that the binary starts may keep the pipe open; the wait for it must not depend on that.
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.SysProcAttr = endWithParent
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", cmd.Path, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends it a signal.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("sending %v: %v\n%s", s, err, p.Output())
	}
}

// Output is what it has written so far.
func (p *Process) Output() string { return p.out.String() }

// Await returns the first submatch of a pattern as soon as the output has one. It fails the test when the process ends
// before, or after a generous while.
func (p *Process) Await(t testing.TB, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(20 * time.Second)
	for {
		more := p.out.changed()
		if m := re.FindStringSubmatch(p.Output()); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-more:
		case <-p.done:
			t.Fatalf("ended (%v) without writing %q:\n%s", p.err, pattern, p.Output())
		case <-deadline:
			t.Fatalf("does not write %q:\n%s", pattern, p.Output())
		}
	}
}

// Ended waits until the process has ended by itself, at most for the given time, and returns its exit code; -1 when it
// was ended by a signal.
func (p *Process) Ended(within time.Duration) (int, error) {
	select {
	case <-p.done:
		var exit *exec.ExitError
		if p.err != nil && !errors.As(p.err, &exit) && !errors.Is(p.err, exec.ErrWaitDelay) {
			return -1, p.err
		}
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(within):
		return -1, fmt.Errorf("process %d has not ended after %s", p.PID(), within)
	}
}

// Stop asks the process to end and fails the test unless it does so with exit code 0.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGTERM)
	code, err := p.Ended(30 * time.Second)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v, after SIGTERM:\n%s", code, err, tail(p.Output(), 4096))
	}
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-n:], "")
}

// Output collects what is written and tells who waits for more.
type Output struct {
	mu   sync.Mutex // guards both
	text bytes.Buffer
	more chan struct{}
}

// Write appends.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.text.Write(b)
}

// String is everything that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// changed is closed at the next write.
func (o *Output) changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.more
}
