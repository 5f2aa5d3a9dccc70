package file

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/provider"
)

// Options say what to watch and how patiently. Path and Logger are required.
type Options struct {
	// Path is the main file. Where the fragments are is learned from it, each time anew.
	Path string
	// Loaded is the digest of the texts that are in force when watching begins. What differs from it is a change, so
	// that nothing is missed between loading and watching. Empty: whatever is found first is in force.
	Loaded string
	Logger *slog.Logger

	Quiet   time.Duration // how long nothing may happen before a change is looked at; 0 means 200 ms
	MaxWait time.Duration // a change is looked at after this much even while more happens; 0 means 2 s
	Poll    time.Duration // how often is looked without any event, for file systems that have none; 0 means 5 s
}

func (o *Options) defaults() {
	or := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	or(&o.Quiet, 200*time.Millisecond)
	or(&o.MaxWait, 2*time.Second)
	or(&o.Poll, 5*time.Second)
}

// Watch calls onChange with the texts each time that they have changed as a whole, or with the error that reading
// them gave, until ctx ends. It blocks; onChange is called from this goroutine, and what happens meanwhile is looked
// at when it returns. The same texts, or the same error, are never reported twice in a row.
//
// A file that somebody has begun to write counts when it is closed or renamed, however long that takes; where the
// system does not tell a close, when it was quiet for a while. If the system cannot watch at all, Watch polls and
// logs that once.
func Watch(ctx context.Context, o Options, onChange func(provider.Sources, error)) {
	o.defaults()
	w := &watcher{Options: o, onChange: onChange, writing: map[string]time.Time{}, last: o.Loaded}
	var events <-chan event
	if n, err := newNotifier(); err != nil {
		o.Logger.Warn("configuration files are polled only", "interval", o.Poll.String(), "error", err)
	} else {
		w.notifier, events = n, n.events
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n.run()
		}()
		defer func() {
			n.close()
			<-ended
		}()
	}
	w.loop(ctx, events)
}

// look is one reading of all the texts.
type look struct {
	sources provider.Sources
	err     error
	digest  string
}

// watcher is the state of one Watch; only its goroutine touches it.
//
// A change is first awaited to end (pending), then read, then confirmed: the texts are only handed over when nobody
// turns out to have been writing while they were read.
type watcher struct {
	Options
	notifier *notifier // nil: poll only
	onChange func(provider.Sources, error)

	set     places
	last    string               // digest reported last
	writing map[string]time.Time // files somebody writes to, and when they were last seen to
	refused string               // text of the last complaint about watching, so that it is logged once

	pending       bool
	first, recent time.Time // the events that are waited out
	polled        string    // digest that the poll saw change; must be seen twice
	found         *look     // read, to be confirmed
	more          bool      // something happened while found was being confirmed
	timer         *time.Timer
}

func (w *watcher) loop(ctx context.Context, events <-chan event) {
	w.timer = time.NewTimer(time.Hour)
	w.timer.Stop()
	defer w.timer.Stop()
	poll := time.NewTicker(w.Poll)
	defer poll.Stop()

	if now := w.look(); w.last == "" {
		w.last = now.digest
	} else if now.digest != w.last {
		w.happened(time.Now())
	}
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-events:
			if !ok { // the system has taken the watch away; the poll remains
				events, w.notifier = nil, nil
				w.note(event{change: lost})
				w.Logger.Warn("configuration files are polled only", "interval", w.Poll.String())
				continue
			}
			w.note(ev)
		case <-w.timer.C:
			w.step()
		case <-poll.C:
			w.glance()
		}
	}
}

// glance finds what no event told of.
func (w *watcher) glance() {
	if w.pending {
		if w.found == nil && len(w.writing) > 0 { // what is being written may not matter any more
			w.place()
			if now := time.Now(); !w.busy(now) {
				w.arm(now)
			}
		}
		return
	}
	if now := w.look(); now.digest != w.last {
		w.polled = now.digest
		w.happened(time.Now())
	}
}

