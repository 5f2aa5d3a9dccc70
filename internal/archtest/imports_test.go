package archtest_test

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

func TestImportTable(t *testing.T) {
	for _, s := range shipped(t) {
		allowed, known := rooms[s.room]
		if !known {
			t.Errorf("%s: package %s is not in the import table: say in internal/archtest/table_test.go what it may import", s.file, s.room)
			continue
		}
		for _, imported := range s.imports() {
			room := roomOf(imported)
			if room == "" || room == s.room {
				continue
			}
			if slices.Contains(onlyForTests, room) && !slices.Contains(onlyForTests, s.room) {
				t.Errorf("%s: imports %s, which is for tests only", s.file, room)
				continue
			}
			if !slices.Contains(allowed, anyRoom) && !slices.Contains(allowed, room) {
				t.Errorf("%s: %s may not import %s (allowed: %s)", s.file, s.room, room, strings.Join(allowed, " "))
			}
		}
	}
}

func TestDecidersArePure(t *testing.T) {
	found := 0
	for _, s := range shipped(t) {
		allowed, decides := deciders[s.file]
		if !decides {
			continue
		}
		found++
		for _, imported := range s.imports() {
			first, _, _ := strings.Cut(imported, "/")
			if room := roomOf(imported); strings.Contains(first, ".") && (room == "" || !slices.Contains(allowed, room)) {
				t.Errorf("%s decides, and may not import %s (allowed: %s)", s.file, imported, strings.Join(allowed, " "))
			}
		}
	}
	if found != len(deciders) {
		t.Errorf("%d of the %d files in deciders exist", found, len(deciders))
	}
}

// The table itself must be a descent: a cycle would allow two rooms to know
// each other as soon as both exist.
func TestImportTableHasNoCycle(t *testing.T) {
	const (
		visiting = 1
		done     = 2
	)
	state := make(map[string]int)
	var visit func(room string, trail []string)
	visit = func(room string, trail []string) {
		if state[room] == visiting {
			t.Errorf("the import table has a cycle: %s", strings.Join(append(trail, room), " -> "))
			return
		}
		if state[room] == done {
			return
		}
		state[room] = visiting
		for _, next := range rooms[room] {
			if next == anyRoom {
				continue
			}
			if _, ok := rooms[next]; !ok {
				t.Errorf("the import table lets %s import %s, which has no entry", room, next)
			}
			visit(next, append(trail, room))
		}
		state[room] = done
	}
	for room := range rooms {
		visit(room, nil)
	}
}

func TestThirdPartyWalls(t *testing.T) {
	for _, s := range shipped(t) {
		if slices.Contains(onlyForTests, s.room) {
			continue
		}
		for _, imported := range s.imports() {
			if w, broken := brokenWall(s.room, imported); broken {
				t.Errorf("%s: %s may not import %s: %s (allowed in: %s)", s.file, s.room, imported, w.because, strings.Join(w.rooms, " "))
			}
		}
	}
}

func brokenWall(room, imported string) (wall, bool) {
	if slices.Contains(wallExceptions, imported) {
		return wall{}, false
	}
	for _, w := range walls {
		if within(imported, w.path) && !slices.Contains(w.rooms, room) {
			return w, true
		}
	}
	return wall{}, false
}

func TestWallsAreFound(t *testing.T) {
	for _, c := range []struct {
		name, room, imported string
		broken               bool
	}{
		{"codec in its room", "internal/http2", "golang.org/x/net/http2/hpack", false},
		{"codec elsewhere", "internal/proxy", "golang.org/x/net/http2", true},
		{"subpackage elsewhere", "internal/proxy", "golang.org/x/net/http2/hpack", true},
		{"sibling with the same prefix", "internal/proxy", "golang.org/x/net/http2x", false},
		{"metrics client in a part", "internal/service", "github.com/prometheus/client_golang/prometheus", true},
		{"the old logger", "internal/app", "log", true},
		{"the new logger", "internal/app", "log/slog", false},
		{"the old random source", "internal/service", "math/rand", true},
		{"the new random source", "internal/service", "math/rand/v2", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, broken := brokenWall(c.room, c.imported); broken != c.broken {
				t.Errorf("brokenWall(%s, %s) = %v", c.room, c.imported, broken)
			}
		})
	}
}

// The names and texts of statuses are data; everything else of net/http is a
// second engine.
func TestEngineDoesNotUseNetHTTP(t *testing.T) {
	for _, s := range shipped(t) {
		if !slices.Contains(engineRooms, s.room) {
			continue
		}
		for _, imported := range s.imports() {
			if strings.HasPrefix(imported, "net/http/") {
				t.Errorf("%s: %s forwards traffic and must not import %s", s.file, s.room, imported)
			}
		}
		if !slices.Contains(s.imports(), "net/http") {
			continue
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := selector.X.(*ast.Ident); ok && pkg.Name == "http" && !strings.HasPrefix(selector.Sel.Name, "Status") {
				t.Errorf("%s: %s forwards traffic and must not use http.%s", s.fset.Position(n.Pos()), s.room, selector.Sel.Name)
			}
			return true
		})
	}
}
