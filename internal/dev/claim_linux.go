package dev

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// claim makes the caller the only one that makes, or cleans, a run on this machine, until it is closed or the process ends. It is an
// abstract socket, unix(7): nothing of it is in a file system, and nothing stays of one whose process was killed.
func claim(run string) (io.Closer, error) {
	l, err := net.Listen("unix", "@sluice-dev-"+run)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w with the run %s, or is just being started, removed or cleaned", ErrRuns, run)
	}
	return l, err
}
