package actor_test

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/actor"
)

const tunnelBase = "spiffe://substrate-actor.local/worker-for-actor/"

// tunnelVectors are identities that are no tunnel's. The one that is, is made of them by tests.
var tunnelVectors = []string{
	"",
	"spiffe://substrate-actor.local/actor/demo/a1",
	"spiffe://substrate-actor.local/ateom-for-actor/demo/a1",
	"spiffe://substrate-actor.local/atespace/demo/actor/a1",
	"spiffe://substrate-actor.local/Worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local/xworker-for-actor/demo/a1",
	"spiffe://substrate-actor.local/worker-for-actorx/demo/a1",
	"spiffe://substrate-actor.local/worker-for-actor",
	"spiffe://substrate-actor.local/worker-for-actor/",
	"spiffe://substrate-actor.local/worker-for-actor/demo",
	"spiffe://substrate-actor.local/demo/a1",
	"spiffe://substrate-actor.local//worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local/./worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local/x/../worker-for-actor/demo/a1",
	tunnelBase + "demo/a1/",
	tunnelBase + "/demo/a1",
	tunnelBase + "demo//a1",
	tunnelBase + "demo/a1/b",
	tunnelBase + "demo/",
	tunnelBase + "/a1",
	tunnelBase + "demo/a1?",
	tunnelBase + "demo/a1?x",
	tunnelBase + "demo/a1#",
	tunnelBase + "demo/a1#x",
	tunnelBase + "demo/%611",
	tunnelBase + "demo%2Fa1",
	tunnelBase + "Demo/a1",
	tunnelBase + "demo/A1",
	tunnelBase + "demo/a_1",
	tunnelBase + "demo/-a",
	tunnelBase + "demo/a1 ",
	" " + tunnelBase + "demo/a1",
	tunnelBase + "demo/a1\n",
	tunnelBase + "demo/a1\x00",
	tunnelBase + "demo/" + label63 + "a",
	tunnelBase + "démo/a1",
	"SPIFFE://substrate-actor.local/worker-for-actor/demo/a1",
	"Spiffe://substrate-actor.local/worker-for-actor/demo/a1",
	"spiffe://Substrate-actor.local/worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local./worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local:443/worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local:/worker-for-actor/demo/a1",
	"spiffe://u@substrate-actor.local/worker-for-actor/demo/a1",
	"spiffe://@substrate-actor.local/worker-for-actor/demo/a1",
	"spiffe://substrate-actor%2elocal/worker-for-actor/demo/a1",
	"spiffe://xsubstrate-actor.local/worker-for-actor/demo/a1",
	"spiffe://substrate-actor.localx/worker-for-actor/demo/a1",
	"spiffe://substrate-actor.local.evil.test/worker-for-actor/demo/a1",
	"spiffe://cluster.local/worker-for-actor/demo/a1",
	"spiffe:///worker-for-actor/demo/a1",
	"spiffe:/substrate-actor.local/worker-for-actor/demo/a1",
	"spiffe:substrate-actor.local/worker-for-actor/demo/a1",
	"//substrate-actor.local/worker-for-actor/demo/a1",
	"http://substrate-actor.local/worker-for-actor/demo/a1",
	"https://substrate-actor.local/worker-for-actor/demo/a1",
}

