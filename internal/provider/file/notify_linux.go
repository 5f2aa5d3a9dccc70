package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notifyCloses says that notifiers report when a writer has closed its file.
const notifyCloses = true

const (
	entryMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
		unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	writeMask = entryMask | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB
)

// notifier is an inotify instance. Of the libraries for this none tells a close from a write, and that is what a
// half-written file is recognised by. events is closed when close was called and the reader has ended.
type notifier struct {
	events chan event
	file   *os.File
	done   chan struct{} // closed by close: nobody receives any more

	mu    sync.Mutex // guards what follows
	watch map[int32]string
	wds   map[string]int32
	set   places
}

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("starting inotify: %w", err)
	}
	n := &notifier{
		events: make(chan event), file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}),
		watch: map[int32]string{}, wds: map[string]int32{},
	}
	return n, nil
}

// update watches exactly these places from now on. It returns the last error of a directory that cannot be watched;
// the others are.
func (n *notifier) update(set places) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.set = set
	var failed error
	for dir, p := range set {
		mask := uint32(entryMask)
		if p.writes {
			mask = writeMask
		}
		// Asked again for a directory that is watched already: another one may stand there by now.
		wd, err := n.add(dir, mask)
		if err != nil {
			failed = fmt.Errorf("watching %s: %w", dir, err)
			continue
		}
		if old, ok := n.wds[dir]; ok && old != wd {
			n.remove(old)
		}
		n.wds[dir], n.watch[wd] = wd, dir
	}
	for dir, wd := range n.wds {
		if set[dir] == nil {
			n.remove(wd)
			delete(n.wds, dir)
		}
	}
	return failed
}

func (n *notifier) add(dir string, mask uint32) (int32, error) {
	conn, err := n.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var wd int
	var failed error
	if err := conn.Control(func(fd uintptr) { wd, failed = unix.InotifyAddWatch(int(fd), dir, mask) }); err != nil {
		return 0, err
	}
	return int32(wd), failed //nolint:gosec // the kernel's numbers are ints of 32 bits
}

func (n *notifier) remove(wd int32) {
	delete(n.watch, wd)
	if conn, err := n.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) }) // gone already is as good
	}
}

// run sends events until close. It is the notifier's one goroutine, started by its owner.
func (n *notifier) run() {
	defer close(n.events)
	buf := make([]byte, 16<<10)
	for {
		k, err := n.file.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				n.send(event{change: lost})
			}
			return
		}
		for rest := buf[:k]; len(rest) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(rest))
			mask := binary.NativeEndian.Uint32(rest[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[unsafe.Offsetof(unix.InotifyEvent{}.Len):]))
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:size]), "\x00")
			rest = rest[size:]
			if ev, ok := n.translate(wd, mask, name); ok && !n.send(ev) {
				return
			}
		}
	}
}

// translate is false for what does not matter.
func (n *notifier) translate(wd int32, mask uint32, name string) (event, bool) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return event{change: lost}, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir, ok := n.watch[wd]
	if !ok {
		return event{}, false
	}
	if mask&unix.IN_IGNORED != 0 { // the directory is gone, and its number may be used again
		delete(n.watch, wd)
		if n.wds[dir] == wd {
			delete(n.wds, dir)
		}
		return event{path: dir, change: changed}, true
	}
	if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
		return event{path: dir, change: changed}, true
	}
	p := n.set[dir]
	if p == nil || name == "" || !p.wants(name) {
		return event{}, false
	}
	ev := event{path: filepath.Join(dir, name), change: changed}
	switch {
	case mask&unix.IN_CLOSE_WRITE != 0:
		ev.change = written
	case mask&unix.IN_MODIFY != 0:
		ev.change = writing
	case mask&unix.IN_CREATE != 0:
		ev.change = created
	}
	return ev, true
}

// close ends run and frees the descriptor. Events that nobody has received are dropped.
func (n *notifier) close() {
	close(n.done)
	_ = n.file.Close()
}
