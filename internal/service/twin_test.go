package service_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/service"
)

// model is the rule of choice written down the long way: of the backends with a weight that were not tried, those
// that did not refuse; if there are none, those that did.
func model(weights []int, refused, tried map[int]bool) map[int]bool {
	for _, alsoRefused := range []bool{false, true} {
		set := make(map[int]bool)
		for i, w := range weights {
			if w > 0 && !tried[i] && (alsoRefused || !refused[i]) {
				set[i] = true
			}
		}
		if len(set) > 0 {
			return set
		}
	}
	return nil
}

// TestChoiceTwin compares what each strategy chooses from with the model, attempt by attempt.
func TestChoiceTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 70).Draw(t, "weights")
		down := rapid.SliceOfN(rapid.Bool(), len(weights), len(weights)).Draw(t, "refused")
		strategy := rapid.SampledFrom(strategies).Draw(t, "strategy")
		cfg := letters(strategy, weights...)
		b, err := service.New(cfg, registry())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		index := make(map[string]int)
		for i, s := range cfg.LoadBalancer.Servers {
			index[s.Host] = i
		}
		refused, tried := make(map[int]bool), make(map[int]bool)
		var all service.Tried
		for l, err := b.Pick(nil, &all); err == nil; l, err = b.Pick(nil, &all) {
			i := index[l.Backend.Host]
			if refused[i] = down[i]; down[i] {
				l.Done(service.Refused)
			} else {
				l.Done(service.Unused)
			}
		}
		var set service.Tried
		for {
			want := model(weights, refused, tried)
			l, err := b.Pick(nil, &set)
			if err != nil {
				if want != nil {
					t.Fatalf("nothing was chosen of %v", want)
				}
				return
			}
			i := index[l.Backend.Host]
			if !want[i] {
				t.Fatalf("%d was chosen of %v, weights %v, refused %v, tried %v", i, want, weights, refused, tried)
			}
			tried[i] = true
			l.Done(service.Unused)
		}
	})
}
