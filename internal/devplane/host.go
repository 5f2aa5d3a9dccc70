package devplane

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/store"
)

// What the process may do that hosts an actor, and nobody else. The caller is its SPIFFE ID, as it was proven.

// Signer certifies the key of a certificate signing request; *cert.Authority is one.
type Signer interface {
	IssueFor(request []byte, l cert.Leaf) ([][]byte, error)
}

// hosted reads an actor that is on a worker of the caller's. Another UID than the present one is Aborted: whoever asks means
// an actor that is not there any more.
func hosted(tx store.Tx, caller string, ref actor.Ref, uid string) (actor.Actor, error) {
	a, err := getActor(tx, ref)
	if err != nil {
		return a, err
	}
	if a.UID != uid {
		return a, actor.Refuse(actor.Aborted, "actor %s has another uid", ref)
	}
	if a.Assignment == nil {
		return a, actor.Refuse(actor.PermissionDenied, "actor %s is on no worker of the caller's", ref)
	}
	w, err := getWorker(tx, a.Assignment.Worker)
	if err == nil && (w.ID != caller || caller == "" || w.Epoch != a.Assignment.Epoch) {
		err = actor.Refuse(actor.PermissionDenied, "actor %s is on no worker of the caller's", ref)
	}
	return a, err
}

// MintWorkerCertificate certifies a key for tunnels on behalf of an actor, for the process that hosts it. The chain is DER, leaf
// first. An actor that has left meanwhile is Aborted or PermissionDenied, and there is no certificate.
func (p *Plane) MintWorkerCertificate(ctx context.Context, caller string, ref actor.Ref, uid string, request []byte) ([][]byte, error) {
	if err := checkRef("actor", ref); err != nil {
		return nil, err
	}
	if uid == "" || len(request) == 0 || len(request) > cert.MaxRequest {
		return nil, actor.Refuse(actor.InvalidArgument, "actor_uid and a certificate_signing_request of 1 to %d bytes are required", cert.MaxRequest)
	}
	check := func(tx store.Tx) (actor.Actor, error) { return hosted(tx, caller, ref, uid) }
	if _, err := view(ctx, p, check); err != nil {
		return nil, err
	}
	chain, err := p.Signer.IssueFor(request, cert.TunnelLeaf(p.Tunnels.ID(ref)))
	if errors.Is(err, cert.ErrRequest) {
		return nil, actor.Refuse(actor.InvalidArgument, "certificate_signing_request: %v", err)
	}
	if err != nil {
		return nil, err
	}
	if _, err := view(ctx, p, check); err != nil { // it may have gone while its certificate was made
		return nil, err
	}
	return chain, nil
}

// RequestSuspend suspends an actor for the worker that it is on. On any other worker, or on none, it is NotFound.
func (p *Plane) RequestSuspend(ctx context.Context, caller, worker string, ref actor.Ref, uid string) (actor.Actor, error) {
	if err := checkRef("actor", ref); err != nil {
		return actor.Actor{}, err
	}
	if !actor.ValidName(worker) || uid == "" {
		return actor.Actor{}, actor.Refuse(actor.InvalidArgument, "worker.name and actor_uid are required")
	}
	a, err := view(ctx, p, func(tx store.Tx) (actor.Actor, error) {
		w, err := getWorker(tx, worker)
		if err != nil {
			return actor.Actor{}, err
		}
		if w.ID != caller || caller == "" {
			return actor.Actor{}, actor.Refuse(actor.PermissionDenied, "worker %s belongs to another identity", worker)
		}
		a, err := getActor(tx, ref)
		if err == nil && (a.Assignment == nil || a.Assignment.Worker != worker) {
			err = actor.Refuse(actor.NotFound, "actor %s is not on worker %s", ref, worker)
		}
		return a, err
	})
	if err != nil {
		return a, err
	}
	if a.UID != uid {
		return a, actor.Refuse(actor.Aborted, "actor %s has another uid", ref)
	}
	// The version holds it to the place where it was just seen.
	a, _, err = p.operate(ctx, ref, actor.Suspend, actor.Terms{UID: uid, Version: a.Version})
	return a, err
}

// ExitActor crashes an actor that has ended by itself, which the process tells that hosts it. While an operation on it is under
// way the exit is noted, and counts when the actor would run at the end of it.
func (p *Plane) ExitActor(ctx context.Context, caller string, ref actor.Ref, uid, why string) error {
	why = "the actor ended: " + why
	return p.store.Update(ctx, func(tx store.Tx) error {
		a, err := hosted(tx, caller, ref, uid)
		if err != nil {
			return err
		}
		r, err := tx.Get(lockKey(ref))
		switch {
		case err == nil:
			return noteExit(tx, r, why)
		case !errors.Is(err, store.ErrNotFound):
			return err
		case a.State != actor.Running: // an operation that has not ended well: whoever tries it again finds out
			return nil
		}
		return crash(tx, &a, why)
	})
}

// noteExit tells the operation that holds a lock.
func noteExit(tx store.Tx, held store.Record, why string) error {
	var l lockValue
	if err := decode(held, &l); err != nil {
		return err
	}
	l.Exit = why
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = tx.Update(held.Key, held.Version, value)
	return err
}

// Reclaim frees the locks that are held, and returns how many. It is for a process that knows to be the only one over its
// store, when it starts: operations of the one before it have ended with it, and actors that these have left half way can be
// resumed, suspended or deleted at once instead of after a lease.
func (p *Plane) Reclaim(ctx context.Context) (int, error) {
	return update(ctx, p, func(tx store.Tx) (n int, err error) {
		err = each(tx, KindAtespace, "", func(at store.Record) error {
			return each(tx, KindLock, at.Name, func(r store.Record) error {
				n++
				return tx.Delete(r.Key, r.Version)
			})
		})
		return n, err
	})
}
