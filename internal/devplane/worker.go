package devplane

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/store"
)

const (
	// maxPlaces bounds how many actors a worker may take.
	maxPlaces = 10_000
	// maxLabels bounds labels and facts about the machine of a worker.
	maxLabels = 32
)

// checkWorker refuses what cannot be a worker.
func checkWorker(w actor.Worker) error {
	var f actor.Faults
	f.Name("worker.metadata.name", w.Name)
	checkCapacity(&f, "worker.status.capacity.actors", w.Actors)
	four, six := 0, 0
	for _, a := range w.Addrs {
		if a.Is4() {
			four++
		} else {
			six++
		}
	}
	if len(w.Addrs) == 0 || four > 1 || six > 1 {
		f.Add("worker.ips", "must be one address of a family or two")
	}
	checkLabels(&f, "worker.labels", w.Labels)
	checkLabels(&f, "worker.status.hardware.attributes", w.Hardware)
	for _, s := range []string{w.Namespace, w.Pool, w.Pod, w.PodUID, w.Node, w.SandboxClass} {
		if len(s) > 253 {
			f.Add("worker", "holds %.80q and more, at most 253 bytes are allowed", s)
		}
	}
	return invalid(f)
}

func checkCapacity(f *actor.Faults, field string, actors int) {
	if actors < 0 || actors > maxPlaces {
		f.Add(field, "%d, must be 0 to %d", actors, maxPlaces)
	}
}

func checkLabels(f *actor.Faults, field string, labels map[string]string) {
	if len(labels) > maxLabels {
		f.Add(field, "are %d, at most %d are allowed", len(labels), maxLabels)
		return
	}
	for k, v := range labels {
		if k == "" || len(k) > 253 || len(v) > 253 {
			f.Add(field, "%.80q: keys are 1 to 253 bytes, values at most that", k)
		}
	}
}

