package main

import (
	"fmt"
	"slices"
	"strings"
)

// result is everything that a run found out; it is what result.json holds.
type result struct {
	Started    string      `json:"started"` // RFC 3339
	Machine    string      `json:"machine"`
	Processors int         `json:"processors"`
	Trials     int         `json:"trials"`
	Seconds    float64     `json:"seconds"`
	MaxOthers  float64     `json:"max_others"` // share of others above which a row is noisy
	Tools      []string    `json:"tools"`
	Proxies    []proxyInfo `json:"proxies"`
	Rows       []row       `json:"rows"`
	Idle       []idleRow   `json:"idle,omitempty"`
	Verdicts   []verdict   `json:"verdicts"`
	plan       []workload
}

// proxyInfo says which proxy was measured and how it was set up.
type proxyInfo struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Setup   string   `json:"setup"`
	Notes   []string `json:"notes,omitempty"`
}

// markdown renders the result.
func (r *result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark of %s\n\n", r.Started)
	fmt.Fprintf(&b, "%s, %d processors; median of %d interleaved trials of %g s; a row is noisy when others used more than %.0f %% of the machine in one of its trials.\n",
		r.Machine, r.Processors, r.Trials, r.Seconds, 100*r.MaxOthers)
	fmt.Fprintf(&b, "CPU is user and system time of all processes of the proxy for one completed unit. Tools: %s.\n\n", strings.Join(r.Tools, ", "))
	b.WriteString(r.setups())
	b.WriteString(r.goals())
	for _, w := range r.plan {
		b.WriteString(r.workload(w))
	}
	b.WriteString(r.idle())
	return b.String()
}

func (r *result) setups() string {
	t := table{head: []string{"proxy", "version", "set up"}, left: 3}
	for _, p := range r.Proxies {
		setup := p.Setup
		if len(p.Notes) > 0 {
			setup += " (note: " + strings.Join(p.Notes, ", ") + ")"
		}
		t.add(p.Name, p.Version, setup)
	}
	return t.String() + "\n"
}

// goals is the table of our figures against the limits; empty when ours was not measured.
func (r *result) goals() string {
	t := table{left: 1, head: []string{
		"workload", "CPU µs", "÷ nginx", "must", "reach", "÷ reference", "at most",
		"÷ Envoy", "at most", "per s ÷ nginx", "at least", "p99 at 70 % ÷ nginx", "at most", "",
	}}
	for _, w := range r.plan {
		ours, ok := rowOf(r.Rows, w.ID, nameSluice)
		if !ok {
			continue
		}
		must, mustLimit := r.verdict(w.ID, goalMust, "≤")
		_, reach := r.verdict(w.ID, goalReach, "≤")
		reference, referenceLimit := r.verdict(w.ID, goalReference, "≤")
		envoy, envoyLimit := r.verdict(w.ID, goalEnvoy, "≤")
		rate, rateLimit := r.verdict(w.ID, goalThroughput, "≥")
		p99, p99Limit := r.verdict(w.ID, goalP99, "≤")
		t.add(w.ID, number(ours.CPU.Median), must, mustLimit, reach, reference, referenceLimit, envoy, envoyLimit,
			rate, rateLimit, p99, p99Limit, r.noisy(w.ID))
	}
	if len(t.rows) == 0 {
		return ""
	}
	out := "## Goals of sluice\n\n" + t.String() + "\n"
	for _, v := range r.Verdicts {
		switch v.Goal {
		case goalAdded:
			out += fmt.Sprintf("Latency of a single connection (%s): p50 %+.1f µs against nginx, goal ≤ %+g: %s.\n", v.Workload, v.Have, v.Limit, passed(v.Pass))
		case goalFirst:
			out += fmt.Sprintf("First byte of a stream at 70 %% (%s): p50 %.2f of nginx's, goal ≤ %.2f: %s.\n", v.Workload, v.Have, v.Limit, passed(v.Pass))
		case goalMemory:
			out += fmt.Sprintf("Memory under W1: %s MiB, goal ≤ %g: %s.\n", number(v.Have), v.Limit, passed(v.Pass))
		case goalIdle:
			out += fmt.Sprintf("Idle connection: %s KiB, goal ≤ %g: %s.\n", number(v.Have), v.Limit, passed(v.Pass))
		}
	}
	return out + "\n"
}

// verdict renders a verdict as figure and limit; both are a dash when there is none.
func (r *result) verdict(workload string, kind goalKind, sign string) (have, limit string) {
	for _, v := range r.Verdicts {
		if v.Workload == workload && v.Goal == kind {
			return fmt.Sprintf("%.2f", v.Have), fmt.Sprintf("%s %.2f %s", sign, v.Limit, passed(v.Pass))
		}
	}
	return "–", "–"
}

func (r *result) noisy(workload string) string {
	if slices.ContainsFunc(r.Verdicts, func(v verdict) bool { return v.Workload == workload && v.Noisy }) {
		return "noisy"
	}
	return ""
}