func TestTunnelID(t *testing.T) {
	tunnels := actor.Tunnels{Domain: actor.ActorDomain}
	ref := actor.Ref{Atespace: "demo", Name: "a1"}
	if id := tunnels.ID(ref); id != "spiffe://substrate-actor.local/worker-for-actor/demo/a1" {
		t.Errorf("the identity of a tunnel is %q", id)
	}
	if got, err := tunnels.Parse(tunnels.ID(ref)); got != ref || err != nil {
		t.Errorf("Parse of it = %v, %v", got, err)
	}
	for _, id := range tunnelVectors {
		if r, err := tunnels.Parse(id); !errors.Is(err, actor.ErrID) || r != (actor.Ref{}) {
			t.Errorf("Parse(%q) = %v, %v; want ErrID", id, r, err)
		}
	}
	old := actor.Tunnels{Domain: actor.ActorDomain, AcceptOld: true}
	if r, err := old.Parse("spiffe://substrate-actor.local/ateom-for-actor/demo/a1"); r != ref || err != nil {
		t.Errorf("the earlier form, accepted: %v, %v", r, err)
	}
	if r, err := old.Parse("spiffe://substrate-actor.local/actor/demo/a1"); err == nil {
		t.Errorf("with the earlier form the actor's own identity is a tunnel's: %v", r)
	}
	other := actor.Tunnels{Domain: "actors.example"}
	if r, err := other.Parse("spiffe://actors.example/worker-for-actor/demo/a1"); r != ref || err != nil {
		t.Errorf("in another domain: %v, %v", r, err)
	}
	if _, err := other.Parse(tunnels.ID(ref)); err == nil {
		t.Error("another domain accepts the identity")
	}
	if _, err := (actor.Tunnels{}).Parse("spiffe:///worker-for-actor/demo/a1"); err == nil {
		t.Error("no domain accepts an identity without one")
	}
}

func TestActorID(t *testing.T) {
	ref := actor.Ref{Atespace: "demo", Name: "a1"}
	if id := ref.ID(actor.ActorDomain); id != "spiffe://substrate-actor.local/actor/demo/a1" {
		t.Errorf("the actor's own identity is %q", id)
	}
}

// tunnelTwin and workloadTwin are the same grammars as regular expressions.
var (
	tunnelTwin   = regexp.MustCompile(`\Aspiffe://substrate-actor\.local/worker-for-actor/(` + labelTwin + `)/(` + labelTwin + `)\z`)
	workloadTwin = regexp.MustCompile(`\Aspiffe://cluster\.local/ns/(` + labelTwin + `)/sa/((?:` + labelTwin + `\.)*` + labelTwin + `)\z`)
)

func checkID(t interface{ Fatalf(string, ...any) }, id string) {
	var want actor.Ref
	if m := tunnelTwin.FindStringSubmatch(id); m != nil {
		want = actor.Ref{Atespace: m[1], Name: m[2]}
	}
	got, err := actor.Tunnels{Domain: actor.ActorDomain}.Parse(id)
	if got != want || (err == nil) != (want != actor.Ref{}) {
		t.Fatalf("Parse(%q) = %v, %v; the twin finds %v", id, got, err, want)
	}
	var pod actor.Workload
	if m := workloadTwin.FindStringSubmatch(id); m != nil && len(m[2]) <= 253 {
		pod = actor.Workload{Namespace: m[1], Account: m[2]}
	}
	if w, err := actor.ParseWorkload(actor.WorkloadDomain, id); w != pod || (err == nil) != (pod != actor.Workload{}) {
		t.Fatalf("ParseWorkload(%q) = %v, %v; the twin finds %v", id, w, err, pod)
	}
	if err != nil {
		return
	}
	// What is accepted means the same to everybody who takes it for a URL.
	u, uerr := url.Parse(id)
	if uerr != nil || u.String() != id || u.Host != actor.ActorDomain || u.RawPath != "" || u.Path != "/worker-for-actor/"+got.String() {
		t.Fatalf("%q is accepted, and as a URL it is %#v (%v)", id, u, uerr)
	}
}

func TestIDTwin(t *testing.T) {
	near := rapid.StringMatching(`(spiffe|SPIFFE|http)://(u@)?(substrate-actor|cluster)\.local(:1)?/(worker-for-actor|ns|actor)/[a-b-]{0,2}/(sa/)?[a-bA.%/-]{1,3}[?#]?`)
	accepted := rapid.StringMatching(`spiffe://(substrate-actor\.local/worker-for-actor/[a-z0-9]{1,5}|cluster\.local/ns/[a-z]{1,3}/sa)/[a-z0-9.]{1,5}`)
	rapid.Check(t, func(t *rapid.T) { checkID(t, rapid.OneOf(near, accepted).Draw(t, "id")) })
}

