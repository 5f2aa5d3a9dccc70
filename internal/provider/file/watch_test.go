package file_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/provider"
	"github.com/sluice-proxy/sluice/internal/provider/file"
)

const quiet = 40 * time.Millisecond

// seen is one call of onChange.
type seen struct {
	sources provider.Sources
	err     error
}

// text is all texts, joined by "|".
func (s seen) text() string {
	var parts []string
	for _, src := range s.sources {
		parts = append(parts, string(src.Text))
	}
	return strings.Join(parts, "|")
}

// watch watches path until the test ends; when it returns watching has begun. Polling is off, so that only events can
// have told.
func watch(t *testing.T, path string, change ...func(*file.Options)) <-chan seen {
	t.Helper()
	sources, err := file.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	o := file.Options{
		Path: path, Loaded: "something else", Logger: slog.New(slog.DiscardHandler),
		Quiet: quiet, MaxWait: 20 * quiet, Poll: time.Hour,
	}
	for _, f := range change {
		f(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes, ended := make(chan seen, 100), make(chan struct{})
	go func() {
		defer close(ended)
		file.Watch(ctx, o, func(s provider.Sources, err error) { changes <- seen{s, err} })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	next(t, changes, seen{sources: sources}.text())
	return changes
}

// next waits for a change and wants its texts.
func next(t *testing.T, changes <-chan seen, want string) {
	t.Helper()
	select {
	case s := <-changes:
		if s.err != nil || s.text() != want {
			t.Fatalf("got %q, %v, want %q", s.text(), s.err, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no change, want %q", want)
	}
}

// nextError waits for a change that could not be read.
func nextError(t *testing.T, changes <-chan seen, want error) {
	t.Helper()
	select {
	case s := <-changes:
		if !errors.Is(s.err, want) {
			t.Fatalf("got %q, %v, want %v", s.text(), s.err, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no change, want %v", want)
	}
}

// replace puts a file in place by rename.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func needsCloseEvents(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell when a file is closed: pauses longer than the quiet time end a write")
	}
}

// slowly writes text in parts with pauses that are longer than the quiet time, as an editor on a slow disk would.
func slowly(t *testing.T, path string, flag int, parts ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|flag, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		<-time.After(quiet * 3 / 2)
		if _, err := f.WriteString(p); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(quiet * 3 / 2)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWatchReplaceAndRewrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.acl")
	write(t, path, "# 1")
	changes := watch(t, path)
	replace(t, path, "# 2")
	next(t, changes, "# 2")
	write(t, path, "# 3")
	next(t, changes, "# 3")
	write(t, path, "# 3") // the same bytes: nothing may come of it
	replace(t, path, "# 3")
	<-time.After(3 * quiet)
	write(t, path, "# 4")
	next(t, changes, "# 4")
}

// KF-CFG-02: a text that is written slowly is looked at when it is whole, however long that takes.
func TestWatchSlowWriter(t *testing.T) {
	t.Parallel()
	needsCloseEvents(t)
	chunks := strings.SplitAfter("a b c d e f g h i j", " ")
	for _, c := range []struct {
		name  string
		parts []string
	}{
		{"two halves", []string{"# half", " and half"}},
		{"ten chunks", append([]string{"# "}, chunks...)},
	} {
		whole := strings.Join(c.parts, "")
		t.Run(c.name+" in place", func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "gateway.acl")
			write(t, path, "# old")
			changes := watch(t, path)
			slowly(t, path, os.O_TRUNC, c.parts...)
			next(t, changes, whole)
		})
		t.Run(c.name+" after removal", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "gateway.acl")
			write(t, path, "# old")
			changes := watch(t, path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			nextError(t, changes, fs.ErrNotExist)
			slowly(t, path, os.O_CREATE, c.parts...)
			next(t, changes, whole)
		})
		t.Run(c.name+" in a new directory of fragments", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, parts := filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "parts")
			main := fmt.Sprintf("providers { file { directory = %q } }", parts)
			write(t, path, main)
			write(t, filepath.Join(parts, "a.acl"), "# a")
			changes := watch(t, path)
			write(t, filepath.Join(parts, "new/a.acl"), "# new") // once it is seen the directory is watched
			next(t, changes, main+"|# a|# new")
			slowly(t, filepath.Join(parts, "new/b.acl"), os.O_CREATE, c.parts...)
			next(t, changes, main+"|# a|# new|"+whole)
		})
		t.Run(c.name+" behind a link", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, real := filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "elsewhere", "text")
			write(t, real, "# old")
			link(t, "elsewhere/text", path)
			changes := watch(t, path)
			slowly(t, real, os.O_TRUNC, c.parts...)
			next(t, changes, whole)
		})
	}
}

