package archtest_test

import (
	"go/ast"
	"testing"
)

// TestExportedComments wants a contract on everything that another package can
// name: functions, methods, types, and constants and variables (one comment may
// stand over a group).
func TestExportedComments(t *testing.T) {
	for _, s := range shipped(t) {
		if s.generated() || s.tree.Name.Name == "main" {
			continue
		}
		for _, decl := range s.tree.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					t.Errorf("%s: %s has no comment", s.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					checkSpecComment(t, s, d, spec)
				}
			}
		}
	}
}

// exportedReceiver is true for functions and for methods of exported types.
func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return true
	}
	found := true
	ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			found = found && name.IsExported() || len(name.Name) == 1 // a type parameter
			return false
		}
		return true
	})
	return found
}

func checkSpecComment(t *testing.T, s *source, group *ast.GenDecl, spec ast.Spec) {
	t.Helper()
	switch d := spec.(type) {
	case *ast.TypeSpec:
		if d.Name.IsExported() && d.Doc == nil && d.Comment == nil && (group.Doc == nil || len(group.Specs) > 1) {
			t.Errorf("%s: type %s has no comment", s.fset.Position(d.Pos()), d.Name.Name)
		}
	case *ast.ValueSpec:
		for _, name := range d.Names {
			if name.IsExported() && d.Doc == nil && d.Comment == nil && group.Doc == nil {
				t.Errorf("%s: %s has no comment", s.fset.Position(name.Pos()), name.Name)
			}
		}
	}
}
