package service

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Errors of a Lot that no attempt has made.
var (
	// ErrLotFull is a request that would have had to wait and found no place to, or that came while as many flights as
	// there may be were under way.
	ErrLotFull = errors.New("too many requests wait already")
	// ErrLotClosed is a request to a lot that is closed.
	ErrLotClosed = errors.New("nothing is woken any more")
)

// Wake makes one attempt to wake what a key names, and returns what is then needed to reach it. It must return when the
// context ends, which is not when a caller leaves.
type Wake[K comparable, T any] func(ctx context.Context, key K) (T, error)

// Lot lets requests wait for something that sleeps: an actor, or a service scaled to zero. All who ask for the same key at
// a time share one flight, and so one attempt at a time. A flight is on its own: it goes on when those who began it leave.
// A request takes a place in the lot only once the first attempt has failed in a way that may pass, so that a full lot
// never turns away who asks for something that is awake.
//
// Places are for requests. Flights on which nobody waits any more take none, and go on only as long as there is room for
// them: of those between two attempts there are at most as many as places, and the oldest ends for a newer one. All flights
// together are at most twice as many as places, and at least 1024; beyond that a request for another key is turned away.
//
// A Lot lives as long as the process. Its methods are safe for concurrent use.
type Lot[K comparable, T any] struct {
	parking Parking
	wake    Wake[K, T]
	retry   func(error) Retry
	stop    context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // flights

	mu       sync.Mutex // guards all below, and the flights
	flights  map[K]*flight[K, T]
	parked   int        // requests with a place
	idle     *list.List // of *flight between two attempts on which nobody waits, in the order of their becoming so
	rejected uint64
	quiet    chan struct{} // of Quiet, while somebody waits for it; nil nobody does
	closed   bool
}

// flight is the common fate of those who asked for one key.
type flight[K comparable, T any] struct {
	key     K
	waiters *list.List // of *waiter, in the order of their coming
	parking bool       // the first attempt has failed: who waits has a place
	asleep  bool       // it is between two attempts
	idle    *list.Element
	done    chan struct{}
	// Written before done is closed, not after.
	value   T
	err     error
	landing Landing
}

// waiter is one request on a flight.
type waiter struct {
	place  *list.Element
	joined bool
	parked bool
	since  time.Time     // when it was parked
	shed   chan struct{} // closed when there is no place for it
}

// NewLot makes a lot. The parking must be valid. retry judges the errors of wake; it must not block. NewLot starts nothing.
func NewLot[K comparable, T any](p Parking, wake Wake[K, T], retry func(error) Retry) *Lot[K, T] {
	l := &Lot[K, T]{parking: p, wake: wake, retry: retry, flights: make(map[K]*flight[K, T]), idle: list.New()}
	l.stop, l.cancel = context.WithCancel(context.Background())
	return l
}

// Stay tells of one wait.
type Stay struct {
	// Joined is whether somebody else's flight was under way.
	Joined bool
	// Parked is how long this request had a place in the lot; 0 it never needed one.
	Parked  time.Duration
	Landing Landing
}

// Wait returns what wake returned for the key, in an attempt of a flight that is under way or that it begins. The context
// is the caller's: when it ends, only this call does, with its cause. The flight keeps its values (the first caller's, for
// tracing) and neither its deadline nor its end. The error is the last attempt's, ErrLotFull, ErrLotClosed, or the cause.
func (l *Lot[K, T]) Wait(ctx context.Context, key K) (T, Stay, error) {
	f, w, err := l.join(ctx, key)
	if err != nil {
		stay := Stay{Joined: w.joined, Landing: Left}
		if errors.Is(err, ErrLotFull) || errors.Is(err, ErrLotClosed) {
			stay.Landing = Rejected
		}
		var zero T
		return zero, stay, err
	}
	select {
	case <-f.done:
	case <-w.shed:
	case <-ctx.Done():
	}
	return l.leave(ctx, f, w)
}

