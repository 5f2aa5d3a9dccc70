package fabric

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

// Machines have their control groups in one of three ways, and this one only in one of them.
func TestHierarchiesOfOtherMachines(t *testing.T) {
	const (
		unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		beside  = "31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		pids    = "32 23 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
		memory  = "33 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		bound   = "34 23 0:26 /docker/abc /mnt rw - cgroup2 cgroup2 rw\n"
		others  = "35 23 0:30 / /proc rw - proc proc rw\nnonsense\n - \n\n"
	)
	for _, c := range []struct {
		name, mounts, available string
		want                    hierarchies
		separate                int
		err                     error
	}{
		{"unified", unified, "cpuset cpu io memory pids", hierarchies{"/sys/fs/cgroup", map[string]string{"pids": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup"}}, 0, nil},
		{"hybrid", beside + pids + memory, "hugetlb", hierarchies{"/sys/fs/cgroup/unified", map[string]string{"pids": "/sys/fs/cgroup/pids", "memory": "/sys/fs/cgroup/memory"}}, 2, nil},
		{"hybrid without memory", beside + pids, "", hierarchies{"/sys/fs/cgroup/unified", map[string]string{"pids": "/sys/fs/cgroup/pids"}}, 1, nil},
		{"first version alone", pids + memory, "", hierarchies{}, 0, ErrNoControlGroups},
		{"no pids", beside + memory, "memory", hierarchies{}, 0, ErrNoControlGroups},
		{"a part of it, mounted elsewhere", bound + pids, "pids", hierarchies{}, 0, ErrNoControlGroups},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findHierarchies(strings.NewReader(others+c.mounts), func(string) string { return c.available })
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			if got.unified != c.want.unified || !maps.Equal(got.limits, c.want.limits) || len(got.separate()) != c.separate {
				t.Errorf("found %+v with %d separate, want %+v with %d", got, len(got.separate()), c.want, c.separate)
			}
		})
	}
}
