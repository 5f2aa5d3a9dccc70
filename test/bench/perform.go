package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// perform does the whole run. The result holds what was measured until an error or interrupt.
func (r *request) perform(ctx context.Context) (*result, error) {
	r.processors = runtime.NumCPU()
	if _, err := raiseFileLimit(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(r.cache, "run"), 0o755); err != nil {
		return nil, fmt.Errorf("making the cache: %w", err)
	}
	var err error
	if r.kit, err = buildTools(ctx, r.cache); err != nil {
		return nil, err
	}
	if r.cert, err = makeCertificate(filepath.Join(r.cache, "run")); err != nil {
		return nil, err
	}
	found, err := r.findPeers(ctx, r.names)
	if err != nil {
		return nil, err
	}
	if err := r.startUpstream(ctx); err != nil {
		return nil, err
	}
	defer r.upstream.finish()
	if err := r.startGRPC(ctx); err != nil {
		return nil, err
	}
	defer r.grpc.finish()
	res := r.newResult(ctx)
	if len(r.plan) > 0 {
		err = r.measureAll(ctx, res, found)
	}
	if err == nil && r.idle > 0 {
		err = r.idleAll(ctx, res, found)
	}
	for _, w := range r.plan {
		res.Verdicts = append(res.Verdicts, judge(w, res.Rows)...)
	}
	res.Verdicts = append(res.Verdicts, judgeIdle(res.Idle)...)
	return res, err
}

func (r *request) newResult(ctx context.Context) *result {
	res := &result{
		Started: time.Now().Format(time.RFC3339), Machine: machine(), Processors: r.processors,
		Trials: r.trials, Seconds: r.seconds, MaxOthers: r.maxOthers, plan: r.plan,
		Tools: []string{"own clients and upstream (c/*.c)"}, Verdicts: []verdict{},
	}
	if r.kit.h2load != "" {
		res.Tools = append(res.Tools, "h2load "+versionOf(ctx, r.kit.h2load, []string{"--version"}))
	}
	if r.kit.wrk != "" {
		res.Tools = append(res.Tools, "wrk "+versionOf(ctx, r.kit.wrk, []string{"-v"}))
	}
	return res
}

// machine names kernel and processor.
func machine() string {
	name := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.SplitSeq(string(b), "\n") {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				name = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		name += ", Linux " + strings.TrimSpace(string(b))
	}
	return name
}

// measureAll starts every proxy once and runs the plan over them.
func (r *request) measureAll(ctx context.Context, res *result, found []candidate) error {
	var up []*running
	defer func() {
		for _, p := range up {
			p.stop()
		}
	}()
	for _, c := range found {
		r.progress("starting %s %s", c.name, c.versionText)
		p, err := r.startPeer(ctx, c)
		if err == nil {
			up = append(up, p)
			err = p.check(ctx)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		info := proxyInfo{Name: c.name, Version: c.versionText, Setup: c.note}
		if err != nil { // the others are still worth comparing
			r.progress("%s does not work: %v", c.name, err)
			info.Notes = []string{"left out: " + err.Error()}
			if p != nil {
				up = up[:len(up)-1]
				p.stop()
			}
		} else {
			info.Notes = p.notes
		}
		res.Proxies = append(res.Proxies, info)
	}
	for _, w := range r.plan {
		if err := r.runWorkload(ctx, res, up, w); err != nil {
			return err
		}
	}
	return nil
}

// runWorkload runs the interleaved trials of one workload, and then those at a fixed rate.
func (r *request) runWorkload(ctx context.Context, res *result, up []*running, w workload) error {
	rows := make([]row, len(up))
	for i, p := range up {
		rows[i] = row{Workload: w.ID, Proxy: p.name}
		if slices.Contains(p.lacks, w.ID) {
			rows[i].Failed = "does not offer it"
		}
	}
	err := r.rounds(ctx, up, w, func(i int, t trial, err error) bool {
		if err != nil {
			rows[i].Failed = err.Error()
			return false
		}
		rows[i].Trials = append(rows[i].Trials, t)
		return true
	})
	for i := range rows {
		rows[i].summarise(r.maxOthers)
	}
	if err == nil && r.fixed && w.Fixed {
		err = r.fixedPhase(ctx, up, w, rows)
	}
	res.Rows = append(res.Rows, rows...)
	return err
}

// rounds runs the trials in turn: every proxy once, then every proxy again. keep takes each
// outcome and tells whether the proxy stays in.
func (r *request) rounds(ctx context.Context, up []*running, w workload, keep func(i int, t trial, err error) bool) error {
	out := make([]bool, len(up))
	for i, p := range up {
		out[i] = slices.Contains(p.lacks, w.ID)
	}
	for round := range r.trials {
		for i, p := range up {
			if out[i] {
				continue
			}
			t, err := r.calmTrial(ctx, p, w)
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted: %w", context.Cause(ctx))
			}
			if err != nil {
				r.progress("%s %s: %v", w.ID, p.name, err)
			} else {
				r.progress("%s %s %d/%d: %.1f µs/%s (bench %.1f), %.0f/s, p99 %s ms, others %.0f %%, errors %d",
					w.ID, p.name, round+1, r.trials, t.CPUMicros, w.Unit, t.Bench, t.PerSecond, millis(t.P99), 100*t.Others, t.Errors)
			}
			out[i] = !keep(i, t, err)
		}
	}
	return nil
}

// fixedPhase compares latency in an open loop at 70 % of the rate that nginx reached.
func (r *request) fixedPhase(ctx context.Context, up []*running, w workload, rows []row) error {
	nginx, ok := rowOf(rows, w.ID, nameNginx)
	if !ok {
		return nil
	}
	rate := fixedShare * nginx.Rate.Median
	r.progress("%s at a fixed %.0f %ss a second", w.ID, rate, w.Unit)
	for i := range rows {
		rows[i].Fixed = &fixed{Wanted: rate}
	}
	err := r.rounds(ctx, up, w.fixedRate(rate), func(i int, t trial, err error) bool {
		if err != nil {
			rows[i].Failed = "at the fixed rate: " + err.Error()
			return false
		}
		rows[i].Fixed.Trials = append(rows[i].Fixed.Trials, t)
		return true
	})
	for i := range rows {
		if len(rows[i].Fixed.Trials) == 0 {
			rows[i].Fixed = nil
			continue
		}
		rows[i].Fixed.summarise(r.maxOthers)
	}
	return err
}

// idleAll measures idle connections, one fresh proxy after the other.
func (r *request) idleAll(ctx context.Context, res *result, found []candidate) error {
	for _, c := range found {
		r.progress("idle %s: %d connections", c.name, r.idle)
		x, err := r.measureIdle(ctx, c, r.idle)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if err != nil {
			x.Failed = err.Error()
			r.progress("idle %s: %v", c.name, err)
		} else {
			r.progress("idle %s: %.2f KiB each, %d still open", c.name, x.Each, x.Alive)
		}
		res.Idle = append(res.Idle, x)
		if len(r.plan) == 0 {
			res.Proxies = append(res.Proxies, proxyInfo{Name: c.name, Version: c.versionText, Setup: c.note})
		}
	}
	return nil
}
