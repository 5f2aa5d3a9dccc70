package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Activation is one stay of one actor on a worker, and owns everything of it. Steps make it, and their reverse ends it.
type Activation struct {
	w        *Worker
	actor    Actor
	hostname string
	spec     Spec
	log      *slog.Logger

	network *Network
	group   *fabric.Group
	egress  Egress
	giveUp  func() error // of the egress's credentials
	capture *capture
	process *process

	open  drain.Count   // tunnels, from before they are taken
	links drain.Tracker // those under way, in both directions
	slots chan struct{} // of tunnels

	once   sync.Once     // of its end
	done   []step        // those that were taken
	began  chan struct{} // closed when begin has returned
	cancel func()        // gives up what has not begun
	gone   chan struct{} // closed when nothing is left of the stay
	err    error         // of its end; valid after gone
	left   bool          // the actor stays on the machine, frozen; valid after gone
}

// step of an activation. undo takes it back with the actor going; leave, where it is not nil, with the actor staying on
// the machine, frozen.
type step struct {
	name        string
	take        func(ctx context.Context) error
	undo, leave func(ctx context.Context) error
}

func newActivation(w *Worker, s Spec, hostname string, cancel func()) *Activation {
	return &Activation{
		w: w, actor: s.Actor, hostname: hostname, spec: s, log: w.o.Log.With("actor", s.Ref, "uid", s.UID),
		slots: make(chan struct{}, w.o.Bounds.Tunnels), began: make(chan struct{}), cancel: cancel, gone: make(chan struct{}),
	}
}

// steps in the order of safety: nothing of the actor runs before its way out is guarded, and nobody reaches it before it
// is ready.
func (a *Activation) steps() []step {
	return []step{
		{"making the network", a.connect, func(context.Context) error { return a.network.Remove() }, func(context.Context) error { return a.network.Close() }},
		{"capturing connections", a.install, func(context.Context) error { return a.w.o.Rules.Remove(a.network.Gateway) }, nothing},
		{"making the control group", a.enclose, func(context.Context) error { return a.group.Remove() }, nothing},
		{"getting credentials", a.credentials, func(context.Context) error { return a.giveUp() }, nil},
		{"opening the way out", a.openOut, func(context.Context) error { return a.capture.stop() }, nil},
		{"starting the program", a.run, a.kill, a.freeze},
		{"waiting for the actor", a.probe, nothing, nil},
		{"opening the way in", a.openIn, a.closeIn, nil},
	}
}

func nothing(context.Context) error { return nil }

// begin takes every step, or undoes those that were taken.
func (a *Activation) begin(ctx context.Context) error {
	defer close(a.began)
	for _, s := range a.steps() {
		err := ctx.Err()
		if err == nil {
			err = s.take(ctx)
		}
		if err != nil {
			a.once.Do(func() {}) // ended, before it has begun
			stays := a.spec.Thaw && !errors.Is(err, errNoProcess)
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), a.undo(ctx, stays))
		}
		a.done = append(a.done, s)
	}
	a.w.wg.Go(a.watch)
	return nil
}

// cleaningUp is a context for what has to be done though nobody waits for it any more: half of it would be worse.
func cleaningUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleaning)
}

// undo undoes what was done, the last step first, and goes on after errors. ctx bounds the wait for tunnels alone. An
// actor that turns out to have ended does not stay.
func (a *Activation) undo(ctx context.Context, stays bool) error {
	var errs []error
	for len(a.done) > 0 {
		s := a.done[len(a.done)-1]
		a.done = a.done[:len(a.done)-1]
		undo := s.undo
		if stays && s.leave != nil {
			undo = s.leave
		}
		if err := undo(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undoing %s: %w", s.name, err))
			stays = stays && !errors.Is(err, errNoProcess)
		}
	}
	a.left = stays
	return errors.Join(errs...)
}

// end ends the stay once; later calls wait for the first, which may have been meant otherwise: left says whether the actor
// stays on the machine, frozen. One that is to go and has not begun yet is given up.
func (a *Activation) end(ctx context.Context, stays bool) (left bool, err error) {
	begun := ctx
	if !stays {
		a.cancel()
		var stop func()
		begun, stop = cleaningUp(ctx)
		defer stop()
	}
	select {
	case <-a.began:
	case <-begun.Done():
		return false, context.Cause(begun)
	}
	a.once.Do(func() {
		a.err = a.undo(ctx, stays)
		a.w.forget(a)
	})
	<-a.gone
	return a.left, a.err
}

