package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

const (
	// maxSource bounds how many values a Source keeps. What comes on top is read each time.
	maxSource = 16384
	// fetchTimeout bounds one reading, whoever waits for it.
	fetchTimeout = 4 * time.Second
)

// Source reads values from a control plane and keeps each for a while; of those who ask for the same value at a time one reads
// it. That there is none (NotFound) is kept like a value, any other error is not. The time begins when the
// value is asked for. When it has been kept for as long as it may, Changes names its actor: the control plane does not tell of
// changes yet, so that a value may have changed as soon as it is old. Its methods are safe for concurrent use; Run must run for Changes.
type Source[T any] struct {
	fetch   func(ctx context.Context, ref actor.Ref) (T, int64, error)
	keep    time.Duration
	changes chan actor.Ref
	woken   chan struct{} // holds one

	mu   sync.Mutex // guards the rest
	kept map[actor.Ref]*reading[T]
}

// reading is one value, or the way to it.
type reading[T any] struct {
	done    chan struct{} // closed once the rest is there, which then never changes
	value   T
	version int64
	err     error
	until   time.Time
}

// NewSource makes a source that keeps values for a time. With 0 it keeps none, and still reads once for all who wait.
func NewSource[T any](keep time.Duration, fetch func(ctx context.Context, ref actor.Ref) (value T, version int64, err error)) *Source[T] {
	return &Source[T]{fetch: fetch, keep: keep, changes: make(chan actor.Ref), woken: make(chan struct{}, 1), kept: map[actor.Ref]*reading[T]{}}
}

// Policies is a source of policies, each kept for a time, as actor.Source[egress.Kept].
func (c *Client) Policies(keep time.Duration) *Source[egress.Kept] {
	return NewSource(keep, func(ctx context.Context, ref actor.Ref) (egress.Kept, int64, error) {
		k, err := c.GetPolicy(ctx, ref)
		return k, k.Version, err
	})
}

// Actors is a source of actors, each kept for a time, as actor.Source[actor.Actor]. It wakes none.
func (c *Client) Actors(keep time.Duration) *Source[actor.Actor] {
	return NewSource(keep, func(ctx context.Context, ref actor.Ref) (actor.Actor, int64, error) {
		a, err := c.GetActor(ctx, ref)
		return a, a.Version, err
	})
}

// Changes implements actor.Source.
func (s *Source[T]) Changes() <-chan actor.Ref { return s.changes }

// Get implements actor.Source. A caller that leaves does not end a reading that others wait for.
func (s *Source[T]) Get(ctx context.Context, ref actor.Ref) (value T, version int64, err error) {
	r := s.reading(ctx, ref)
	select {
	case <-r.done:
		return r.value, r.version, r.err
	case <-ctx.Done():
		code := actor.Canceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			code = actor.DeadlineExceeded
		}
		return value, 0, actor.Refuse(code, "reading actor %s: %v", ref, context.Cause(ctx))
	}
}

// Drop forgets a value that somebody knows to be wrong. One that is being read is read again by whoever asks from now on.
func (s *Source[T]) Drop(ref actor.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, ref)
}

// reading returns what is kept or under way, or begins it.
func (s *Source[T]) reading(ctx context.Context, ref actor.Ref) *reading[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.kept[ref]; r != nil {
		select {
		case <-r.done:
			if time.Now().Before(r.until) {
				return r
			}
		default:
			return r
		}
	}
	r := &reading[T]{done: make(chan struct{})}
	if len(s.kept) < maxSource || s.kept[ref] != nil {
		s.kept[ref] = r
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	go func() { // ends with fetch, in fetchTimeout at the latest; who waits for it are the callers
		defer cancel()
		s.finish(ctx, ref, r)
	}()
	return r
}

// finish reads, and lets those go on who wait for it.
func (s *Source[T]) finish(ctx context.Context, ref actor.Ref, r *reading[T]) {
	began := time.Now() // the value is at least as new as that, and nobody knows of more
	r.value, r.version, r.err = s.fetch(ctx, ref)
	e := (*actor.Error)(nil)
	keep := s.keep > 0 && (r.err == nil || errors.As(r.err, &e) && e.Code == actor.NotFound)
	r.until = began.Add(s.keep)
	s.mu.Lock()
	if !keep && s.kept[ref] == r {
		delete(s.kept, ref)
	}
	s.mu.Unlock()
	close(r.done)
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Run names by Changes what has become old, until ctx ends. Nothing is lost: a reader that is slow gets it later, each actor
// once. Somebody has to read.
func (s *Source[T]) Run(ctx context.Context) {
	var old []actor.Ref // to be told, each once
	waits := map[actor.Ref]bool{}
	for {
		more, next := s.expire()
		for _, ref := range more {
			if !waits[ref] {
				waits[ref], old = true, append(old, ref)
			}
		}
		var out chan actor.Ref
		var first actor.Ref
		if len(old) > 0 {
			out, first = s.changes, old[0]
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case out <- first:
			delete(waits, first)
			old = old[1:]
		case <-s.woken:
		case <-t.C:
		}
		t.Stop()
	}
}

// expire forgets what is old and returns it, and how long there will be nothing more.
func (s *Source[T]) expire() (old []actor.Ref, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, next := time.Now(), time.Hour
	for ref, r := range s.kept {
		select {
		case <-r.done:
		default:
			continue // it wakes Run
		}
		if left := r.until.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		delete(s.kept, ref)
		old = append(old, ref)
	}
	return old, next
}
