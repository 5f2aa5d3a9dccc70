package service

import (
	"math/bits"
	"math/rand/v2"

	"github.com/sluice-proxy/sluice/internal/config"
)

// field is the backends that one pick chooses from: those of the best grade found.
//
// A pick looks at the health of each backend twice, to count and to choose, and others change it in between. The
// second look therefore tolerates that fewer match: first is a backend that was good enough a moment ago.
type field struct {
	tried  *Tried
	now    int64
	grade  grade
	count  int
	weight int64
	first  *Backend
}

// survey finds the best grade, and how many backends have it.
func (b *Balancer) survey(f *field) {
	f.grade = gradeOut
	for _, e := range b.live {
		if f.tried != nil && f.tried.has(e.index) {
			continue
		}
		switch g := e.vitals.grade(b.reg, &f.now); {
		case g == gradeOut || g > f.grade:
		case g < f.grade:
			f.grade, f.count, f.weight, f.first = g, 1, int64(e.Weight), e
		default:
			f.count++
			f.weight += int64(e.Weight)
		}
	}
}

// holds reports whether e belongs to the field.
func (b *Balancer) holds(f *field, e *Backend) bool {
	return (f.tried == nil || !f.tried.has(e.index)) && e.vitals.grade(b.reg, &f.now) == f.grade
}

// choose returns the backend that takes the next attempt, or nil.
func (b *Balancer) choose(tried *Tried) *Backend {
	if len(b.live) == 0 {
		return nil
	}
	f := field{tried: tried}
	b.survey(&f)
	if f.count <= 1 {
		return f.first
	}
	switch b.strategy {
	case config.Weighted:
		return b.smooth(&f)
	case config.LeastConnections:
		return b.leastLoaded(&f)
	case config.Random:
		return b.random(&f)
	case config.RoundRobin:
	}
	return b.nth(&f, int((b.counter.Add(1)-1)%uint64(f.count)))
}

// nth is number n (from 0) of the field.
func (b *Balancer) nth(f *field, n int) *Backend {
	if f.count == len(b.live) {
		return b.live[n]
	}
	for _, e := range b.live {
		if b.holds(f, e) {
			if n == 0 {
				return e
			}
			n--
		}
	}
	return f.first
}

// smooth is weighted round-robin that spreads the turns of a heavy backend: each gains its weight, the richest is
// chosen and pays the weight of all.
func (b *Balancer) smooth(f *field) *Backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	var best *Backend
	total := int64(0)
	for i, e := range b.live {
		if !b.holds(f, e) {
			continue
		}
		b.current[i] += int64(e.Weight)
		total += int64(e.Weight)
		if best == nil || b.current[i] > b.current[best.index] {
			best = e
		}
	}
	if best == nil {
		return f.first
	}
	b.current[best.index] -= total
	return best
}

// lighter compares load by weight: below 0 when a has less of it than b.
func lighter(a, b *Backend, loadA, loadB int64) int64 {
	return loadA*int64(b.Weight) - loadB*int64(a.Weight)
}

// leastLoaded is the backend with the fewest active leases for its weight; equals are drawn by weight.
func (b *Balancer) leastLoaded(f *field) *Backend {
	var best *Backend
	load, tied := int64(0), int64(0)
	seed := rand.Uint64()
	for _, e := range b.live {
		if !b.holds(f, e) {
			continue
		}
		n := e.vitals.active.Load()
		d := int64(-1)
		if best != nil {
			d = lighter(e, best, n, load)
		}
		switch w := int64(e.Weight); {
		case d < 0:
			best, load, tied = e, n, w
		case d == 0:
			tied += w
			seed = seed*6364136223846793005 + 1442695040888963407 // one step of Knuth's generator: its high bits are good
			if share, _ := bits.Mul64(seed, uint64(tied)); share < uint64(w) {
				best, load = e, n
			}
		}
	}
	if best == nil {
		return f.first
	}
	return best
}

// random draws two backends by weight and takes the one with less load.
func (b *Balancer) random(f *field) *Backend {
	var one, two *Backend
	if b.even && f.count == len(b.live) {
		i, j := rand.IntN(f.count), rand.IntN(f.count-1)
		if j >= i {
			j++
		}
		one, two = b.live[i], b.live[j]
	} else {
		one = b.drawn(f, rand.Int64N(f.weight), nil)
		rest := f.weight - int64(one.Weight)
		if rest <= 0 {
			return one
		}
		two = b.drawn(f, rand.Int64N(rest), one)
	}
	if lighter(two, one, two.vitals.active.Load(), one.vitals.active.Load()) < 0 {
		return two
	}
	return one
}

// drawn is the backend of the field, without skip, in whose share of the weights r lies.
func (b *Balancer) drawn(f *field, r int64, skip *Backend) *Backend {
	for _, e := range b.live {
		if e == skip || !b.holds(f, e) {
			continue
		}
		if r -= int64(e.Weight); r < 0 {
			return e
		}
	}
	return f.first
}
