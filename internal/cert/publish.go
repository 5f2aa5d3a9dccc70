package cert

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// published is a file of a directory that is replaced as a whole.
type published struct {
	name    string
	content []byte
	secret  bool // only its owner may read it
}

// dataLink is the symbolic link by which a directory's content changes, as in projected volumes of Kubernetes.
const dataLink = "..data"

// publish replaces the files of a directory at once: a reader who opens several of them in turn may see two generations,
// but each file is whole. The files lie in a directory of their own below dir; dir/..data leads there, and dir/NAME leads
// to ..data/NAME. Watchers must watch dir. The generation before stays until the next call, for readers who have found
// it already. Everything is on disk before it shows.
func publish(dir string, files []published) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	generation := ".." + token()
	if err := fill(filepath.Join(dir, generation), files); err != nil {
		_ = os.RemoveAll(filepath.Join(dir, generation))
		return err
	}
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := relink(generation, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	for _, f := range files {
		if err := relink(filepath.Join(dataLink, f.name), filepath.Join(dir, f.name)); err != nil {
			return err
		}
	}
	if err := syncDirectory(dir); err != nil {
		return err
	}
	return sweep(dir, generation, before)
}

func fill(dir string, files []published) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		mode := fs.FileMode(0o644)
		if f.secret {
			mode = 0o600
		}
		if err := writeFile(filepath.Join(dir, f.name), f.content, mode); err != nil {
			return err
		}
	}
	return syncDirectory(dir)
}

// relink makes a symbolic link, or changes where it leads in one step.
func relink(target, link string) error {
	if now, err := os.Readlink(link); err == nil && now == target {
		return nil
	}
	temporary := filepath.Join(filepath.Dir(link), ".."+token())
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, link); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return nil
}

// sweep removes generations, and links that a crash left behind, except those to keep.
func sweep(dir string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, "..") || name == dataLink || name == keep[0] || name == keep[1] {
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}
