package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

const module = "github.com/sluice-proxy/sluice"

// source is one parsed Go file.
type source struct {
	file string // slash path below the repository
	room string // its folder below the repository
	test bool   // a _test.go file
	tree *ast.File
	fset *token.FileSet
	text string
}

// imports returns the import paths of the file.
func (s *source) imports() []string {
	var paths []string
	for _, spec := range s.tree.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// generated reports whether the file says that a program wrote it.
func (s *source) generated() bool { return ast.IsGenerated(s.tree) }

// room turns an import path of this module into a room, or "".
func roomOf(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, module+"/"); ok {
		return rest
	}
	return ""
}

var load = sync.OnceValues(func() ([]*source, error) {
	root, err := gatewaytest.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	var all []*source
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if skipFolder(rel) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, &source{
			file: rel, room: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
			tree: tree, fset: fset, text: string(text),
		})
		return nil
	})
	return all, err
})

// skipFolder leaves out what is not ours or is not Go of this module.
func skipFolder(rel string) bool {
	if rel == "." {
		return false
	}
	switch path.Base(rel) {
	case "testdata", "node_modules":
		return true
	}
	return strings.HasPrefix(path.Base(rel), ".") || rel == "bin" || rel == "tools"
}

// sources returns every Go file of the module, or ends the test.
func sources(t *testing.T) []*source {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no Go files found: the rules would hold for nothing")
	}
	return all
}

// shipped returns the non-test files that belong to the import table.
func shipped(t *testing.T) []*source {
	t.Helper()
	var out []*source
	for _, s := range sources(t) {
		if !s.test && !inTestTree(s.room) {
			out = append(out, s)
		}
	}
	return out
}

func inTestTree(room string) bool {
	for _, tree := range testTrees {
		if strings.HasPrefix(room+"/", tree) {
			return true
		}
	}
	return false
}

// byRoom groups files by room, and returns the rooms in order.
func byRoom(files []*source) (map[string][]*source, []string) {
	groups := make(map[string][]*source)
	for _, s := range files {
		groups[s.room] = append(groups[s.room], s)
	}
	names := make([]string, 0, len(groups))
	for room := range groups {
		names = append(names, room)
	}
	sort.Strings(names)
	return groups, names
}

// within reports whether importPath is wall or lies below it.
func within(importPath, wall string) bool {
	return importPath == wall || strings.HasPrefix(importPath, wall+"/")
}
