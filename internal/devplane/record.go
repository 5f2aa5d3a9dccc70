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

func atespaceKey(name string) store.Key { return store.Key{Kind: KindAtespace, Name: name} }

func templateKey(r actor.Ref) store.Key {
	return store.Key{Kind: KindTemplate, Group: r.Atespace, Name: r.Name}
}

func policyKey(r actor.Ref) store.Key {
	return store.Key{Kind: KindPolicy, Group: r.Atespace, Name: r.Name}
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

// get reads a record. One that is not there is NotFound, with the words for it.
func get[T any](tx store.Tx, k store.Key, into *T, words string, args ...any) (actor.Meta, error) {
	r, err := tx.Get(k)
	if errors.Is(err, store.ErrNotFound) {
		return actor.Meta{}, actor.Refuse(actor.NotFound, words, args...)
	}
	if err != nil {
		return actor.Meta{}, err
	}
	return metaOf(r), decode(r, into)
}

// create makes a record of a value, and sets its meta.
func create[T any](tx store.Tx, k store.Key, value *T, meta *actor.Meta) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	r, err := tx.Create(k, newUID(), text)
	*meta = metaOf(r)
	return err
}

// put writes a value over the version that it was read in, and sets its meta.
func put[T any](tx store.Tx, k store.Key, value *T, meta *actor.Meta) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	r, err := tx.Update(k, meta.Version, text)
	if err == nil {
		*meta = metaOf(r)
	}
	return err
}

// existing puts AlreadyExists, with the words for it, in the place of the store's error.
func existing(err error, words string, args ...any) error {
	if errors.Is(err, store.ErrExists) {
		return actor.Refuse(actor.AlreadyExists, words, args...)
	}
	return err
}

// getActor reads an actor. One that is not there is NotFound.
func getActor(tx store.Tx, ref actor.Ref) (a actor.Actor, err error) {
	a.Ref = ref
	a.Meta, err = get(tx, actorKey(ref), &a, "actor %s not found", ref)
	return a, err
}

// putActor writes an actor that was read in the same transaction.
func putActor(tx store.Tx, a *actor.Actor) error { return put(tx, actorKey(a.Ref), a, &a.Meta) }

// getWorker reads a worker and counts its actors.
func getWorker(tx store.Tx, name string) (w actor.Worker, err error) {
	w.Name = name
	if w.Meta, err = get(tx, workerKey(name), &w, "worker %s not found", name); err != nil {
		return w, err
	}
	err = countHosted(tx, &w)
	return w, err
}

func putWorker(tx store.Tx, w *actor.Worker) error { return put(tx, workerKey(w.Name), w, &w.Meta) }

func countHosted(tx store.Tx, w *actor.Worker) error {
	w.Hosted = 0
	return each(tx, KindSlot, w.Name, func(store.Record) error { w.Hosted++; return nil })
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
