//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package cert

import (
	"errors"
	"io/fs"
	"os"
)

// lockFile makes this process the only one with the file, until unlock. Where there are no locks, it is the file's being there
// that locks: after a crash somebody has to remove it. Somebody else's lock is ErrLocked.
func lockFile(name string) (unlock func() error, err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, &os.PathError{Op: "lock", Path: name, Err: ErrLocked}
	}
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(f.Close(), os.Remove(name)) }, nil
}