// connect makes the network. What a worker has left of the same actor that was killed goes first.
func (a *Activation) connect(ctx context.Context) (err error) {
	if a.spec.Thaw {
		a.network, err = OpenNetwork(a.w.o.Run, a.actor.UID)
		return missing(err)
	}
	if err := a.w.discard(ctx, a.actor.UID); err != nil {
		return err
	}
	a.network, err = CreateNetwork(a.w.o.Run, a.actor.UID)
	return err
}

// missing adds ErrStale to an error of what should be there of a suspended actor, and is not.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoProcess) {
		return fmt.Errorf("nothing of it is suspended here: %w: %w", ErrStale, err)
	}
	return err
}

func (a *Activation) install(context.Context) error { return a.w.o.Rules.Install(a.network.Gateway) }

func (a *Activation) enclose(context.Context) (err error) {
	if a.spec.Thaw {
		a.group, err = a.w.o.Run.OpenGroup(a.actor.UID)
		err = missing(err)
	} else {
		a.group, err = a.w.o.Run.CreateGroup(a.actor.UID, a.spec.Program.Limits)
	}
	return err
}

func (a *Activation) credentials(ctx context.Context) (err error) {
	a.egress, a.giveUp, err = a.w.o.Egress(ctx, a.actor)
	if err != nil && !errors.Is(err, ErrNoLonger) {
		err = fmt.Errorf("%w: %w", ErrNoKey, err)
	}
	return err
}

func (a *Activation) openOut(context.Context) error {
	a.capture = &capture{
		gateway: a.network.Gateway, egress: a.egress, bounds: a.w.o.Bounds, counts: &a.w.counts, clock: a.w.o.Clock,
		log: a.log, refusals: strangersLog{log: a.log}, links: &a.links,
	}
	return a.capture.start()
}

// run starts the program or lets it go on. What a failed start has left in the group is killed here, because a step that
// was not taken is not undone.
func (a *Activation) run(ctx context.Context) (err error) {
	if a.spec.Thaw {
		if a.process, err = a.w.adopt(a.actor.UID, a.group); err != nil {
			return missing(err)
		}
		if err = a.group.Thaw(ctx); err != nil {
			return errors.Join(err, a.freeze(ctx))
		}
		return nil
	}
	a.process, err = a.spec.Program.start(ctx, a.hostname, a.network, a.group)
	if err != nil {
		ctx, cancel := cleaningUp(ctx)
		defer cancel()
		return errors.Join(err, a.group.Kill(ctx))
	}
	a.w.started(a.actor.UID, a.process)
	return nil
}

func (a *Activation) kill(ctx context.Context) error {
	ctx, cancel := cleaningUp(ctx)
	defer cancel()
	if err := a.group.Kill(ctx); err != nil {
		return err
	}
	return a.process.wait(ctx)
}

// freeze leaves the actor as it is, unless it has ended: that is errNoProcess, and what is left of it is killed.
func (a *Activation) freeze(ctx context.Context) error {
	within, cancel := cleaningUp(ctx)
	defer cancel()
	err := a.group.Freeze(within)
	pids, perr := a.group.Processes()
	if perr == nil && !slices.Contains(pids, a.process.pid) {
		return errors.Join(errNoProcess, a.kill(ctx))
	}
	a.process.release()
	return errors.Join(err, perr)
}

func (a *Activation) openIn(context.Context) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.w.active[a.actor.Ref] = a
	return nil
}

// closeIn refuses tunnels, lets those under way end for a while, and ends the rest. Nothing of the actor's is taken away
// before.
func (a *Activation) closeIn(ctx context.Context) error {
	a.w.mu.Lock()
	delete(a.w.active, a.actor.Ref)
	a.w.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, a.w.o.SuspendDrain)
	defer cancel()
	if a.process.running() && a.open.Wait(within) != nil {
		a.log.Info("tunnels are ended with the stay of their actor", "tunnels", a.open.Len())
	}
	a.links.Force()
	rest, cancel := cleaningUp(ctx)
	defer cancel()
	return a.open.Wait(rest)
}

// watch ends the stay of an actor that ends by itself.
func (a *Activation) watch() {
	select {
	case <-a.gone:
		return
	case <-a.process.gone():
	}
	crashed := false
	a.once.Do(func() {
		crashed = true
		a.err = a.undo(context.Background(), false)
		a.w.forget(a)
	})
	if !crashed {
		return
	}
	a.log.Warn("the actor ended by itself", "how", a.process.how, "error", a.err)
	if a.w.o.Exited != nil {
		a.w.o.Exited(a.actor, a.process.how)
	}
}
