package fabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Namespace is a handle of a network namespace that has a name. It owns one thread that has entered the namespace and
// does there what only a thread inside can do, above all to make sockets: a socket belongs for ever to the namespace it
// was made in. The thread never does anything else, and ends with the handle. Safe for concurrent use.
type Namespace struct {
	name   string // with the run's prefix
	file   *os.File
	inode  uint64
	cookie uint64

	calls chan call
	quit  chan struct{}
	ended chan struct{}
	once  sync.Once

	stock stock
}

type call struct {
	fn   func() error
	done chan error
}

// CreateNamespace makes a namespace with nothing in it but a loopback interface, which is up. The name must be free.
func (r Run) CreateNamespace(name string) (*Namespace, error) {
	full, err := r.name(name)
	if err != nil {
		return nil, err
	}
	path, err := reserve(full)
	if err != nil {
		return nil, err
	}
	n, err := enter(full, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making network namespace %s: %w", full, err)
		}
		return os.NewSyscallError("mount", unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
	})
	if err != nil {
		return nil, errors.Join(err, unname(full)) // which may have been mounted already
	}
	if err := n.Up("lo"); err != nil {
		return nil, errors.Join(err, n.Remove())
	}
	return n, nil
}

// reserve makes the file that a namespace is kept at.
func reserve(full string) (string, error) {
	if err := share(); err != nil {
		return "", err
	}
	path := filepath.Join(namespaces, full)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return "", fmt.Errorf("reserving the name of a network namespace: %w", err)
	}
	return path, f.Close()
}

// share makes the directory of names a mount of its own that all mount namespaces share, as the first `ip netns add` of a
// machine does: were that to come later, it would hide the names that are there, and none of them could be removed.
func share() error {
	if err := os.MkdirAll(namespaces, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(namespaces)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // done twice it would hide names, too
		return os.NewSyscallError("flock", err)
	}
	err = unix.Mount("", namespaces, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // it is no mount yet
		if err = unix.Mount(namespaces, namespaces, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", namespaces, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	return os.NewSyscallError("sharing the mount of network namespaces", err)
}

// OpenNamespace returns another handle of a namespace that was created, maybe by another process.
func (r Run) OpenNamespace(name string) (*Namespace, error) {
	full, err := r.name(name)
	if err != nil {
		return nil, err
	}
	return enter(full, func() error {
		f, err := os.Open(filepath.Join(namespaces, full))
		if err != nil {
			return fmt.Errorf("opening a network namespace: %w", err)
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering network namespace %s: %w", full, err)
		}
		return nil
	})
}

// enter starts the thread of a handle, which gets into its namespace by into.
func enter(full string, into func() error) (*Namespace, error) {
	n := &Namespace{name: full, calls: make(chan call), quit: make(chan struct{}), ended: make(chan struct{})}
	started := make(chan error)
	go n.settle(into, started)
	if err := <-started; err != nil {
		<-n.ended
		return nil, err
	}
	return n, nil
}

// settle finds a thread to reside on. The first thread of a process cannot be one: the runtime never ends it, and it would
// stay in the namespace and keep that alive.
func (n *Namespace) settle(into func() error, started chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		n.reside(into, started)
		return
	}
	elsewhere := make(chan struct{})
	go func() {
		runtime.LockOSThread() // not the first thread, which is taken
		close(elsewhere)
		n.reside(into, started)
	}()
	<-elsewhere
	runtime.UnlockOSThread()
}

// reside is the thread in the namespace. It stays locked for ever, so that the runtime ends the thread with the
// goroutine and no other goroutine ever runs on it.
func (n *Namespace) reside(into func() error, started chan<- error) {
	defer close(n.ended)
	err := into()
	if err == nil {
		err = n.know()
	}
	started <- err
	if err != nil {
		return
	}
	for {
		select {
		case c := <-n.calls:
			c.done <- c.fn()
		case <-n.quit:
			return
		}
	}
}

// know learns what identifies the namespace that the calling thread is in.
func (n *Namespace) know() error {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return errors.Join(os.NewSyscallError("fstat", err), f.Close())
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return errors.Join(os.NewSyscallError("socket", err), f.Close())
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return errors.Join(os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err), f.Close())
	}
	n.file, n.inode, n.cookie = f, st.Ino, cookie
	return nil
}

// Do runs fn on the thread inside the namespace, one call after the other, and returns its error. fn must not block for
// long, start goroutines that rely on the namespace, or call Do.
func (n *Namespace) Do(fn func() error) error {
	c := call{fn: fn, done: make(chan error, 1)}
	select {
	case n.calls <- c:
		return <-c.done
	case <-n.ended:
		return fmt.Errorf("%s: %w", n.name, ErrClosed)
	}
}

// Name is the full name, under which ip-netns(8) finds the namespace, too.
func (n *Namespace) Name() string { return n.name }

// Inode identifies the namespace in /proc/PID/ns/net as long as it exists.
func (n *Namespace) Inode() uint64 { return n.inode }

// Cookie is the kernel's number of the namespace, never used again until it restarts; every socket tells its own
// (SO_NETNS_COOKIE, socket(7)).
func (n *Namespace) Cookie() uint64 { return n.cookie }

// Close ends the handle and its thread. The namespace stays. Sockets made inside go on working. A second call does
// nothing.
func (n *Namespace) Close() error {
	var err error
	n.once.Do(func() {
		close(n.quit)
		<-n.ended
		n.stock.close()
		err = n.file.Close()
	})
	return err
}

// Remove closes the handle and takes the name away, unless another namespace has got it meanwhile. The kernel frees the
// namespace, with all links and rules in it, once the last process, thread and socket inside has gone as well.
func (n *Namespace) Remove() error {
	err := n.Close()
	var st unix.Stat_t
	if unix.Stat(filepath.Join(namespaces, n.name), &st) != nil || st.Ino != n.inode {
		return err
	}
	return errors.Join(err, unname(n.name))
}

// RemoveNamespace takes a name away, as [Namespace.Remove] does, without a handle. None there is no error.
func (r Run) RemoveNamespace(name string) error {
	full, err := r.name(name)
	if err != nil {
		return err
	}
	return unname(full)
}

func unname(full string) error {
	path := filepath.Join(namespaces, full)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not mounted, or gone already
		return fmt.Errorf("unmounting network namespace %s: %w", full, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