func FuzzTunnelID(f *testing.F) {
	f.Add(tunnelBase + "demo/a1")
	f.Add("spiffe://cluster.local/ns/ate-system/sa/atenet-router")
	for _, id := range tunnelVectors {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) { checkID(t, id) })
}

func TestWorkloadID(t *testing.T) {
	router := actor.Workload{Namespace: "ate-system", Account: "atenet-router"}
	const id = "spiffe://cluster.local/ns/ate-system/sa/atenet-router"
	if got := router.ID(actor.WorkloadDomain); got != id {
		t.Errorf("the router is %q", got)
	}
	if w, err := actor.ParseWorkload(actor.WorkloadDomain, id); w != router || err != nil {
		t.Errorf("ParseWorkload = %v, %v", w, err)
	}
	dotted := actor.Workload{Namespace: "n", Account: "a.b-c.d"}
	if w, err := actor.ParseWorkload(actor.WorkloadDomain, dotted.ID(actor.WorkloadDomain)); w != dotted || err != nil {
		t.Errorf("an account with dots: %v, %v", w, err)
	}
	for _, bad := range []string{
		"", id + "/", id + "/x", id + "x/", "x" + id, id + "?", id + "#", id + "%20", id + ".", strings.ToUpper(id),
		"spiffe://cluster.local/ns/ate-system/sa/", "spiffe://cluster.local/ns//sa/atenet-router",
		"spiffe://cluster.local/ns/ate-system/sa/atenet..router", "spiffe://cluster.local/ns/ate.system/sa/atenet-router",
		"spiffe://cluster.local:443/ns/ate-system/sa/atenet-router", "spiffe://cluster.local/sa/atenet-router/ns/ate-system",
		"spiffe://other.local/ns/ate-system/sa/atenet-router", "spiffe://cluster.local/ns/n/sa/" + strings.Repeat("a.", 130) + "a",
	} {
		if w, err := actor.ParseWorkload(actor.WorkloadDomain, bad); !errors.Is(err, actor.ErrID) {
			t.Errorf("ParseWorkload(%q) = %v, %v; want ErrID", bad, w, err)
		}
	}
	if _, err := actor.ParseWorkload("", "spiffe:///ns/n/sa/a"); err == nil {
		t.Error("no domain accepts an identity without one")
	}
}

func TestWorkerPin(t *testing.T) {
	const own = "spiffe://cluster.local/ns/pool-a/sa/default"
	for _, tc := range []struct {
		name      string
		pin       actor.WorkerPin
		presented string
		ok        bool
	}{
		{"the named one", actor.WorkerPin{ID: own, Namespace: "pool-a"}, own, true},
		{"the name decides, not the namespace", actor.WorkerPin{ID: own, Namespace: "elsewhere"}, own, true},
		{"another account", actor.WorkerPin{ID: own, Namespace: "pool-a"}, "spiffe://cluster.local/ns/pool-a/sa/other", false},
		{"one character more", actor.WorkerPin{ID: own}, own + "x", false},
		{"one character less", actor.WorkerPin{ID: own}, own[:len(own)-1], false},
		{"a named one that is no workload", actor.WorkerPin{ID: "spiffe://x/y"}, "spiffe://x/y", false},
		{"no name, same namespace", actor.WorkerPin{Namespace: "pool-a"}, own, true},
		{"no name, another namespace", actor.WorkerPin{Namespace: "pool"}, own, false},
		{"no name, the namespace as a prefix", actor.WorkerPin{Namespace: "pool-a"}, "spiffe://cluster.local/ns/pool-a2/sa/default", false},
		{"no name, another domain", actor.WorkerPin{Namespace: "pool-a"}, "spiffe://other.local/ns/pool-a/sa/default", false},
		{"no name and no namespace", actor.WorkerPin{}, own, false},
		{"nothing presented", actor.WorkerPin{Namespace: "pool-a"}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.pin.Check(actor.WorkloadDomain, tc.presented)
			if (err == nil) != tc.ok || err != nil && !errors.Is(err, actor.ErrID) {
				t.Errorf("Check = %v, want ok %v", err, tc.ok)
			}
		})
	}
}
