// Package file is the file provider: it reads the main configuration file and its directory of fragments, and
// watches both. It owns the rules for what is a fragment, the bounds on reading, and the decision when a change is
// complete enough to be looked at.
//
// Lifetime: Read and Load keep nothing; Watch lives until its context ends and hands every goroutine and descriptor
// back before it returns. The package must not know what a configuration means, except where the fragments are, nor
// what becomes of a change.
package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/provider"
)

// Suffix is how the name of every configuration file ends.
const Suffix = ".acl"

// Bounds on the search for fragments.
const (
	maxDepth       = 16   // directories below each other
	maxEntries     = 4096 // of one directory, whatever they are
	maxDirectories = 1024
)

// The causes of a refusal, beside those of the operating system.
var (
	ErrSuffix  = errors.New("the name does not end in " + Suffix)
	ErrRegular = errors.New("not a regular file")
	ErrTooBig  = fmt.Errorf("larger than %d bytes", provider.MaxFileBytes)
	ErrTooMany = errors.New("too many files or directories")
)

// Read reads the main file at path, learns from it where the fragments are, and reads those too. It is the one way
// that configuration is read at start, at reload, by the watcher and to validate. When the main text has a syntax
// error only the main text is returned, since it is refused anyway.
func Read(path string) (provider.Sources, error) {
	sources, err := Load(path, "")
	if err != nil {
		return nil, err
	}
	p, ok := config.Loader{}.PeekFileProvider(sources[0])
	if !ok || p == nil || p.Directory == "" {
		return sources, nil
	}
	fragments, err := loadFragments(p.Directory, path)
	if err != nil {
		return nil, err
	}
	return append(sources, fragments...), nil
}

// Load reads the main file at path and, unless directory is empty, every fragment below it: the files whose name ends
// in Suffix, sorted by path. Names that begin with a dot are skipped, files and directories, since mounted volumes
// keep their versions under such names. Symbolic links to files are followed, those to directories are not. A relative
// path is relative to the working directory, as all paths in a configuration are. The main file is not its own
// fragment.
func Load(path, directory string) (provider.Sources, error) {
	if filepath.Ext(path) != Suffix {
		return nil, fmt.Errorf("configuration file %s: %w", path, ErrSuffix)
	}
	text, err := readText(path)
	if err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	sources := provider.Sources{{File: path, Text: text}}
	if directory == "" {
		return sources, nil
	}
	fragments, err := loadFragments(directory, path)
	if err != nil {
		return nil, err
	}
	return append(sources, fragments...), nil
}

func loadFragments(directory, main string) (provider.Sources, error) {
	found := search{}
	if err := found.below(directory, 0); err != nil {
		return nil, fmt.Errorf("fragments directory %w", err)
	}
	slices.Sort(found.files)
	self, err := os.Stat(main)
	if err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", main, cause(err))
	}
	var sources provider.Sources
	for _, name := range found.files {
		if fi, err := os.Stat(name); err == nil && os.SameFile(fi, self) {
			continue
		}
		text, err := readText(name)
		if err != nil {
			return nil, fmt.Errorf("configuration fragment %s: %w", name, err)
		}
		sources = append(sources, config.Source{File: name, Text: text})
	}
	return sources, nil
}

// search collects what is in a directory of fragments.
type search struct {
	files       []string
	directories []string // real ones, the first included
}

// below looks into dir, which is depth levels down. Its errors begin with the directory's path.
func (s *search) below(dir string, depth int) error {
	if depth > maxDepth || len(s.directories) == maxDirectories {
		return fmt.Errorf("%s: %w", dir, ErrTooMany)
	}
	s.directories = append(s.directories, dir)
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, cause(err))
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries + 1)
	if err != nil && err != io.EOF { //nolint:errorlint // ReadDir promises the bare value
		return fmt.Errorf("%s: %w", dir, cause(err))
	}
	if len(entries) > maxEntries {
		return fmt.Errorf("%s: %w", dir, ErrTooMany)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			if err := s.below(name, depth+1); err != nil {
				return err
			}
		case filepath.Ext(name) == Suffix:
			if s.files = append(s.files, name); len(s.files) > provider.MaxFragments {
				return fmt.Errorf("%s: %w", dir, ErrTooMany)
			}
		}
	}
	return nil
}

// readText reads one bounded regular file. Its errors do not repeat the path.
func readText(path string) ([]byte, error) {
	// Without O_NONBLOCK opening a named pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, cause(err)
	case fi.IsDir():
		return nil, fmt.Errorf("%w but a directory", ErrRegular)
	case !fi.Mode().IsRegular():
		return nil, ErrRegular
	}
	text, err := io.ReadAll(io.LimitReader(f, provider.MaxFileBytes+1))
	switch {
	case err != nil:
		return nil, cause(err)
	case len(text) > provider.MaxFileBytes:
		return nil, ErrTooBig
	}
	return text, nil
}

// cause takes operation and path off an error of package os: our texts name the path themselves.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
