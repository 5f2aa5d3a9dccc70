//go:build unix && !solaris && !aix

package atelet

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// lockDir waits for the lock of a directory, which nobody holds for longer than it takes to write a file.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return func() { _ = f.Close() }, nil
}
