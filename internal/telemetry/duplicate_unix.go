//go:build unix

package telemetry

import (
	"os"
	"syscall"
)

const (
	// openFlags keep an output that is a pipe without reader from blocking the start.
	openFlags  = syscall.O_NONBLOCK
	duplicates = true
)

// duplicate returns a second descriptor of f. Its mode, blocking or not, is that of f and stays as it is.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, dupErr = syscall.Dup(int(old)); dupErr == nil {
			syscall.CloseOnExec(fd)
		}
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("dup", dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
