// Package examples_test keeps the example configurations true: each is valid
// without a finding or a warning, and in the form that `sluice fmt` writes.
package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/config"
)

// files returns the example configurations, and ends the test without any.
func files(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.acl")
	if err != nil || len(names) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return names
}

func TestExamplesAreFormatted(t *testing.T) {
	for _, name := range files(t) {
		if name == "seed-basic.acl" {
			continue // kept as others wrote it, to the byte
		}
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			formatted, findings := acl.Format(name, text)
			for _, f := range findings {
				t.Errorf("%+v", f)
			}
			if diff := cmp.Diff(string(text), string(formatted)); diff != "" && len(findings) == 0 {
				t.Errorf("not formatted (-have +want):\n%s", diff)
			}
		})
	}
}

// The first configuration that a reader sees is the tested one.
func TestReadmeShowsTheExample(t *testing.T) {
	text, err := os.ReadFile("gateway.acl")
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := strings.Cut(string(text), "\n\n")
	if !found {
		t.Fatal("gateway.acl has no comment at its top")
	}
	readme, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```\n"+body+"```\n") {
		t.Errorf("README.md does not show this configuration:\n%s", body)
	}
}

// The variables that the examples read. Files that they name are not opened.
var environment = map[string]string{
	"SLUICE_CERT_FILE":   "/etc/sluice/site.pem",
	"SLUICE_KEY_FILE":    "/etc/sluice/site.key",
	"SLUICE_ADMIN_TOKEN": "example-token-of-no-value",
}

var loader = config.Loader{LookupEnv: func(name string) (string, bool) {
	value, ok := environment[name]
	return value, ok
}, ReadFile: func(string) ([]byte, error) { return []byte("Bearer example-of-no-value\n"), nil }}

func TestExamplesAreValid(t *testing.T) {
	for _, name := range files(t) {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			cfg, findings := loader.Load([]config.Source{{File: name, Text: text}})
			for _, f := range findings {
				t.Errorf("%+v", f)
			}
			if cfg == nil || len(cfg.Entrypoints) == 0 || len(cfg.Routers) == 0 && name != "egress.acl" { // where policies decide
				t.Errorf("the configuration serves nothing: %+v", cfg)
			}
		})
	}
}

// The snippets of docs/howto.md are together one configuration that runs.
func TestHowtoIsValid(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "howto.md"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i, part := range strings.Split(string(page), "```") {
		if i%2 == 1 && strings.HasPrefix(part, "\n") { // others say what language they are in
			text.WriteString(part[1:])
		}
	}
	cfg, findings := loader.Load([]config.Source{{File: "howto.md", Text: []byte(text.String())}})
	for _, f := range findings {
		if f.Code != config.WarnNoEffect { // middlewares that are shown by themselves
			t.Errorf("%+v", f)
		}
	}
	if cfg == nil || len(cfg.Routers) < 3 || cfg.Management.Address != "127.0.0.1:9901" {
		t.Errorf("the page has lost snippets:\n%s", text.String())
	}
	formatted, _ := acl.Format("howto.md", []byte(text.String()))
	if diff := cmp.Diff(text.String(), string(formatted)); diff != "" {
		t.Errorf("not formatted (-have +want):\n%s", diff)
	}
}
