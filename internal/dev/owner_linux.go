package dev

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt has processes whose parent has ended become children of this one: actors outlive their workers, and whoever is the machine's first
// process may not take note of their end.
func adopt() error {
	return os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// reap takes note of adopted processes that have ended. No other child may be waited for meanwhile.
func reap() {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// claim makes the caller the only one that makes, or cleans, a run on this machine, until it is closed or the process ends. It is an
// abstract socket, unix(7): nothing of it is in a file system, and nothing stays of one whose process was killed.
func claim(run string) (io.Closer, error) {
	l, err := net.Listen("unix", claimOf(run))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, runs(run)
	}
	return l, err
}

// claimed reports whether somebody has claimed a run. To claim it for a moment would tell, but keep another from starting then.
func claimed(run string) bool {
	c, err := net.Dial("unix", claimOf(run))
	if err == nil {
		_ = c.Close() // nobody takes it
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}

const claimPrefix = "@sluice-dev-"

func claimOf(run string) string { return claimPrefix + run }

// claims are the runs that anybody has claimed, sorted.
func claims() []string {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	var all []string
	for line := range strings.Lines(string(table)) {
		if _, run, found := strings.Cut(line, " "+claimPrefix); found {
			all = append(all, strings.TrimSpace(run))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func runs(run string) error {
	return fmt.Errorf("%w with the run %s, or is just being started, removed or cleaned", ErrRuns, run)
}
