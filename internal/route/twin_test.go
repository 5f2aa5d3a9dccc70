package route_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/route"
)

// The twin of the table: rules as trees of plain closures, tried one after the other. It shares nothing with the
// package but the meaning.

// model is a rule: its text, and what it means for a request without folding, ports or escapes.
type model struct {
	text  string
	prec  int // 1 or, 2 and, 3 the rest
	holds func(modelRequest) bool
}

type modelRequest struct{ host, path, method, query, field string }

// The alphabets are tiny, so that rules overlap all the time.
var (
	genHost   = rapid.SampledFrom([]string{"a.x", "b.x", "c.a.x", "x", "a.y"})
	genSuffix = rapid.SampledFrom([]string{"x", "a.x", "y"})
	genPath   = rapid.SampledFrom([]string{"/", "/a", "/a/", "/ab", "/a/b", "/a/b/c", "/abc", "/b"})
	genMethod = rapid.SampledFrom([]string{"GET", "POST"})
	genValue  = rapid.SampledFrom([]string{"1", "2"})
)

func genLeaf(t *rapid.T) model {
	switch rapid.IntRange(0, 8).Draw(t, "kind") {
	case 0, 1:
		h := genHost.Draw(t, "host")
		return model{fmt.Sprintf("Host(`%s`)", h), 3, func(r modelRequest) bool { return r.host == h }}
	case 2:
		s := genSuffix.Draw(t, "suffix")
		return model{fmt.Sprintf("Host(`*.%s`)", s), 3, func(r modelRequest) bool {
			label, rest, ok := strings.Cut(r.host, ".")
			return ok && label != "" && rest == s
		}}
	case 3, 4:
		p := genPath.Draw(t, "prefix")
		return model{fmt.Sprintf("PathPrefix(`%s`)", p), 3, func(r modelRequest) bool { return strings.HasPrefix(r.path, p) }}
	case 5:
		p := genPath.Draw(t, "path")
		return model{fmt.Sprintf("Path(`%s`)", p), 3, func(r modelRequest) bool { return r.path == p }}
	case 6:
		m := genMethod.Draw(t, "method")
		return model{fmt.Sprintf("Method(`%s`)", m), 3, func(r modelRequest) bool { return r.method == m }}
	case 7:
		v := genValue.Draw(t, "query")
		return model{fmt.Sprintf("Query(`q`, `%s`)", v), 3, func(r modelRequest) bool { return r.query == v }}
	}
	v := genValue.Draw(t, "field")
	return model{fmt.Sprintf("Headers(`X-F`, `%s`)", v), 3, func(r modelRequest) bool { return r.field == v }}
}

func genRule(t *rapid.T, depth int) model {
	op := 0
	if depth > 0 {
		op = rapid.IntRange(0, 5).Draw(t, "op")
	}
	switch op {
	case 1, 2, 3: // and, or
		prec, sep := 2, " && "
		if op == 3 {
			prec, sep = 1, "||"
		}
		a, b := genRule(t, depth-1), genRule(t, depth-1)
		text := within(a, prec) + sep + within(b, prec)
		return model{text, prec, func(r modelRequest) bool {
			if op == 3 {
				return a.holds(r) || b.holds(r)
			}
			return a.holds(r) && b.holds(r)
		}}
	case 4:
		a := genRule(t, depth-1)
		return model{"!" + within(a, 3), 3, func(r modelRequest) bool { return !a.holds(r) }}
	}
	return genLeaf(t)
}

func within(m model, prec int) string {
	if m.prec < prec {
		return "( " + m.text + ")"
	}
	return m.text
}

// twin is one entry of the linear scan.
type twin struct {
	model
	index, priority int
	name            string
}

func genTable(t *rapid.T) ([]route.Entry, []twin) {
	var entries []route.Entry
	var scan []twin
	for i := range rapid.IntRange(0, 24).Draw(t, "entries") {
		m := genRule(t, 3)
		e := route.Entry{Name: fmt.Sprintf("r%02d", (i*7)%24), Priority: max(-1, rapid.IntRange(-30, 60).Draw(t, "priority"))}
		e.Entrypoints = rapid.SampledFrom([][]string{nil, {"web"}, {"other"}, {"other", "web"}}).Draw(t, "entrypoints")
		rule, errs := route.Parse(m.text)
		if len(errs) > 0 {
			t.Fatalf("parse %s: %v", m.text, errs[0])
		}
		e.Rule = rule
		entries = append(entries, e)
		if len(e.Entrypoints) == 1 && e.Entrypoints[0] == "other" {
			continue
		}
		p := e.Priority
		if p <= 0 {
			p = len(m.text)
		}
		scan = append(scan, twin{m, i, p, e.Name})
	}
	slices.SortFunc(scan, func(a, b twin) int {
		return cmp.Or(b.priority-a.priority, strings.Compare(a.name, b.name))
	})
	return entries, scan
}