// invalid makes a refusal of faults, nil without any.
func invalid(f actor.Faults) error {
	if err := f.Err(); err != nil {
		return actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	return nil
}

func isNotFound(err error) bool {
	e := (*actor.Error)(nil)
	return errors.As(err, &e) && e.Code == actor.NotFound
}

// AttachWorker adds a worker, or replaces what is known of it, for the process whose identity is w.ID. The name is bound to the
// identity from then on. Doing it again changes nothing. A worker with another epoch than before has lost its actors: they
// are crashed. One that is draining goes on draining.
func (p *Plane) AttachWorker(ctx context.Context, w actor.Worker) (actor.Worker, error) {
	if err := checkWorker(w); err != nil {
		return actor.Worker{}, err
	}
	return update(ctx, p, func(tx store.Tx) (actor.Worker, error) {
		before, err := getWorker(tx, w.Name)
		if isNotFound(err) {
			err = create(tx, workerKey(w.Name), &w, &w.Meta)
			return w, err
		}
		if err != nil {
			return w, err
		}
		if err := bound(before, w.ID); err != nil {
			return w, err
		}
		if before.Epoch != w.Epoch {
			if err := p.lose(tx, w.Name, "the worker began anew"); err != nil {
				return w, err
			}
		}
		w.Meta, w.Draining = before.Meta, before.Draining
		if err := errors.Join(putWorker(tx, &w), abandon(tx, before.Node)); err != nil {
			return w, err
		}
		err = countHosted(tx, &w)
		return w, err
	})
}

// bound refuses an identity that is not the worker's. One that has none yet takes any.
func bound(w actor.Worker, caller string) error {
	if w.ID != "" && w.ID != caller {
		return actor.Refuse(actor.PermissionDenied, "worker %s belongs to another identity", w.Name)
	}
	return nil
}

// RegisterWorker replaces what a worker has to give, for the process with an identity, to which it is bound from then on. The
// worker must be there. Doing it again changes nothing.
func (p *Plane) RegisterWorker(ctx context.Context, caller, name string, c actor.Capacity) (actor.Worker, error) {
	var f actor.Faults
	f.Name("worker.name", name)
	checkCapacity(&f, "capacity.actors", c.Actors)
	checkLabels(&f, "hardware.attributes", c.Hardware)
	if err := invalid(f); err != nil {
		return actor.Worker{}, err
	}
	return p.changeWorker(ctx, name, func(_ store.Tx, w *actor.Worker) error {
		if err := bound(*w, caller); err != nil {
			return err
		}
		w.ID, w.Actors, w.Resources, w.Hardware = caller, c.Actors, c.Resources, c.Hardware
		return nil
	})
}

// changeWorker reads, changes and writes a worker.
func (p *Plane) changeWorker(ctx context.Context, name string, f func(store.Tx, *actor.Worker) error) (actor.Worker, error) {
	return update(ctx, p, func(tx store.Tx) (actor.Worker, error) {
		w, err := getWorker(tx, name)
		if err != nil {
			return w, err
		}
		node := w.Node
		if err := f(tx, &w); err != nil {
			return w, err
		}
		if err := errors.Join(putWorker(tx, &w), abandon(tx, node)); err != nil {
			return w, err
		}
		err = countHosted(tx, &w)
		return w, err
	})
}

// CreateWorker adds a worker before it comes. It is bound to whoever registers it first.
func (p *Plane) CreateWorker(ctx context.Context, w actor.Worker) (actor.Worker, error) {
	if err := checkWorker(w); err != nil {
		return actor.Worker{}, err
	}
	w.ID, w.Draining = "", false
	return update(ctx, p, func(tx store.Tx) (actor.Worker, error) {
		err := create(tx, workerKey(w.Name), &w, &w.Meta)
		return w, existing(err, "worker %s exists already", w.Name)
	})
}

// UpdateWorker replaces the place, the epoch and the labels of a worker. UID and version are required. With another epoch its
// actors are crashed.
func (p *Plane) UpdateWorker(ctx context.Context, w actor.Worker, t actor.Terms) (actor.Worker, error) {
	if err := checkWorker(w); err != nil {
		return actor.Worker{}, err
	}
	var f actor.Faults
	if t.Require(&f, "worker.metadata"); len(f) > 0 {
		return actor.Worker{}, invalid(f)
	}
	return p.changeWorker(ctx, w.Name, func(tx store.Tx, have *actor.Worker) error {
		if !t.Hold(have.Meta) {
			return actor.Refuse(actor.Aborted, "worker %s has another uid or version", w.Name)
		}
		if have.Epoch != w.Epoch {
			if err := p.lose(tx, w.Name, "the worker began anew"); err != nil {
				return err
			}
		}
		id := have.ID
		have.Place, have.Epoch, have.SandboxClass, have.Labels = w.Place, w.Epoch, w.SandboxClass, maps.Clone(w.Labels)
		have.ID = id
		return nil
	})
}

// GetWorker returns a worker.
func (p *Plane) GetWorker(ctx context.Context, name string) (actor.Worker, error) {
	if err := actor.CheckName("worker.name", name); err != nil {
		return actor.Worker{}, err
	}
	return view(ctx, p, func(tx store.Tx) (actor.Worker, error) { return getWorker(tx, name) })
}

// ListWorkers returns up to limit workers in the order of their names, from the first behind after.
func (p *Plane) ListWorkers(ctx context.Context, after string, limit int) ([]actor.Worker, error) {
	return view(ctx, p, func(tx store.Tx) ([]actor.Worker, error) {
		records, err := tx.List(KindWorker, "", after, limit)
		out := make([]actor.Worker, len(records))
		for i, r := range records {
			out[i].Name = r.Name
			if err := errors.Join(decode(r, &out[i]), countHosted(tx, &out[i])); err != nil {
				return nil, err
			}
			out[i].Meta = metaOf(r)
		}
		return out, err
	})
}

// ListHosted returns up to limit actors that have a place on a worker, in the order of their UIDs, from the first behind after.
func (p *Plane) ListHosted(ctx context.Context, name, after string, limit int) ([]actor.Actor, error) {
	if err := actor.CheckName("worker.name", name); err != nil {
		return nil, err
	}
	return view(ctx, p, func(tx store.Tx) (out []actor.Actor, err error) {
		if _, err := getWorker(tx, name); err != nil {
			return nil, err
		}
		records, err := tx.List(KindSlot, name, after, limit)
		for _, r := range records {
			a, err := hostedBy(tx, r)
			if err != nil {
				return nil, err
			}
			out = append(out, a)
		}
		return out, err
	})
}

// hostedBy reads the actor that has a place.
func hostedBy(tx store.Tx, slot store.Record) (actor.Actor, error) {
	ref, err := actor.ParseRef(string(slot.Value))
	if err != nil {
		return actor.Actor{}, err
	}
	return getActor(tx, ref)
}

// DrainWorker keeps further actors from a worker. Doing it again changes nothing.
func (p *Plane) DrainWorker(ctx context.Context, name string) (actor.Worker, error) {
	if w, err := p.GetWorker(ctx, name); err != nil || w.Draining {
		return w, err
	}
	return p.changeWorker(ctx, name, func(_ store.Tx, w *actor.Worker) error { w.Draining = true; return nil })
}

// DeleteWorker forgets a worker, and returns what it was. Its actors are crashed, with the last worker of a node also those that
// are kept there, and operations on them that are under way will find that they have lost.
func (p *Plane) DeleteWorker(ctx context.Context, name string, t actor.Terms) (actor.Worker, error) {
	if err := actor.CheckName("worker.name", name); err != nil {
		return actor.Worker{}, err
	}
	return update(ctx, p, func(tx store.Tx) (actor.Worker, error) {
		w, err := getWorker(tx, name)
		if err != nil {
			return w, err
		}
		if !t.Hold(w.Meta) {
			return w, actor.Refuse(actor.Aborted, "worker %s has another uid or version", name)
		}
		if err := p.lose(tx, name, "the worker is gone"); err != nil {
			return w, err
		}
		return w, errors.Join(tx.Delete(workerKey(name), w.Version), abandon(tx, w.Node))
	})
}

// abandon crashes the actors that are kept on a node which no worker is on any more: nobody could resume or end them, and they
// could not even be deleted.
func abandon(tx store.Tx, node string) error {
	if node == "" {
		return nil
	}
	served := errors.New("served")
	err := each(tx, KindWorker, "", func(r store.Record) error {
		var w actor.Worker
		if err := decode(r, &w); err != nil {
			return err
		}
		if w.Node == node {
			return served
		}
		return nil
	})
	if errors.Is(err, served) {
		return nil
	}
	if err != nil {
		return err
	}
	return each(tx, KindAtespace, "", func(at store.Record) error {
		return each(tx, KindActor, at.Name, func(r store.Record) error {
			a := actor.Actor{Ref: actor.Ref{Atespace: r.Group, Name: r.Name}}
			if err := decode(r, &a); err != nil || a.Node != node {
				return err
			}
			a.Meta = metaOf(r)
			return errors.Join(unlock(tx, a.Ref), crash(tx, &a, fmt.Sprintf("node %s, where it was kept, is gone", node)))
		})
	})
}

// lose crashes all actors of a worker.
func (p *Plane) lose(tx store.Tx, worker, why string) error {
	return each(tx, KindSlot, worker, func(r store.Record) error {
		a, err := hostedBy(tx, r)
		if err != nil {
			return err
		}
		if err := unlock(tx, a.Ref); err != nil {
			return err
		}
		return crash(tx, &a, why)
	})
}

// choose finds the worker for an actor: one that can be told and takes actors, has its labels and those of its template and,
// for a paused actor, is on its node; of these the one with the most room by number, and by name among equals.
func (p *Plane) choose(tx store.Tx, a actor.Actor, t actor.Template) (actor.Worker, error) {
	var best actor.Worker
	room := 0
	err := each(tx, KindWorker, "", func(r store.Record) error {
		w := actor.Worker{Name: r.Name}
		if err := decode(r, &w); err != nil {
			return err
		}
		w.Meta = metaOf(r)
		if w.Draining || a.State == actor.Paused && w.Node != a.Node || !selects(a.Selector, w.Labels) || !selects(t.Selector, w.Labels) || !p.sandboxes.Ready(w.Name) {
			return nil
		}
		if err := countHosted(tx, &w); err != nil {
			return err
		}
		if free := w.Actors - w.Hosted; free > room {
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
