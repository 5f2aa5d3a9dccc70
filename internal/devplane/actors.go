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

// Sandboxes is the side that makes actors run. Contexts last for an operation's lease, whoever asked for it has left or not.
type Sandboxes interface {
	// Start runs or restores an actor on the worker of its Assignment, and returns once it answers. It may be called again
	// for one that runs there already. An error that wraps actor.ErrUnavailable means that the same may be tried again.
	Start(ctx context.Context, a actor.Actor, t actor.Template) error
	// Stop ends an actor for an operation, Suspend, Pause, Revert or Delete, and keeps of it what that operation says. An
	// actor without Assignment is kept on Node. It may be called again for one that is not there any more.
	Stop(ctx context.Context, a actor.Actor, op actor.Op) error
	// Ready reports whether a worker can be told anything now. It does not block.
	Ready(worker string) bool
}

// Plane is the control plane. Its methods are safe for concurrent use, also by several processes over one store. Errors are
// *Error, or the store's. Of two operations on one actor at a time the second is Aborted.
type Plane struct {
	// Signer is who certifies tunnels, and Tunnels what they are called. Both are set before use.
	Signer  Signer
	Tunnels actor.Tunnels

	store     store.Store
	sandboxes Sandboxes
}

// New makes a control plane over a store, which stays the caller's.
func New(s store.Store, b Sandboxes) *Plane { return &Plane{store: s, sandboxes: b} }

// update runs a transaction that may write and returns what it has made.
func update[T any](ctx context.Context, p *Plane, f func(tx store.Tx) (T, error)) (out T, err error) {
	err = p.store.Update(ctx, func(tx store.Tx) (err error) {
		out, err = f(tx)
		return err
	})
	return out, err
}

// view runs a transaction that only reads.
func view[T any](ctx context.Context, p *Plane, f func(tx store.Tx) (T, error)) (out T, err error) {
	err = p.store.View(ctx, func(tx store.Tx) (err error) {
		out, err = f(tx)
		return err
	})
	return out, err
}

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

// CreateActor makes an actor in the state SUSPENDED. Its atespace and its template must be there.
func (p *Plane) CreateActor(ctx context.Context, ref, template actor.Ref, selector map[string]string) (actor.Actor, error) {
	faults := append(ref.Check("actor.metadata"), template.Check("actor.actor_template")...)
	actor.CheckSelector(&faults, "actor.worker_selector", selector)
	if err := faults.Err(); err != nil {
		return actor.Actor{}, actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	return update(ctx, p, func(tx store.Tx) (actor.Actor, error) {
		a := actor.Actor{Ref: ref, Template: template, Selector: selector, State: actor.Suspended}
		for _, k := range []store.Key{atespaceKey(ref.Atespace), templateKey(template)} {
			if err := mustExist(tx, k, ref); err != nil {
				return a, err
			}
		}
		err := create(tx, actorKey(ref), &a, &a.Meta)
		return a, existing(err, "actor %s exists already", ref)
	})
}

// mustExist refuses an actor that belongs to something that is not there.
func mustExist(tx store.Tx, k store.Key, ref actor.Ref) error {
	_, err := tx.Get(k)
	if errors.Is(err, store.ErrNotFound) {
		return actor.Refuse(actor.FailedPrecondition, "%s %s of actor %s does not exist", k.Kind, k.Name, ref)
	}
	return err
}

// GetActor returns an actor.
func (p *Plane) GetActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	if err := checkRef("actor", ref); err != nil {
		return actor.Actor{}, err
	}
	return view(ctx, p, func(tx store.Tx) (actor.Actor, error) { return getActor(tx, ref) })
}

// ListActors returns up to limit actors in the order of their references, from the first behind after: those of an
// atespace, or with an empty one all.
func (p *Plane) ListActors(ctx context.Context, atespace string, after actor.Ref, limit int) ([]actor.Actor, error) {
	if atespace != "" {
		if err := actor.CheckName("atespace", atespace); err != nil {
			return nil, err
		}
	}
	return view(ctx, p, func(tx store.Tx) (out []actor.Actor, err error) {
		if atespace != "" {
			return actorsOf(tx, atespace, after.Name, limit)
		}
		err = each(tx, KindAtespace, "", func(r store.Record) error {
			from := ""
			if r.Name == after.Atespace {
				from = after.Name
			}
			if r.Name < after.Atespace || len(out) == limit {
				return nil
			}
			more, err := actorsOf(tx, r.Name, from, limit-len(out))
			out = append(out, more...)
			return err
		})
		return out, err
	})
}

