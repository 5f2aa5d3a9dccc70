// Package drain ends work in an orderly way. A Tracker knows the members of something that may have to end (the
// connections of an entrypoint, say), tells them to drain, waits for them and forces those that stay. A Count waits for
// things under way that need no telling. A Group starts the parts of a process in order and stops them in reverse.
// All of them live as long as their owner, which is usually the process. The package knows nothing of connections,
// protocols or configuration; it runs nothing between Start and Stop but what the parts of a Group ask for.
package drain

import (
	"context"
	"sync"
)

// Mode says how members that are idle end. Whatever the mode, a member that is busy finishes what it does and then
// ends, and nothing is refused before it is forced.
type Mode uint8

// Modes, from mild to strict. A tracker only ever moves towards the strict end.
const (
	// Gentle lets an idle member wait for one more piece of work, the last one, until it is forced. It is for reloads
	// and binary upgrades, where time does not press and nothing may be lost.
	Gentle Mode = iota
	// Prompt ends an idle member at once; work that has already been received is still done. It is for shutdown.
	Prompt
)

// String names the mode for logs.
func (m Mode) String() string { return [...]string{"gentle", "prompt"}[m] }

// Member is something that can be told to end. Both methods are called with the tracker locked: they must not block
// and must not call the tracker or their own ticket. They may be called from any goroutine, more than once, and while
// the member is ending already.
type Member interface {
	// Drain asks the member to end after the work at hand. Gentle may be followed by Prompt.
	Drain(mode Mode)
	// Force ends the member now, whatever it does.
	Force()
}

// Ticket is a member's place in a Tracker. It is embedded in the member, so that entering allocates nothing. The zero
// value is outside of any tracker and ready; after Leave it may be used again.
type Ticket struct {
	tracker *Tracker
	member  Member
	index   int
}

// Leave takes the member out. On return nothing calls the member any more. Leaving twice, or without having entered,
// does nothing.
func (k *Ticket) Leave() {
	if t := k.tracker; t != nil {
		t.leave(k)
	}
}

type phase uint8

const (
	serving phase = iota
	gentle
	prompt
	forced
)

// Tracker knows the members that are alive and how far their end has been ordered. The zero value is ready.
type Tracker struct {
	mu      sync.Mutex // guards all below, and is held while members are called
	tickets []*Ticket
	phase   phase
	empty   chan struct{} // closed when the last member leaves; nil while nobody waits
}

// Enter adds a member. One that enters while the tracker drains is told so before Enter returns, so that no member can
// slip past a drain.
func (t *Tracker) Enter(k *Ticket, m Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k.tracker, k.member, k.index = t, m, len(t.tickets)
	t.tickets = append(t.tickets, k)
	t.phase.tell(m)
}

func (p phase) tell(m Member) {
	switch p {
	case serving:
	case gentle:
		m.Drain(Gentle)
	case prompt:
		m.Drain(Prompt)
	case forced:
		m.Force()
	}
}

func (t *Tracker) leave(k *Ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.tracker != t {
		return
	}
	last := len(t.tickets) - 1
	t.tickets[k.index] = t.tickets[last]
	t.tickets[k.index].index = k.index
	t.tickets[last] = nil
	t.tickets = t.tickets[:last]
	k.tracker, k.member = nil, nil
	if last == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// Drain tells every member, and each that enters later, to end. A milder mode than an earlier one changes nothing.
func (t *Tracker) Drain(mode Mode) {
	if mode == Gentle {
		t.order(gentle)
	} else {
		t.order(prompt)
	}
}

// Force ends every member, and each that enters later, at once. It returns how many there were.
func (t *Tracker) Force() int { return t.order(forced) }

func (t *Tracker) order(p phase) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p > t.phase {
		t.phase = p
		for _, k := range t.tickets {
			p.tell(k.member)
		}
	}
	return len(t.tickets)
}

// Len is the number of members.
func (t *Tracker) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.tickets)
}

// Draining reports whether members have been told to end.
func (t *Tracker) Draining() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase != serving
}

// Wait returns nil once there is no member, or the context's error.
func (t *Tracker) Wait(ctx context.Context) error {
	t.mu.Lock()
	if len(t.tickets) == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.empty == nil {
		t.empty = make(chan struct{})
	}
	empty := t.empty
	t.mu.Unlock()
	return wait(ctx, empty)
}

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
