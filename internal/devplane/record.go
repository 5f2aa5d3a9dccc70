package devplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

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

// Meta is what the store knows of a record.
type Meta struct {
	UID     string    `json:"-"`
	Version int64     `json:"-"`
	Created time.Time `json:"-"`
	Updated time.Time `json:"-"`
}

func metaOf(r store.Record) Meta {
	return Meta{UID: r.UID, Version: r.Version, Created: r.Created, Updated: r.Updated}
}

// Actor is an actor as the control plane knows it.
type Actor struct {
	actor.Ref `json:"-"`
	Meta
	Template actor.Ref `json:"template"`
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
	ID        string       `json:"id"`    // SPIFFE ID
}

// Worker hosts actors.
type Worker struct {
	Name string `json:"-"`
	Meta
	Place
	Epoch  int64             `json:"epoch"`
	Labels map[string]string `json:"labels,omitempty"`
	// Actors is how many it takes at a time.
	Actors int `json:"actors"`
	// Draining workers keep their actors and get no others.
	Draining bool `json:"draining,omitempty"`
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
func getActor(tx store.Tx, ref actor.Ref) (Actor, error) {
	a := Actor{Ref: ref}
	r, err := tx.Get(actorKey(ref))
	if errors.Is(err, store.ErrNotFound) {
		return a, refuse(NotFound, "actor %s not found", ref)
	}
	if err != nil {
		return a, err
	}
	err = decode(r, &a)
	a.Meta = metaOf(r)
	return a, err
}

// putActor writes an actor that was read in the same transaction.
func putActor(tx store.Tx, a *Actor) error {
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

func getWorker(tx store.Tx, name string) (Worker, error) {
	w := Worker{Name: name}
	r, err := tx.Get(workerKey(name))
	if errors.Is(err, store.ErrNotFound) {
		return w, refuse(NotFound, "worker %s not found", name)
	}
	if err != nil {
		return w, err
	}
	err = decode(r, &w)
	w.Meta = metaOf(r)
	return w, err
}

func putWorker(tx store.Tx, w *Worker) error {
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
