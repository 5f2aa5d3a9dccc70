package route_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

// router is short for an entry.
func router(t testing.TB, name, rule string, priority int, entrypoints ...string) route.Entry {
	t.Helper()
	return route.Entry{Name: name, Rule: mustParse(t, rule), Priority: priority, Entrypoints: entrypoints}
}

// nameOf returns the name of the entry that matches, or "-".
func nameOf(entries []route.Entry, table *route.Table, in *route.Input) string {
	if i := table.Match(in); i >= 0 {
		return entries[i].Name
	}
	return "-"
}

func TestPriorityVectors(t *testing.T) {
	for text, want := range map[string]int{"PathPrefix(`/`)": 15, "Path(`/health`)": 15, "PathPrefix(`/api`)": 18, "Host(`a.b`)": 11, " Host(`a.b`) ": 13} {
		if got := mustParse(t, text).DefaultPriority(); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

func TestTableOrder(t *testing.T) {
	for _, tc := range []struct {
		name    string
		entries []route.Entry
		request string
		want    string
	}{
		{"longer rule first", []route.Entry{router(t, "a", "PathPrefix(`/`)", 0), router(t, "b", "PathPrefix(`/api`)", 0)}, "GET h/api", "b"},
		{"explicit beats longer", []route.Entry{router(t, "a", "PathPrefix(`/`)", 1000), router(t, "b", "PathPrefix(`/api`)", 0)}, "GET h/api", "a"},
		{"small explicit loses", []route.Entry{router(t, "a", "Host(`h`) && PathPrefix(`/api`)", 5), router(t, "b", "PathPrefix(`/`)", 0)}, "GET h/api", "b"},
		{"negative is unset", []route.Entry{router(t, "a", "PathPrefix(`/api`)", -7), router(t, "b", "PathPrefix(`/`)", 0)}, "GET h/api", "a"},
		{"equal goes by name", []route.Entry{router(t, "z", "Path(`/health`)", 0), router(t, "b", "PathPrefix(`/`)", 0)}, "GET h/health", "b"},
		{"equal explicit goes by name in byte order", []route.Entry{router(t, "a", "PathPrefix(`/`)", 9), router(t, "B", "PathPrefix(`/`)", 9)}, "GET h/", "B"},
		{"host rule beats catch-all", []route.Entry{router(t, "a", "PathPrefix(`/`)", 0), router(t, "b", "Host(`a.example`)", 0)}, "GET a.example/", "b"},
		{"short host loses to a path", []route.Entry{router(t, "a", "Host(`a.b`)", 0), router(t, "b", "PathPrefix(`/api`)", 0)}, "GET a.b/api", "b"},
		{"falls through to the catch-all", []route.Entry{router(t, "a", "PathPrefix(`/`)", 0), router(t, "b", "Host(`a.example`) && Method(`POST`)", 0)}, "GET a.example/", "a"},
		{"exact host, wildcard and none together", []route.Entry{
			router(t, "a", "Host(`x.b`)", 10), router(t, "b", "Host(`*.b`)", 20), router(t, "c", "HostRegexp(`.*`)", 15),
		}, "GET x.b/", "b"},
		{"short prefix with priority over a long one", []route.Entry{router(t, "a", "PathPrefix(`/a`)", 50), router(t, "b", "PathPrefix(`/a/b/c`)", 40)}, "GET h/a/b/c", "a"},
		{"prefix over exact", []route.Entry{router(t, "a", "PathPrefix(`/a`)", 50), router(t, "b", "Path(`/a/b`)", 40)}, "GET h/a/b", "a"},
		{"nothing", []route.Entry{router(t, "a", "Path(`/a`)", 0)}, "GET h/b", "-"},
		{"empty table", nil, "GET h/b", "-"},
		{"no rule", []route.Entry{{Name: "a", Priority: 5}}, "GET h/b", "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := request(tc.request)
			if got := nameOf(tc.entries, route.Build(tc.entries, "web"), &in); got != tc.want {
				t.Errorf("matched %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTableOfThousandRouters(t *testing.T) {
	var entries []route.Entry
	for i := range 1000 {
		entries = append(entries, router(t, fmt.Sprintf("r%04d", i), fmt.Sprintf("PathPrefix(`/svc-%04d`)", i), 0))
	}
	rand.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	table := route.Build(entries, "web")
	for i := range 1000 {
		in := request(fmt.Sprintf("GET h/svc-%04d/x", i))
		if got, want := nameOf(entries, table, &in), fmt.Sprintf("r%04d", i); got != want {
			t.Fatalf("matched %s, want %s", got, want)
		}
	}
}

func TestEntrypointBinding(t *testing.T) {
	entries := []route.Entry{
		router(t, "all", "PathPrefix(`/`)", 1),
		router(t, "web", "PathPrefix(`/`)", 2, "web"),
		router(t, "both", "PathPrefix(`/`) && Method(`POST`)", 3, "admin", "web"),
	}
	for _, tc := range []struct{ entrypoint, request, want string }{
		{"web", "GET h/", "web"}, {"web", "POST h/", "both"}, {"admin", "GET h/", "all"}, {"admin", "POST h/", "both"}, {"other", "POST h/", "all"},
	} {
		in := request(tc.request)
		if got := nameOf(entries, route.Build(entries, tc.entrypoint), &in); got != tc.want {
			t.Errorf("%s at %s: matched %s, want %s", tc.request, tc.entrypoint, got, tc.want)
		}
	}
}

// TestPathTricks replays requests that smuggle a protected path past its router: each is refused, or judged by it.
func TestPathTricks(t *testing.T) {
	entries := []route.Entry{router(t, "open", "PathPrefix(`/`)", 0), router(t, "protected", "PathPrefix(`/admin`)", 0)}
	table := route.Build(entries, "web")
	for path, want := range map[string]string{
		"/admin": "protected", "/public/%2e%2e/admin": "protected", "//admin": "protected", "/./admin": "protected",
		"/a;/../admin": "protected", "/%61dmin": "protected", "/x/..//admin/": "protected", "/../admin": "protected",
		"/admin%2F": "400", "/admin%5c": "protected or 400", `/public/..\admin`: "400", "/public/..;/admin": "400",
		"/public/..%2fadmin": "400", "/public": "open",
	} {
		got := "400"
		if norm, _, err := route.NormalPath(nil, []byte(path), false); err == nil {
			got = nameOf(entries, table, &route.Input{Path: norm})
		}
		if !strings.Contains(want, got) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties the pools of package regexp")
	}
	entries := []route.Entry{
		router(t, "a", "Host(`a.example`) && Headers(`X-A`, `1`) && Query(`k`, `v w`) && Method(`GET`) && ClientIP(`10.0.0.0/8`)", 0),
		router(t, "b", "Host(`*.example`) && PathPrefix(`/b`)", 0),
		router(t, "c", "HostRegexp(`[a-z]+\\.regexp`) && PathRegexp(`/(x|y)+`)", 0),
		router(t, "d", "!Host(`a.example`) || Path(`/d`)", 0),
	}
	table := route.Build(entries, "web")
	for _, tc := range []struct{ request, want string }{
		{"GET a.example/?x&k=v%20w", "a"},
		{"GET A.Example:8080/?k=v+w", "a"},
		{"GET B.example/b/c", "b"},
		{"GET q.regexp/xyxy", "c"},
		{"GET Q.REGEXP/xyxy", "c"},
		{"POST a.example/d", "d"},
		{"POST a.example/", "-"},
	} {
		in := request(tc.request)
		in.ClientIP = netip.MustParseAddr("::ffff:10.0.0.1")
		in.Fields = fixedField("1")
		if got := nameOf(entries, table, &in); got != tc.want {
			t.Errorf("%s: matched %s, want %s", tc.request, got, tc.want)
		}
		if n := testing.AllocsPerRun(200, func() { table.Match(&in) }); n != 0 {
			t.Errorf("%s: %v allocations", tc.request, n)
		}
	}
}

// fixedField answers every name with one value.
type fixedField []byte

func (f fixedField) First(string) ([]byte, bool) { return f, true }
