package control

import (
	"context"
	"errors"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// Whereabouts are where an actor is, as far as it matters to a worker.
type Whereabouts uint8

// Whereabouts of an actor.
const (
	Gone      Whereabouts = iota + 1 // it was deleted, and made again maybe, as another one
	Elsewhere                        // it is on no worker of the caller's, or on none at all
	Here                             // it is on a worker of the caller's
)

// Whereabouts asks where an actor with a UID is, for a worker. The published contract has no method for it that a worker may
// call, but the refusals of MintWorkerActorCertificate tell all of it: it is asked to certify what is no signing request.
func (c *Client) Whereabouts(ctx context.Context, ref actor.Ref, uid string) (Whereabouts, error) {
	_, err := c.MintWorkerCertificate(ctx, ref, uid, []byte{0})
	e := (*actor.Error)(nil)
	if err == nil || !errors.As(err, &e) {
		return 0, actor.Refuse(actor.Internal, "an answer that cannot be used: nothing was certified for actor %s", ref)
	}
	switch e.Code {
	case actor.NotFound, actor.Aborted:
		return Gone, nil
	case actor.PermissionDenied:
		return Elsewhere, nil
	case actor.InvalidArgument:
		return Here, nil
	}
	return 0, err
}