// workload is the comparison of all proxies under one workload.
func (r *result) workload(w workload) string {
	t := table{left: 1, head: []string{"proxy", "CPU µs/" + w.Unit, "min–max", "÷ nginx", w.Unit + "s/s", "÷ nginx", "p50 ms", "p99 ms"}}
	if w.Fixed {
		t.head = append(t.head, "p50 ms at 70 %", "p99 ms at 70 %")
	}
	if w.First {
		t.head = append(t.head, "first byte p50 at 70 %", "p99")
	}
	t.head = append(t.head, "PSS MiB", "bench µs", "min–max", "others %", "errors", "")
	nginx, measured := rowOf(r.Rows, w.ID, nameNginx)
	var rate float64
	for _, p := range r.Proxies {
		i := slices.IndexFunc(r.Rows, func(x row) bool { return x.Workload == w.ID && x.Proxy == p.Name })
		if i < 0 {
			continue
		}
		x := r.Rows[i]
		if len(x.Trials) == 0 {
			cells := slices.Repeat([]string{"–"}, len(t.head)-2)
			t.add(append(append([]string{p.Name}, cells...), x.Failed)...)
			continue
		}
		cells := []string{
			p.Name, number(x.CPU.Median), number(x.CPU.Min) + "–" + number(x.CPU.Max),
			against(x.CPU.Median, nginx.CPU.Median, measured), fmt.Sprintf("%.0f", x.Rate.Median),
			against(x.Rate.Median, nginx.Rate.Median, measured), millis(x.P50.Median), millis(x.P99.Median),
		}
		errors, others, noisy := x.Errors, x.Others, x.Noisy
		cells = append(cells, w.fixedCells(x.Fixed)...)
		if x.Fixed != nil {
			rate = x.Fixed.Wanted
			errors, others, noisy = errors+x.Fixed.Errors, max(others, x.Fixed.Others), noisy || x.Fixed.Noisy
		}
		t.add(append(cells, fmt.Sprintf("%.0f", mib(x.PSS.Median)), number(x.Bench.Median), number(x.Bench.Min)+"–"+number(x.Bench.Max),
			fmt.Sprintf("%.0f", 100*others), fmt.Sprint(errors), remark(noisy, x.Failed))...)
	}
	out := fmt.Sprintf("## %s: %s\n\n", w.ID, w.Title) + t.String() + "\n"
	if rate > 0 {
		out += fmt.Sprintf("At 70 %% is an open loop of %.0f %ss a second.\n\n", rate, w.Unit)
	}
	return out
}

// fixedCells are the cells of the phase at a fixed rate, which may not have been run.
func (w workload) fixedCells(f *fixed) []string {
	var cells []string
	if w.Fixed {
		cells = []string{"–", "–"}
	}
	if w.First {
		cells = append(cells, "–", "–")
	}
	if f == nil {
		return cells
	}
	if w.Fixed {
		cells[0], cells[1] = millis(f.P50.Median), millis(f.P99.Median)+overrun(*f)
	}
	if w.First {
		cells[2], cells[3] = millis(f.First50.Median), millis(f.First99.Median)
	}
	return cells
}

// overrun marks a fixed rate that the proxy did not keep: its latency is then that of a queue.
func overrun(f fixed) string {
	if f.Rate.Median < 0.98*f.Wanted {
		return fmt.Sprintf(" (kept %.0f/s)", f.Rate.Median)
	}
	return ""
}

func (r *result) idle() string {
	if len(r.Idle) == 0 {
		return ""
	}
	t := table{left: 1, head: []string{"proxy", "connections", "still open", "PSS before MiB", "PSS after MiB", "KiB each", ""}}
	for _, x := range r.Idle {
		if x.Failed != "" {
			t.add(x.Proxy, fmt.Sprint(x.Connections), "–", "–", "–", "–", x.Failed)
			continue
		}
		t.add(x.Proxy, fmt.Sprint(x.Connections), fmt.Sprint(x.Alive), number(mib(float64(x.Before))), number(mib(float64(x.After))), fmt.Sprintf("%.2f", x.Each), "")
	}
	return "## Idle connections: clear text, after one request each\n\n" + t.String() + "\n"
}

func remark(noisy bool, failed string) string {
	var all []string
	if noisy {
		all = append(all, "noisy")
	}
	if failed != "" {
		all = append(all, failed)
	}
	return strings.Join(all, "; ")
}

func against(have, of float64, known bool) string {
	if x, ok := ratio(have, of); ok && known {
		return fmt.Sprintf("%.2f", x)
	}
	return "–"
}

func passed(ok bool) string {
	if ok {
		return "pass"
	}
	return "FAIL"
}

// number has one decimal below 100 and none from there.
func number(f float64) string {
	if f < 100 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// millis renders microseconds as milliseconds; a negative figure is unknown.
func millis(us float64) string {
	if us < 0 {
		return "–"
	}
	if us < 1000 {
		return fmt.Sprintf("%.3f", us/1000)
	}
	if us < 10000 {
		return fmt.Sprintf("%.2f", us/1000)
	}
	return fmt.Sprintf("%.1f", us/1000)
}

// table renders as Markdown; the first left columns are aligned to the left, the others to the right.
type table struct {
	head []string
	left int
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) String() string {
	var b strings.Builder
	line := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			b.WriteString(" " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(c) + " |")
		}
		b.WriteString("\n")
	}
	line(t.head)
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "---:"
		if i < t.left {
			rule[i] = "---"
		}
	}
	line(rule)
	for _, r := range t.rows {
		line(r)
	}
	return b.String()
}
