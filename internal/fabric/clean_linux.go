package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Leftover is something that exists of a run: "namespace", "group" or "process", and what it is called. Links, addresses,
// routes and rules are not listed: they are in the namespaces, and go with them.
type Leftover struct{ Kind, Name string }

// String is for messages.
func (l Leftover) String() string { return l.Kind + " " + l.Name }

// Left lists what exists of the run, whoever made it: namespaces by their names, groups, the processes in these groups,
// and processes, other than the caller, with a thread in one of these namespaces.
func (r Run) Left() ([]Leftover, error) {
	var all []Leftover
	inodes, err := r.namespaces()
	if err != nil {
		return nil, err
	}
	for name := range inodes {
		all = append(all, Leftover{"namespace", name})
	}
	groups, pids, err := r.allGroups()
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		all = append(all, Leftover{"group", g})
	}
	inside, err := processesInside(inodes)
	if err != nil {
		return nil, err
	}
	for _, pid := range append(pids, inside...) {
		l := Leftover{"process", strconv.Itoa(pid)}
		if pid != os.Getpid() && !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	return all, nil
}

// cleaning bounds how long killed processes may take to go.
const cleaning = 10 * time.Second

// Clean removes whatever Left finds: it kills the processes and then removes groups and namespaces. It is for runs whose
// process was killed, and does nothing where nothing is left. Handles that the caller still has of the run are useless
// afterwards. The error says what is still there.
func (r Run) Clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleaning)
	defer cancel()
	errs := []error{r.killAll(ctx)}
	groups, _, err := r.allGroups()
	errs = append(errs, err)
	for _, g := range slices.Backward(groups) { // children first
		errs = append(errs, removeGroup(ctx, g))
	}
	inodes, err := r.namespaces()
	errs = append(errs, err)
	for name := range inodes {
		errs = append(errs, unname(name))
	}
	left, err := r.Left()
	errs = append(errs, err)
	for _, l := range left {
		errs = append(errs, fmt.Errorf("%s: %w", l, ErrLeft))
	}
	return errors.Join(errs...)
}

// killAll kills until nothing of the run lives, since what is killed may just have started something.
func (r Run) killAll(ctx context.Context) error {
	for {
		left, err := r.Left()
		if err != nil {
			return err
		}
		alive := 0
		for _, l := range left {
			if pid, err := strconv.Atoi(l.Name); l.Kind == "process" && err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
				alive++
			}
		}
		if alive == 0 {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("killing %d processes of run %s: %w", alive, r.id, err)
		}
	}
}

// removeGroup removes the directory of a group; the kernel may need a moment after its last process has been killed.
func removeGroup(ctx context.Context, dir string) error {
	for {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || pause(ctx) != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(5 * time.Millisecond):
		return nil
	}
}

// namespaces are the names of the run's namespaces with their inodes; 0 is a name without a namespace.
func (r Run) namespaces() (map[string]uint64, error) {
	if r.id == "" {
		return nil, fmt.Errorf("a run without identifier: %w", ErrName)
	}
	entries, err := os.ReadDir(namespaces)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	found := make(map[string]uint64)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), r.all()) {
			continue
		}
		var st unix.Stat_t
		var in unix.Statfs_t
		path := filepath.Join(namespaces, e.Name())
		if unix.Stat(path, &st) != nil || unix.Statfs(path, &in) != nil {
			continue // gone meanwhile
		}
		found[e.Name()] = 0
		if in.Type == unix.NSFS_MAGIC {
			found[e.Name()] = st.Ino
		}
	}
	return found, nil
}

// allGroups are the directories of the run's groups in all hierarchies, parents first, and the processes in them.
func (r Run) allGroups() (dirs []string, pids []int, err error) {
	m, err := machine()
	if errors.Is(err, ErrNoControlGroups) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, root := range m.every() {
		err := filepath.WalkDir(filepath.Join(root, r.groups()), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !d.IsDir() {
				return err
			}
			in, err := processesIn(path)
			if err == nil {
				dirs, pids = append(dirs, path), append(pids, in...)
			}
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil // removed meanwhile
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return dirs, pids, nil
}

// processesInside are the processes with a thread in one of the namespaces.
func processesInside(inodes map[string]uint64) ([]int, error) {
	wanted := make(map[uint64]bool)
	for _, inode := range inodes {
		wanted[inode] = inode != 0
	}
	threads, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, path := range threads {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || !wanted[st.Ino] {
			continue // the thread has ended, or is elsewhere
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err == nil && !slices.Contains(all, pid) {
			all = append(all, pid)
		}
	}
	return all, nil
}
