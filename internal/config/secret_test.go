package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/config"
)

// holder has the shapes in which a secret could slip past a method: by value, by pointer, unexported, in a list.
type holder struct {
	Open    config.Secret
	hidden  config.Secret
	Pointer *config.Secret
	List    []config.Secret
	Field   config.HeaderValue
}

func TestSecretsAreNotPrinted(t *testing.T) {
	s := config.NewSecret(canary + "secret")
	field := config.HeaderValue{Name: "Authorization", Value: canary + "field", Secret: true}
	if s.Reveal() != canary+"secret" || (config.Secret{}).Reveal() != "" {
		t.Fatal("Reveal does not give the text")
	}
	values := []any{s, &s, field, &field, []config.Secret{s}, map[string]config.Secret{"k": s}, holder{s, s, &s, []config.Secret{s}, field}}
	for i, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%t", "%e", "%c"} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, canary) || strings.Contains(out, fmt.Sprintf("%x", canary)) {
				t.Errorf("value %d, verb %s: %s", i, verb, out)
			}
		}
		out, err := json.Marshal(v)
		if err != nil || bytes.Contains(out, []byte(canary)) {
			t.Errorf("value %d as JSON: %s, %v", i, out, err)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		if strings.Contains(log.String(), canary) {
			t.Errorf("value %d in a log: %s", i, log.String())
		}
	}
	if out := fmt.Sprintf("%p", s); strings.Contains(out, canary) {
		t.Errorf("%%p: %s", out)
	}
	if open := (config.HeaderValue{Name: "X-A", Value: "b"}); open.String() != "X-A: b" || fmt.Sprint(open) != "X-A: b" {
		t.Errorf("a field that is not secret prints %s", open)
	}
}

// No secret of any golden appears in findings, their excerpts, or a view.
func TestCanariesStayHidden(t *testing.T) {
	names, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	met := 0
	for _, name := range names {
		in, _, _ := strings.Cut(string(readFile(t, name)), "----\n")
		for _, text := range []string{in, in + "\n}", in[:len(in)*2/3]} {
			met += strings.Count(text, canary)
			cfg, diags := loader().Decode([]config.Source{src(name, text)}, nil)
			var out strings.Builder
			acl.Render(&out, diags, map[string][]byte{name: []byte(text)}, acl.RenderOptions{Max: -1})
			out.WriteString(diags.Error())
			if !onlyUnsupported(diags) {
				cfg, _ = config.Load(nil) // a refused configuration has no views
			}
			for _, v := range config.Views {
				view, _ := config.Text(cfg, v)
				out.WriteString(view)
			}
			tree, err := config.JSON(cfg)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(tree)
			out.WriteString(config.ValidText(cfg, name))
			for _, m := range cfg.Middlewares {
				fmt.Fprintf(&out, "%+v %#v", *m, *m)
			}
			for _, line := range strings.Split(out.String(), "\n") {
				if strings.Contains(line, canary) {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
	}
	if met < 30 {
		t.Errorf("only %d canaries in the goldens", met)
	}
}
