package main

import (
	"cmp"
	"slices"
)

// trial is what one run of a load tool against one proxy gave.
type trial struct {
	CPUMicros float64 `json:"cpu_us"`     // CPU of the proxy per unit; negative when nothing completed
	Bench     float64 `json:"bench_us"`   // CPU of client, upstream and harness per unit: the pace of the machine
	PerSecond float64 `json:"per_second"` // completed units
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	First50   float64 `json:"first50_us"` // time to the first byte
	First99   float64 `json:"first99_us"`
	PSS       int64   `json:"pss_bytes"`
	Others    float64 `json:"others"` // share of the machine used by others, 0 to 1
	Errors    int64   `json:"errors"`
	Attempts  int     `json:"attempts"` // more than 1 when others disturbed earlier ones
}

// spread is the median of some figures and their ends.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf summarises the figures; of none it is zero. The median of an even number is the
// mean of the two in the middle.
func spreadOf(figures []float64) spread {
	if len(figures) == 0 {
		return spread{}
	}
	s := slices.Sorted(slices.Values(figures))
	mid := len(s) / 2
	median := s[mid]
	if len(s)%2 == 0 {
		median = (s[mid-1] + s[mid]) / 2
	}
	return spread{Median: median, Min: s[0], Max: s[len(s)-1]}
}

// row is one proxy under one workload.
type row struct {
	Workload string  `json:"workload"`
	Proxy    string  `json:"proxy"`
	CPU      spread  `json:"cpu_us"`
	Bench    spread  `json:"bench_us"`
	Rate     spread  `json:"per_second"`
	P50      spread  `json:"p50_us"`
	P99      spread  `json:"p99_us"`
	PSS      spread  `json:"pss_bytes"`
	Others   float64 `json:"others"` // the most disturbed trial that was kept
	Errors   int64   `json:"errors"`
	Noisy    bool    `json:"noisy"` // a trial stayed disturbed after all repeats
	Failed   string  `json:"failed,omitempty"`
	Trials   []trial `json:"trials"`
	Fixed    *fixed  `json:"fixed,omitempty"`
}

// fixed is the latency at a fixed rate below saturation.
type fixed struct {
	Wanted  float64 `json:"wanted_per_second"`
	Rate    spread  `json:"per_second"`
	P50     spread  `json:"p50_us"`
	P99     spread  `json:"p99_us"`
	First50 spread  `json:"first50_us"`
	First99 spread  `json:"first99_us"`
	Others  float64 `json:"others"`
	Errors  int64   `json:"errors"`
	Noisy   bool    `json:"noisy"`
	Trials  []trial `json:"trials"`
}

func figures(trials []trial, of func(trial) float64) spread {
	var f []float64
	for _, t := range trials {
		f = append(f, of(t))
	}
	return spreadOf(f)
}

// disturbed tells how much of the machine others used at most, and how many errors there were.
func disturbed(trials []trial) (others float64, errors int64) {
	for _, t := range trials {
		others = max(others, t.Others)
		errors += t.Errors
	}
	return others, errors
}

// summarise fills a row from its trials. limit is the share of others above which it is noisy.
func (r *row) summarise(limit float64) {
	r.CPU = figures(r.Trials, func(t trial) float64 { return t.CPUMicros })
	r.Bench = figures(r.Trials, func(t trial) float64 { return t.Bench })
	r.Rate = figures(r.Trials, func(t trial) float64 { return t.PerSecond })
	r.P50 = figures(r.Trials, func(t trial) float64 { return t.P50 })
	r.P99 = figures(r.Trials, func(t trial) float64 { return t.P99 })
	r.PSS = figures(r.Trials, func(t trial) float64 { return float64(t.PSS) })
	r.Others, r.Errors = disturbed(r.Trials)
	r.Noisy = r.Others > limit
}

// summarise is the same for the phase at a fixed rate.
func (f *fixed) summarise(limit float64) {
	f.Rate = figures(f.Trials, func(t trial) float64 { return t.PerSecond })
	f.P50 = figures(f.Trials, func(t trial) float64 { return t.P50 })
	f.P99 = figures(f.Trials, func(t trial) float64 { return t.P99 })
	f.First50 = figures(f.Trials, func(t trial) float64 { return t.First50 })
	f.First99 = figures(f.Trials, func(t trial) float64 { return t.First99 })
	f.Others, f.Errors = disturbed(f.Trials)
	f.Noisy = f.Others > limit
}

// calmest is the attempt that others disturbed least.
func calmest(attempts []trial) trial {
	t := slices.MinFunc(attempts, func(a, b trial) int { return cmp.Compare(a.Others, b.Others) })
	t.Attempts = len(attempts)
	return t
}
