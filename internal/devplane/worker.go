package devplane

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/store"
)

// Register adds a worker, or replaces what is known of it. Doing it again changes nothing. A worker with another epoch than
// before has lost its actors: they are crashed.
func (p *Actors) Register(ctx context.Context, w actor.Worker) (actor.Worker, error) {
	if !actor.ValidName(w.Name) || w.Actors < 1 || len(w.Addrs) == 0 {
		return actor.Worker{}, actor.Refuse(actor.InvalidArgument, "worker: a name, an address and room for an actor are required")
	}
	err := p.store.Update(ctx, func(tx store.Tx) error {
		before, err := getWorker(tx, w.Name)
		if e := (*actor.Error)(nil); errors.As(err, &e) && e.Code == actor.NotFound {
			value, err := json.Marshal(w)
			if err != nil {
				return err
			}
			r, err := tx.Create(workerKey(w.Name), newUID(), value)
			w.Meta = metaOf(r)
			return err
		}
		if err != nil {
			return err
		}
		if before.Epoch != w.Epoch {
			if err := p.lose(tx, w.Name, "the worker began anew"); err != nil {
				return err
			}
		}
		w.Meta = before.Meta
		return putWorker(tx, &w)
	})
	return w, err
}

// Drain keeps further actors from a worker.
func (p *Actors) Drain(ctx context.Context, name string) (actor.Worker, error) {
	var w actor.Worker
	err := p.store.Update(ctx, func(tx store.Tx) (err error) {
		if w, err = getWorker(tx, name); err != nil {
			return err
		}
		w.Draining = true
		return putWorker(tx, &w)
	})
	return w, err
}

// Remove forgets a worker. Its actors are crashed, and operations on them that are under way will find that they have lost.
func (p *Actors) Remove(ctx context.Context, name string) error {
	return p.store.Update(ctx, func(tx store.Tx) error {
		w, err := getWorker(tx, name)
		if err != nil {
			return err
		}
		if err := p.lose(tx, name, "the worker is gone"); err != nil {
			return err
		}
		return tx.Delete(workerKey(name), w.Version)
	})
}

// lose crashes all actors of a worker.
func (p *Actors) lose(tx store.Tx, worker, why string) error {
	return each(tx, KindSlot, worker, func(r store.Record) error {
		ref, err := actor.ParseRef(string(r.Value))
		if err != nil {
			return err
		}
		a, err := getActor(tx, ref)
		if err != nil {
			return err
		}
		if err := unlock(tx, ref); err != nil {
			return err
		}
		return crash(tx, &a, why)
	})
}

// choose finds the worker for an actor: one that takes actors, has its labels and, for a paused actor, is on its node; of
// these the one with the most room by number, and by name among equals.
func choose(tx store.Tx, a actor.Actor) (actor.Worker, error) {
	var best actor.Worker
	room := 0
	err := each(tx, KindWorker, "", func(r store.Record) error {
		w := actor.Worker{Name: r.Name}
		if err := decode(r, &w); err != nil {
			return err
		}
		w.Meta = metaOf(r)
		if w.Draining || a.State == actor.Paused && w.Node != a.Node || !selects(a.Selector, w.Labels) {
			return nil
		}
		free := w.Actors
		if err := each(tx, KindSlot, w.Name, func(store.Record) error { free--; return nil }); err != nil {
			return err
		}
		if free > room {
			best, room = w, free
		}
		return nil
	})
	if err == nil && room == 0 {
		err = actor.Refuse(actor.ResourceExhausted, "no free workers available")
	}
	return best, err
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// claim takes a place on a worker for an actor.
func claim(tx store.Tx, a *actor.Actor, w actor.Worker) error {
	_, err := tx.Create(slotKey(w.Name, a.UID), newUID(), []byte(a.Ref.String()))
	a.Assignment = &actor.Assignment{Worker: w.Name, Epoch: w.Epoch, Place: w.Place}
	return err
}

// release gives an actor's place up, if it has one.
func release(tx store.Tx, a *actor.Actor) error {
	if a.Assignment == nil {
		return nil
	}
	k := slotKey(a.Assignment.Worker, a.UID)
	a.Assignment = nil
	r, err := tx.Get(k)
	if err != nil {
		return err
	}
	return tx.Delete(k, r.Version)
}