func actorsOf(tx store.Tx, atespace, after string, limit int) ([]actor.Actor, error) {
	records, err := tx.List(KindActor, atespace, after, limit)
	if err != nil {
		return nil, err
	}
	out := make([]actor.Actor, len(records))
	for i, r := range records {
		out[i].Ref = actor.Ref{Atespace: r.Group, Name: r.Name}
		if err := decode(r, &out[i]); err != nil {
			return nil, err
		}
		out[i].Meta = metaOf(r)
	}
	return out, nil
}

// UpdateActor gives an actor another template and other labels, from its next resume on. UID and version are required.
func (p *Plane) UpdateActor(ctx context.Context, ref, template actor.Ref, selector map[string]string, t actor.Terms) (actor.Actor, error) {
	faults := append(ref.Check("actor.metadata"), template.Check("actor.actor_template")...)
	actor.CheckSelector(&faults, "actor.worker_selector", selector)
	t.Require(&faults, "actor.metadata")
	if err := faults.Err(); err != nil {
		return actor.Actor{}, actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	return update(ctx, p, func(tx store.Tx) (actor.Actor, error) {
		a, err := getActor(tx, ref)
		if err != nil {
			return a, err
		}
		if !t.Hold(a.Meta) {
			return a, actor.Refuse(actor.Aborted, "actor %s has another uid or version", ref)
		}
		if err := mustExist(tx, templateKey(template), ref); err != nil {
			return a, err
		}
		a.Template, a.Selector = template, selector
		err = putActor(tx, &a)
		return a, err
	})
}

// ResumeActor makes an actor run, and reports whether this call did: one that runs already is left alone. Without a free worker
// it is ResourceExhausted and the actor is as before. When the sandbox's side is Unavailable the actor stays in the state
// RESUMING with its worker, and the next call goes on there; any other failure crashes it.
func (p *Plane) ResumeActor(ctx context.Context, ref actor.Ref) (a actor.Actor, resumed bool, err error) {
	a, began, err := p.operate(ctx, ref, actor.Resume, actor.Terms{})
	return a, began && err == nil, err
}

// SuspendActor ends an actor and keeps it where every worker can resume it.
func (p *Plane) SuspendActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Suspend, actor.Terms{})
	return a, err
}

// PauseActor ends an actor and keeps it on its node, which alone can resume it.
func (p *Plane) PauseActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Pause, actor.Terms{})
	return a, err
}

// RevertActor drops what an actor has done since it was suspended last, or its crash.
func (p *Plane) RevertActor(ctx context.Context, ref actor.Ref) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Revert, actor.Terms{})
	return a, err
}

// DeleteActor forgets an actor and its policy, and returns it in the state DELETING. actor.Terms that do not hold are Aborted.
func (p *Plane) DeleteActor(ctx context.Context, ref actor.Ref, t actor.Terms) (actor.Actor, error) {
	a, _, err := p.operate(ctx, ref, actor.Delete, t)
	return a, err
}

// operate does an operation: it takes the lock and persists that it has begun, does the work, and persists the result. The
// work does not end with the caller's context, since an actor would be left half way.
func (p *Plane) operate(ctx context.Context, ref actor.Ref, op actor.Op, t actor.Terms) (a actor.Actor, began bool, err error) {
	if err := checkRef("actor", ref); err != nil {
		return a, false, err
	}
	b, err := update(ctx, p, func(tx store.Tx) (begun, error) { return p.begin(tx, ref, op, t) })
	a = b.actor
	if err != nil {
		return a, false, err
	}
	if b.token == "" || b.late != nil {
		return a, false, b.late
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease)
	defer cancel()
	failed := p.work(ctx, b, op)
	var refusal error
	err = p.store.Update(context.WithoutCancel(ctx), func(tx store.Tx) (err error) {
		a, refusal, err = finish(tx, b, op, failed)
		return err
	})
	return a, true, errors.Join(err, refusal)
}

// begun is an operation that has begun.
type begun struct {
	actor, was actor.Actor
	template   actor.Template // for Resume
	token      string         // of its lock; empty when there is nothing to do
	late       error          // a refusal that is written down as well
}

// begin is the first transaction.
func (p *Plane) begin(tx store.Tx, ref actor.Ref, op actor.Op, t actor.Terms) (b begun, err error) {
	if b.actor, err = getActor(tx, ref); err != nil {
		return b, err
	}
	a := &b.actor
	b.was = *a
	if !t.Hold(a.Meta) {
		return b, actor.Refuse(actor.Aborted, "actor %s has another uid or version", ref)
	}
	verdict := Judge(op, a.State, t.AnyState)
	if verdict == Already {
		return b, nil
	}
	if b.token, err = lock(tx, ref); err != nil {
		return b, err
	}
	if verdict == Illegal {
		return b, actor.Refuse(actor.FailedPrecondition, "actor %s is %s: cannot %s", ref, a.State, op)
	}
	if op == actor.Pause && a.Assignment.Node == "" {
		return b, actor.Refuse(actor.FailedPrecondition, "worker %s of actor %s has no node to keep it on: cannot pause", a.Assignment.Worker, ref)
	}
	if op == actor.Resume {
		if b.template, err = templateOf(tx, *a); err != nil {
			return b, err
		}
		if b.late, err = p.assign(tx, a, b.template); err != nil || b.late != nil {
			return b, err
		}
	}
	a.State = paths[op].through
	err = putActor(tx, a)
	return b, err
}

