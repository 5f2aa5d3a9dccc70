package config_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// known is what the decoder asks for, by kind of block, over all goldens and examples.
func known(t *testing.T) map[string][]string {
	t.Helper()
	keys := map[string][]string{}
	names, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	for _, name := range names {
		in, _, _ := strings.Cut(string(readFile(t, name)), "----\n")
		loader().Decode([]config.Source{src(name, in)}, func(kind, key string) {
			if !slices.Contains(keys[kind], key) {
				keys[kind] = append(keys[kind], key)
			}
		})
	}
	return keys
}

// The reference has a section for each kind of block, and in it every key the decoder knows.
func TestEveryKeyIsDocumented(t *testing.T) {
	doc := string(readFile(t, "../../docs/configuration.md"))
	sections := map[string]string{}
	for _, part := range strings.Split(doc, "\n#")[1:] {
		title, body, _ := strings.Cut(part, "\n")
		for _, kind := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(title, -1) {
			sections[kind[1]] = body
		}
	}
	keys := known(t)
	if len(keys) < 40 {
		t.Fatalf("only %d kinds of blocks met", len(keys))
	}
	for kind, names := range keys {
		body, ok := sections[kind]
		if !ok {
			t.Errorf("no section with `%s` in its title; keys: %v", kind, names)
			continue
		}
		for _, key := range names {
			if !contains(body, "`"+key+"`") {
				t.Errorf("section `%s` does not mention `%s`", kind, key)
			}
		}
	}
}

// Every code is listed.
func TestEveryCodeIsDocumented(t *testing.T) {
	doc := string(readFile(t, "../../docs/configuration.md"))
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		if lit, ok := node.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			code, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			n++
			if !contains(doc, "`"+code+"`") {
				t.Errorf("code %s is not listed", code)
			}
		}
		return true
	})
	if n < 20 {
		t.Errorf("only %d codes found", n)
	}
}

// The table behind the hints about keys of other types is what the readers ask for.
func TestMiddlewareTable(t *testing.T) {
	keys := known(t)
	table := config.MiddlewareKeys()
	if len(table) != 15 {
		t.Errorf("%d types", len(table))
	}
	for name, want := range table {
		var got []string
		for _, key := range keys["middlewares "+name] {
			if key != "type" {
				got = append(got, key)
			}
		}
		want = slices.Clone(want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s asks for %v, the table says %v", name, got, want)
		}
	}
}
