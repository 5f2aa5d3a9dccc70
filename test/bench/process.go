package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopGrace is how long a process has to end after SIGTERM before it is killed.
const stopGrace = 5 * time.Second

// process is one that the bench started and has to end. All are started on the main thread:
// they are told to end when it does, so that not even a killed bench leaves a proxy behind.
type process struct {
	cmd   *exec.Cmd
	done  chan struct{} // closed once the process was waited for
	err   error         // of the wait; read after done
	grace time.Duration // how long it may take to end after SIGTERM
}

// launch starts the command in a process group of its own, so that an interrupt typed at a
// terminal reaches the bench alone. The caller must call stop.
func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{}), grace: stopGrace}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ended tells whether the process is gone, and how.
func (p *process) ended() error {
	select {
	case <-p.done:
		if p.err != nil {
			return p.err
		}
		return errors.New("it ended by itself")
	default:
		return nil
	}
}

// stop ends the process and the descendants that it has at this moment, by their ids.
func (p *process) stop() {
	before, _ := readAll()
	kin := family(before, p.pid())
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(p.grace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	now, _ := readAll()
	for _, old := range kin {
		for _, left := range now {
			if left.PID == old.PID && left.Start == old.Start {
				_ = syscall.Kill(left.PID, syscall.SIGKILL)
			}
		}
	}
}

// raiseFileLimit lifts the limit of open files to what the system allows; every process that
// the bench starts inherits it. It returns the limit.
func raiseFileLimit() (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("reading the limit of open files: %w", err)
	}
	l.Cur = l.Max
	// An explicit call, since what the runtime raises by itself is put back in children.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("raising the limit of open files to %d: %w", l.Max, err)
	}
	return l.Cur, nil
}

// outputFile opens a file for what a process prints.
func outputFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening an output file: %w", err)
	}
	return f, nil
}
