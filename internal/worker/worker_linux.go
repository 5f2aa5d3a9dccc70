package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Errors of a worker. ErrStale is the one that a peer has to be told as such: it has been sent to the wrong place, and
// nothing of what it wanted to send has been looked at.
var (
	ErrStale   = errors.New("the actor is not active on this worker")
	ErrRefused = errors.New("the actor did not take the connection")
	ErrBusy    = errors.New("the actor has as many connections as it may have")
	ErrActive  = errors.New("the actor is active already, or just being removed")
	ErrSlots   = errors.New("the worker hosts as many actors as it can")
	ErrNotUp   = errors.New("the actor did not get ready")
	ErrNoKey   = errors.New("the actor's key was not certified")
	ErrClosed  = errors.New("the worker is shutting down")
)

// Actor says which actor: what it is called, and the identifier that no other ever has.
type Actor struct {
	Ref string // atespace/name
	UID string // 1 to 45 lower-case letters, digits and hyphens, not ending in -at
}

const (
	maxUID   = 45
	maxLabel = 63
)

// check returns an error unless both can be in the names of what is made for the actor.
func (a Actor) check() error {
	atespace, name, _ := strings.Cut(a.Ref, "/")
	if label(atespace, maxLabel) && label(name, maxLabel) && a.checkUID() == nil {
		return nil
	}
	return fmt.Errorf("%w: not an actor: %.130q with UID %.60q", ErrProgram, a.Ref, a.UID)
}

// checkUID tells a UID from the name of a gateway's namespace, among others.
func (a Actor) checkUID() error {
	if label(a.UID, maxUID) && !strings.HasSuffix(a.UID, gatewayName("")) {
		return nil
	}
	return fmt.Errorf("%w: not an actor: UID %.60q", ErrProgram, a.UID)
}

// label reports whether a text is a DNS label of RFC 1123 in lower case.
func label(s string, most int) bool {
	odd := func(c rune) bool { return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, odd) && s[0] != '-' && s[len(s)-1] != '-'
}

// Spec is what is needed to activate an actor.
type Spec struct {
	Actor
	Program Program
	Probe   Probe
	// Thaw goes on with what Suspend has left on this machine, whichever worker did it, instead of starting the program. If
	// there is nothing, that is ErrStale.
	Thaw bool
}

// Options of a worker. Run and Egress are required.
type Options struct {
	Run   fabric.Run
	Slots int         // actors at a time; 0 is 1
	Rules Rules       // nil: Kernel
	Clock *conn.Clock // running; nil: idle connections are never ended
	Log   *slog.Logger
	// Bounds are DefaultBounds where they are 0.
	Bounds Bounds
	// SuspendDrain is how long tunnels may go on after their actor takes no more; 0 is 5 s.
	SuspendDrain time.Duration
	// Egress gets the way out of an actor ready, with its own credentials, before anything of the actor runs. The func
	// that it returns gives them up.
	Egress func(ctx context.Context, a Actor) (Egress, func() error, error)
	// Exited is told of an actor that ended by itself, after everything of it has been removed; nil tells nobody.
	Exited func(a Actor, how string)
}

const defaultSuspendDrain = 5 * time.Second

// Worker hosts actors. Its methods are safe for concurrent use.
type Worker struct {
	o      Options
	counts Counts

	mu       sync.Mutex               // guards all below
	stays    map[string]*Activation   // by UID, from the first step to the last
	active   map[string]*Activation   // by reference, while tunnels are taken
	removals map[string]chan struct{} // by UID: of actors without a stay, closed at their end
	children map[string]*process      // by UID: those that were started here and may be frozen
	closed   bool

	wg sync.WaitGroup // of watchers
}

// New returns a worker that hosts nobody yet.
func New(o Options) *Worker {
	o.Slots = max(o.Slots, 1)
	if o.Rules == nil {
		o.Rules = Kernel{}
	}
	if o.Clock == nil {
		o.Clock = conn.NewClock()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.SuspendDrain <= 0 {
		o.SuspendDrain = defaultSuspendDrain
	}
	o.Bounds = o.Bounds.orDefault()
	return &Worker{o: o, stays: make(map[string]*Activation), active: make(map[string]*Activation), removals: make(map[string]chan struct{}), children: make(map[string]*process)}
}

func (b Bounds) orDefault() Bounds {
	d := DefaultBounds
	if b.Captured > 0 {
		d.Captured = b.Captured
	}
	if b.Rate > 0 {
		d.Rate = b.Rate
	}
	if b.Tunnels > 0 {
		d.Tunnels = b.Tunnels
	}
	if b.Dial > 0 {
		d.Dial = b.Dial
	}
	if b.Idle > 0 {
		d.Idle = b.Idle
	}
	if b.HalfClosed > 0 {
		d.HalfClosed = b.HalfClosed
	}
	return d
}

// Counts are what became of connections so far.
func (w *Worker) Counts() *Counts { return &w.counts }

// Activate makes an actor run here, in the order that its safety asks for: its network and the rules that capture it,
// the credentials of its way out, that way itself, its process, the proof that it is ready, and only then tunnels to it.
// If a step fails, or ctx ends, those before it are undone in reverse.
func (w *Worker) Activate(ctx context.Context, s Spec) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("activating: %w", err)
	}
	_, name, _ := strings.Cut(s.Ref, "/")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := newActivation(w, s, name, cancel)
	if err := w.admit(a); err != nil {
		return fmt.Errorf("activating %s: %w", s.Ref, err)
	}
	if err := a.begin(ctx); err != nil {
		w.forget(a)
		return fmt.Errorf("activating %s: %w", s.Ref, err)
	}
	return nil
}

