package archtest_test

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestPackageComments(t *testing.T) {
	groups, names := byRoom(sources(t))
	for _, room := range names {
		var comments []string
		var name string
		code := false
		for _, s := range groups[room] {
			if s.test {
				continue
			}
			code = true
			name = s.tree.Name.Name
			if s.tree.Doc != nil {
				comments = append(comments, s.file)
				checkPackageComment(t, s)
			}
		}
		if !code {
			continue // a folder of tests needs none
		}
		switch len(comments) {
		case 1:
		case 0:
			t.Errorf("package %s (%s) has no package comment: say what it owns, its lifetime, and what it must not know", name, room)
		default:
			t.Errorf("package %s has %d package comments (%s): keep one", name, len(comments), strings.Join(comments, ", "))
		}
	}
}

// checkPackageComment wants the opening that documentation tools expect, and
// more than one line for a room of the product.
func checkPackageComment(t *testing.T, s *source) {
	t.Helper()
	text := s.tree.Doc.Text()
	want := "Package " + s.tree.Name.Name + " "
	if s.tree.Name.Name == "main" {
		want = "Command " + path.Base(s.room) + " "
	}
	if !strings.HasPrefix(text, want) {
		t.Errorf("%s: the package comment must begin with %q", s.file, want)
	}
	if _, inTable := rooms[s.room]; inTable && strings.Count(text, "\n") < 2 {
		t.Errorf("%s: the package comment is one line: say what the package owns, its lifetime, and what it must not know", s.file)
	}
}

func TestPackageNames(t *testing.T) {
	groups, names := byRoom(sources(t))
	for _, room := range names {
		s := groups[room][0]
		name := strings.TrimSuffix(s.tree.Name.Name, "_test")
		if slices.Contains(bannedNames, name) || slices.Contains(bannedNames, path.Base(room)) {
			t.Errorf("%s: package %s: a name like this says nothing about what is inside", s.file, name)
		}
		if name != "main" && name != path.Base(room) {
			t.Errorf("%s: package %s lies in folder %s: the names must be equal", s.file, name, path.Base(room))
		}
		if name != strings.ToLower(name) || strings.Contains(name, "_") {
			t.Errorf("%s: package %s: one lower-case word", s.file, name)
		}
	}
}

// A third level below internal means that the second was not a concept.
func TestFoldersAreFlat(t *testing.T) {
	_, names := byRoom(sources(t))
	for _, room := range names {
		depth := strings.Count(room, "/")
		if strings.HasPrefix(room, "internal/") && depth > 1 && path.Dir(room) != "internal/provider" {
			t.Errorf("%s is nested: internal is one level deep, except provider", room)
		}
	}
}

func TestFileBudget(t *testing.T) {
	for _, s := range sources(t) {
		lines := strings.Count(s.text, "\n")
		if lines > fileBudget && !s.generated() {
			t.Errorf("%s has %d lines, more than %d: split it by what its parts are about", s.file, lines, fileBudget)
		}
	}
}

func TestFunctionBudget(t *testing.T) {
	used := make(map[string]bool)
	for _, s := range sources(t) {
		if s.test || s.generated() {
			continue
		}
		for _, decl := range s.tree.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if lines <= functionBudget {
				continue
			}
			key := functionKey(s.room, f)
			if longFunctions[key] == "" {
				t.Errorf("%s: %s has %d lines, more than %d", s.fset.Position(f.Pos()), key, lines, functionBudget)
			}
			used[key] = true
		}
	}
	for key := range longFunctions {
		if !used[key] {
			t.Errorf("longFunctions allows %s, which is not long any more: remove the entry", key)
		}
	}
}

// functionKey names a function as room.Function or room.Receiver.Function.
func functionKey(room string, f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return room + "." + f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return room + "." + name.Name + "." + f.Name.Name
	}
	return room + "." + f.Name.Name
}

// Registries filled by init make the list of built-ins depend on who was linked. Generated messages cannot do without.
func TestNoInit(t *testing.T) {
	for _, s := range shipped(t) {
		if s.generated() {
			continue
		}
		for _, decl := range s.tree.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: func init: give the value to a constructor instead", s.fset.Position(f.Pos()))
			}
		}
	}
}

// Every package that starts goroutines in its tests proves that they end.
func TestLeakChecks(t *testing.T) {
	groups, names := byRoom(sources(t))
	for _, room := range names {
		starts, checked, tests := "", false, false
		for _, s := range groups[room] {
			if s.test {
				tests = true
				checked = checked || slices.Contains(s.imports(), "go.uber.org/goleak")
				continue
			}
			if starts == "" {
				starts = firstGoStatement(s)
			}
		}
		if _, inTable := rooms[room]; inTable && tests && starts != "" && !checked {
			t.Errorf("%s: %s starts goroutines, but no test of the package checks for leaks (goleak in TestMain)", starts, room)
		}
	}
}

func firstGoStatement(s *source) string {
	found := ""
	ast.Inspect(s.tree, func(n ast.Node) bool {
		if g, ok := n.(*ast.GoStmt); ok && found == "" {
			found = s.fset.Position(g.Pos()).String()
		}
		return found == ""
	})
	return found
}
