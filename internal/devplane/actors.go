// Package devplane is a control plane for development and tests: it keeps actors, workers and what belongs to them, and
// drives an actor from state to state. It owns the rules of that (which operation is legal when, who gets which worker, what
// a failure leaves behind) and lives as long as the process; everything that has to outlive it is in the store. It knows
// neither gRPC nor how a sandbox is made.
package devplane

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/store"
)

const (
	// lease is how long one operation may last. Its lock is then free for another one, and what it still wants to write is
	// refused.
	lease = 5 * time.Minute
	// maxCrash bounds the message of a crash, in bytes.
	maxCrash = 4096
)

// ErrUnavailable is what Sandboxes wrap when they could not be reached, and the same may be tried again.
var ErrUnavailable = errors.New("the worker is not available")

// Sandboxes is the side that makes actors run. Contexts last for an operation's lease, whoever asked for it has left or not.
type Sandboxes interface {
	// Start runs or restores an actor on the worker of its Assignment, and returns once it answers. It may be called again
	// for one that runs there already.
	Start(ctx context.Context, a actor.Actor) error
	// Stop ends an actor for an operation, Suspend, Pause, Revert or Delete, and keeps of it what that operation says. An
	// actor without Assignment is kept on Node. It may be called again for one that is not there any more.
	Stop(ctx context.Context, a actor.Actor, op actor.Op) error
}

// Actors drives actors. Its methods are safe for concurrent use, also by several processes over one store. Errors are
// *Error, or the store's. Of two operations on one actor at a time the second is Aborted.
type Actors struct {
	store     store.Store
	sandboxes Sandboxes
}

// NewActors makes the state machine over a store, which stays the caller's.
func NewActors(s store.Store, b Sandboxes) *Actors { return &Actors{store: s, sandboxes: b} }

// newUID makes a random UUID, RFC 9562 section 5.4.
func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// checkRef refuses a reference that is none, with the paths of the fields.
func checkRef(field string, r actor.Ref) error {
	if err := r.Check(field).Err(); err != nil {
		return actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	return nil
}

// Create makes an actor in the state SUSPENDED. Its atespace and its template must be there.
func (p *Actors) Create(ctx context.Context, ref, template actor.Ref, selector map[string]string) (actor.Actor, error) {
	if faults := append(ref.Check("actor.metadata"), template.Check("actor.actor_template")...); faults.Err() != nil {
		return actor.Actor{}, actor.Refuse(actor.InvalidArgument, "%v", faults)
	}
	a := actor.Actor{Ref: ref, Template: template, Selector: selector, State: actor.Suspended}
	value, err := json.Marshal(&a)
	if err != nil {
		return actor.Actor{}, err
	}
	err = p.store.Update(ctx, func(tx store.Tx) error {
		for _, k := range []store.Key{{Kind: KindAtespace, Name: ref.Atespace}, {Kind: KindTemplate, Group: template.Atespace, Name: template.Name}} {
			if _, err := tx.Get(k); errors.Is(err, store.ErrNotFound) {
				return actor.Refuse(actor.FailedPrecondition, "%s %s of actor %s does not exist", k.Kind, k.Name, ref)
			} else if err != nil {
				return err
			}
		}
		r, err := tx.Create(actorKey(ref), newUID(), value)
		if errors.Is(err, store.ErrExists) {
			return actor.Refuse(actor.AlreadyExists, "actor %s exists already", ref)
		}
		a.Meta = metaOf(r)
		return err
	})
	return a, err
}

// Get returns an actor.
func (p *Actors) Get(ctx context.Context, ref actor.Ref) (a actor.Actor, err error) {
	if err := checkRef("actor", ref); err != nil {
		return a, err
	}
	err = p.store.View(ctx, func(tx store.Tx) (err error) {
		a, err = getActor(tx, ref)
		return err
	})
	return a, err
}

// Resume makes an actor run, and reports whether this call did: one that runs already is left alone. Without a free worker
// it is ResourceExhausted and the actor is as before. When the sandbox's side is Unavailable the actor stays in the state
// RESUMING with its worker, and the next call goes on there; any other failure crashes it.
func (p *Actors) Resume(ctx context.Context, ref actor.Ref) (a actor.Actor, resumed bool, err error) {
	a, began, err := p.operate(ctx, ref, actor.Resume, Terms{})
	return a, began && err == nil, err
}

// Suspend ends an actor and keeps it where every worker can resume it.
func (p *Actors) Suspend(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Suspend, Terms{})
	return a, err
}

