package file_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/provider/file"
)

// Writes through a mapping make no events, as on some network file systems: only the poll can find them.
func TestWatchPolls(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.acl")
	write(t, path, "# 1")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := unix.Mmap(int(f.Fd()), 0, 3, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(text); err != nil {
			t.Error(err)
		}
	}()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	changes := watch(t, path, func(o *file.Options) { o.Poll = 100 * time.Millisecond })
	for _, b := range []byte("23") {
		text[2] = b
		next(t, changes, "# "+string(b))
	}
}