func checkTwin(t *rapid.T) {
	entries, scan := genTable(t)
	table := route.Build(entries, "web")
	for range rapid.IntRange(1, 20).Draw(t, "requests") {
		r := modelRequest{
			host:   rapid.OneOf(genHost, rapid.SampledFrom([]string{"", "z", "c.b.x"})).Draw(t, "host"),
			path:   rapid.OneOf(genPath, rapid.SampledFrom([]string{"/a/bc", "/z", "/a/b/cd", "*"})).Draw(t, "path"),
			method: genMethod.Draw(t, "method"),
			query:  genValue.Draw(t, "query"),
			field:  genValue.Draw(t, "field"),
		}
		want := -1
		for _, e := range scan {
			if e.holds(r) {
				want = e.index
				break
			}
		}
		in := route.Input{
			Host: []byte(r.host), Path: []byte(r.path), Method: []byte(r.method),
			RawQuery: []byte("a=b&q=" + r.query), Fields: fields{{"x-f", r.field}},
		}
		if rapid.Bool().Draw(t, "loud") && r.host != "" {
			in.Host = []byte(strings.ToUpper(r.host) + ":80")
		}
		if got := table.Match(&in); got != want {
			t.Fatalf("request %+v: entry %d, want %d", r, got, want)
		}
		checkExplain(t, table, &in, entries, want)
	}
}

// checkExplain holds the verdicts against the entry that has to match.
func checkExplain(t *rapid.T, table *route.Table, in *route.Input, entries []route.Entry, want int) {
	verdicts := table.Explain(in)
	if len(verdicts) != len(entries) {
		t.Fatalf("%d verdicts for %d entries", len(verdicts), len(entries))
	}
	got := -1
	for i, v := range verdicts {
		e := entries[v.Entry]
		switch {
		case v.Name != e.Name || v.Reason == "" || v.Detail == "" || v.Pos+v.Len > len(e.Rule.Text()):
			t.Fatalf("verdict %+v", v)
		case i > 0 && verdicts[i-1].Priority < v.Priority:
			t.Fatalf("verdict %d out of order", i)
		case v.Reason == route.ReasonShadowed && got < 0:
			t.Fatalf("entry %d is shadowed by nothing", v.Entry)
		case v.Reason == route.ReasonMatched && got >= 0:
			t.Fatal("two entries matched")
		case v.Reason == route.ReasonMatched:
			got = v.Entry
		}
	}
	if got != want {
		t.Fatalf("Explain matched entry %d, want %d", got, want)
	}
}

func TestTableEqualsLinearScan(t *testing.T) { rapid.Check(t, checkTwin) }

func FuzzTableEqualsLinearScan(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkTwin)) }

// TestWideAlternatives reaches the bound where a product of alternatives is indexed by one of its sides only.
func TestWideAlternatives(t *testing.T) {
	var hosts, paths []string
	for i := range 60 {
		hosts = append(hosts, fmt.Sprintf("Host(`h%d.x`)", i))
		paths = append(paths, fmt.Sprintf("PathPrefix(`/p%d/`)", i))
	}
	hostAlt, pathAlt := "("+strings.Join(hosts, "||")+")", "("+strings.Join(paths, "||")+")"
	for _, rule := range []string{hostAlt + "&&" + pathAlt, pathAlt + "&&" + hostAlt, pathAlt + "&& Method(`GET`) &&" + hostAlt} {
		entries := []route.Entry{router(t, "wide", rule, 0), router(t, "rest", "PathPrefix(`/`)", 0)}
		table := route.Build(entries, "web")
		for request1, want := range map[string]string{
			"GET h0.x/p59/": "wide", "GET h59.x/p0/x": "wide", "GET h60.x/p0/": "rest", "GET h1.x/p60/": "rest", "GET h1.x/p1": "rest",
		} {
			in := request(request1)
			if got := nameOf(entries, table, &in); got != want {
				t.Errorf("%s: matched %s, want %s", request1, got, want)
			}
		}
	}
}
