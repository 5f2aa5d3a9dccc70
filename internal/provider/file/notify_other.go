//go:build !linux

package file

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// notifyCloses says that nobody tells when a writer has closed its file: a quiet time has to do.
const notifyCloses = false

// notifier watches directories by what the system has for that. events is closed when close was called and the
// reader has ended.
type notifier struct {
	events  chan event
	watcher *fsnotify.Watcher
	done    chan struct{} // closed by close: nobody receives any more

	mu  sync.Mutex // guards set
	set places
}

func newNotifier() (*notifier, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("starting to watch files: %w", err)
	}
	return &notifier{events: make(chan event), watcher: w, done: make(chan struct{})}, nil
}

// update watches exactly these places from now on. It returns the last error of a directory that cannot be watched;
// the others are.
func (n *notifier) update(set places) error {
	n.mu.Lock()
	n.set = set
	n.mu.Unlock()
	var failed error
	for dir := range set {
		if err := n.watcher.Add(dir); err != nil {
			failed = fmt.Errorf("watching %s: %w", dir, err)
		}
	}
	for _, dir := range n.watcher.WatchList() {
		if set[dir] == nil {
			_ = n.watcher.Remove(dir) // gone already is as good
		}
	}
	return failed
}

// run sends events until close. It is the notifier's one goroutine, started by its owner.
func (n *notifier) run() {
	defer close(n.events)
	for {
		select {
		case <-n.done:
			return
		case _, ok := <-n.watcher.Errors:
			if !ok || !n.send(event{change: lost}) {
				return
			}
		case e, ok := <-n.watcher.Events:
			if !ok {
				return
			}
			ev := event{path: filepath.Clean(e.Name), change: changed}
			switch {
			case e.Has(fsnotify.Write):
				ev.change = writing
			case e.Has(fsnotify.Create):
				ev.change = created
			}
			n.mu.Lock()
			wanted := n.set[ev.path] != nil || n.set[filepath.Dir(ev.path)] != nil && n.set[filepath.Dir(ev.path)].wants(filepath.Base(ev.path))
			n.mu.Unlock()
			if wanted && !n.send(ev) {
				return
			}
		}
	}
}

// close ends run and frees the descriptors. Events that nobody has received are dropped.
func (n *notifier) close() {
	close(n.done)
	_ = n.watcher.Close()
}
