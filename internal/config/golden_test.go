package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/config"
)

var update = flag.Bool("update", false, "rewrite the expected part of the goldens")

// loader answers env(...) and file(...) from a small fixed world.
func loader() config.Loader {
	env := map[string]string{
		"SITE_KEY_PATH": "/pki/site.key", "EMPTY": "", "NAME_OF_IT": "SITE_KEY_PATH", "BAD_ADDRESS": canary + "env",
		"API_TOKEN": canary + "token",
	}
	files := map[string]string{"/run/secrets/token": canary + "file\n", "/run/secrets/crlf": canary + "crlf\r\n"}
	return config.Loader{
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if path == "/run/secrets/huge" {
				return make([]byte, 1<<20), nil
			}
			if v, ok := files[path]; ok {
				return []byte(v), nil
			}
			return nil, fs.ErrNotExist
		},
	}
}

// report prints findings one a line, with what a golden should pin down.
func report(diags acl.Diagnostics) string {
	var b strings.Builder
	for _, d := range diags {
		fmt.Fprintf(&b, "%s: %s %s: %s\n", strings.TrimPrefix(d.Span.String(), "in.acl:"), d.Severity, d.Code, d.Message)
		if d.Hint != "" {
			fmt.Fprintf(&b, "    %s\n", d.Hint)
		}
	}
	return b.String()
}

// sections is the JSON view without the sections that are as in the empty configuration.
func sections(t *testing.T, cfg *config.Config) string {
	t.Helper()
	whole, plain := map[string]any{}, map[string]any{}
	empty, _ := config.Loader{}.Load(nil)
	for cfg, into := range map[*config.Config]*map[string]any{cfg: &whole, empty: &plain} {
		text, err := config.JSON(cfg)
		if err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber() // rates are exact beyond 2^53
		if err := dec.Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	for k := range whole {
		if reflect.DeepEqual(whole[k], plain[k]) {
			delete(whole, k)
		}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(whole); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// onlyUnsupported reports whether every error is that this release does not run something.
func onlyUnsupported(diags acl.Diagnostics) bool {
	for _, d := range diags {
		if d.Severity == acl.Error && d.Code != config.CodeUnsupported {
			return false
		}
	}
	return true
}

// Each golden is a configuration, a line of four dashes, the findings, and the decoded sections unless the text is
// faulty.
func TestGoldens(t *testing.T) {
	names, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(names) < 40 {
		t.Fatalf("%d goldens, %v", len(names), err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(name, "testdata/"), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			in, want, _ := strings.Cut(string(raw), "----\n")
			source := []config.Source{{File: "in.acl", Text: []byte(in)}}
			cfg, diags := loader().Decode(source, nil)
			got := report(diags)
			if onlyUnsupported(diags) {
				got += sections(t, cfg)
			}
			if *update {
				if err := os.WriteFile(name, []byte(in+"----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if loaded, _ := loader().Load(source); (loaded == nil) != diags.HasErrors() {
				t.Errorf("Load gave a configuration: %v; errors: %v", loaded != nil, diags.HasErrors())
			}
			if strings.Contains(got, canary) {
				t.Error("a secret is in the output")
			}
		})
	}
}
