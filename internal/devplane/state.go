package devplane

import "github.com/sluice-proxy/sluice/internal/actor"

// Verdict is whether an operation is legal in a state.
type Verdict uint8

// Verdicts.
const (
	Illegal Verdict = iota
	Already         // it is as the operation would make it: there is nothing to do, and that is no error
	Legal
)

// path is an operation's way: where it may begin, what an actor is meanwhile, and what it is then.
type path struct {
	from         []actor.State
	through, end actor.State // no end: the actor is gone
	idempotent   bool
}

var paths = [...]path{
	actor.Resume:  {[]actor.State{actor.Suspended, actor.Paused, actor.Resuming}, actor.Resuming, actor.Running, true},
	actor.Suspend: {[]actor.State{actor.Running, actor.Paused, actor.Suspending}, actor.Suspending, actor.Suspended, true},
	actor.Pause:   {[]actor.State{actor.Running}, actor.Pausing, actor.Paused, false},
	actor.Revert:  {[]actor.State{actor.Running, actor.Paused, actor.Crashed}, actor.Reverting, actor.Suspended, false},
	actor.Delete:  {[]actor.State{actor.Suspended, actor.Crashed}, actor.Deleting, 0, false},
}

// Judge says whether an operation is legal in a state. Resume and Suspend may be tried again in the state that they pass
// through, where an attempt that could not be finished has left the actor. With any, Delete is always legal.
func Judge(o actor.Op, s actor.State, anyState bool) Verdict {
	p := paths[o]
	if p.idempotent && s == p.end {
		return Already
	}
	for _, f := range p.from {
		if f == s {
			return Legal
		}
	}
	if o == actor.Delete && anyState {
		return Legal
	}
	return Illegal
}
