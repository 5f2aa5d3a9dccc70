package egress_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// plane is a control plane that counts who asks it, and takes its time.
type plane struct {
	takes   time.Duration // 0: until the caller has had enough
	changes chan actor.Ref
	over    chan struct{}

	mu      sync.Mutex // guards the rest
	asked   map[actor.Ref]int
	asking  int
	most    int         // at a time
	seconds map[int]int // questions, by the second
	began   time.Time
	tells   bool // of each answer, when it is a second old, as a source of policies does
}

func newPlane(takes time.Duration) *plane {
	return &plane{takes: takes, changes: make(chan actor.Ref), over: make(chan struct{}), asked: map[actor.Ref]int{}, seconds: map[int]int{}, began: time.Now()}
}

func (p *plane) Get(ctx context.Context, ref actor.Ref) (egress.Kept, int64, error) {
	p.mu.Lock()
	p.asked[ref]++
	p.seconds[int(time.Since(p.began)/time.Second)]++
	p.asking++
	p.most = max(p.most, p.asking)
	if p.tells {
		time.AfterFunc(time.Second, func() { p.tell(ref) })
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.asking--
		p.mu.Unlock()
	}()
	answer := time.After(p.takes)
	if p.takes == 0 {
		answer = nil
	}
	select {
	case <-answer:
	case <-ctx.Done():
		return egress.Kept{}, 0, actor.Refuse(actor.DeadlineExceeded, "no answer")
	}
	k := egress.Kept{Policy: policy(passthrough(everywhere, "raw.test"))}
	k.UID, k.Version = "p1", 1
	return k, 1, nil
}

func (p *plane) Changes() <-chan actor.Ref { return p.changes }

func (p *plane) tell(ref actor.Ref) {
	select {
	case p.changes <- ref:
	case <-p.over:
	}
}

// seen is how often it was asked about whom, and how many ask now.
func (p *plane) seen() (asked map[actor.Ref]int, asking int) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.asked), p.asking
}

// forget begins counting anew.
func (p *plane) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.seconds, p.began, p.most = map[actor.Ref]int{}, map[int]int{}, time.Now(), p.asking
}

// watching runs a test with actors that each have a connection passed through, and one that has another one.
func watching(t *testing.T, actors int, takes time.Duration, test func(t *testing.T, p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(time.Nanosecond)
		g := gateway(t, egress.Options{Policies: p})
		for i := range actors {
			e := g.Enter(actor.Ref{Atespace: "demo", Name: fmt.Sprint("p", i)}, fmt.Sprint("u", i), netip.MustParseAddrPort("93.184.216.34:443"))
			defer e.Leave()
			e.Decide(t.Context(), "raw.test")()
		}
		defer g.Enter(demoA1, "other", netip.MustParseAddrPort("93.184.216.34:443")).Leave()
		p.takes = takes
		p.forget()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); g.Watch(ctx) }()
		test(t, p)
		stop()
		<-ended
		close(p.over)
		if p.asked[demoA1] > 0 {
			t.Error("an actor was asked about that has nothing passed through")
		}
		if p.most > egress.WatchCalls {
			t.Errorf("%d questions at a time", p.most)
		}
		for s, n := range p.seconds {
			if n > egress.WatchRate {
				t.Errorf("%d questions in second %d", n, s)
			}
		}
	})
}

// The control plane is asked about each actor once a second, and not about all at a time.
func TestWatchSpreads(t *testing.T) {
	watching(t, 300, 20*time.Millisecond, func(t *testing.T, p *plane) {
		time.Sleep(10*time.Second + 500*time.Millisecond) // of the bubble
		asked, _ := p.seen()
		for ref, n := range asked {
			if n < 8 || n > 11 {
				t.Errorf("%s: asked about %d times in ten seconds", ref, n)
			}
		}
		if len(asked) != 300 {
			t.Errorf("asked about %d", len(asked))
		}
	})
}

// However many actors there are, questions are bounded, and each has its turn.
func TestWatchIsBounded(t *testing.T) {
	watching(t, 4*egress.WatchRate, time.Millisecond, func(t *testing.T, p *plane) {
		time.Sleep(9 * time.Second)
		asked, _ := p.seen()
		for ref, n := range asked {
			if n > 3 {
				t.Errorf("%s had %d turns", ref, n)
			}
		}
		if len(asked) != 4*egress.WatchRate {
			t.Errorf("asked about %d", len(asked))
		}
	})
}

// Who is told of goes before nobody that has waited longer: answers become old as fast as they are asked for, and would leave no turn
// to others.
func TestWatchIsFair(t *testing.T) {
	watching(t, 2*egress.WatchRate, time.Millisecond, func(t *testing.T, p *plane) {
		p.mu.Lock()
		p.tells = true
		p.mu.Unlock()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		asked, _ := p.seen()
		for ref, n := range asked {
			if n < 4 || n > 6 {
				t.Errorf("%s: asked about %d times in ten seconds", ref, n)
			}
		}
		if len(asked) != 2*egress.WatchRate {
			t.Errorf("asked about %d", len(asked))
		}
	})
}

// A control plane that does not answer holds up neither the end nor who tells of changes, and is not asked by ever more.
func TestWatchWithoutAnswer(t *testing.T) {
	watching(t, 100, 0, func(t *testing.T, p *plane) {
		for range 5 {
			time.Sleep(time.Second)
			p.changes <- actor.Ref{Atespace: "demo", Name: "p1"}
		}
		if _, asking := p.seen(); asking != egress.WatchCalls {
			t.Errorf("%d questions wait", asking)
		}
	})
}

// A change that somebody tells of is looked at at once.
func TestWatchChange(t *testing.T) {
	watching(t, 1, time.Millisecond, func(t *testing.T, p *plane) {
		time.Sleep(1500 * time.Millisecond)
		p.forget()
		p.changes <- actor.Ref{Atespace: "demo", Name: "p0"}
		time.Sleep(200 * time.Millisecond)
		if asked, _ := p.seen(); len(asked) != 1 {
			t.Errorf("asked about %v", asked)
		}
	})
}