// admit gives a stay its slot.
func (w *Worker) admit(a *Activation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return ErrClosed
	case w.stays[a.actor.UID] != nil, w.removals[a.actor.UID] != nil:
		return ErrActive
	case len(w.stays) >= w.o.Slots:
		return ErrSlots
	}
	for _, other := range w.stays {
		if other.actor.Ref == a.actor.Ref { // the same name, created again
			return ErrActive
		}
		if user := a.spec.Program.User; user != 0 && other.spec.Program.User == user { // the kernel would count for both
			return fmt.Errorf("%w: user %d is %s's", ErrProgram, user, other.actor.Ref)
		}
	}
	w.stays[a.actor.UID] = a
	return nil
}

func (w *Worker) forget(a *Activation) {
	w.mu.Lock()
	delete(w.stays, a.actor.UID)
	w.mu.Unlock()
	close(a.gone)
}

// Suspend ends an actor's stay and freezes it: tunnels are refused from now on and may end within SuspendDrain, all its
// connections are closed, and its processes, memory and network stay on this machine for the worker that thaws it. When ctx
// ends tunnels are waited for no longer; the rest is done all the same. An actor that ended meanwhile is ErrStale, and
// nothing is left of it.
func (w *Worker) Suspend(ctx context.Context, uid string) error {
	a := w.stay(uid)
	if a == nil {
		return fmt.Errorf("suspending %s: %w", uid, ErrStale)
	}
	left, err := a.end(ctx, true)
	if !left && (err == nil || errors.Is(err, errNoProcess)) {
		err = errors.Join(fmt.Errorf("suspending %s: %w", uid, ErrStale), err)
	}
	return err
}

// Terminate ends an actor's stay, which may have just begun, kills it and removes everything of it, also what Suspend has
// left. An actor of which there is nothing is no error. ctx is as for Suspend.
func (w *Worker) Terminate(ctx context.Context, uid string) error {
	if err := (Actor{UID: uid}).checkUID(); err != nil {
		return fmt.Errorf("terminating: %w", err)
	}
	for {
		a, others, done := w.remove(uid)
		switch {
		case a != nil:
			if left, err := a.end(ctx, false); !left {
				return err
			}
		case others != nil:
			<-others // it is bounded; what it could not remove is tried again
		default:
			defer done()
			ctx, cancel := cleaningUp(ctx)
			defer cancel()
			return w.discard(ctx, uid)
		}
	}
}

// remove begins the removal of an actor that has no stay: none begins until done. Otherwise it returns what comes first, the stay or
// the end of somebody else's removal.
func (w *Worker) remove(uid string) (a *Activation, others <-chan struct{}, done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a = w.stays[uid]; a != nil {
		return a, nil, nil
	}
	if others := w.removals[uid]; others != nil {
		return nil, others, nil
	}
	ended := make(chan struct{})
	w.removals[uid] = ended
	return nil, nil, func() {
		w.mu.Lock()
		delete(w.removals, uid)
		w.mu.Unlock()
		close(ended)
	}
}

// discard removes what is there of an actor that is not active.
func (w *Worker) discard(ctx context.Context, uid string) error {
	var errs []error
	if g, err := w.o.Run.OpenGroup(uid); err == nil {
		errs = append(errs, g.Kill(ctx), g.Remove())
	}
	errs = append(errs, w.o.Run.RemoveNamespace(uid), w.o.Run.RemoveNamespace(gatewayName(uid)))
	return errors.Join(errs...)
}

func (w *Worker) stay(uid string) *Activation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stays[uid]
}

// Stay is an actor that has a slot here.
type Stay struct {
	Actor
	User  uint32 // that it runs as
	Ready bool   // tunnels to it are taken: its stay has begun, and does not end yet
}

// Actors are the stays there are, in no order.
func (w *Worker) Actors() []Stay {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]Stay, 0, len(w.stays))
	for _, a := range w.stays {
		all = append(all, Stay{a.actor, a.spec.Program.User, w.active[a.actor.Ref] == a})
	}
	return all
}

// Dial connects to a port of an actor, for a tunnel that was asked for. The peer can be refused before it has sent
// anything: ErrStale, ErrBusy, ErrRefused. ctx bounds connecting alone.
func (w *Worker) Dial(ctx context.Context, ref string, port uint16) (*Tunnel, error) {
	w.mu.Lock()
	a := w.active[ref]
	if a != nil {
		a.open.Add()
	}
	w.mu.Unlock()
	if a == nil {
		w.counts.Stale.Add(1)
		return nil, fmt.Errorf("%.127q: %w", ref, ErrStale)
	}
	t, err := a.dial(ctx, port)
	if err != nil {
		a.open.Done()
		w.counts.Refused.Add(1)
		return nil, err
	}
	w.counts.Tunnels.Add(1)
	return t, nil
}

// Close terminates every actor that is active or about to be; suspended ones stay. It returns when nothing runs any more.
// ctx is as for Suspend.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	all := make([]*Activation, 0, len(w.stays))
	for _, a := range w.stays {
		all = append(all, a)
	}
	w.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() { _, errs[i] = a.end(ctx, false) })
	}
	wg.Wait()
	w.wg.Wait()
	return errors.Join(errs...)
}
