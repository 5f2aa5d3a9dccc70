package file_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/provider"
	"github.com/sluice-proxy/sluice/internal/provider/file"
)

// write makes a file and the directories above it.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// names are the files of sources, relative to dir.
func names(t *testing.T, dir string, sources provider.Sources) []string {
	t.Helper()
	var out []string
	for _, s := range sources {
		rel, err := filepath.Rel(dir, s.File)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rel)
	}
	return out
}

func TestLoadOrdersFragments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, text := range map[string]string{
		"gateway.acl": "main", "parts/b.acl": "b", "parts/a.acl": "a", "parts/z/c.acl": "c", "parts/a/d.acl": "d",
		"parts/notes.txt": "no", "parts/.hidden.acl": "no", "parts/..2024_01/a.acl": "no", "parts/acl": "no", "elsewhere/e": "e",
	} {
		write(t, filepath.Join(dir, path), text)
	}
	link(t, filepath.Join(dir, "elsewhere/e"), filepath.Join(dir, "parts/e.acl"))
	link(t, filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "parts/self.acl"))
	link(t, filepath.Join(dir, "parts"), filepath.Join(dir, "parts/loop"))
	got, err := file.Load(filepath.Join(dir, "gateway.acl"), filepath.Join(dir, "parts"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"gateway.acl", "parts/a.acl", "parts/a/d.acl", "parts/b.acl", "parts/e.acl", "parts/z/c.acl"}
	if n := names(t, dir, got); !slices.Equal(n, want) {
		t.Errorf("got %q, want %q", n, want)
	}
	if text := string(got[4].Text); text != "e" {
		t.Errorf("the linked fragment holds %q", text)
	}
}

func TestReadFindsTheDirectoryInTheMainFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main := filepath.Join(dir, "gateway.acl")
	write(t, filepath.Join(dir, "parts/a.acl"), "a")
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"named", fmt.Sprintf("providers { file { directory = %q } }", filepath.Join(dir, "parts")), 2},
		{"not named", "providers { file {} }", 1},
		{"syntax error", fmt.Sprintf("providers { file { directory = %q } ", filepath.Join(dir, "missing")), 1},
	} {
		write(t, main, c.text)
		got, err := file.Read(main)
		if err != nil || len(got) != c.want {
			t.Errorf("%s: %d sources, %v, want %d", c.name, len(got), err, c.want)
		}
	}
	write(t, main, fmt.Sprintf("providers { file { directory = %q } }", filepath.Join(dir, "missing")))
	if got, err := file.Read(main); !errors.Is(err, fs.ErrNotExist) || got != nil || !strings.Contains(err.Error(), filepath.Join(dir, "missing")) {
		t.Errorf("missing directory: %v, %v", got, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("ok.acl"), "")
	write(t, at("big.acl"), strings.Repeat("#", provider.MaxFileBytes+1))
	write(t, at("full.acl"), strings.Repeat("#", provider.MaxFileBytes))
	write(t, at("gateway.conf"), "")
	write(t, at("dir.acl/x"), "")
	write(t, at("bigparts/a.acl"), strings.Repeat("#", provider.MaxFileBytes+1))
	for i := range provider.MaxFragments + 1 {
		write(t, at(fmt.Sprintf("many/%d.acl", i)), "")
		if i > 0 {
			write(t, at(fmt.Sprintf("enough/%d.acl", i)), "")
		}
	}
	write(t, at("deep/"+strings.Repeat("d/", 17)+"a.acl"), "")
	if err := os.Mkdir(at("dangling"), 0o755); err != nil {
		t.Fatal(err)
	}
	link(t, "nowhere", at("dangling/a.acl"))
	if err := syscall.Mkfifo(at("pipe.acl"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path, directory string
		want                  error  // nil: loads
		text                  string // what the error names
	}{
		{"plain", "ok.acl", "", nil, ""},
		{"as large as allowed", "full.acl", "", nil, ""},
		{"as many as allowed", "ok.acl", "enough", nil, ""},
		{"missing", "none.acl", "", fs.ErrNotExist, "configuration file " + at("none.acl")},
		{"suffix", "gateway.conf", "", file.ErrSuffix, at("gateway.conf")},
		{"suffix before existence", "none.conf", "", file.ErrSuffix, at("none.conf")},
		{"directory", "dir.acl", "", file.ErrRegular, "a directory"},
		{"pipe", "pipe.acl", "", file.ErrRegular, at("pipe.acl")},
		{"too large", "big.acl", "", file.ErrTooBig, at("big.acl")},
		{"no fragments directory", "ok.acl", "none", fs.ErrNotExist, "fragments directory " + at("none")},
		{"fragments directory is a file", "ok.acl", "ok.acl", syscall.ENOTDIR, at("ok.acl")},
		{"fragment too large", "ok.acl", "bigparts", file.ErrTooBig, at("bigparts/a.acl")},
		{"too many fragments", "ok.acl", "many", file.ErrTooMany, at("many")},
		{"too deep", "ok.acl", "deep", file.ErrTooMany, at("deep")},
		{"dangling fragment", "ok.acl", "dangling", fs.ErrNotExist, at("dangling/a.acl")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			directory := c.directory
			if directory != "" {
				directory = at(directory)
			}
			got, err := file.Load(at(c.path), directory)
			switch {
			case c.want == nil && err != nil:
				t.Fatal(err)
			case c.want != nil && (!errors.Is(err, c.want) || got != nil):
				t.Fatalf("got %d sources and %v, want %v", len(got), err, c.want)
			case c.want != nil && !strings.Contains(err.Error(), c.text):
				t.Errorf("%q does not name %q", err, c.text)
			}
		})
	}
}

func TestLoadUnreadable(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	path := filepath.Join(t.TempDir(), "gateway.acl")
	write(t, path, "")
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Load(path, ""); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
}