// note takes an event in.
func (w *watcher) note(ev event) {
	now := time.Now()
	switch ev.change {
	case writing:
		if w.set.holds(ev.path) {
			w.writing[ev.path] = now
			w.found = nil
		}
	case created:
		fi, err := os.Lstat(ev.path)
		switch {
		case err != nil:
		case fi.IsDir():
			w.place() // before somebody writes in it
		case notifyCloses && fi.Mode().IsRegular() && fi.Size() == 0 && w.set.holds(ev.path):
			w.writing[ev.path] = now // its first writer is still to begin; a link made to a file is not empty
		default:
			delete(w.writing, ev.path)
		}
	case lost:
		clear(w.writing)
	case changed, written:
		delete(w.writing, ev.path)
	}
	if w.found != nil && now.Sub(w.first) >= w.MaxWait {
		w.more = true // what was read stands: nobody wrote to it
		return
	}
	w.happened(now)
}

// happened begins to wait for the end of a change, or goes on to.
func (w *watcher) happened(now time.Time) {
	w.found = nil
	if !w.pending {
		w.pending, w.first = true, now
	}
	w.recent = now
	w.arm(now)
}

// arm sets the timer to when the pending change is to be looked at.
func (w *watcher) arm(now time.Time) {
	due := w.recent.Add(w.Quiet)
	if limit := w.first.Add(w.MaxWait); limit.Before(due) {
		due = limit
	}
	w.timer.Reset(max(0, due.Sub(now)))
}

// step goes on with a change: from pending to found to reported.
func (w *watcher) step() {
	if w.found != nil {
		w.report()
		return
	}
	now := time.Now()
	w.place()
	if w.busy(now) {
		return
	}
	found := w.look()
	if w.polled != "" && found.digest != w.polled { // still changing, and no event will tell when it ends
		w.polled, w.recent, w.first = found.digest, now, now
		w.arm(now)
		return
	}
	w.polled = ""
	if found.digest == w.last {
		w.pending = false
		return
	}
	w.found, w.more = found, false
	w.timer.Reset(w.Quiet / 8)
}

// busy reports whether somebody is in the middle of writing a text. If so the change stays pending: the close will
// be an event.
func (w *watcher) busy(now time.Time) bool {
	for path, since := range w.writing {
		switch {
		case !w.set.holds(path):
			delete(w.writing, path)
		case notifyCloses:
			w.Logger.Debug("waiting for the end of a write", "file", path)
			return true
		case now.Sub(since) < w.Quiet:
			w.timer.Reset(w.Quiet - now.Sub(since))
			return true
		default:
			delete(w.writing, path)
		}
	}
	return false
}

// report hands over what was found.
func (w *watcher) report() {
	found, more := w.found, w.more
	w.found, w.pending, w.last = nil, false, found.digest
	w.onChange(found.sources, found.err)
	if more {
		w.happened(time.Now())
	}
}

// look reads everything, after making sure that what happens from now on will be told.
func (w *watcher) look() *look {
	w.place()
	sources, err := Read(w.Path)
	if err != nil {
		return &look{err: err, digest: "error: " + err.Error()}
	}
	return &look{sources: sources, digest: sources.Digest()}
}

// place learns anew which directories matter, and watches those.
func (w *watcher) place() {
	directory := ""
	if text, err := readText(w.Path); err == nil {
		if p, ok := (config.Loader{}).PeekFileProvider(config.Source{File: w.Path, Text: text}); ok && p != nil {
			directory = p.Directory
		}
	}
	w.set = find(w.Path, directory)
	if w.notifier == nil {
		return
	}
	text := ""
	if err := w.notifier.update(w.set); err != nil {
		text = err.Error()
	}
	if text != "" && text != w.refused {
		w.Logger.Warn("a configuration directory is polled only", "interval", w.Poll.String(), "error", text)
	}
	w.refused = text
}
