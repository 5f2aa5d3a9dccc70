package atelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

var _ control.Sandboxes = (*session)(nil)

const (
	// stopTime bounds an order to suspend or terminate: the worker's own bounds, and some more.
	stopTime = 90 * time.Second
	// startTime bounds what an activation takes besides its probe.
	startTime = 2 * time.Minute
	// keepOutput is how much of what an actor has written so far is kept in one file, in bytes.
	keepOutput = 16 << 20
)

// Start implements control.Sandboxes.
func (s *session) Start(ctx context.Context, a actor.Actor, t actor.Template, gateway string) error {
	err := s.start(ctx, a, t, gateway)
	switch {
	case err == nil:
		s.log.Info("an actor runs", "actor", a.Ref.String(), "uid", a.UID)
	case ctx.Err() != nil: // nobody waits: the order may come again
	case !errors.Is(err, actor.ErrUnavailable):
		s.drop(ctx, a.UID) // it is crashed, and never goes on from where it was
		fallthrough
	default:
		s.log.Warn("an actor was not started", "actor", a.Ref.String(), "uid", a.UID, "error", err)
	}
	return err
}

func (s *session) start(ctx context.Context, a actor.Actor, t actor.Template, gateway string) error {
	if gateway != s.about.Gateway {
		return fmt.Errorf("the control plane sends what actors dial to %q, and the worker's process was started with --egress-gateway %q: %w", gateway, s.about.Gateway, actor.ErrUnavailable)
	}
	if err := s.programs.refresh(); err != nil {
		return fmt.Errorf("authorities for actors: %w: %w", err, actor.ErrUnavailable)
	}
	order, broken := s.programs.order(a, t)
	if order.UID == "" {
		return broken
	}
	r, anew, err := s.roster.claim(a, s.name(), s.about.Epoch)
	if err != nil {
		return err
	}
	if broken != nil && !r.Thaw { // else the template does not count
		return broken
	}
	if order.Output, err = s.output(a.Ref, anew); err != nil {
		return fmt.Errorf("%w: %w", err, actor.ErrUnavailable)
	}
	order.Program.User, order.Thaw = r.User, r.Thaw
	ctx, cancel := context.WithTimeout(ctx, startTime+time.Duration(order.Probe.Seconds)*time.Second)
	defer cancel()
	if err := s.activate(ctx, order, broken); err != nil {
		return err
	}
	r, err = s.roster.change(a.UID, func(r *record) error {
		if r.State == starting && r.Worker == s.name() {
			r.State, r.Thaw = active, false
		}
		return nil
	})
	if err == nil && r.State != active {
		err = fmt.Errorf("the actor ended: %s", r.How)
	}
	return err
}

// activate gives the order until the actor runs. An earlier order for it that nobody waits for any more may still be
// under way, or being undone. broken is why the actor cannot start anew; nil if it can.
func (s *session) activate(ctx context.Context, order workerOrder, broken error) error {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := s.orders.activate(ctx, order)
		switch codeOf(err) {
		case codeStale:
			if !order.Thaw {
				return err
			}
			s.log.Warn("nothing is left of a suspended actor: it starts anew", "actor", order.Ref, "uid", order.UID, "error", err)
			order.Thaw = false
			if _, err := s.roster.change(order.UID, func(r *record) error { r.Thaw = false; return nil }); err != nil {
				return err
			}
			if broken != nil {
				return broken
			}
			continue
		case codeSlots, codeClosed, codeCertificate:
			return fmt.Errorf("%w: %w", err, actor.ErrUnavailable)
		case codeActive:
		default:
			return err
		}
		if ready, err := s.ready(ctx, order.workerActor); ready || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("an earlier order for the actor does not end: %w", actor.ErrUnavailable)
		}
	}
}

// ready reports whether an actor runs. Another one of the same name, which is over for the control plane, is ended first.
func (s *session) ready(ctx context.Context, a workerActor) (bool, error) {
	all, err := s.orders.stays(ctx)
	if err != nil {
		return false, err
	}
	for _, stay := range all {
		if stay.UID == a.UID {
			return stay.Ready, nil
		}
		if stay.Ref == a.Ref {
			s.drop(ctx, stay.UID)
		}
	}
	return false, nil
}

// Stop implements control.Sandboxes. Suspended and paused actors are kept with their memory; of all others nothing stays.
func (s *session) Stop(ctx context.Context, a actor.Actor, op actor.Op) error {
	within, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	var err error
	if op == actor.Suspend || op == actor.Pause {
		err = s.suspend(within, a.UID)
		if err != nil && ctx.Err() == nil && !errors.Is(err, actor.ErrUnavailable) {
			s.drop(ctx, a.UID)
		}
	} else {
		err = s.end(within, a.UID)
	}
	if err != nil {
		s.log.Warn("an actor was not stopped", "actor", a.Ref.String(), "uid", a.UID, "for", op.String(), "error", err)
		return err
	}
	s.log.Info("an actor was stopped", "actor", a.Ref.String(), "uid", a.UID, "for", op.String())
	return nil
}

func (s *session) suspend(ctx context.Context, uid string) error {
	again := false
	r, err := s.roster.change(uid, func(r *record) error {
		again = r.State == suspending
		switch r.State {
		case "":
			return errors.New("nothing of the actor is on this machine")
		case over:
			return fmt.Errorf("the actor ended: %s", r.How)
		case starting, active:
			r.State = suspending
		}
		return nil
	})
	if err != nil || r.State == frozen {
		return err
	}
	err = s.orders.suspend(ctx, uid)
	if codeOf(err) == codeStale && again { // the answer to the time before was lost; if it has ended since, a thaw finds out
		err = nil
	}
	if err != nil {
		return err
	}
	_, err = s.roster.change(uid, func(r *record) error {
		if r.State == over {
			return fmt.Errorf("the actor ended: %s", r.How)
		}
		r.State = frozen
		return nil
	})
	return err
}

// end leaves nothing of an actor, wherever on this machine it is.
func (s *session) end(ctx context.Context, uid string) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	if err := s.orders.terminate(ctx, uid); err != nil {
		return err
	}
	_, err := s.roster.change(uid, func(r *record) error { *r = record{}; return nil })
	return errors.Join(err, s.programs.forget(uid))
}

// drop ends an actor that is over for the control plane. What fails is tried again by the sweep.
func (s *session) drop(ctx context.Context, uid string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	_, err := s.roster.change(uid, func(r *record) error {
		if r.State != "" {
			r.State, r.Worker, r.Epoch = over, s.name(), s.about.Epoch
		}
		return nil
	})
	if err := errors.Join(err, s.end(ctx, uid)); err != nil {
		s.log.Warn("an actor that is over was not removed", "uid", uid, "error", err)
	}
}

// output is the file that an actor writes to. When nothing of the actor can have it open, a long one is put aside, in the place of
// the one before.
func (s *session) output(ref actor.Ref, anew bool) (string, error) {
	if s.o.LogDir == "" {
		return "", nil
	}
	name := OutputFile(s.o.LogDir, ref)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return "", err
	}
	if info, err := os.Lstat(name); anew && err == nil && info.Size() > keepOutput {
		if err := os.Rename(name, name+".1"); err != nil {
			return "", err
		}
	}
	return name, nil
}

// OutputFile is where, in a directory, the output of an actor is.
func OutputFile(dir string, ref actor.Ref) string {
	return filepath.Join(dir, ref.Atespace, ref.Name+".log")
}