// What is in the directory of fragments but is no fragment holds nothing up, even while somebody writes to it.
func TestWatchIgnoresOthersThatAreWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, parts := filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "parts")
	main := fmt.Sprintf("providers { file { directory = %q } }", parts)
	write(t, path, main)
	write(t, filepath.Join(parts, "a.acl"), "# a")
	changes := watch(t, path)
	f, err := os.Create(filepath.Join(parts, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("never closed"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(parts, "a.acl"), "# b")
	next(t, changes, main+"|# b")
}

// A fragment that is complete waits for the main file that is not: they belong together.
func TestWatchWaitsForAllWriters(t *testing.T) {
	t.Parallel()
	needsCloseEvents(t)
	dir := t.TempDir()
	path, parts := filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "parts")
	main := fmt.Sprintf("providers { file { directory = %q } }", parts)
	write(t, path, main)
	write(t, filepath.Join(parts, "a.acl"), "# a")
	changes := watch(t, path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(" #"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(parts, "a.acl"), "# b")
	<-time.After(3 * quiet)
	if _, err := f.WriteString(" end"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	next(t, changes, main+" # end|# b")
}

// KF-CFG-01: mounted volumes switch a link two directories up, more than once.
func TestWatchSymlinkSwap(t *testing.T) {
	t.Parallel()
	swap := func(t *testing.T, target, at string) {
		t.Helper()
		link(t, target, at+"_tmp")
		if err := os.Rename(at+"_tmp", at); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("main file", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		write(t, at("mount/..v1/gateway.acl"), "# 1")
		link(t, "..v1", at("mount/..data"))
		link(t, "..data/gateway.acl", at("mount/gateway.acl"))
		link(t, "mount/gateway.acl", at("gateway.acl")) // and once more from where the operator looks
		changes := watch(t, at("gateway.acl"))
		for _, v := range []string{"2", "3", "4"} {
			write(t, at("mount/..v"+v+"/gateway.acl"), "# "+v)
			swap(t, "..v"+v, at("mount/..data"))
			next(t, changes, "# "+v)
		}
		write(t, at("mount/..v4/gateway.acl"), "# in place") // where the links lead now
		next(t, changes, "# in place")
	})
	t.Run("fragments", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		main := fmt.Sprintf("providers { file { directory = %q } }", at("mount"))
		write(t, at("gateway.acl"), main)
		write(t, at("mount/..v1/a.acl"), "# 1")
		link(t, "..v1", at("mount/..data"))
		link(t, "..data/a.acl", at("mount/a.acl"))
		changes := watch(t, at("gateway.acl"))
		for _, v := range []string{"2", "3"} {
			write(t, at("mount/..v"+v+"/a.acl"), "# "+v)
			swap(t, "..v"+v, at("mount/..data"))
			next(t, changes, main+"|# "+v)
		}
	})
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		write(t, at("conf/gateway.acl"), "# 1")
		changes := watch(t, at("conf/gateway.acl"))
		for _, v := range []string{"2", "3"} {
			write(t, at("next/gateway.acl"), "# "+v)
			if err := os.Rename(at("conf"), at("old"+v)); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(at("next"), at("conf")); err != nil {
				t.Fatal(err)
			}
			next(t, changes, "# "+v)
		}
	})
}

