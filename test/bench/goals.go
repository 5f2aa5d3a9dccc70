package main

// goalKind names one of the limits that our figures are held against.
type goalKind string

const (
	goalMust       goalKind = "must"       // CPU ÷ nginx that a release holds
	goalReach      goalKind = "reach"      // CPU ÷ nginx that we are after
	goalReference  goalKind = "reference"  // CPU ÷ the Rust reference
	goalEnvoy      goalKind = "envoy"      // CPU ÷ Envoy
	goalThroughput goalKind = "throughput" // completed units ÷ nginx
	goalP99        goalKind = "p99"        // p99 at the fixed rate ÷ nginx
	goalFirst      goalKind = "first"      // p50 of the time to the first byte, at the fixed rate ÷ nginx
	goalAdded      goalKind = "added"      // p50 minus nginx's, in microseconds
	goalMemory     goalKind = "memory"     // MiB of the process under W1
	goalIdle       goalKind = "idle"       // KiB of an idle connection
)

// verdict is one goal held against one figure.
type verdict struct {
	Workload string   `json:"workload"`
	Goal     goalKind `json:"goal"`
	Have     float64  `json:"have"`
	Limit    float64  `json:"limit"`
	Pass     bool     `json:"pass"`
	Noisy    bool     `json:"noisy"` // a row that it rests on was disturbed
}

// ratio divides, and tells whether that says anything.
func ratio(have, of float64) (float64, bool) {
	if have <= 0 || of <= 0 {
		return 0, false
	}
	return have / of, true
}

// judge holds our row of a workload against its goals. A goal whose peer was not measured
// gives no verdict.
func judge(w workload, rows []row) []verdict {
	ours, ok := rowOf(rows, w.ID, nameSluice)
	if !ok {
		return nil
	}
	var out []verdict
	cpu := func(kind goalKind, peer string, limit float64) {
		other, ok := rowOf(rows, w.ID, peer)
		if !ok || limit == 0 {
			return
		}
		if have, ok := ratio(ours.CPU.Median, other.CPU.Median); ok {
			out = append(out, verdict{w.ID, kind, have, limit, have <= limit, ours.Noisy || other.Noisy})
		}
	}
	cpu(goalMust, nameNginx, w.Goal.Must)
	cpu(goalReach, nameNginx, w.Goal.Reach)
	cpu(goalReference, nameReference, w.Goal.Reference)
	cpu(goalEnvoy, nameEnvoy, w.Goal.Envoy)
	if nginx, ok := rowOf(rows, w.ID, nameNginx); ok {
		out = append(out, judgeService(w, ours, nginx)...)
	}
	if w.ID == "W1" && ours.PSS.Median > 0 {
		have := mib(ours.PSS.Median)
		out = append(out, verdict{w.ID, goalMemory, have, memoryGoalMiB, have <= memoryGoalMiB, false})
	}
	return out
}

// judgeService holds what a client sees against what it sees of nginx.
func judgeService(w workload, ours, nginx row) []verdict {
	var out []verdict
	noisy := ours.Noisy || nginx.Noisy
	if have, ok := ratio(ours.Rate.Median, nginx.Rate.Median); ok && w.Goal.Throughput > 0 {
		out = append(out, verdict{w.ID, goalThroughput, have, w.Goal.Throughput, have >= w.Goal.Throughput, noisy})
	}
	if w.Goal.Added > 0 {
		have := ours.P50.Median - nginx.P50.Median
		out = append(out, verdict{w.ID, goalAdded, have, w.Goal.Added, have <= w.Goal.Added, noisy})
	}
	if ours.Fixed == nil || nginx.Fixed == nil {
		return out
	}
	noisy = ours.Fixed.Noisy || nginx.Fixed.Noisy
	if have, ok := ratio(ours.Fixed.P99.Median, nginx.Fixed.P99.Median); ok {
		out = append(out, verdict{w.ID, goalP99, have, 1, have <= 1, noisy})
	}
	if have, ok := ratio(ours.Fixed.First50.Median, nginx.Fixed.First50.Median); ok && w.First {
		out = append(out, verdict{w.ID, goalFirst, have, 1, have <= 1, noisy})
	}
	return out
}

// judgeIdle holds our idle connections against their goal.
func judgeIdle(rows []idleRow) []verdict {
	for _, r := range rows {
		if r.Proxy == nameSluice && r.Failed == "" {
			return []verdict{{idleID, goalIdle, r.Each, idleGoalKiB, r.Each <= idleGoalKiB, false}}
		}
	}
	return nil
}

// rowOf finds a row that has figures.
func rowOf(rows []row, workload, proxy string) (row, bool) {
	for _, r := range rows {
		if r.Workload == workload && r.Proxy == proxy && len(r.Trials) > 0 {
			return r, true
		}
	}
	return row{}, false
}

func mib(bytes float64) float64 { return bytes / (1 << 20) }
