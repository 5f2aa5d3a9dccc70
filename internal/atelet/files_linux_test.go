package atelet_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/atelet"
)

// Actors can read what is written for them, also when the machine's services keep everything else to themselves.
func TestActorsMayReadTheirFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "echo"), nil, 0o755); err != nil { //nolint:gosec // actors execute it
		t.Fatal(err)
	}
	defer syscall.Umask(syscall.Umask(0o077))
	_, err := atelet.Order(dir, of("u1"), actor.Template{
		Ref: demo("t"), Containers: []actor.Container{{Name: "main", Image: "local:echo", Mounts: []actor.Mount{{Volume: "v", Path: "/v"}}}},
		Volumes: []actor.Volume{{Name: "v", SystemInfo: []actor.DataSource{{Items: []actor.MetadataItem{{Field: actor.FieldName, Path: "a/b/name"}}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{"": 0o755, "a": 0o755, "a/b": 0o755, "a/b/name": 0o444} {
		info, err := os.Stat(filepath.Join(dir, "info", "u1", "v", path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v, want %v", path, info, err, want)
		}
	}
}
