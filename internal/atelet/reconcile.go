package atelet

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// attachTime bounds what is put in order before orders come.
const attachTime = 2 * time.Minute

// attached puts what is here and what the control plane knows in order, before orders come.
func (s *session) attached(ctx context.Context, w actor.Worker) {
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	s.log.Info("the worker is attached", "worker_uid", w.UID, "slots", w.Actors, "hosted", w.Hosted, "draining", w.Draining)
	s.reconcile(ctx)
}

// sweep looks for what is left of actors that are over, and keeps the authorities current that actors read.
func (s *session) sweep(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := s.programs.refresh(); err != nil {
			s.log.Warn("the authorities of actors are not current", "error", err)
		}
		s.reconcile(ctx)
	}
}

// adopt writes down actors of the worker's that there is no record of, so that their users are not given away, and their keys are
// certified.
func (s *session) adopt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	stays, err := s.orders.stays(ctx)
	if err != nil {
		return err
	}
	for _, stay := range stays {
		_, err := s.roster.change(stay.UID, func(r *record) error {
			if r.State == "" && stay.User != 0 {
				*r = record{Ref: stay.Ref, User: stay.User, State: active, Worker: s.name(), Epoch: s.about.Epoch}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reconcile ends actors that are not this worker's any more, finds out which have ended without being noticed, and tells again
// what the control plane has not heard.
func (s *session) reconcile(ctx context.Context) {
	records, err := s.roster.all()
	if err != nil {
		s.log.Error("the records of actors cannot be read", "error", err)
		return
	}
	runs, err := s.running(ctx) // after the records: what is active by them and does not run has ended
	if err != nil {
		return // the process is gone, which is noticed elsewhere
	}
	for _, r := range records {
		if ctx.Err() != nil {
			return
		}
		if r.State == frozen || r.here(s.name()) {
			s.settle(ctx, r, runs[r.UID])
		}
	}
}

func (s *session) running(ctx context.Context) (map[string]bool, error) {
	stays, err := s.orders.stays(ctx)
	runs := make(map[string]bool, len(stays))
	for _, stay := range stays {
		runs[stay.UID] = true
	}
	return runs, err
}

// settle does for one actor what reconcile is for. A record that changes meanwhile is left alone.
func (s *session) settle(ctx context.Context, r record, runs bool) {
	ref, err := actor.ParseRef(r.Ref)
	if err != nil {
		s.log.Error("a record of nobody", "file", s.roster.file(r.UID))
		return
	}
	within, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	where, err := s.o.Client.Whereabouts(within, ref, r.UID)
	if err != nil {
		return // the control plane cannot say now
	}
	if where == control.Gone || r.State != frozen && where == control.Elsewhere {
		s.log.Warn("an actor is over for the control plane and is removed", "actor", r.Ref, "uid", r.UID, "state", string(r.State))
		if s.retire(r, r.How) {
			s.drop(ctx, r.UID)
		}
		return
	}
	if r.State == active && !runs {
		s.log.Warn("an actor has ended while nobody watched", "actor", r.Ref, "uid", r.UID)
		if s.retire(r, "while nobody watched") {
			r.State = over
		}
	}
	if r.State == over {
		select {
		case s.queue <- workerActor{r.Ref, r.UID}:
		default:
		}
	}
}

// retire notes that an actor is over, unless its record is another one by now.
func (s *session) retire(was record, how string) (done bool) {
	_, err := s.roster.change(was.UID, func(r *record) error {
		if done = r.State != "" && r.Serial == was.Serial; done {
			r.State, r.How, r.Worker, r.Epoch = over, how, s.name(), s.about.Epoch
		}
		return nil
	})
	return done && err == nil
}
