package gatewaytest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// NamespacesGone proves by the kernel's own tables that network namespaces have gone, which are given as /proc/PID/ns/net
// shows them: no thread is in one, no descriptor holds one, and none is mounted. The kernel gives their numbers again, so
// that another test may have one for a while; what is left behind stays.
func NamespacesGone(t testing.TB, links ...string) {
	t.Helper()
	over := time.After(15 * time.Second)
	for {
		left := holders(links)
		if len(left) == 0 {
			return
		}
		select {
		case <-over:
			t.Errorf("%d hold a namespace that should have gone, such as %s", len(left), left[0])
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func holders(links []string) (all []string) {
	for _, kind := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, _ := filepath.Glob(kind)
		for _, p := range paths {
			at, err := os.Readlink(p)
			for _, link := range links {
				if err == nil && at == link {
					all = append(all, fmt.Sprintf("%s (%s)", p, link))
				}
			}
		}
	}
	mounts, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, m := range mounts {
		text, err := os.ReadFile(m)
		for _, link := range links {
			if err == nil && bytes.Contains(text, []byte(link)) {
				all = append(all, fmt.Sprintf("%s (%s)", m, link))
			}
		}
	}
	return all
}
