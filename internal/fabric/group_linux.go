package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound what the processes of a group may have together.
type Limits struct {
	Processes int   // processes and threads; at least 1
	Memory    int64 // bytes; 0 is no limit
}

// Group is a handle of a control group: the processes in it are frozen and killed together, and cannot leave it. It
// stands below one directory of the run, /sluice-RUN, in each hierarchy.
type Group struct {
	machine hierarchies
	path    string // below a hierarchy
	inode   uint64 // of its directory in the unified one; a later group of the same name has another
}

func (r Run) groups() string { return prefix + r.id }

func (r Run) group(name string) (*Group, error) {
	if _, err := r.name(name); err != nil {
		return nil, err
	}
	m, err := machine()
	if err != nil {
		return nil, err
	}
	return &Group{machine: m, path: filepath.Join(r.groups(), name)}, nil
}

// CreateGroup makes an empty group with limits. The name must be free.
func (r Run) CreateGroup(name string, l Limits) (*Group, error) {
	g, err := r.group(name)
	if err != nil {
		return nil, err
	}
	if l.Processes < 1 || l.Memory < 0 {
		return nil, fmt.Errorf("control group %s: limits of %d processes and %d bytes", g.path, l.Processes, l.Memory)
	}
	if err := g.create(l); err != nil {
		if !errors.Is(err, os.ErrExist) { // whose group is not ours to remove
			err = errors.Join(err, g.remove())
		}
		return nil, fmt.Errorf("making control group %s: %w", g.path, err)
	}
	if g.inode, err = g.current(); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

// current is the inode of the group that has the name now.
func (g *Group) current() (uint64, error) {
	var st unix.Stat_t
	path := filepath.Join(g.machine.unified, g.path)
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// replaced reports whether the group was removed, by somebody who cleaned up, and maybe another one made in its place.
func (g *Group) replaced() bool {
	inode, err := g.current()
	return err != nil || inode != g.inode
}

func (g *Group) create(l Limits) error {
	unified := filepath.Join(g.machine.unified, g.path)
	if err := os.MkdirAll(filepath.Dir(unified), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(unified, 0o755); err != nil {
		return err
	}
	if err := g.limit("pids", map[string]int64{"pids.max": int64(l.Processes)}); err != nil {
		return err
	}
	if l.Memory == 0 {
		return nil
	}
	if g.machine.limits["memory"] == g.machine.unified {
		return g.limit("memory", map[string]int64{"memory.max": l.Memory, "memory.swap.max": 0})
	}
	return g.limit("memory", map[string]int64{"memory.limit_in_bytes": l.Memory})
}

func (g *Group) limit(controller string, values map[string]int64) error {
	root := g.machine.limits[controller]
	switch root {
	case "":
		return fmt.Errorf("%w: no hierarchy has the %s controller", ErrNoControlGroups, controller)
	case g.machine.unified:
		for _, dir := range []string{root, filepath.Join(root, filepath.Dir(g.path))} {
			if err := put(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
				return err
			}
		}
	}
	dir := filepath.Join(root, g.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for file, v := range values {
		err := put(filepath.Join(dir, file), strconv.FormatInt(v, 10))
		if err != nil && !(errors.Is(err, os.ErrNotExist) && file == "memory.swap.max") { // only with swap accounting
			return err
		}
	}
	return nil
}

// OpenGroup returns another handle of a group that exists.
func (r Run) OpenGroup(name string) (*Group, error) {
	g, err := r.group(name)
	if err != nil {
		return nil, err
	}
	if g.inode, err = g.current(); err != nil {
		return nil, fmt.Errorf("opening a control group: %w", err)
	}
	return g, nil
}

// Attach has a command start inside the group. The returned func must be called once it has been started; then Join puts
// its process under the limits, before it may run anything that is not trusted.
func (g *Group) Attach(attr *syscall.SysProcAttr) (done func() error, err error) {
	f, err := os.Open(filepath.Join(g.machine.unified, g.path))
	if err != nil {
		return nil, fmt.Errorf("opening a control group: %w", err)
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	return f.Close, nil
}

// Join moves a process, with what it starts from then on, into the group.
func (g *Group) Join(pid int) error {
	for _, root := range g.machine.every() {
		dir := filepath.Join(root, g.path)
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			continue // no limit of that kind
		}
		if err := put(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("moving process %d into control group %s: %w", pid, g.path, err)
		}
	}
	return nil
}

// Freeze stops all processes of the group where they are and returns when they have stopped. Their kernel sockets live
// on: a connection to a listener is established, and nobody accepts it.
func (g *Group) Freeze(ctx context.Context) error {
	return g.set(ctx, "cgroup.freeze", "1", "frozen 1")
}

// Thaw lets the processes go on.
func (g *Group) Thaw(ctx context.Context) error { return g.set(ctx, "cgroup.freeze", "0", "frozen 0") }

// Kill ends all processes of the group, frozen ones too, and returns when they have gone. A group that was removed has
// none.
func (g *Group) Kill(ctx context.Context) error {
	if g.replaced() {
		return nil
	}
	err := g.set(ctx, "cgroup.kill", "1", "populated 0")
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) { // removed meanwhile, which needs it empty
		return nil
	}
	return err
}

// Frozen reports whether the group is stopped.
func (g *Group) Frozen() (bool, error) {
	text, err := os.ReadFile(g.file("cgroup.events"))
	return strings.Contains(string(text), "frozen 1"), err
}

// Processes are the identifiers of the processes in the group.
func (g *Group) Processes() ([]int, error) {
	return processesIn(filepath.Join(g.machine.unified, g.path))
}

// Remove removes a group without processes. One that was removed already is no error.
func (g *Group) Remove() error {
	if g.replaced() {
		return nil
	}
	if err := g.remove(); err != nil {
		return fmt.Errorf("removing control group %s: %w", g.path, err)
	}
	return nil
}

// lingering bounds how long a process that has ended may keep its group.
const lingering = time.Second

func (g *Group) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), lingering)
	defer cancel()
	var errs []error
	for _, root := range g.machine.every() {
		errs = append(errs, removeGroup(ctx, filepath.Join(root, g.path)))
		_ = os.Remove(filepath.Join(root, filepath.Dir(g.path))) // the run's own, when this group was its last
	}
	return errors.Join(errs...)
}

func (g *Group) file(name string) string { return filepath.Join(g.machine.unified, g.path, name) }

// set writes an order and waits until the group's events say that it is done.
func (g *Group) set(ctx context.Context, file, value, done string) error {
	events, err := os.Open(g.file("cgroup.events"))
	if err != nil {
		return fmt.Errorf("control group %s: %w", g.path, err)
	}
	defer events.Close()
	if err := put(g.file(file), value); err != nil {
		return fmt.Errorf("control group %s: %w", g.path, err)
	}
	text := make([]byte, 256)
	for {
		n, err := events.ReadAt(text, 0)
		if n == 0 && err != nil {
			return fmt.Errorf("reading the events of control group %s: %w", g.path, err)
		}
		if strings.Contains(string(text[:n]), done) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for %q of control group %s: %w", done, g.path, context.Cause(ctx))
		}
		// The kernel raises POLLPRI with each change; the bound is for the context.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}, 20)
	}
}

func put(file, value string) error { return os.WriteFile(file, []byte(value), 0o644) }

func processesIn(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var all []int
	for _, line := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		all = append(all, pid)
	}
	return all, nil
}
