package devplane

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/store"
)

// Kinds of records. The group is the atespace unless something else is said.
const (
	KindAtespace = "atespace" // no group
	KindTemplate = "actor_template"
	KindActor    = "actor"
	KindPolicy   = "egress_policy" // by the actor's name
	KindWorker   = "worker"        // no group
	// KindSlot is an actor's place on a worker: the group is the worker, the name the actor's UID.
	KindSlot = "slot"
	// KindLock is held by the operation that is under way on an actor.
	KindLock = "lock"
)

func metaOf(r store.Record) actor.Meta {
	return actor.Meta{UID: r.UID, Version: r.Version, Created: r.Created, Updated: r.Updated}
}

func actorKey(r actor.Ref) store.Key {
	return store.Key{Kind: KindActor, Group: r.Atespace, Name: r.Name}
}

func lockKey(r actor.Ref) store.Key {
	return store.Key{Kind: KindLock, Group: r.Atespace, Name: r.Name}
}

func workerKey(name string) store.Key { return store.Key{Kind: KindWorker, Name: name} }

func slotKey(worker, uid string) store.Key {
	return store.Key{Kind: KindSlot, Group: worker, Name: uid}
}

func decode[T any](r store.Record, into *T) error {
	if err := json.Unmarshal(r.Value, into); err != nil {
		return fmt.Errorf("reading the record %s %s/%s: %w", r.Kind, r.Group, r.Name, err)
	}
	return nil
}

// getActor reads an actor. One that is not there is NotFound.
func getActor(tx store.Tx, ref actor.Ref) (actor.Actor, error) {
	a := actor.Actor{Ref: ref}
	r, err := tx.Get(actorKey(ref))
	if errors.Is(err, store.ErrNotFound) {
		return a, actor.Refuse(actor.NotFound, "actor %s not found", ref)
	}
	if err != nil {
		return a, err
	}
	err = decode(r, &a)
	a.Meta = metaOf(r)
	return a, err
}

// putActor writes an actor that was read in the same transaction.
func putActor(tx store.Tx, a *actor.Actor) error {
	value, err := json.Marshal(a)
	if err != nil {
		return err
	}
	r, err := tx.Update(actorKey(a.Ref), a.Version, value)
	if err == nil {
		a.Meta = metaOf(r)
	}
	return err
}

func getWorker(tx store.Tx, name string) (actor.Worker, error) {
	w := actor.Worker{Name: name}
	r, err := tx.Get(workerKey(name))
	if errors.Is(err, store.ErrNotFound) {
		return w, actor.Refuse(actor.NotFound, "worker %s not found", name)
	}
	if err != nil {
		return w, err
	}
	err = decode(r, &w)
	w.Meta = metaOf(r)
	return w, err
}

func putWorker(tx store.Tx, w *actor.Worker) error {
	value, err := json.Marshal(w)
	if err != nil {
		return err
	}
	r, err := tx.Update(workerKey(w.Name), w.Version, value)
	if err == nil {
		w.Meta = metaOf(r)
	}
	return err
}

// each calls f for all records of a kind and a group.
func each(tx store.Tx, kind, group string, f func(store.Record) error) error {
	for after := ""; ; {
		page, err := tx.List(kind, group, after, store.MaxList)
		if err != nil {
			return err
		}
		for _, r := range page {
			if err := f(r); err != nil {
				return err
			}
			after = r.Name
		}
		if len(page) < store.MaxList {
			return nil
		}
	}
}