// templateOf reads an actor's template.
func templateOf(tx store.Tx, a actor.Actor) (actor.Template, error) {
	t, err := getTemplate(tx, a.Template)
	if e := (*actor.Error)(nil); errors.As(err, &e) && e.Code == actor.NotFound {
		err = actor.Refuse(actor.FailedPrecondition, "actor_template %s of actor %s does not exist any more", a.Template, a.Ref)
	}
	return t, err
}

// assign gives an actor that is to be resumed its worker. One that has one must go on there; if it cannot, it is crashed,
// which is written down, and the refusal is returned as late.
func (p *Plane) assign(tx store.Tx, a *actor.Actor, t actor.Template) (late, err error) {
	if a.State == actor.Resuming {
		w, err := getWorker(tx, a.Assignment.Worker)
		if err == nil && !w.Draining && w.Epoch == a.Assignment.Epoch && selects(a.Selector, w.Labels) && selects(t.Selector, w.Labels) {
			return nil, nil
		}
		late := actor.Refuse(actor.Aborted, "actor %s was resuming on worker %s, which takes no actors any more", a.Ref, a.Assignment.Worker)
		return late, errors.Join(crash(tx, a, "resume failed: "+late.Text), unlock(tx, a.Ref))
	}
	w, err := p.choose(tx, *a, t)
	if err != nil {
		return nil, err
	}
	a.Node = ""
	return nil, claim(tx, a, w)
}

// work is what is done between the two transactions.
func (p *Plane) work(ctx context.Context, b begun, op actor.Op) error {
	switch {
	case op == actor.Resume:
		return p.sandboxes.Start(ctx, b.actor, b.template)
	case b.actor.Assignment == nil && b.was.Node == "":
		return nil // there is nothing of it anywhere
	}
	return p.sandboxes.Stop(ctx, b.actor, op)
}

// finish is the last transaction. It writes nothing when the operation has lost its lock.
func finish(tx store.Tx, b begun, op actor.Op, failed error) (a actor.Actor, refusal, err error) {
	was := b.was
	held, err := tx.Get(lockKey(was.Ref))
	if errors.Is(err, store.ErrNotFound) || err == nil && held.UID != b.token {
		return was, actor.Refuse(actor.Aborted, "actor %s was taken over while it was to %s", was.Ref, op), nil
	}
	if err != nil {
		return was, nil, err
	}
	var l lockValue
	if err := errors.Join(decode(held, &l), tx.Delete(held.Key, held.Version)); err != nil {
		return was, nil, err
	}
	if a, err = getActor(tx, was.Ref); err != nil {
		return a, nil, err
	}
	if failed == nil && op == actor.Resume && l.Exit != "" {
		failed = errors.New(l.Exit)
	}
	if failed == nil {
		return a, nil, complete(tx, &a, op)
	}
	refusal, err = undo(tx, &a, was, op, failed)
	if err == nil && a.State == actor.Running && l.Exit != "" { // it would run again, but does not
		err = crash(tx, &a, l.Exit)
	}
	return a, refusal, err
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
	if !errors.Is(failed, actor.ErrUnavailable) {
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

// lockValue is the record of a lock.
type lockValue struct {
	Until time.Time `json:"until"` // end of the lease
	// Exit is how the actor has ended by itself since the operation began; empty when it has not.
	Exit string `json:"exit,omitempty"`
}

// lock takes the lock of an actor. The UID of its record is the token by which the holder knows it again: whoever takes it over
// makes another.
func lock(tx store.Tx, ref actor.Ref) (token string, err error) {
	r, err := tx.Get(lockKey(ref))
	if err == nil {
		var l lockValue
		if err := decode(r, &l); err != nil {
			return "", err
		}
		if left := time.Until(l.Until); left > 0 && left <= lease { // none lasts for longer, but by a clock that was ahead then
			return "", actor.Refuse(actor.Aborted, "another operation on actor %s is under way", ref)
		}
		if err := tx.Delete(r.Key, r.Version); err != nil {
			return "", err
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	value, err := json.Marshal(lockValue{Until: time.Now().Add(lease)})
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
