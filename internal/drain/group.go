package drain

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrEnded is what a part failed with when its Run returned without an error before it was stopped.
var ErrEnded = errors.New("ended by itself")

// Part is one piece of a process. Every func may be nil.
type Part struct {
	Name string
	// Start returns when the part is ready, or cannot be. The context ends when starting is given up.
	Start func(ctx context.Context) error
	// Run works until its context ends. It gets a goroutine of its own after Start, and is waited for. Returning
	// earlier, with or without an error, is a failure of the group.
	Run func(ctx context.Context) error
	// Stop ends the part in an orderly way, before the context of Run ends. Its context bounds how long it may take.
	Stop func(ctx context.Context) error
}

// Group starts parts in the order they were added and stops them in reverse. Add, Start and Stop are called by one
// goroutine; Failed may be used by another. The zero value is ready.
type Group struct {
	parts   []Part
	running []*runner
	failed  chan error
	once    sync.Once
}

// runner is a started part.
type runner struct {
	part   Part
	cancel context.CancelFunc
	done   chan struct{} // nil when the part has no Run
	err    error         // of Run; valid after done
}

// Add appends a part. It must not be called after Start.
func (g *Group) Add(p Part) { g.parts = append(g.parts, p) }

// Failed delivers the error of the first part whose Run ended before it was stopped.
func (g *Group) Failed() <-chan error {
	g.once.Do(func() { g.failed = make(chan error, 1) })
	return g.failed
}

// Start starts every part. When one cannot start, or ctx ends, those before it are stopped in reverse, without a bound,
// and the error is returned.
func (g *Group) Start(ctx context.Context) error {
	g.Failed()
	for _, p := range g.parts {
		if err := ctx.Err(); err != nil {
			return errors.Join(fmt.Errorf("starting %s: %w", p.Name, context.Cause(ctx)), g.Stop(context.WithoutCancel(ctx)))
		}
		if p.Start != nil {
			if err := p.Start(ctx); err != nil {
				return errors.Join(fmt.Errorf("starting %s: %w", p.Name, err), g.Stop(context.WithoutCancel(ctx)))
			}
		}
		g.running = append(g.running, g.run(p))
	}
	return nil
}

func (g *Group) run(p Part) *runner {
	ctx, cancel := context.WithCancel(context.Background())
	r := &runner{part: p, cancel: cancel}
	if p.Run == nil {
		return r
	}
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		err := p.Run(ctx)
		if ctx.Err() != nil {
			if !errors.Is(err, context.Canceled) {
				r.err = err
			}
			return
		}
		if err == nil {
			err = ErrEnded
		}
		r.err = err
		select {
		case g.failed <- fmt.Errorf("%s: %w", p.Name, err):
		default: // an earlier failure is waiting to be read
		}
	}()
	return r
}

// Stop stops the started parts, the last first: its Stop, then the end of Run's context, then the wait for Run. A part
// that outstays ctx is left behind with an error; the parts before it are stopped all the same. A second call does
// nothing.
func (g *Group) Stop(ctx context.Context) error {
	var errs []error
	for len(g.running) > 0 {
		last := len(g.running) - 1
		r := g.running[last]
		g.running = g.running[:last]
		if err := r.stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stopping %s: %w", r.part.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (r *runner) stop(ctx context.Context) error {
	var err error
	if r.part.Stop != nil {
		err = r.part.Stop(ctx)
	}
	r.cancel()
	if r.done == nil {
		return err
	}
	select {
	case <-r.done: // also when ctx has ended
		return errors.Join(err, r.err)
	default:
	}
	if werr := wait(ctx, r.done); werr != nil {
		return errors.Join(err, werr)
	}
	return errors.Join(err, r.err)
}
