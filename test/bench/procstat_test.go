package main

import (
	"os"
	"slices"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 10 10 0 -1 4194560 100 200 0 0 250 150 7 3 20 0 2 0 123456 1000000 500 18446744073709551615 0 0"
	for _, c := range []struct {
		name, line string
		want       procStat
		bad        bool
	}{
		{"plain", "42 (nginx) S" + rest, procStat{PID: 42, Parent: 1, CPU: 4 * time.Second, Reaped: 100 * time.Millisecond, Start: 123456}, false},
		{"blanks and brackets in the name", "7 (a) R 9 (b c) S" + rest, procStat{PID: 7, Parent: 1, CPU: 4 * time.Second, Reaped: 100 * time.Millisecond, Start: 123456}, false},
		{"empty", "", procStat{}, true},
		{"no name", "42 nginx S" + rest, procStat{}, true},
		{"cut off", "42 (nginx) S 1 2 3", procStat{}, true},
		{"no number", "42 (nginx) S x" + rest, procStat{}, true},
		{"no pid", "x (nginx) S" + rest, procStat{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseStat(c.line)
			if (err != nil) != c.bad || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestParseIdle(t *testing.T) {
	got, err := parseIdle("cpu  100 1 50 4000 25 3 4 5 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
	if want := 40250 * time.Millisecond; err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6", "cpu 1 2 3", "cpu 1 2 3 x 5 6"} {
		if _, err := parseIdle(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParsePSS(t *testing.T) {
	got, err := parsePSS("55aa-7fff ---p 00000000 00:00 0 [rollup]\nRss:    9000 kB\nPss:            1234 kB\nPss_Dirty:   10 kB\n")
	if err != nil || got != 1234<<10 {
		t.Errorf("got %d, %v", got, err)
	}
	for _, bad := range []string{"", "Rss: 1 kB", "Pss: many kB"} {
		if _, err := parsePSS(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestFamily(t *testing.T) {
	all := []procStat{{PID: 30, Parent: 20}, {PID: 1}, {PID: 20, Parent: 10}, {PID: 10, Parent: 1}, {PID: 11, Parent: 1}, {PID: 21, Parent: 10}}
	var ids []int
	for _, p := range family(all, 10) {
		ids = append(ids, p.PID)
	}
	slices.Sort(ids)
	if want := []int{10, 20, 21, 30}; !slices.Equal(ids, want) {
		t.Errorf("family of 10 is %v, want %v", ids, want)
	}
	if got := family(all, 99); len(got) != 0 {
		t.Errorf("family of nobody is %v", got)
	}
}

func TestUsage(t *testing.T) {
	t0 := time.Unix(1000, 0)
	from := reading{at: t0, idle: 10 * time.Second, proxy: time.Second, own: 2 * time.Second}
	to := reading{at: t0.Add(5 * time.Second), idle: 13 * time.Second, proxy: 4 * time.Second, own: 4 * time.Second}
	// 10 s of two processors: 3 idle, 3 proxy, 2 bench, half a second of a tool that ended.
	u := to.since(from, 2, 500*time.Millisecond)
	if u.wall != 5*time.Second || u.proxy != 3*time.Second || u.bench != 2500*time.Millisecond || u.others < 0.149 || u.others > 0.151 {
		t.Errorf("usage is %+v", u)
	}
	if u := to.since(from, 2, 5*time.Second); u.others != 0 {
		t.Errorf("more than everything was used: others are %v, want 0", u.others)
	}
	if u := from.since(from, 2, 0); u != (usage{}) {
		t.Errorf("no time has passed, but usage is %+v", u)
	}
}

func TestReadSeesOurOwnWork(t *testing.T) {
	me := os.Getpid()
	from, err := read(me, []int{me})
	if err != nil {
		t.Fatal(err)
	}
	var to reading
	for x, deadline := 0, time.Now().Add(20*time.Second); ; x++ {
		for i := range 1 << 20 {
			x ^= i
		}
		if to, err = read(me, []int{me}); err != nil {
			t.Fatal(err)
		}
		if to.own-from.own >= 3*tick || time.Now().After(deadline) {
			break
		}
	}
	if to.own-from.own < 3*tick {
		t.Errorf("after much work the process used %v", to.own-from.own)
	}
	if to.proxy-from.proxy < 3*tick {
		t.Errorf("after much work the family used %v", to.proxy-from.proxy)
	}
	if to.idle < from.idle {
		t.Errorf("idle time went back from %v to %v", from.idle, to.idle)
	}
	pss, err := sumPSS([]procStat{{PID: me}})
	if err != nil || pss < 1<<20 {
		t.Errorf("memory of this process is %d, %v", pss, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (nginx) S 1 10 10 0 -1 4194560 100 200 0 0 250 150 7 3 20 0 2 0 123456 1000000 500")
	f.Add("7 (a) R 9 (b c) S 1")
	f.Add(")(")
	f.Fuzz(func(t *testing.T, line string) {
		if p, err := parseStat(line); err != nil && p != (procStat{}) {
			t.Errorf("an error came with %+v", p)
		}
	})
}

func FuzzParseProcFiles(f *testing.F) {
	f.Add("cpu  100 1 50 4000 25 3 4 5 0 0\n")
	f.Add("Pss: 12 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseIdle(text); err != nil && d != 0 {
			t.Errorf("an error came with %v", d)
		}
		if n, err := parsePSS(text); err != nil && n != 0 {
			t.Errorf("an error came with %v", n)
		}
	})
}
