package archtest_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// TestGoldenDependencies compares what a binary links with the list beside its
// main package, so that a new dependency is a line in a review. Rewrite the
// lists with `make deps`.
func TestGoldenDependencies(t *testing.T) {
	root := repositoryRoot(t)
	for _, binary := range goldenBinaries {
		if _, err := os.Stat(filepath.Join(root, binary)); os.IsNotExist(err) {
			continue // not written yet
		}
		t.Run(binary, func(t *testing.T) {
			deps := linked(t, root, binary)
			for _, d := range deps {
				if slices.Contains(neverLinked, d) {
					t.Errorf("%s links %s", binary, d)
				}
			}
			compareGolden(t, filepath.Join(root, binary, "deps.txt"), golden(binary, deps))
		})
	}
}

// linked returns the import paths of all packages in a binary, for one fixed
// platform so that the answer is the same everywhere.
func linked(t *testing.T, root, binary string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "./"+binary)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(out))
}

// golden renders the list: our rooms, then other people's packages. The
// standard library is left out: it changes with the toolchain, not with us.
func golden(binary string, deps []string) string {
	var own, foreign []string
	for _, d := range deps {
		switch first, _, _ := strings.Cut(d, "/"); {
		case roomOf(d) == binary:
		case roomOf(d) != "":
			own = append(own, roomOf(d))
		case strings.Contains(first, ".") && first != "vendor":
			foreign = append(foreign, d)
		}
	}
	sort.Strings(own)
	sort.Strings(foreign)
	var b strings.Builder
	b.WriteString("# What this binary links beside the standard library. Rewrite with: make deps\n")
	b.WriteString(strings.Join(append(append(own, ""), foreign...), "\n"))
	b.WriteString("\n")
	return b.String()
}

func compareGolden(t *testing.T, file, want string) {
	t.Helper()
	if os.Getenv("SLUICE_UPDATE_DEPS") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (make it with: make deps)", err)
	}
	if string(have) == want {
		return
	}
	before, after := strings.Split(string(have), "\n"), strings.Split(want, "\n")
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("%s: linked, but not in the list: %s", file, line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("%s: in the list, but not linked any more: %s", file, line)
		}
	}
	t.Errorf("%s is out of date: if the change is meant, run make deps", file)
}

// TestDependenciesAreExplained wants a line of reason for every module that we
// chose ourselves.
func TestDependenciesAreExplained(t *testing.T) {
	root := repositoryRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !strings.Contains(string(text), "`"+r.Path+"`") {
			t.Errorf("go.mod requires %s, but docs/dependencies.md does not say why (write its path in backticks)", r.Path)
		}
	}
}

func repositoryRoot(t *testing.T) string {
	t.Helper()
	root, err := gatewaytest.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}
