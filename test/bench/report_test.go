package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	tab := table{head: []string{"name", "n"}, left: 1}
	tab.add("a|b\nc", "1")
	want := "| name | n |\n| --- | ---: |\n| a\\|b c | 1 |\n"
	if got := tab.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{number(9.96), "10.0"},
		{number(99.94), "99.9"},
		{number(123.4), "123"},
		{number(0), "0.0"},
		{millis(1234), "1.23"},
		{millis(31.4), "0.031"},
		{millis(25600), "25.6"},
		{millis(-1), "–"},
		{against(5, 10, true), "0.50"},
		{against(5, 0, true), "–"},
		{against(5, 10, false), "–"},
		{passed(true), "pass"},
		{passed(false), "FAIL"},
		{remark(true, "broke"), "noisy; broke"},
		{remark(false, ""), ""},
		{overrun(fixed{Wanted: 100, Rate: spread{Median: 99}}), ""},
		{overrun(fixed{Wanted: 100, Rate: spread{Median: 60}}), " (kept 60/s)"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	w := workload{ID: "W1", Title: "GET", Unit: "request", Fixed: true, First: true, Goal: goal{Must: 1.05, Reach: 0.85, Envoy: 0.35, Added: 10}}
	nginx, ours := testRow(nameNginx, 10, 1000, 500), testRow(nameSluice, 9, 1200, 600)
	nginx.Fixed.Wanted, ours.Fixed.Wanted, ours.Fixed.Rate = 700, 700, spread{Median: 700}
	nginx.P50.Median, ours.P50.Median = 30, 42
	ours.Bench = spread{Median: 12, Min: 11.5, Max: 14.5}
	nginx.Fixed.First50.Median, ours.Fixed.First50.Median = 200, 100
	r := &result{
		Started: "2026-01-02T03:04:05Z", Machine: "test", Processors: 2, Trials: 7, Seconds: 5, MaxOthers: 0.1, Tools: []string{"a", "b"},
		Proxies: []proxyInfo{{Name: nameNginx, Version: "1"}, {Name: nameEnvoy}, {Name: nameSluice, Notes: []string{"odd"}}},
		Rows:    []row{nginx, {Workload: "W1", Proxy: nameEnvoy, Failed: "did not start"}, ours},
		Idle:    []idleRow{{Proxy: nameSluice, Connections: 10, Alive: 10, After: 81920, Each: 8}},
		plan:    []workload{w},
	}
	r.Verdicts = append(judge(w, r.Rows), judgeIdle(r.Idle)...)
	got := r.markdown()
	for _, want := range []string{
		"median of 7 interleaved trials of 5 s", "(note: odd)",
		"| W1 | 9.0 | 0.90 | ≤ 1.05 pass | ≤ 0.85 FAIL | – | – | – | – | – | – | 1.20 | ≤ 1.00 FAIL |  |",
		"Memory under W1: 20.0 MiB, goal ≤ 30: pass.", "Idle connection: 8.0 KiB, goal ≤ 8: pass.",
		"Latency of a single connection (W1): p50 +12.0 µs against nginx, goal ≤ +10: FAIL.", "First byte of a stream at 70 % (W1): p50 0.50 of nginx's, goal ≤ 1.00: pass.",
		"| sluice | 9.0 | 9.0–9.0 | 0.90 | 1200 | 1.20 | 0.042 | 0.000 | 0.000 | 0.600 | 0.100 | 0.000 | 20 | 12.0 | 11.5–14.5 | 0 | 0 |  |",
		"| did not start |", "At 70 % is an open loop of 700 requests a second.",
		"| sluice | 10 | 10 | 0.0 | 0.1 | 8.00 |  |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q:\n%s", want, got)
		}
	}
	// Every row of a table has as many cells as its head.
	width := 0
	for line := range strings.SplitSeq(got, "\n") {
		if !strings.HasPrefix(line, "|") {
			width = 0
			continue
		}
		n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if width != 0 && n != width {
			t.Errorf("%d bars, the head has %d: %s", n, width, line)
		}
		width = n
	}
}

func TestReportWithoutOurs(t *testing.T) {
	r := &result{Rows: []row{testRow(nameNginx, 10, 1000, 0)}, Proxies: []proxyInfo{{Name: nameNginx}}, plan: workloads[:1]}
	if got := r.markdown(); strings.Contains(got, "Goals") || !strings.Contains(got, "| nginx | 10.0 |") {
		t.Errorf("unexpected report:\n%s", got)
	}
}
