package atelet_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/atelet"
)

// The worker's process gives an actor's way out up for 403, 409 and 412, and for nothing else.
func TestRefusalsThatAreForGood(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{actor.Refuse(actor.PermissionDenied, "on another worker"), 403},
		{actor.Refuse(actor.NotFound, "deleted"), 403},
		{actor.Refuse(actor.Aborted, "another UID"), 409},
		{actor.Refuse(actor.FailedPrecondition, "its state"), 412},
		{actor.Refuse(actor.InvalidArgument, "no request"), 400},
		{actor.Refuse(actor.Unavailable, "away"), 503},
		{actor.Refuse(actor.Internal, "a fault"), 503},
		{actor.Refuse(actor.Unauthenticated, "a certificate that has ended"), 503},
		{actor.Refuse(actor.ResourceExhausted, "too much"), 503},
		{context.DeadlineExceeded, 503},
		{errors.New("anything"), 503},
		{fmt.Errorf("minting: %w", actor.Refuse(actor.Aborted, "another UID")), 409},
	} {
		if got := atelet.StatusOf(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
}
