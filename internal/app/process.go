package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

// The environment by which listening sockets are handed on (sd_listen_fds(3)), and our own additions for a binary
// upgrade: the descriptor on which the new process tells that it is ready, and the one on which the old process then
// tells of its sessions of datagrams. The presence of the first also stands for LISTEN_PID, which the old process cannot
// know before the new one exists.
const (
	envFDs   = "LISTEN_FDS"
	envNames = "LISTEN_FDNAMES"
	envPID   = "LISTEN_PID"
	envReady = "SLUICE_READY_FD"

	envSessions = "SLUICE_SESSIONS_FD"

	firstFD = 3
	// maxFDs bounds what a confused environment can make us look at.
	maxFDs = 1024
)

// readyBound is how long a new binary may take until it serves.
const readyBound = 30 * time.Second

// ErrUpgrading refuses a second upgrade.
var ErrUpgrading = errors.New("an upgrade is under way or done")

// inherit takes over the listening sockets that the environment offers, and clears the environment of them.
func (a *App) inherit() *entrypoint.Inherited {
	if !a.opts.Process {
		return nil
	}
	defer func() {
		for _, k := range []string{envFDs, envNames, envPID} {
			_ = os.Unsetenv(k)
		}
	}()
	n, err := strconv.Atoi(os.Getenv(envFDs))
	if err != nil || n <= 0 || n > maxFDs {
		return nil
	}
	if os.Getenv(envReady) == "" && os.Getenv(envPID) != strconv.Itoa(os.Getpid()) {
		return nil
	}
	fds := make([]int, n)
	for i := range fds {
		fds[i] = firstFD + i
	}
	h := entrypoint.Inherit(strings.Split(os.Getenv(envNames), ":"), fds, a.log)
	a.expectSessions(h)
	return h
}

// notifyReady tells the service manager, and the process that this one replaces, that it serves.
func (a *App) notifyReady() {
	if !a.opts.Process {
		return
	}
	if fd, err := strconv.Atoi(os.Getenv(envReady)); err == nil && fd >= firstFD {
		f := os.NewFile(uintptr(fd), "ready")
		if _, err := f.Write([]byte("ready\n")); err != nil {
			a.log.Warn("telling the old process that this one serves", "error", err)
		}
		_ = f.Close()
		_ = os.Unsetenv(envReady)
		return // the old process announces the new one as the main one
	}
	a.notify("READY=1")
}

// notify sends a line to the service manager, if there is one.
func (a *App) notify(line string) {
	if !a.opts.Process {
		return
	}
	if _, err := daemon.SdNotify(false, line); err != nil {
		a.log.Warn("telling the service manager", "line", line, "error", err)
	}
}

// Upgrade replaces the process by the binary that lies at its path now: the new process gets the listening sockets and
// serves; then this one drains. On an error this one goes on as if nothing had been asked.
func (a *App) Upgrade(ctx context.Context) error {
	if !a.opts.Process {
		return errors.New("upgrade is for processes of their own")
	}
	if !a.upgrading.CompareAndSwap(false, true) {
		return ErrUpgrading
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with cancel
		select {
		case <-a.stopping:
			cancel(ErrStopping)
		case <-ctx.Done():
		}
	}()
	pid, sessions, err := a.startNew(ctx)
	if err != nil {
		a.upgrading.Store(false)
		a.log.Error("the new binary did not take over; this one goes on", "error", err)
		return err
	}
	a.upgraded.Store(true)
	a.log.Info("the new binary has taken over", "pid", pid)
	a.handOver(sessions)
	a.notify(fmt.Sprintf("MAINPID=%d\nREADY=1", pid))
	a.once[0].Do(func() { close(a.stopping) })
	return nil
}

// startNew starts the new binary and waits until it is ready. One that is not ready in time is killed. What is written to
// sessions, the new process reads then.
func (a *App) startNew(ctx context.Context) (pid int, sessions *os.File, err error) {
	if a.binary == "" {
		return 0, nil, errors.New("where the binary lies is not known")
	}
	names, files, err := a.handedOn()
	if err != nil {
		return 0, nil, err
	}
	defer closeAll(files)
	ready, told, err := os.Pipe()
	if err != nil {
		return 0, nil, fmt.Errorf("making the readiness pipe: %w", err)
	}
	defer ready.Close()
	table, sessions, err := os.Pipe()
	if err != nil {
		_ = told.Close()
		return 0, nil, fmt.Errorf("making the pipe for sessions: %w", err)
	}
	cmd := exec.Command(a.binary, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, a.opts.Stdout, a.opts.Stderr
	cmd.ExtraFiles = append(slices.Clone(files), told, table)
	cmd.Env = append(os.Environ(),
		envFDs+"="+strconv.Itoa(len(files)), envNames+"="+strings.Join(names, ":"),
		envReady+"="+strconv.Itoa(firstFD+len(files)), envSessions+"="+strconv.Itoa(firstFD+len(files)+1))
	err = cmd.Start()
	_, _ = told.Close(), table.Close()
	if err != nil {
		_ = sessions.Close()
		return 0, nil, fmt.Errorf("starting the new binary: %w", err)
	}
	if err := a.awaitReady(ctx, ready); err != nil {
		_ = sessions.Close()
		_ = cmd.Process.Kill()
		state := cmd.Wait()
		return 0, nil, fmt.Errorf("new binary: %w (%v)", err, state)
	}
	go func() { _ = cmd.Wait() }() // reaps it if it ends before this process does
	return cmd.Process.Pid, sessions, nil
}

// awaitReady reads the line by which the new process tells that it serves.
func (a *App) awaitReady(ctx context.Context, ready *os.File) error {
	if err := ready.SetReadDeadline(time.Now().Add(readyBound)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 16)
	n, err := ready.Read(b)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("ended before it was ready")
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for it: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("not ready in time: %w", err)
	case string(b[:n]) != "ready\n":
		return errors.New("said something else than ready")
	}
	return nil
}

// handedOn are copies of all listening sockets, with the names that the new process knows them by.
func (a *App) handedOn() ([]string, []*os.File, error) {
	names, files, err := a.sockets.Files()
	if err != nil {
		return nil, nil, err
	}
	for name, l := range a.admin.Sockets() {
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			closeAll(files)
			return nil, nil, fmt.Errorf("copying the socket of %s: %w", name, err)
		}
		names, files = append(names, name), append(files, f)
	}
	return names, files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
