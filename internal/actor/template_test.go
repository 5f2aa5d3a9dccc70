package actor_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// fullTemplate has everything in it that a template may hold.
func fullTemplate() actor.Template {
	return actor.Template{
		Ref: actor.Ref{Atespace: "demo", Name: "echo"}, Selector: map[string]string{"zone": "a"},
		Containers: []actor.Container{{
			Name: "main", Image: "local:echo", Command: []string{"/echo"}, Args: []string{"-v"}, Env: []actor.EnvVar{{Name: "A", Value: "b=c"}},
			Probe:  &actor.Probe{Path: "/ready?x=1", Port: 80},
			Mounts: []actor.Mount{{Volume: "data", Path: "/data"}, {Volume: "info", Path: "/run/info"}}, Resources: []actor.Limit{{Name: "cpu", Quantity: "500m"}},
		}},
		Volumes: []actor.Volume{{Name: "data", DurableDir: true}, {Name: "info", SystemInfo: []actor.DataSource{
			{Items: []actor.MetadataItem{{Field: actor.FieldUID, Path: "uid"}}}, {Bundles: []string{"egress-mitm.ate.dev"}, Path: "ca/mitm.pem"},
		}}},
		Resources: []actor.Limit{{Name: "memory", Quantity: "1Gi"}}, Snapshot: actor.Snapshot{OnCommit: 2, Location: "x"}, Sandbox: actor.Sandbox{Class: 1, Config: "y"},
	}
}

func TestTemplateCheck(t *testing.T) {
	if err := fullTemplate().Check("t"); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 4097)
	for want, change := range map[string]func(*actor.Template){
		"t.metadata.name":                        func(x *actor.Template) { x.Name = "E" },
		"t.worker_selector.match_labels":         func(x *actor.Template) { x.Selector = map[string]string{"": "x"} },
		"t.containers: are 0":                    func(x *actor.Template) { x.Containers = nil },
		"t.containers: are 11":                   func(x *actor.Template) { x.Containers = make([]actor.Container, 11) },
		"t.volumes: are 33":                      func(x *actor.Template) { x.Volumes = make([]actor.Volume, 33) },
		"t.volumes[1].name: \"data\" is there":   func(x *actor.Template) { x.Volumes[1].Name = "data" },
		"t.volumes[0]: must have exactly one":    func(x *actor.Template) { x.Volumes[0].DurableDir = false },
		"t.volumes[1]: must have exactly one":    func(x *actor.Template) { x.Volumes[1].DurableDir = true },
		"data_sources: are 0":                    func(x *actor.Template) { x.Volumes[1].SystemInfo = []actor.DataSource{} },
		"data_sources: are 9":                    func(x *actor.Template) { x.Volumes[1].SystemInfo = make([]actor.DataSource, 9) },
		"data_sources[0]: must have exactly one": func(x *actor.Template) { x.Volumes[1].SystemInfo[0].Bundles = []string{"x"} },
		"data_sources[1]: must have exactly one": func(x *actor.Template) { x.Volumes[1].SystemInfo[1].Bundles = nil },
		"trust_bundle.names: are 0":              func(x *actor.Template) { x.Volumes[1].SystemInfo[1].Bundles = []string{} },
		"trust_bundle.path":                      func(x *actor.Template) { x.Volumes[1].SystemInfo[1].Path = "../ca.pem" },
		"actor_metadata.items[0].path":           func(x *actor.Template) { x.Volumes[1].SystemInfo[0].Items[0].Path = "/uid" },
		"actor_metadata.items[0].field: 4":       func(x *actor.Template) { x.Volumes[1].SystemInfo[0].Items[0].Field = 4 },
		"t.containers[0].name":                   func(x *actor.Template) { x.Containers[0].Name = "" },
		"t.containers[0].image: is required":     func(x *actor.Template) { x.Containers[0].Image = "" },
		"t.containers[0].image: has 4097":        func(x *actor.Template) { x.Containers[0].Image = long },
		"t.containers[0].args[1]: has 4097":      func(x *actor.Template) { x.Containers[0].Args = []string{"", long} },
		"t.containers[0].command: are 129":       func(x *actor.Template) { x.Containers[0].Command = make([]string, 129) },
		"129 variables":                          func(x *actor.Template) { x.Containers[0].Env = make([]actor.EnvVar, 129) },
		"env[0].name: \"A=B\"":                   func(x *actor.Template) { x.Containers[0].Env[0].Name = "A=B" },
		"env[0].value: has 4097":                 func(x *actor.Template) { x.Containers[0].Env[0].Value = long },
		"http_get.path":                          func(x *actor.Template) { x.Containers[0].Probe.Path = "ready" },
		"http_get.path: must be a path":          func(x *actor.Template) { x.Containers[0].Probe.Path = "/a b" },
		"http_get.port":                          func(x *actor.Template) { x.Containers[0].Probe.Port = 0 },
		"timeout_seconds":                        func(x *actor.Template) { x.Containers[0].Probe.Timeout = time.Hour + time.Second },
		"timeout_seconds: must":                  func(x *actor.Template) { x.Containers[0].Probe.Timeout = time.Millisecond },
		"there is no volume \"other\"":           func(x *actor.Template) { x.Containers[0].Mounts[0].Volume = "other" },
		"volume_mounts[0].mount_path: \"/\"":     func(x *actor.Template) { x.Containers[0].Mounts[0].Path = "/" },
		"volume_mounts[0].mount_path: \"/a/..\"": func(x *actor.Template) { x.Containers[0].Mounts[0].Path = "/a/.." },
		"volume_mounts[1].mount_path: \"a\"":     func(x *actor.Template) { x.Containers[0].Mounts[1].Path = "a" },
		"t.containers[0].resources.limits[0]":    func(x *actor.Template) { x.Containers[0].Resources[0].Name = "gpu" },
		"t.resources.limits[1]":                  func(x *actor.Template) { x.Resources = append(x.Resources, x.Resources[0]) },
		"storage_location: has 4097":             func(x *actor.Template) { x.Snapshot.Location = long },
	} {
		x := fullTemplate()
		change(&x)
		err := x.Check("t")
		var faults actor.Faults
		if !errors.As(err, &faults) || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("want %q: %v", want, err)
		}
	}
	x := fullTemplate()
	if got := x.WithDefaults().Containers[0].Probe.Timeout; got != 30*time.Second || x.Containers[0].Probe.Timeout != 0 {
		t.Errorf("the time limit is %s, and was %s", got, x.Containers[0].Probe.Timeout)
	}
}

func TestCodesAndStates(t *testing.T) {
	for c := range actor.Code(20) {
		if c.String() == "" || (c <= actor.Unauthenticated) == strings.HasPrefix(c.String(), "Code(") {
			t.Errorf("code %d is %q", uint8(c), c)
		}
	}
	for _, s := range []actor.State{-1, 0, 10, 1 << 30} {
		if s.String() != "UNSPECIFIED" {
			t.Errorf("state %d is %q", int32(s), s)
		}
	}
	cause := errors.New("cause")
	if err := actor.Refuse(actor.Aborted, "no: %v", cause); err.Error() != "no: cause" || !errors.Is(err, cause) || err.Code != actor.Aborted {
		t.Errorf("%v", err)
	}
	m := actor.Meta{UID: "u", Version: 2}
	for terms, want := range map[actor.Terms]bool{{}: true, {UID: "u"}: true, {Version: 2}: true, {UID: "u", Version: 2}: true, {UID: "v"}: false, {Version: 1}: false, {UID: "u", Version: 3}: false} {
		if terms.Hold(m) != want {
			t.Errorf("%+v", terms)
		}
	}
}
