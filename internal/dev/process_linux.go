package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// program is what a process executes, and where.
type program struct {
	name string
	in   *fabric.Namespace
	path string
	args []string
	env  []string // beside ours
	// leaves is its turn when everything ends; those of one number end together.
	leaves int
}

// process is one part of the network. It lives until it ends by itself or by stop.
type process struct {
	program
	log   string // file that its output is appended to
	cmd   *exec.Cmd
	since time.Time
	done  chan struct{} // closed when it has ended

	mu     sync.Mutex // guards the rest
	err    error      // how it ended
	wanted bool       // it was told to end
	served bool       // it was ready once
}

// launch starts a program in its namespace, with a process group of its own: an interrupt from a terminal is the
// supervisor's to pass on, in order. died is called when the process ends without being told to.
func launch(p program, logs string, died func(*process)) (*process, error) {
	s := &process{program: p, log: filepath.Join(logs, p.name+".log"), since: time.Now(), done: make(chan struct{})}
	out, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	s.cmd = exec.Command(p.path, p.args...)
	s.cmd.Env = append(os.Environ(), p.env...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(p.in.Start(s.cmd), out.Close()); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	go func() { // ends with the process, which stop waits for
		err := s.cmd.Wait()
		s.mu.Lock()
		s.err = err
		wanted := s.wanted
		s.mu.Unlock()
		close(s.done)
		if !wanted {
			died(s)
		}
	}()
	return s, nil
}

// pid is its process id.
func (s *process) pid() int { return s.cmd.Process.Pid }

// ended reports whether it has, and how.
func (s *process) ended() (bool, string) {
	select {
	case <-s.done:
	default:
		return false, ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return true, s.err.Error()
	}
	return true, "exit status 0"
}

// signal sends it one that is meant to end it.
func (s *process) signal(sig os.Signal) error {
	s.mu.Lock()
	s.wanted = true
	s.mu.Unlock()
	err := s.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// stop has it drain, and kills it when grace is over. The error is how it ended, if not well.
func (s *process) stop(grace time.Duration) error {
	if err := s.signal(syscall.SIGTERM); err != nil {
		return err
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		_ = s.cmd.Process.Kill()
		<-s.done
		return fmt.Errorf("%s did not end within %s and was killed", s.name, grace)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil && s.served { // one that just starts has nothing to drain, and need not know of signals yet
		return fmt.Errorf("%s: %w", s.name, s.err)
	}
	return nil
}

// kill ends it at once.
func (s *process) kill() error {
	if err := s.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-s.done
	return nil
}

// maxTail and maxLine bound what is shown of a log, in bytes.
const (
	maxTail = 16 << 10
	maxLine = 400
)

// tail is the end of its log.
func (s *process) tail(lines int) string {
	f, err := os.Open(s.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxTail {
		_, _ = f.Seek(-maxTail, io.SeekEnd) // from the beginning is as good
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTail))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(text)), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		if len(line) > maxLine {
			all[i] = strings.ToValidUTF8(line[:maxLine], "") + "..."
		}
	}
	return strings.Join(all, "\n")
}

// Times of waiting for a part to be ready.
const (
	readyLimit = 30 * time.Second
	readyPause = 10 * time.Millisecond
)

// ready waits until a check of the process succeeds. It gives up when the process has ended, and after readyLimit.
func (s *process) ready(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.served = true
			return nil
		}
		select {
		case <-s.done:
			_, how := s.ended()
			return fmt.Errorf("%s ended before it was ready: %s\n%s", s.name, how, s.tail(15))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w)\n%s", s.name, err, context.Cause(ctx), s.tail(15))
		case <-time.After(readyPause):
		}
	}
}