// join takes a seat on the flight for a key.
func (l *Lot[K, T]) join(ctx context.Context, key K) (*flight[K, T], *waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, w := l.flights[key], &waiter{shed: make(chan struct{})}
	w.joined = f != nil
	if l.closed {
		return nil, w, ErrLotClosed
	}
	if ctx.Err() != nil { // nobody is woken for who has left
		return nil, w, context.Cause(ctx)
	}
	if f == nil {
		if len(l.flights) >= l.parking.flights() && !l.endIdle() {
			l.rejected++
			return nil, w, ErrLotFull
		}
		f = &flight[K, T]{key: key, waiters: list.New(), done: make(chan struct{})}
		l.flights[key] = f
		l.running.Go(func() { l.fly(context.WithoutCancel(ctx), f) })
	}
	if f.parking && !l.park(w) {
		return nil, w, ErrLotFull
	}
	l.rouse(f)
	w.place = f.waiters.PushBack(w)
	return f, w, nil
}

// park gives a waiter a place, if there is one. The lot is locked.
func (l *Lot[K, T]) park(w *waiter) bool {
	if l.parked >= l.parking.Max {
		l.rejected++
		return false
	}
	l.parked++
	w.parked, w.since = true, time.Now()
	return true
}

// leave gives up seat and place, and tells how it went.
func (l *Lot[K, T]) leave(ctx context.Context, f *flight[K, T], w *waiter) (value T, stay Stay, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stay.Joined = w.joined
	f.waiters.Remove(w.place) // does nothing to who was shed
	if w.parked {
		l.parked--
		stay.Parked = time.Since(w.since)
	}
	l.lull(f)
	// Who was sent away stays so, even if the flight has landed since: it has been counted.
	if closed(w.shed) {
		stay.Landing = Rejected
		return value, stay, ErrLotFull
	}
	if closed(f.done) {
		stay.Landing = f.landing
		return f.value, stay, f.err
	}
	stay.Landing = Left
	return value, stay, context.Cause(ctx)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fly makes attempts until there is an answer. It lands the flight whatever happens: it is nobody's request, so that
// nobody else would catch a panic of wake or retry, and a flight that never lands would hold its key for good.
func (l *Lot[K, T]) fly(ctx context.Context, f *flight[K, T]) {
	defer func() {
		if p := recover(); p != nil {
			l.fail(f, fmt.Errorf("waking panicked: %v", p), Failed)
		} else if !closed(f.done) {
			l.fail(f, errors.New("waking ended its goroutine"), Failed)
		}
	}()
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.stop, cancel)()
	for n := 0; ; n++ {
		value, late, err := l.attempt(ctx, start, f.key)
		if err == nil {
			l.land(f, value, nil, Served)
			return
		}
		delay, landing := l.judge(late, n, time.Since(start), err)
		if landing != Served {
			l.fail(f, err, landing)
			return
		}
		if !l.rest(f) || !l.sleep(ctx, f, delay, err) {
			return
		}
	}
}

