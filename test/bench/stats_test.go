package main

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []float64
		want spread
	}{
		{"none", nil, spread{}},
		{"one", []float64{5}, spread{5, 5, 5}},
		{"odd", []float64{9, 1, 4}, spread{4, 1, 9}},
		{"even", []float64{4, 1, 9, 2}, spread{3, 1, 9}},
		{"equal", []float64{2, 2, 2, 2}, spread{2, 2, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.in)
			if got := spreadOf(c.in); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if !slices.Equal(before, c.in) {
				t.Errorf("the input was reordered to %v", c.in)
			}
		})
	}
}

// The median by counting: at most half of the figures lie below it, at most half above.
func TestMedianByCounting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		in := make([]float64, 1+r.IntN(12))
		for i := range in {
			in[i] = float64(r.IntN(8))
		}
		s := spreadOf(in)
		below, above := 0, 0
		for _, f := range in {
			if f < s.Median {
				below++
			}
			if f > s.Median {
				above++
			}
		}
		if 2*below > len(in) || 2*above > len(in) || s.Min > s.Median || s.Max < s.Median {
			t.Fatalf("spread of %v is %v", in, s)
		}
	}
}

func TestSummary(t *testing.T) {
	r := row{Trials: []trial{
		{CPUMicros: 10, Bench: 11, PerSecond: 100, P50: 1, P99: 9, PSS: 30, Others: 0.02, Errors: 1},
		{CPUMicros: 30, Bench: 14, PerSecond: 300, P50: 3, P99: 7, PSS: 10, Others: 0.11},
		{CPUMicros: 20, Bench: 12, PerSecond: 200, P50: 2, P99: 8, PSS: 20, Others: 0.05, Errors: 2},
	}}
	r.summarise(0.10)
	if r.CPU != (spread{20, 10, 30}) || r.Bench != (spread{12, 11, 14}) || r.Rate.Median != 200 || r.P50.Median != 2 || r.P99.Median != 8 || r.PSS.Median != 20 {
		t.Errorf("figures are %+v", r)
	}
	if r.Others != 0.11 || r.Errors != 3 || !r.Noisy {
		t.Errorf("others %v, errors %d, noisy %v", r.Others, r.Errors, r.Noisy)
	}
	if r.summarise(0.12); r.Noisy {
		t.Error("noisy below the limit")
	}
	f := fixed{Trials: r.Trials}
	if f.summarise(0.10); f.P99 != (spread{8, 7, 9}) || !f.Noisy || f.Errors != 3 {
		t.Errorf("fixed rate: %+v", f)
	}
}

func TestCalmest(t *testing.T) {
	got := calmest([]trial{{Others: 0.4, P99: 1}, {Others: 0.2, P99: 2}, {Others: 0.3, P99: 3}})
	if got.P99 != 2 || got.Attempts != 3 {
		t.Errorf("got %+v", got)
	}
}
