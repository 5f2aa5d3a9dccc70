package drain_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// diary notes what happens in which order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(s string) {
	d.mu.Lock()
	d.lines = append(d.lines, s)
	d.mu.Unlock()
}

func (d *diary) part(name string, start error) drain.Part {
	return drain.Part{
		Name:  name,
		Start: func(context.Context) error { d.note("start " + name); return start },
		Run: func(ctx context.Context) error {
			<-ctx.Done()
			d.note("ran " + name)
			return ctx.Err()
		},
		Stop: func(context.Context) error { d.note("stop " + name); return nil },
	}
}

func TestGroupOrder(t *testing.T) {
	var d diary
	var g drain.Group
	g.Add(d.part("a", nil))
	g.Add(drain.Part{Name: "empty"})
	g.Add(d.part("b", nil))
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"start a", "start b", "stop b", "ran b", "stop a", "ran a"}
	if !reflect.DeepEqual(d.lines, want) {
		t.Errorf("got %q\nwant %q", d.lines, want)
	}
}

func TestGroupStartFails(t *testing.T) {
	var d diary
	var g drain.Group
	broken := errors.New("no room")
	g.Add(d.part("a", nil))
	g.Add(d.part("b", broken))
	g.Add(d.part("c", nil))
	err := g.Start(t.Context())
	if !errors.Is(err, broken) || err.Error() != "starting b: no room" {
		t.Errorf("Start = %v", err)
	}
	want := []string{"start a", "start b", "stop a", "ran a"}
	if !reflect.DeepEqual(d.lines, want) {
		t.Errorf("got %q\nwant %q", d.lines, want)
	}
}

func TestGroupStartIsGivenUp(t *testing.T) {
	var d diary
	var g drain.Group
	ctx, cancel := context.WithCancel(t.Context())
	a := d.part("a", nil)
	a.Start = func(context.Context) error { cancel(); return nil }
	g.Add(a)
	g.Add(d.part("b", nil))
	if err := g.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Start = %v", err)
	}
	if want := []string{"stop a", "ran a"}; !reflect.DeepEqual(d.lines, want) {
		t.Errorf("got %q, want %q", d.lines, want)
	}
}

func TestGroupReportsAPartThatEnds(t *testing.T) {
	broken := errors.New("lost")
	for name, c := range map[string]struct{ result, want error }{
		"with an error": {broken, broken},
		"without":       {nil, drain.ErrEnded},
	} {
		t.Run(name, func(t *testing.T) {
			var g drain.Group
			g.Add(drain.Part{Name: "a", Run: func(context.Context) error { return c.result }})
			g.Add(drain.Part{Name: "b", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
			if err := g.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-g.Failed(); !errors.Is(err, c.want) {
				t.Errorf("Failed gave %v", err)
			}
			if err := g.Stop(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("Stop = %v", err)
			}
		})
	}
}

// A part that does not end in time is reported, and the parts before it are stopped all the same.
func TestGroupStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var g drain.Group
		release := make(chan struct{})
		g.Add(d.part("a", nil))
		g.Add(drain.Part{Name: "stuck", Run: func(context.Context) error { <-release; return nil }})
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := g.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop = %v", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		if want := []string{"start a", "stop a", "ran a"}; !reflect.DeepEqual(d.lines, want) {
			t.Errorf("got %q, want %q", d.lines, want)
		}
		close(release)
	})
}
