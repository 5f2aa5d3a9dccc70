package atelet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/atelet"
)

// What the control plane calls things never leads out of where their files belong: the agent is root, and does not rely on who
// has checked templates before.
func TestNamesStayBelow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "echo"), nil, 0o755); err != nil { //nolint:gosec // actors execute it
		t.Fatal(err)
	}
	make := func(change func(a *actor.Actor, x *actor.Template)) error {
		a := of("u1")
		x := actor.Template{
			Ref: demo("t"), Containers: []actor.Container{{Name: "main", Image: "local:echo", Mounts: []actor.Mount{{Volume: "v", Path: "/v"}}}},
			Volumes: []actor.Volume{{Name: "v", SystemInfo: []actor.DataSource{
				{Items: []actor.MetadataItem{{Field: actor.FieldName, Path: "n"}}}, {Bundles: []string{"egress-mitm.ate.dev"}, Path: "ca"},
			}}},
		}
		change(&a, &x)
		_, err := atelet.Order(dir, a, x)
		return err
	}
	if err := make(func(*actor.Actor, *actor.Template) {}); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(a *actor.Actor, x *actor.Template){
		"UID":            func(a *actor.Actor, _ *actor.Template) { a.UID = "../../../out" },
		"actor.name":     func(a *actor.Actor, _ *actor.Template) { a.Name = "../../../out" },
		"actor.atespace": func(a *actor.Actor, _ *actor.Template) { a.Atespace = ".." },
		"volumes[0].name": func(_ *actor.Actor, x *actor.Template) {
			x.Volumes[0].Name, x.Containers[0].Mounts[0].Volume = "../../../out", "../../../out"
		},
		"actor_metadata.items[0].path": func(_ *actor.Actor, x *actor.Template) { x.Volumes[0].SystemInfo[0].Items[0].Path = "../../../../out" },
		"trust_bundle.path":            func(_ *actor.Actor, x *actor.Template) { x.Volumes[0].SystemInfo[1].Path = "../../../../out" },
	} {
		if err := make(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for above := dir; above != filepath.Dir(filepath.Dir(dir)); above = filepath.Dir(above) {
		if _, err := os.Lstat(filepath.Join(filepath.Dir(above), "out")); err == nil {
			t.Errorf("something was written beside %s", above)
		}
	}
}