// Pause ends an actor and keeps it on its node, which alone can resume it.
func (p *Actors) Pause(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Pause, Terms{})
	return a, err
}

// Revert drops what an actor has done since it was suspended last, or its crash.
func (p *Actors) Revert(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Revert, Terms{})
	return a, err
}

// Terms are conditions of Delete.
type Terms struct {
	AnyState bool
	UID      string // of the actor that is meant; empty is whatever is there
	Version  int64  // likewise; 0 is whatever it has
}

// Delete forgets an actor and its policy, and returns it in the state DELETING. Terms that do not hold are Aborted.
func (p *Actors) Delete(ctx context.Context, ref actor.Ref, t Terms) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Delete, t)
	return a, err
}

// operate does an operation: it takes the lock and persists that it has begun, does the work, and persists the result. The
// work does not end with the caller's context, since an actor would be left half way.
func (p *Actors) operate(ctx context.Context, ref actor.Ref, op actor.Op, t Terms) (a actor.Actor, began bool, err error) {
	if err := checkRef("actor", ref); err != nil {
		return a, false, err
	}
	var was actor.Actor
	var token string
	var late error // a refusal that is written down as well
	err = p.store.Update(ctx, func(tx store.Tx) (err error) {
		a, was, token, late, err = begin(tx, ref, op, t)
		return err
	})
	if err != nil || token == "" || late != nil {
		return a, false, errors.Join(err, late)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease)
	defer cancel()
	failed := p.work(ctx, a, was, op)
	var refusal error
	err = p.store.Update(context.WithoutCancel(ctx), func(tx store.Tx) (err error) {
		a, refusal, err = finish(tx, was, op, token, failed)
		return err
	})
	return a, true, errors.Join(err, refusal)
}

// begin is the first transaction. Without a token there is nothing to do.
func begin(tx store.Tx, ref actor.Ref, op actor.Op, t Terms) (a, was actor.Actor, token string, late, err error) {
	if a, err = getActor(tx, ref); err != nil {
		return a, was, "", nil, err
	}
	was = a
	if t.UID != "" && t.UID != a.UID || t.Version != 0 && t.Version != a.Version {
		return a, was, "", nil, actor.Refuse(actor.Aborted, "actor %s has another uid or version", ref)
	}
	verdict := Judge(op, a.State, t.AnyState)
	if verdict == Already {
		return a, was, "", nil, nil
	}
	if token, err = lock(tx, ref); err != nil {
		return a, was, "", nil, err
	}
	if verdict == Illegal {
		return a, was, "", nil, actor.Refuse(actor.FailedPrecondition, "actor %s is %s: cannot %s", ref, a.State, op)
	}
	if op == actor.Resume {
		if late, err = assign(tx, &a); err != nil || late != nil {
			return a, was, token, late, err
		}
	}
	a.State = paths[op].through
	return a, was, token, nil, putActor(tx, &a)
}

// assign gives an actor that is to be resumed its worker. One that has one must go on there; if it cannot, it is crashed,
// which is written down, and the refusal is returned as late.
func assign(tx store.Tx, a *actor.Actor) (late, err error) {
	if a.State == actor.Resuming {
		w, err := getWorker(tx, a.Assignment.Worker)
		if err == nil && !w.Draining && w.Epoch == a.Assignment.Epoch && selects(a.Selector, w.Labels) {
			return nil, nil
		}
		late := actor.Refuse(actor.Aborted, "actor %s was resuming on worker %s, which takes no actors any more", a.Ref, a.Assignment.Worker)
		return late, errors.Join(crash(tx, a, "resume failed: "+late.Text), unlock(tx, a.Ref))
	}
	w, err := choose(tx, *a)
	if err != nil {
		return nil, err
	}
	a.Node = ""
	return nil, claim(tx, a, w)
}

// work is what is done between the two transactions.
func (p *Actors) work(ctx context.Context, a, was actor.Actor, op actor.Op) error {
	switch {
	case op == actor.Resume:
		return p.sandboxes.Start(ctx, a)
	case a.Assignment == nil && was.Node == "":
		return nil // there is nothing of it anywhere
	}
	return p.sandboxes.Stop(ctx, a, op)
}

