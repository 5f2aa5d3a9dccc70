package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// writePID notes this process in a file, in one step, and returns what removes the note again, unless another process
// has noted itself there meanwhile. Without a name it does nothing.
func writePID(name string) (remove func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	own := strconv.Itoa(os.Getpid())
	temporary := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+"."+own)
	if err := os.WriteFile(temporary, []byte(own+"\n"), 0o644); err != nil { //nolint:gosec // others are meant to read it
		return nil, fmt.Errorf("writing the pid file: %w", err)
	}
	if err := os.Rename(temporary, name); err != nil {
		_ = os.Remove(temporary)
		return nil, fmt.Errorf("writing the pid file: %w", err)
	}
	return func() {
		if pid, err := readPID(name); err == nil && pid == os.Getpid() {
			_ = os.Remove(name)
		}
	}, nil
}

func readPID(name string) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, fmt.Errorf("reading the pid file: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("pid file %s holds no process id", name)
	}
	return pid, nil
}

// errNotOurs protects a stranger that has inherited a process id: the signal would end it.
var errNotOurs = errors.New("does not listen to SIGUSR2, so it is no gateway that serves")

// catches reports whether a process has a handler for a signal, where the system tells.
func catches(pid, signal int) error {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return nil //nolint:nilerr // no such file system, or no such process: the signal itself will tell
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err == nil && mask&(1<<(signal-1)) == 0 {
				return fmt.Errorf("process %d %w", pid, errNotOurs)
			}
		}
	}
	return nil
}