// attempt calls wake, and returns with its answer how its context has ended, if it has.
func (l *Lot[K, T]) attempt(ctx context.Context, start time.Time, key K) (value T, late, err error) {
	until := time.Now().Add(attemptCeiling)
	if l.parking.Max == 0 {
		until = start.Add(unparkedCeiling)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	value, err = l.wake(ctx, key)
	return value, ctx.Err(), err
}

// judge says how the flight lands after a failed attempt, or with Served that it goes on after a delay.
func (l *Lot[K, T]) judge(late error, n int, spent time.Duration, err error) (time.Duration, Landing) {
	if late != nil || errors.Is(err, context.DeadlineExceeded) {
		if errors.Is(late, context.Canceled) {
			return 0, Failed
		}
		return 0, TimedOut
	}
	kind, left := l.retry(err), l.parking.Budget-spent
	parks := l.parking.Max > 0
	if !parks {
		left = unparkedCeiling - spent
	}
	if kind == NoRetry || kind == RetryParked && !parks {
		return 0, Failed
	}
	if left <= 0 {
		return 0, Exhausted
	}
	delay := l.parking.Delay(n, left)
	if delay == left && !parks {
		return 0, Exhausted // no time would be left for another attempt
	}
	return delay, Served
}

// rest is what a flight does between two attempts. It reports false when the flight has landed instead.
func (l *Lot[K, T]) rest(f *flight[K, T]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.parking && l.parking.Max > 0 && !l.parkAll(f) {
		return false
	}
	f.asleep = true
	l.lull(f)
	return !closed(f.done)
}

// parkAll gives a place to each who waits, first come, first served, and sends the others away. A flight on which nobody
// found a place ends. The lot is locked.
func (l *Lot[K, T]) parkAll(f *flight[K, T]) bool {
	asked, kept := f.waiters.Len(), 0
	for e := f.waiters.Front(); e != nil; {
		w, next := e.Value.(*waiter), e.Next()
		if l.park(w) {
			kept++
		} else {
			f.waiters.Remove(e)
			close(w.shed)
		}
		e = next
	}
	if asked > 0 && kept == 0 {
		var zero T
		l.landLocked(f, zero, ErrLotFull, Rejected)
		return false
	}
	f.parking = true
	return true
}

// lull counts a flight among the idle ones if it has become one, and ends the oldest when there are too many. The lot is
// locked.
func (l *Lot[K, T]) lull(f *flight[K, T]) {
	if !f.asleep || f.idle != nil || f.waiters.Len() > 0 || closed(f.done) {
		return
	}
	f.idle = l.idle.PushBack(f)
	if l.parking.Max > 0 && l.idle.Len() > l.parking.Max {
		l.endIdle()
	}
}

// rouse is the opposite of lull. The lot is locked.
func (l *Lot[K, T]) rouse(f *flight[K, T]) {
	if f.idle != nil {
		l.idle.Remove(f.idle)
		f.idle = nil
	}
}

// endIdle lands the oldest flight that is between two attempts and on which nobody waits, and reports whether there was
// one. An attempt under way is never ended for others. The lot is locked.
func (l *Lot[K, T]) endIdle() bool {
	oldest := l.idle.Front()
	if oldest == nil {
		return false
	}
	var zero T
	l.landLocked(oldest.Value.(*flight[K, T]), zero, ErrLotFull, Rejected)
	return true
}

// sleep waits for the next attempt. It reports false when the flight has landed meanwhile, and lands it when the lot is
// closed.
func (l *Lot[K, T]) sleep(ctx context.Context, f *flight[K, T], delay time.Duration, last error) bool {
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-f.done:
		return false
	case <-ctx.Done():
		l.fail(f, last, Failed)
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.asleep = false
	l.rouse(f)
	return !closed(f.done)
}

// land publishes how the flight ended: first the result, then that there is no such flight, then to those who wait. Who
// comes in between begins another flight, and never reads a result from before it asked.
func (l *Lot[K, T]) land(f *flight[K, T], value T, err error, landing Landing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.landLocked(f, value, err, landing)
}

// fail lands a flight without a value.
func (l *Lot[K, T]) fail(f *flight[K, T], err error, landing Landing) {
	var zero T
	l.land(f, zero, err, landing)
}

// landLocked does nothing to a flight that has landed already. The lot is locked.
func (l *Lot[K, T]) landLocked(f *flight[K, T], value T, err error, landing Landing) {
	if closed(f.done) {
		return
	}
	f.value, f.err, f.landing = value, err, landing
	delete(l.flights, f.key)
	l.rouse(f)
	close(f.done)
	if len(l.flights) == 0 && l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
}

// Quiet returns a channel that is closed as soon as there is no flight. Whoever wants to do without the lot waits for it before
// Close: what is being woken is not left half way. A flight on which nobody waits any more comes to its end by itself, at the
// latest one attempt after its budget.
func (l *Lot[K, T]) Quiet() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.flights) == 0 {
		quiet := make(chan struct{})
		close(quiet)
		return quiet
	}
	if l.quiet == nil {
		l.quiet = make(chan struct{})
	}
	return l.quiet
}

// LotStats are counts of a Lot.
type LotStats struct {
	Parked   int    // requests that have a place now
	Flights  int    // attempts under way, or between two
	Waiting  int    // requests on them, with a place or not
	Rejected uint64 // requests that found no place, ever
}

// Stats returns the counts of now.
func (l *Lot[K, T]) Stats() LotStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LotStats{Parked: l.parked, Flights: len(l.flights), Rejected: l.rejected}
	for _, f := range l.flights {
		s.Waiting += f.waiters.Len()
	}
	return s
}

// Close ends all flights, with the contexts of their attempts, and waits until they have ended. Later calls of Wait get
// ErrLotClosed. It is for the end of the process: attempts under way are given up.
func (l *Lot[K, T]) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.running.Wait()
}
