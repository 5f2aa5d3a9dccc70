package provider_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The digest must be the one that a Config reports of itself: they are compared.
func TestDigestIsThatOfTheConfig(t *testing.T) {
	t.Parallel()
	main := config.Source{File: "m.acl", Text: []byte("entrypoints \"web\" { address = \"127.0.0.1:0\" }\n")}
	part := config.Source{File: "d/a.acl", Text: []byte("services \"s\" { load_balancer { servers { url = \"http://127.0.0.1:1\" } } }\n")}
	seen := map[string]string{}
	for name, s := range map[string]provider.Sources{"main": {main}, "both": {main, part}, "other order": {part, main}} {
		cfg, diags := config.Load(s)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		if s.Digest() != cfg.Digest {
			t.Errorf("%s: digest %s, the configuration says %s", name, s.Digest(), cfg.Digest)
		}
		if other, ok := seen[s.Digest()]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[s.Digest()] = name
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	texts := provider.Sources{{File: "a", Text: []byte("1")}, {File: "b", Text: []byte("2")}}.Texts()
	if len(texts) != 2 || string(texts["a"]) != "1" || string(texts["b"]) != "2" {
		t.Errorf("got %q", texts)
	}
}