// finish is the last transaction. It writes nothing when the operation has lost its lock.
func finish(tx store.Tx, was actor.Actor, op actor.Op, token string, failed error) (a actor.Actor, refusal, err error) {
	held, err := tx.Get(lockKey(was.Ref))
	if errors.Is(err, store.ErrNotFound) || err == nil && held.UID != token {
		return was, actor.Refuse(actor.Aborted, "actor %s was taken over while it was to %s", was.Ref, op), nil
	}
	if err != nil {
		return was, nil, err
	}
	if err := tx.Delete(held.Key, held.Version); err != nil {
		return was, nil, err
	}
	if a, err = getActor(tx, was.Ref); err != nil {
		return a, nil, err
	}
	if failed != nil {
		refusal, err = undo(tx, &a, was, op, failed)
		return a, refusal, err
	}
	return a, nil, complete(tx, &a, op)
}

// complete writes down that an operation has succeeded.
func complete(tx store.Tx, a *actor.Actor, op actor.Op) error {
	if op != actor.Resume {
		kept := ""
		if op == actor.Pause {
			kept = a.Assignment.Node
		}
		if err := release(tx, a); err != nil {
			return err
		}
		a.Node = kept
	}
	if op == actor.Delete {
		return forget(tx, *a)
	}
	a.State, a.Crash, a.CrashTime = paths[op].end, "", time.Time{}
	return putActor(tx, a)
}

// undo writes down what a failure leaves. After Unavailable, Resume, Suspend and Delete leave the actor in the state that
// they pass through, where they are legal again (Delete in any state); Pause and Revert leave it as it was. Every other
// failure crashes it.
func undo(tx store.Tx, a *actor.Actor, was actor.Actor, op actor.Op, failed error) (refusal, err error) {
	if !errors.Is(failed, ErrUnavailable) {
		text := fmt.Sprintf("%s failed: %v", op, failed)
		return &actor.Error{Code: actor.Internal, Text: fmt.Sprintf("actor %s: %s", a.Ref, text), Err: failed}, crash(tx, a, text)
	}
	if op == actor.Pause || op == actor.Revert {
		a.State = was.State
		err = putActor(tx, a)
	}
	return actor.Refuse(actor.Unavailable, "actor %s: cannot %s now: %v", a.Ref, op, failed), err
}

// crash ends an actor's life until somebody reverts or deletes it, and gives up its place in the same transaction.
func crash(tx store.Tx, a *actor.Actor, why string) error {
	if err := release(tx, a); err != nil {
		return err
	}
	if len(why) > maxCrash {
		why = why[:maxCrash]
	}
	a.State, a.Node, a.Crash, a.CrashTime = actor.Crashed, "", strings.ToValidUTF8(why, ""), time.Now()
	return putActor(tx, a)
}

// forget removes an actor and what belongs to it.
func forget(tx store.Tx, a actor.Actor) error {
	policy := store.Key{Kind: KindPolicy, Group: a.Atespace, Name: a.Name}
	if r, err := tx.Get(policy); err == nil {
		if err := tx.Delete(policy, r.Version); err != nil {
			return err
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return tx.Delete(actorKey(a.Ref), a.Version)
}

// lock takes the lock of an actor, which is a record with the end of its lease. Its UID is the token by which the holder
// knows it again: whoever takes it over makes another.
func lock(tx store.Tx, ref actor.Ref) (token string, err error) {
	r, err := tx.Get(lockKey(ref))
	if err == nil {
		var until time.Time
		if err := decode(r, &until); err != nil {
			return "", err
		}
		if time.Now().Before(until) {
			return "", actor.Refuse(actor.Aborted, "another operation on actor %s is under way", ref)
		}
		if err := tx.Delete(r.Key, r.Version); err != nil {
			return "", err
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	value, err := json.Marshal(time.Now().Add(lease))
	if err != nil {
		return "", err
	}
	token = newUID()
	_, err = tx.Create(lockKey(ref), token, value)
	return token, err
}

// unlock takes the lock from whoever has it.
func unlock(tx store.Tx, ref actor.Ref) error {
	r, err := tx.Get(lockKey(ref))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.Delete(r.Key, r.Version)
}
