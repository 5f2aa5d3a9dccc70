package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// cleaning bounds how long the processes of an actor may take to be killed or frozen, and its tunnels to notice.
const cleaning = 30 * time.Second

// process is an actor's first process, which is the first in its namespace, too: when it ends, all do.
type process struct {
	pid   int
	ended chan struct{} // closed when it has gone
	how   string        // valid after ended: "exit status 1", "signal: killed"; "ended" for one that others started

	adopted *os.File // its pidfd, of a process that another one has started; else nil
	once    sync.Once
}

// reap waits for a process that was started here.
func (p *process) reap(cmd *exec.Cmd) {
	_ = cmd.Wait()
	p.how = cmd.ProcessState.String()
	close(p.ended)
}

// gone is closed when the process has gone.
func (p *process) gone() <-chan struct{} { return p.ended }

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for process %d to end: %w", p.pid, context.Cause(ctx))
	}
}

// release stops watching a process that goes on without us. One that was started here is waited for nevertheless, since
// nobody else can.
func (p *process) release() {
	if p.adopted != nil {
		p.once.Do(func() { _ = p.adopted.Close() })
	}
}

// started keeps what was started here until it ends, wherever its actor is by then.
func (w *Worker) started(uid string, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.children[uid] = p
	go func() {
		<-p.ended
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.children[uid] == p {
			delete(w.children, uid)
		}
	}()
}

// errNoProcess is a group without the first process of an actor.
var errNoProcess = errors.New("the actor has no process any more")

// adopt finds the process of a suspended actor.
func (w *Worker) adopt(uid string, g *fabric.Group) (*process, error) {
	w.mu.Lock()
	own := w.children[uid]
	w.mu.Unlock()
	if own != nil && own.running() {
		return own, nil
	}
	pids, err := g.Processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if isFirst(pid) {
			return follow(pid)
		}
	}
	return nil, errNoProcess
}

// isFirst reports whether a process is the first one of its namespace, NSpid of proc_pid_status(5).
func isFirst(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(text), "\nNSpid:")
	line, _, _ := strings.Cut(after, "\n")
	ids := strings.Fields(line)
	return len(ids) > 1 && ids[len(ids)-1] == "1"
}

// follow watches a process that is not our child.
func follow(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching process %d: %w", pid, err)
	}
	p := &process{pid: pid, ended: make(chan struct{}), how: "ended", adopted: os.NewFile(uintptr(fd), "pidfd")}
	rc, err := p.adopted.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, p.adopted.Close())
	}
	go func() {
		// The descriptor turns readable when the process ends, and fails when it is closed, by release.
		err := rc.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
		if err == nil {
			p.release()
			close(p.ended)
		}
	}()
	return p, nil
}
