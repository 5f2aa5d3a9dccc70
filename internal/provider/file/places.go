package file

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLinks bounds a chain of symbolic links, as the kernel does.
const maxLinks = 40

// place is a directory that is watched, and what in it matters.
type place struct {
	names  map[string]bool // entries that decide what a path leads to
	all    bool            // a directory of fragments: every visible entry matters
	writes bool            // holds texts: writing to them matters too, not only which entries there are
}

// wants reports whether an entry of that name matters.
func (p *place) wants(name string) bool {
	return p.names[name] || p.all && !strings.HasPrefix(name, ".")
}

// places maps real, absolute directories to what matters in them.
type places map[string]*place

// find returns everything that decides which texts read(path) would find, now. What does not exist is waited for in
// the deepest directory that does.
func find(path, directory string) places {
	ps := places{}
	ps.follow(path)
	if directory == "" {
		return ps
	}
	real := ps.follow(directory)
	if real == "" {
		return ps
	}
	var found search
	_ = found.below(real, 0) // what it could not read it could not watch either; reading reports it
	for _, dir := range found.directories {
		p := ps.at(dir)
		p.all, p.writes = true, true
	}
	for _, name := range found.files {
		if fi, err := os.Lstat(name); err == nil && fi.Mode()&os.ModeSymlink != 0 {
			ps.follow(name)
		}
	}
	return ps
}

func (ps places) at(dir string) *place {
	if ps[dir] == nil {
		ps[dir] = &place{names: map[string]bool{}}
	}
	return ps[dir]
}

// holds reports whether the file at an absolute path is, or leads to, a text.
func (ps places) holds(path string) bool {
	p := ps[filepath.Dir(path)]
	return p != nil && p.writes && (p.names[filepath.Base(path)] || p.wants(filepath.Base(path)) && filepath.Ext(path) == Suffix)
}

// follow walks to path as the kernel would and notes every entry on the way: a mounted volume is switched by a link
// that is two directories up, and a directory can be replaced whole. It returns the real path, or "" when there is
// none.
func (ps places) follow(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	dir := filepath.VolumeName(abs) + string(filepath.Separator)
	rest := split(abs[len(filepath.VolumeName(abs)):])
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." { // from a link; dir has no links in it, so this is its real parent
			dir = filepath.Dir(dir)
			continue
		}
		full := filepath.Join(dir, name)
		p := ps.at(dir)
		p.names[name] = true
		fi, err := os.Lstat(full)
		switch {
		case err != nil:
			p.writes = p.writes || len(rest) == 0
			return ""
		case fi.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(full)
			if links++; err != nil || links > maxLinks {
				return ""
			}
			if filepath.IsAbs(target) {
				dir = filepath.VolumeName(target) + string(filepath.Separator)
				target = target[len(filepath.VolumeName(target)):]
			}
			rest = slices.Concat(split(target), rest)
		case len(rest) == 0:
			p.writes = true
			return full
		default:
			dir = full
		}
	}
	return dir
}

// split returns the parts of a path, without empty ones and ".".
func split(path string) []string {
	return slices.DeleteFunc(strings.Split(filepath.ToSlash(path), "/"), func(s string) bool { return s == "" || s == "." })
}
