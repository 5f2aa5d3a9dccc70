package fabric

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// ErrNoControlGroups is a machine without what groups need: the unified hierarchy to freeze and kill, and the pids
// controller, in it or by itself.
var ErrNoControlGroups = errors.New("control groups are not available")

// hierarchies are where this machine has control groups mounted. On a machine of the hybrid kind, the unified hierarchy
// freezes and kills, and controllers have a mount each.
type hierarchies struct {
	unified string
	limits  map[string]string // controller: where it is
}

// controllers that set limits.
var controllers = []string{"pids", "memory"}

var machine = sync.OnceValues(func() (hierarchies, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return hierarchies{}, err
	}
	defer f.Close()
	return findHierarchies(f, func(dir string) string {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		return string(text)
	})
})

// findHierarchies reads a table of mounts (proc_pid_mountinfo(5)). available tells which controllers a unified hierarchy
// has.
func findHierarchies(mounts io.Reader, available func(dir string) string) (hierarchies, error) {
	h := hierarchies{limits: make(map[string]string)}
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		before, after, found := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) < 3 || fields[3] != "/" {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			h.unified = fields[4]
		case "cgroup":
			for _, option := range strings.Split(kind[2], ",") {
				if slices.Contains(controllers, option) {
					h.limits[option] = fields[4]
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return h, err
	}
	if h.unified == "" {
		return h, fmt.Errorf("%w: no unified hierarchy (cgroup2) is mounted", ErrNoControlGroups)
	}
	for _, c := range strings.Fields(available(h.unified)) {
		if slices.Contains(controllers, c) {
			h.limits[c] = h.unified
		}
	}
	if h.limits["pids"] == "" {
		return h, fmt.Errorf("%w: no hierarchy has the pids controller", ErrNoControlGroups)
	}
	return h, nil
}

// separate are the hierarchies besides the unified one.
func (h hierarchies) separate() []string {
	var all []string
	for _, c := range controllers {
		if dir := h.limits[c]; dir != "" && dir != h.unified {
			all = append(all, dir)
		}
	}
	return all
}

// every hierarchy, the unified one first.
func (h hierarchies) every() []string { return append([]string{h.unified}, h.separate()...) }
