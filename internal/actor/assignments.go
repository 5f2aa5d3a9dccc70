package actor

import (
	"sync"
	"time"
)

// maxAssignments bounds what is remembered. Beyond it some go, whichever are found first: that costs a question each.
const maxAssignments = 65536

// shrunk is how many stay when some have to go: enough go at a time that not each new one has all of them looked at.
const shrunk = maxAssignments - maxAssignments/16

// located is an actor and where it is.
type located struct {
	actor      Actor
	generation uint64 // of this knowledge; 0 none
	resumed    bool   // it was woken to find out
}

// assignments remembers for a while where actors are. Each entry has a generation, so that who finds one to be wrong
// forgets that one and never a newer one.
type assignments struct {
	ttl time.Duration // 0 remembers nothing

	mu   sync.Mutex // guards the fields below
	all  map[Ref]remembered
	last uint64
}

type remembered struct {
	located
	until time.Time
}

func newAssignments(ttl time.Duration) *assignments {
	return &assignments{ttl: ttl, all: make(map[Ref]remembered)}
}

// get returns what is remembered and not too old.
func (c *assignments) get(ref Ref) (located, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.all[ref]
	if ok && !time.Now().Before(e.until) {
		delete(c.all, ref)
		ok = false
	}
	return e.located, ok
}

// put remembers where an actor is, and returns that with its generation.
func (c *assignments) put(a Actor, resumed bool) located {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	at := located{actor: a, generation: c.last, resumed: resumed}
	if c.ttl <= 0 {
		return at
	}
	if _, known := c.all[a.Ref]; !known && len(c.all) >= maxAssignments {
		c.shrink()
	}
	kept := at
	kept.resumed = false // who finds it here has woken nobody
	c.all[a.Ref] = remembered{located: kept, until: time.Now().Add(c.ttl)}
	return at
}

// shrink makes room for many. The lock is held.
func (c *assignments) shrink() {
	now := time.Now()
	for ref, e := range c.all {
		if !now.Before(e.until) {
			delete(c.all, ref)
		}
	}
	for ref := range c.all {
		if len(c.all) <= shrunk {
			return
		}
		delete(c.all, ref)
	}
}

// forget forgets what was found to be wrong, unless something newer is known.
func (c *assignments) forget(at located) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.all[at.actor.Ref]; ok && e.generation == at.generation {
		delete(c.all, at.actor.Ref)
	}
}

// len is how many are remembered.
func (c *assignments) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}
