package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
)

func testRow(proxy string, cpu, rate, p99 float64) row {
	r := row{Workload: "W1", Proxy: proxy, Trials: []trial{{CPUMicros: cpu, PerSecond: rate, PSS: 20 << 20}}}
	r.summarise(0.1)
	if p99 > 0 {
		r.Fixed = &fixed{Trials: []trial{{P99: p99}}}
		r.Fixed.summarise(0.1)
	}
	return r
}

func TestJudge(t *testing.T) {
	w := workload{ID: "W1", Goal: goal{Must: 1.05, Reach: 0.85, Reference: 0.60, Envoy: 0.35, Throughput: 1}}
	all := func(ours row) []row {
		return []row{testRow(nameNginx, 10, 1000, 500), testRow(nameEnvoy, 40, 400, 0), testRow(nameReference, 20, 700, 0), ours}
	}
	for _, c := range []struct {
		name string
		rows []row
		want map[goalKind]bool
	}{
		{
			"all held", all(testRow(nameSluice, 8, 1100, 400)),
			map[goalKind]bool{goalMust: true, goalReach: true, goalReference: true, goalEnvoy: true, goalThroughput: true, goalP99: true, goalMemory: true},
		},
		{
			"a limit itself is held", all(testRow(nameSluice, 10.5, 1000, 500)),
			map[goalKind]bool{goalMust: true, goalReach: false, goalReference: true, goalEnvoy: true, goalThroughput: true, goalP99: true, goalMemory: true},
		},
		{
			"all missed but memory", all(testRow(nameSluice, 30, 500, 900)),
			map[goalKind]bool{goalMust: false, goalReach: false, goalReference: false, goalEnvoy: false, goalThroughput: false, goalP99: false, goalMemory: true},
		},
		{
			"nginx only",
			[]row{testRow(nameNginx, 10, 1000, 0), testRow(nameSluice, 9, 900, 0)},
			map[goalKind]bool{goalMust: true, goalReach: false, goalThroughput: false, goalMemory: true},
		},
		{"a peer that failed", []row{{Workload: "W1", Proxy: nameNginx, Failed: "x"}, testRow(nameSluice, 9, 900, 0)}, map[goalKind]bool{goalMemory: true}},
		{"without ours", []row{testRow(nameNginx, 10, 1000, 0)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judge(w, c.rows)
			if len(got) != len(c.want) {
				t.Errorf("%d verdicts, want %d: %+v", len(got), len(c.want), got)
			}
			for _, v := range got {
				if want, ok := c.want[v.Goal]; !ok || v.Pass != want {
					t.Errorf("%s: pass = %v (have %v, limit %v), want %v", v.Goal, v.Pass, v.Have, v.Limit, want)
				}
			}
		})
	}
}

func TestJudgeFigures(t *testing.T) {
	ours, nginx := testRow(nameSluice, 8, 1500, 0), testRow(nameNginx, 10, 1000, 0)
	ours.PSS = spread{Median: 31 << 20}
	nginx.Noisy = true
	got := judge(workload{ID: "W1", Goal: goal{Must: 1, Throughput: 1}}, []row{ours, nginx})
	for _, v := range got {
		want := map[goalKind]float64{goalMust: 0.8, goalThroughput: 1.5, goalMemory: 31}[v.Goal]
		if math.Abs(v.Have-want) > 1e-9 {
			t.Errorf("%s: have %v, want %v", v.Goal, v.Have, want)
		}
		if v.Goal == goalMemory && v.Pass {
			t.Error("31 MiB pass a limit of 30")
		}
		if v.Goal == goalMust && !v.Noisy {
			t.Error("a verdict on a noisy row is not marked")
		}
	}
}

func TestJudgeIdle(t *testing.T) {
	for _, c := range []struct {
		name string
		row  idleRow
		want int
		pass bool
	}{
		{"small", idleRow{Proxy: nameSluice, Each: 6.2}, 1, true},
		{"large", idleRow{Proxy: nameSluice, Each: 23}, 1, false},
		{"failed", idleRow{Proxy: nameSluice, Failed: "x"}, 0, false},
		{"another's", idleRow{Proxy: nameNginx, Each: 0.5}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judgeIdle([]idleRow{c.row})
			if len(got) != c.want || (len(got) == 1 && got[0].Pass != c.pass) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Every workload must have goals, a name of its own and a tool that exists.
func TestPlan(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range workloads {
		if seen[w.ID] || w.ID == idleID {
			t.Errorf("%s is there twice", w.ID)
		}
		seen[w.ID] = true
		if w.Goal.Added <= 0 && (w.Goal.Must <= 0 || w.Goal.Reach <= 0 || w.Goal.Reach > w.Goal.Must) {
			t.Errorf("%s: goals %+v", w.ID, w.Goal)
		}
		pathless := w.Tool == toolWS || w.Tool == toolTCP || w.Tool == toolUDP
		if w.Title == "" || w.Unit == "" || (w.Path == "") != pathless || w.Conns <= 0 || (w.Streams > 0) != (w.Tool == toolH2) {
			t.Errorf("%s is incomplete: %+v", w.ID, w)
		}
		if (w.Tool == toolRate) != (w.Rate > 0) {
			t.Errorf("%s: tool %s with rate %v", w.ID, w.Tool, w.Rate)
		}
		if w.Fixed && w.Tool != toolClosed {
			t.Errorf("%s: only closed loops over clear text have a phase at a fixed rate", w.ID)
		}
	}
}

func TestJudgeLatency(t *testing.T) {
	w := workload{ID: "L1", Fixed: true, First: true, Goal: goal{Added: 10}}
	for _, c := range []struct {
		name         string
		p50, first   float64
		added, bytes bool
	}{
		{"both held", 40, 100, true, true},
		{"faster than nginx", 25, 50, true, true},
		{"both missed", 41, 101, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nginx, ours := testRow(nameNginx, 10, 1000, 500), testRow(nameSluice, 10, 1000, 500)
			nginx.Workload, ours.Workload = "L1", "L1"
			nginx.P50.Median, ours.P50.Median = 30, c.p50
			nginx.Fixed.First50.Median, ours.Fixed.First50.Median = 100, c.first
			pass := map[goalKind]bool{}
			for _, v := range judge(w, []row{nginx, ours}) {
				pass[v.Goal] = v.Pass
			}
			if want := map[goalKind]bool{goalAdded: c.added, goalFirst: c.bytes, goalP99: true}; !maps.Equal(pass, want) {
				t.Errorf("verdicts %v, want %v", pass, want)
			}
		})
	}
}

// The page for readers must say what the program holds.
func TestDocumentedGoals(t *testing.T) {
	text, err := os.ReadFile("../../docs/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads {
		if w.Goal.Must == 0 {
			continue
		}
		throughput := "–"
		if w.Goal.Throughput > 0 {
			throughput = fmt.Sprintf("%.1f", w.Goal.Throughput)
		}
		limit := func(l float64) string {
			if l == 0 {
				return "–"
			}
			return fmt.Sprintf("%.2f", l)
		}
		line := fmt.Sprintf("| %s | %.2f | %.2f | %s | %s | %s |", w.ID, w.Goal.Must, w.Goal.Reach, limit(w.Goal.Reference), limit(w.Goal.Envoy), throughput)
		if !strings.Contains(string(text), line) {
			t.Errorf("docs/bench.md lacks the line %q", line)
		}
	}
}
