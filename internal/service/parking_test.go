package service_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/service"
)

// TestAttemptsTwin compares when attempts are made with a model that only adds.
func TestAttemptsTwin(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := service.Parking{
			Max:      1,
			Budget:   time.Duration(rapid.IntRange(1, 3000).Draw(r, "budget")) * time.Millisecond,
			Interval: time.Duration(rapid.IntRange(1, 1000).Draw(r, "interval")) * time.Millisecond,
			Factor:   rapid.SampledFrom([]float64{1, 1.1, 1.5, 2, 100}).Draw(r, "factor"),
		}
		if p.Budget > 500*p.Interval {
			p.Interval *= 20 // keep the number of attempts small
		}
		lasts := make([]time.Duration, 8) // of attempts, again and again
		for i := range lasts {
			lasts[i] = time.Duration(rapid.SampledFrom([]int{0, 0, 1, 30, 700}).Draw(r, "lasts")) * time.Millisecond
		}
		var want []time.Duration
		at, delay := time.Duration(0), float64(p.Interval)
		for n := 0; ; n++ {
			want = append(want, at)
			at += lasts[n%len(lasts)]
			if at >= p.Budget {
				break
			}
			at = min(at+time.Duration(delay), p.Budget)
			delay *= p.Factor
		}
		var got []time.Duration
		var end landed
		synctest.Test(t, func(t *testing.T) {
			s := newSleeper(func(_ context.Context, _ string, n int) (string, error) {
				time.Sleep(lasts[n%len(lasts)])
				return "", errBusy
			})
			l := service.NewLot(p, s.wake, kindOf)
			end = <-ask(t.Context(), l, "k")
			l.Close()
			got = s.tries
		})
		close := slices.EqualFunc(want, got, func(a, b time.Duration) bool { return (a - b).Abs() < time.Microsecond })
		if !close || end.stay.Landing != service.Exhausted || (end.at-at).Abs() > time.Microsecond {
			r.Fatalf("%+v: attempts at %v, end %+v; want %v, end at %s", p, got, end, want, at)
		}
	})
}

func TestJitter(t *testing.T) {
	p := service.Parking{Max: 1, Budget: time.Hour, Interval: time.Second, Factor: 1, Jitter: 0.5}
	seen := map[time.Duration]bool{}
	inBubble(t, p, func(_ context.Context, _ string, n int) (string, error) {
		if n == 100 {
			return "up", nil
		}
		return "", errBusy
	}, func(t *testing.T, l *service.Lot[string, string], s *sleeper) {
		<-ask(t.Context(), l, "k")
		for i := 1; i < len(s.tries); i++ {
			d := s.tries[i] - s.tries[i-1]
			if seen[d] = true; d < time.Second || d >= 1500*time.Millisecond {
				t.Errorf("a delay of %s", d)
			}
		}
	})
	if len(seen) < 50 {
		t.Errorf("%d different delays of 100", len(seen))
	}
}

func TestParkingValidate(t *testing.T) {
	if err := service.DefaultParking().Validate(); err != nil {
		t.Error(err)
	}
	for _, good := range []func(*service.Parking){
		places(0), func(p *service.Parking) { p.Factor = 1 }, func(p *service.Parking) { p.Jitter = 0 }, func(p *service.Parking) { p.Budget = 1 },
	} {
		if err := exact(good).Validate(); err != nil {
			t.Error(err)
		}
	}
	bad := service.Parking{Budget: 0, Max: -1, Interval: -1, Factor: 0.9, Jitter: 1}
	want := "budget: must be more than 0, is 0s\nmax: must not be negative, is -1\nretry interval: must be more than 0, is -1ns\n" +
		"retry factor: must be at least 1, is 0.9\nretry jitter: must be from 0 and below 1, is 1"
	if err := bad.Validate(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		p := exact(func(p *service.Parking) { p.Factor, p.Jitter = f, f })
		if err := p.Validate(); err == nil || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%v: %v", f, err)
		}
	}
}