func TestWatchFragments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	remove := func(name string) {
		t.Helper()
		if err := os.RemoveAll(at(name)); err != nil {
			t.Fatal(err)
		}
	}
	main := fmt.Sprintf("providers { file { directory = %q } }", at("parts"))
	write(t, at("gateway.acl"), main)
	write(t, at("parts/a.acl"), "# a")
	changes := watch(t, at("gateway.acl"))
	write(t, at("parts/b.acl"), "# b")
	next(t, changes, main+"|# a|# b")
	write(t, at("parts/sub/c.acl"), "# c")
	next(t, changes, main+"|# a|# b|# c")
	write(t, at("parts/sub/c.acl"), "# d")
	next(t, changes, main+"|# a|# b|# d")
	remove("parts/sub")
	next(t, changes, main+"|# a|# b")
	remove("parts/a.acl")
	next(t, changes, main+"|# b")
	remove("parts")
	nextError(t, changes, fs.ErrNotExist)
	write(t, at("parts/e.acl"), "# e")
	next(t, changes, main+"|# e")

	// The main file may name another directory, which counts from then on, and the old one does not.
	write(t, at("others/f.acl"), "# f")
	main = fmt.Sprintf("providers { file { directory = %q } }", at("others"))
	write(t, at("gateway.acl"), main)
	next(t, changes, main+"|# f")
	write(t, at("parts/e.acl"), "# not this")
	write(t, at("others/f.acl"), "# g")
	next(t, changes, main+"|# g")
}

// A burst becomes one change, of its last state.
func TestWatchBurst(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.acl")
	write(t, path, "# 0")
	changes := watch(t, path, func(o *file.Options) { o.Quiet, o.MaxWait = 2*time.Second, time.Minute })
	for i := range 50 {
		replace(t, path, fmt.Sprintf("# %d", i+1))
	}
	next(t, changes, "# 50")
	replace(t, path, "# end")
	next(t, changes, "# end") // and nothing between
}

// What never becomes quiet is looked at all the same.
func TestWatchMaxWait(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.acl")
	write(t, path, "# 0")
	changes := watch(t, path, func(o *file.Options) { o.Quiet, o.MaxWait = 200*time.Millisecond, 400*time.Millisecond })
	stop := time.After(20 * time.Second)
	for i := 1; ; i++ {
		replace(t, path, fmt.Sprintf("# %d", i))
		select {
		case s := <-changes:
			if s.err != nil || !strings.HasPrefix(s.text(), "# ") || s.text() == "# 0" {
				t.Fatalf("got %q, %v", s.text(), s.err)
			}
			return
		case <-time.After(5 * time.Millisecond):
		case <-stop:
			t.Fatal("never looked at while it changed")
		}
	}
}

// A text with an error is handed over like any other: that its sender refuses it is no reason to miss the next.
func TestWatchInvalidThenValid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, parts := filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "parts")
	main := fmt.Sprintf("providers { file { directory = %q } }", parts)
	write(t, path, main)
	write(t, filepath.Join(parts, "a.acl"), "# a")
	changes := watch(t, path)
	write(t, path, "providers {")
	next(t, changes, "providers {")
	write(t, path, main)
	next(t, changes, main+"|# a")
	write(t, path, strings.Repeat("#", provider.MaxFileBytes+1))
	nextError(t, changes, file.ErrTooBig)
	write(t, path, main)
	next(t, changes, main+"|# a")
}

// Nothing is missed between loading and watching (every test here begins with that), and what is loaded is no change.
func TestWatchBeginsWithWhatIsLoaded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.acl")
	write(t, path, "# 1")
	loaded, err := file.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Were the first text a change, it would be told after a quiet time, long before the end.
	time.AfterFunc(10*quiet, cancel)
	o := file.Options{Path: path, Loaded: loaded.Digest(), Logger: slog.New(slog.DiscardHandler), Quiet: quiet}
	file.Watch(ctx, o, func(s provider.Sources, err error) { t.Errorf("told of %q, %v", seen{s, err}.text(), err) })
}
