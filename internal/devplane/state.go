package devplane

// State is where an actor is in its life. The values are those of the wire.
type State int32

// States.
const (
	Resuming State = iota + 1
	Running
	Suspending
	Suspended
	Pausing
	Paused
	Crashed
	Deleting
	Reverting
)

// String is the name on the wire, without its prefix.
func (s State) String() string {
	return [...]string{"UNSPECIFIED", "RESUMING", "RUNNING", "SUSPENDING", "SUSPENDED", "PAUSING", "PAUSED", "CRASHED", "DELETING", "REVERTING"}[s]
}

// Op is what can be done to an actor that exists.
type Op uint8

// Operations.
const (
	Resume  Op = iota // make it run, on some worker
	Suspend           // keep it in a store that every worker reaches
	Pause             // keep it where it is
	Revert            // forget what it has done since it was suspended last
	Delete            // forget it
)

// String is the word of messages.
func (o Op) String() string { return [...]string{"resume", "suspend", "pause", "revert", "delete"}[o] }

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
	from         []State
	through, end State // no end: the actor is gone
	idempotent   bool
}

var paths = [...]path{
	Resume:  {[]State{Suspended, Paused, Resuming}, Resuming, Running, true},
	Suspend: {[]State{Running, Paused, Suspending}, Suspending, Suspended, true},
	Pause:   {[]State{Running}, Pausing, Paused, false},
	Revert:  {[]State{Running, Paused, Crashed}, Reverting, Suspended, false},
	Delete:  {[]State{Suspended, Crashed}, Deleting, 0, false},
}

// Judge says whether the operation is legal in a state. Resume and Suspend may be tried again in the state that they pass
// through, where an attempt that could not be finished has left the actor. With any, Delete is always legal.
func (o Op) Judge(s State, anyState bool) Verdict {
	p := paths[o]
	if p.idempotent && s == p.end {
		return Already
	}
	for _, f := range p.from {
		if f == s {
			return Legal
		}
	}
	if o == Delete && anyState {
		return Legal
	}
	return Illegal
}
