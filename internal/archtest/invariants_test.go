package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/invariants.md names tests. Each exists, and each test that is named by an invariant's number is there.
func TestInvariantsAreTests(t *testing.T) {
	root := filepath.Join("..", "..")
	have := map[string]string{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			have[m[1]] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "invariants.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		if named[m[1]] = true; have[m[1]] == "" {
			t.Errorf("docs/invariants.md names %s, which is no test", m[1])
		}
	}
	numbered := regexp.MustCompile(`^Test(I\d+_|AppendixA|AppendixE|Section26)`)
	for name, path := range have {
		if numbered.MatchString(name) && !named[name] {
			t.Errorf("%s in %s is not in docs/invariants.md", name, path)
		}
	}
}
