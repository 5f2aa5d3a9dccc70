package actor

import (
	"context"
	"net/netip"
	"time"
)

// Control is what the way to an actor needs of the control plane. Errors are *Error; one without an answer, such as that of
// a connection, has the code Unavailable, DeadlineExceeded or Canceled.
type Control interface {
	// GetActor reads an actor and changes nothing.
	GetActor(ctx context.Context, ref Ref) (Actor, error)
	// ResumeActor makes an actor run, and reports whether this call did. The answer has an Assignment.
	ResumeActor(ctx context.Context, ref Ref) (a Actor, resumed bool, err error)
}

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

var stateNames = [...]string{"UNSPECIFIED", "RESUMING", "RUNNING", "SUSPENDING", "SUSPENDED", "PAUSING", "PAUSED", "CRASHED", "DELETING", "REVERTING"}

// String is the name on the wire, without its prefix. A value without a name is UNSPECIFIED.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		s = 0
	}
	return stateNames[s]
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

// Meta identifies one version of something that the control plane keeps.
type Meta struct {
	UID     string    `json:"-"` // another one after it was deleted and created again
	Version int64     `json:"-"` // at least 1; grows with each write
	Created time.Time `json:"-"`
	Updated time.Time `json:"-"`
}

// Named is something that is a name and nothing else, such as an atespace.
type Named struct {
	Name string
	Meta
}

// Actor is an actor as the control plane knows it.
type Actor struct {
	Ref `json:"-"`
	Meta
	Template Ref `json:"template"`
	// Selector are labels that a worker must have.
	Selector map[string]string `json:"selector,omitempty"`
	State    State             `json:"state"`
	// Assignment is where it is; nil in the states SUSPENDED, PAUSED and CRASHED.
	Assignment *Assignment `json:"assignment,omitempty"`
	// Node is where a paused actor is kept.
	Node string `json:"node,omitempty"`
	// Crash is why it is in the state CRASHED, and CrashTime since when.
	Crash     string    `json:"crash,omitempty"`
	CrashTime time.Time `json:"crash_time,omitzero"`
}

// Assignment is a worker as it was when an actor was given to it.
type Assignment struct {
	Worker string `json:"worker"`
	// Epoch is the worker's: it changes when the worker begins anew, without the actors it had.
	Epoch int64 `json:"epoch"`
	Place
}

// Place is where a worker is to be found, and what it proves to be.
type Place struct {
	Namespace string       `json:"namespace"`
	Pool      string       `json:"pool"`
	Pod       string       `json:"pod"`
	PodUID    string       `json:"pod_uid"`
	Node      string       `json:"node"`
	Addrs     []netip.Addr `json:"addrs"` // at most one of each family
	ID        string       `json:"id"`    // SPIFFE ID; empty when the control plane does not name it
}

// Worker hosts actors.
type Worker struct {
	Name string `json:"-"`
	Meta
	Place
	Epoch  int64             `json:"epoch"`
	Labels map[string]string `json:"labels,omitempty"`
	Capacity
	// Draining workers keep their actors and get no others.
	Draining bool `json:"draining,omitempty"`
	// Hosted is how many it has now. It is counted when a worker is read.
	Hosted int `json:"-"`
	// SandboxClass is kept for whoever asks and not read.
	SandboxClass string `json:"sandbox_class,omitempty"`
}

// Capacity is what a worker has to give.
type Capacity struct {
	// Actors is how many it takes at a time.
	Actors int `json:"actors"`
	// Resources and Hardware are kept for whoever asks and not read.
	Resources []Limit           `json:"resources,omitempty"`
	Hardware  map[string]string `json:"hardware,omitempty"`
}

// Terms are conditions of a write.
type Terms struct {
	AnyState bool   // of DeleteActor: whatever state it is in
	UID      string // of what is meant; empty is whatever is there
	Version  int64  // likewise; 0 is whatever it has
}

// Hold reports whether what is there is what is meant.
func (t Terms) Hold(m Meta) bool {
	return (t.UID == "" || t.UID == m.UID) && (t.Version == 0 || t.Version == m.Version)
}

// Require adds a fault for each of UID and version that is missing.
func (t Terms) Require(f *Faults, field string) {
	if t.UID == "" {
		f.Add(field+".uid", "is required")
	}
	if t.Version == 0 {
		f.Add(field+".version", "is required")
	}
}

// Source is where a value is read that belongs to an actor, such as its policy or its assignment.
type Source[T any] interface {
	// Get returns the value and its version. It may be as old as the source says. Errors are *Error.
	Get(ctx context.Context, ref Ref) (value T, version int64, err error)
	// Changes names actors whose values may be others than Get has returned: whoever still needs one gets it again. It
	// is one channel for all who ask, and never closed.
	Changes() <-chan Ref
}
