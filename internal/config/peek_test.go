package config_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
)

func TestPeekFileProvider(t *testing.T) {
	t.Parallel()
	env := func(name string) (string, bool) { return "/etc/parts", name == "PARTS" }
	for _, c := range []struct {
		name, text string
		ok         bool
		want       *config.FileProvider
	}{
		{"nothing", ``, true, nil},
		{"others only", `providers { docker {} }`, true, nil},
		{"empty block", `providers { file {} }`, true, &config.FileProvider{Watch: true}},
		{"directory", `providers { file { watch = false directory = "conf.d" } }`, true, &config.FileProvider{Directory: "conf.d"}},
		{"from the environment", `providers { file { directory = env("PARTS") } }`, true, &config.FileProvider{Watch: true, Directory: "/etc/parts"}},
		{
			"the rest refers to fragments", "routers \"r\" { rule = \"Path(`/`)\" service = \"elsewhere\" }\nproviders { file { directory = \"d\" } }",
			true, &config.FileProvider{Watch: true, Directory: "d"},
		},
		{"the rest is wrong", `mode { kind = "what" } providers { file { directory = "d" } }`, true, &config.FileProvider{Watch: true, Directory: "d"}},
		{"syntax error", `providers { file { directory = "d" }`, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, ok := config.Loader{LookupEnv: env}.PeekFileProvider(config.Source{File: "m.acl", Text: []byte(c.text)})
			if ok != c.ok || (got == nil) != (c.want == nil) || (got != nil && *got != *c.want) {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}
