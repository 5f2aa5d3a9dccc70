//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cert

import (
	"errors"
	"os"
	"syscall"
)

// lockFile makes this process the only one with the file, until unlock or its own end. The file stays. Somebody else's lock
// is ErrLocked.
func lockFile(name string) (unlock func() error, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return f.Close, nil
}
