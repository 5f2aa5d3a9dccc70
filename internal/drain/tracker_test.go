package drain_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// member records what it is told.
type member struct {
	ticket drain.Ticket
	told   []string
	away   atomic.Bool // after Leave has returned
	late   atomic.Bool // told something while away
}

func (m *member) Drain(mode drain.Mode) { m.note(mode.String()) }
func (m *member) Force()                { m.note("force") }

func (m *member) note(s string) {
	if m.away.Load() {
		m.late.Store(true)
	}
	m.told = append(m.told, s)
}

func (m *member) got() string { return strings.Join(m.told, " ") }

func TestTrackerTellsMembers(t *testing.T) {
	for name, c := range map[string]struct {
		before []string // orders before the member enters
		after  []string
		want   string
	}{
		"nothing":               {nil, nil, ""},
		"gentle":                {nil, []string{"gentle"}, "gentle"},
		"gentle then prompt":    {nil, []string{"gentle", "prompt"}, "gentle prompt"},
		"never milder":          {nil, []string{"prompt", "gentle"}, "prompt"},
		"once each":             {nil, []string{"prompt", "prompt", "force", "force"}, "prompt force"},
		"enters a gentle drain": {[]string{"gentle"}, nil, "gentle"},
		"enters a prompt drain": {[]string{"gentle", "prompt"}, []string{"force"}, "prompt force"},
		"enters a forced one":   {[]string{"force"}, []string{"prompt"}, "force"},
	} {
		t.Run(name, func(t *testing.T) {
			var tr drain.Tracker
			order(&tr, c.before)
			var m member
			tr.Enter(&m.ticket, &m)
			order(&tr, c.after)
			if m.got() != c.want {
				t.Errorf("told %q, want %q", m.got(), c.want)
			}
			if want := len(c.before)+len(c.after) > 0; tr.Draining() != want {
				t.Errorf("Draining() = %v", tr.Draining())
			}
		})
	}
}

func order(tr *drain.Tracker, orders []string) {
	for _, o := range orders {
		switch o {
		case "gentle":
			tr.Drain(drain.Gentle)
		case "prompt":
			tr.Drain(drain.Prompt)
		case "force":
			tr.Force()
		}
	}
}

func TestTrackerWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tr drain.Tracker
		if err := tr.Wait(t.Context()); err != nil {
			t.Fatal("an empty tracker makes its waiters wait:", err)
		}
		a, b := &member{}, &member{}
		tr.Enter(&a.ticket, a)
		tr.Enter(&b.ticket, b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tr.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait = %v with two members", err)
		}
		var waited atomic.Int32
		for range 3 {
			go func() {
				if tr.Wait(context.Background()) == nil {
					waited.Add(1)
				}
			}()
		}
		a.ticket.Leave()
		a.ticket.Leave() // twice is harmless
		synctest.Wait()
		if n := waited.Load(); n != 0 {
			t.Fatalf("%d waiters went on while a member was there", n)
		}
		if n := tr.Force(); n != 1 {
			t.Errorf("Force counted %d members, want 1", n)
		}
		b.ticket.Leave()
		synctest.Wait()
		if n := waited.Load(); n != 3 {
			t.Fatalf("%d of 3 waiters were released", n)
		}
	})
}

// Against a plain set: whatever the order of entering and leaving, exactly the present members are told.
func TestTrackerAgainstSet(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var tr drain.Tracker
		var present, gone []*member
		for range rnd.IntN(60) {
			if len(present) > 0 && rnd.IntN(3) == 0 {
				i := rnd.IntN(len(present))
				present[i].ticket.Leave()
				gone = append(gone, present[i])
				present = slices.Delete(present, i, i+1)
				continue
			}
			m := &member{}
			if len(gone) > 0 && rnd.IntN(2) == 0 { // tickets are used again
				m, gone = gone[len(gone)-1], gone[:len(gone)-1]
			}
			tr.Enter(&m.ticket, m)
			present = append(present, m)
		}
		if tr.Len() != len(present) {
			t.Fatalf("seed %d: Len = %d, want %d", seed, tr.Len(), len(present))
		}
		tr.Drain(drain.Prompt)
		for _, m := range present {
			if m.got() != "prompt" {
				t.Fatalf("seed %d: a member was told %q", seed, m.got())
			}
		}
		for _, m := range gone {
			if m.got() != "" {
				t.Fatalf("seed %d: a member that left was told %q", seed, m.got())
			}
		}
	}
}

// Members that come and go while drains and forces are ordered: none is called after it left, none is missed.
func TestTrackerConcurrently(t *testing.T) {
	for range 50 {
		var tr drain.Tracker
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					m := &member{}
					tr.Enter(&m.ticket, m)
					m.ticket.Leave()
					m.away.Store(true)
					if m.late.Load() {
						t.Error("told after leaving")
					}
				}
			})
		}
		wg.Go(func() { tr.Drain(drain.Gentle); tr.Drain(drain.Prompt); tr.Force() })
		wg.Wait()
		if err := tr.Wait(t.Context()); err != nil || tr.Len() != 0 {
			t.Fatal(err, tr.Len())
		}
		m := &member{}
		tr.Enter(&m.ticket, m)
		if m.got() != "force" {
			t.Fatalf("told %q", m.got())
		}
	}
}

func TestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c drain.Count
		if err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c.Add() != 1 || c.Add() != 2 {
			t.Fatal("Add does not return the new number")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait = %v", err)
		}
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- c.Wait(context.Background()) }()
		}
		synctest.Wait()
		if c.Done() != 1 || len(done) != 0 {
			t.Fatal("released too early")
		}
		if c.Done() != 0 || c.Len() != 0 {
			t.Fatal("Done does not return the new number")
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	})
}
