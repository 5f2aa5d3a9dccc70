package archtest_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestErrorCodesAreDocumented compares the codes in the code with the tables in
// docs/errors.md, both ways: programs rely on them.
func TestErrorCodesAreDocumented(t *testing.T) {
	codes := make(map[string]bool)
	for _, s := range shipped(t) {
		if s.room == "internal/exchange" {
			collectCodes(s, codes)
		}
	}
	if len(codes) == 0 {
		t.Fatal("no error codes found in internal/exchange")
	}
	text, err := os.ReadFile(filepath.Join(repositoryRoot(t), "docs", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = true
	}
	for code := range codes {
		if !documented[code] {
			t.Errorf("code %s has no row in docs/errors.md", code)
		}
	}
	for code := range documented {
		if !codes[code] {
			t.Errorf("docs/errors.md lists %s, which internal/exchange does not have", code)
		}
	}
}

// collectCodes adds the values of all constants of type Code.
func collectCodes(s *source, codes map[string]bool) {
	for _, decl := range s.tree.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			if name, ok := value.Type.(*ast.Ident); !ok || name.Name != "Code" || len(value.Values) != 1 {
				continue
			}
			if lit, ok := value.Values[0].(*ast.BasicLit); ok {
				if text, err := strconv.Unquote(lit.Value); err == nil && text != "" {
					codes[text] = true
				}
			}
		}
	}
}

// TestRoomsAreInArchitecture wants a place in the overview for every room that
// exists.
func TestRoomsAreInArchitecture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repositoryRoot(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	// What stands after "Planned" exists only as an intention.
	present, _, found := strings.Cut(string(text), "*Planned*:")
	if !found {
		t.Error("ARCHITECTURE.md does not say what is planned")
	}
	_, names := byRoom(shipped(t))
	for _, room := range names {
		if name := strings.TrimPrefix(room, "internal/"); !strings.Contains(present, "`"+name+"`") {
			t.Errorf("room %s exists, but ARCHITECTURE.md does not list `%s`", room, name)
		}
	}
}

// TestLinksResolve follows the relative links of all documents.
func TestLinksResolve(t *testing.T) {
	root := repositoryRoot(t)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)|src="([^"]+)"`)
	files, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, _, _ := strings.Cut(m[1]+m[2], "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", filepath.Base(file), target)
			}
		}
	}
	if checked == 0 {
		t.Error("no relative links found")
	}
}
