package dev

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

const (
	wantMoves = 20
	postEvery = 10 * time.Millisecond // 100 a second
)

// moves has an actor move while requests come for it. All slots are taken: x and y hold one on each worker all the time, the mover
// and one of two others the rest. At each move the other one that sleeps takes the slot that the mover has left, and the one that is
// awake leaves its own, on the other worker, which is the only one that the mover can go on in.
func (t *tour) moves(ctx context.Context) error {
	m, err := t.newMover(ctx)
	if err != nil {
		return err
	}
	posting, stop := context.WithCancel(ctx)
	posts := &posts{t: t, ref: m.ref, ids: map[string]bool{}}
	var all sync.WaitGroup
	all.Go(func() { posts.send(posting) })
	began := time.Now()
	retried := 0
	for n := 0; n < wantMoves && err == nil; {
		var moved bool
		if moved, err = m.move(ctx); moved {
			n++
		} else {
			retried++
		}
		if retried > 5*wantMoves {
			err = errors.Join(err, errors.New("it does not leave its worker"))
		}
	}
	took := since(began)
	stop()
	all.Wait()
	t.check("it moves", err, "%d times in %s, %.0f ms a move, and each time another actor took its slot", wantMoves, took, float64(took.Milliseconds())/wantMoves)
	sent, failed, wrong := posts.sent.Load(), posts.failed.Load(), posts.wrong.Load()
	t.check("no request fails", none(failed, posts.first()), "0 of %d, %.0f a second, the slowest %s", sent, float64(sent)/took.Seconds(), posts.slowest())
	t.check("none is answered by another actor", none(wrong, nil), "0 of %d", sent)
	return m.tally(ctx, posts)
}

func none(n int64, why error) error {
	if n > 0 {
		return errors.Join(fmt.Errorf("%d", n), why)
	}
	return nil
}

// mover is an actor that moves, and those that make it.
type mover struct {
	t             *tour
	ref           actor.Ref
	at            int       // its worker
	asleep, awake actor.Ref // the two others
	rest          []actor.Ref
}

// newMover fills all slots.
func (t *tour) newMover(ctx context.Context) (*mover, error) {
	if _, err := t.admin.SuspendActor(ctx, demoActor); err != nil {
		return nil, err
	}
	named := func(name string) actor.Ref { return actor.Ref{Atespace: demoAtespace, Name: name} }
	m := &mover{t: t, ref: named("mover"), asleep: named("s"), awake: named("t"), rest: []actor.Ref{named("x"), named("y")}}
	for _, ref := range append([]actor.Ref{m.asleep, m.ref, m.awake}, m.rest...) {
		if err := t.create(ctx, ref, ""); err != nil {
			return nil, err
		}
	}
	for _, ref := range append(m.rest, m.ref, m.awake) { // the scheduler spreads them
		if _, _, err := t.admin.ResumeActor(ctx, ref); err != nil {
			return nil, err
		}
	}
	other, err := t.workerOf(ctx, m.awake)
	if err != nil {
		return nil, err
	}
	if m.at, err = t.workerOf(ctx, m.ref); err == nil && m.at == other {
		err = fmt.Errorf("the scheduler put two actors on %s while another worker had more room", workerName(other))
	}
	return m, err
}

// move makes one move. It reports false when the mover was woken by a request before the other actor had taken its slot.
func (m *mover) move(ctx context.Context) (bool, error) {
	if _, err := m.t.admin.SuspendActor(ctx, m.ref); err != nil {
		return false, fmt.Errorf("suspending: %w", err)
	}
	_, _, err := m.t.admin.ResumeActor(ctx, m.asleep)
	if e := (*actor.Error)(nil); errors.As(err, &e) && e.Code == actor.ResourceExhausted {
		_, err := m.t.state(ctx, m.ref, actor.Running)
		return false, err
	}
	if err != nil {
		return false, fmt.Errorf("taking the slot: %w", err)
	}
	if _, err := m.t.admin.SuspendActor(ctx, m.awake); err != nil {
		return false, fmt.Errorf("making room: %w", err)
	}
	a, err := m.t.state(ctx, m.ref, actor.Running) // by the requests that wait for it
	if err != nil {
		return false, err
	}
	taker, err := m.t.workerOf(ctx, m.asleep)
	if err != nil {
		return false, err
	}
	now, err := m.t.workerNumber(a)
	if err != nil {
		return false, err
	}
	if now == m.at || taker != m.at {
		return false, fmt.Errorf("it was on w%d and is on w%d, and its slot was taken on w%d", m.at, now, taker)
	}
	m.at, m.asleep, m.awake = now, m.awake, m.asleep
	return true, nil
}

// tally compares what was sent with what the actors have seen, then sends them to sleep.
func (m *mover) tally(ctx context.Context, p *posts) error {
	seen := map[string]int{}
	if err := m.t.ask(ctx, m.ref, http.MethodGet, "/seen", nil, &seen); err != nil {
		return err
	}
	twice, lost, strange := 0, 0, 0
	for id := range p.ids {
		switch n := seen[id]; {
		case n == 0:
			lost++
		case n > 1:
			twice++
		}
	}
	m.t.check("none arrives twice, none is lost", wantCount(int64(twice+lost), 0), "the actor has seen each of %d once, in one memory", len(seen))
	for _, ref := range append([]actor.Ref{m.awake, m.asleep}, m.rest...) {
		if _, err := m.t.admin.SuspendActor(ctx, m.ref); err != nil { // room for the next one
			return err
		}
		var others map[string]int
		if err := m.t.ask(ctx, ref, http.MethodGet, "/seen", nil, &others); err != nil {
			return err
		}
		strange += len(others)
		if _, err := m.t.admin.SuspendActor(ctx, ref); err != nil {
			return err
		}
	}
	m.t.check("none arrives at another actor", wantCount(int64(strange), 0), "the four others have seen none")
	return nil
}

// posts are requests to an actor, each with an id of its own, sent at a pace and not after each other.
type posts struct {
	t                   *tour
	ref                 actor.Ref
	sent, failed, wrong atomic.Int64

	mu   sync.Mutex // guards the rest
	ids  map[string]bool
	why  error
	most time.Duration
}

// send sends until ctx ends, and returns when all are answered.
func (p *posts) send(ctx context.Context) {
	began := time.Now()
	var all sync.WaitGroup
	defer all.Wait()
	for n := 0; rest(ctx, time.Until(began.Add(time.Duration(n)*postEvery))); n++ { // one that is late does not delay the next
		id := fmt.Sprintf("post-%d", n)
		p.mu.Lock()
		p.ids[id] = true
		p.mu.Unlock()
		p.sent.Add(1)
		all.Go(func() { p.one(context.WithoutCancel(ctx), id) })
	}
}

// one sends a request. The client has its own time limit, and never sends one again.
func (p *posts) one(ctx context.Context, id string) {
	began := time.Now()
	var answer struct{ Actor, ID string }
	err := p.t.ask(ctx, p.ref, http.MethodPost, "/work?id="+id, nil, &answer)
	switch {
	case err != nil:
		p.failed.Add(1)
	case answer.Actor != p.ref.String() || answer.ID != id:
		p.wrong.Add(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, since(began))
	if err != nil && p.why == nil {
		p.why = err
	}
}

func (p *posts) first() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

func (p *posts) slowest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}
