package app

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

// Question is a request that need not be sent to know what would happen to it.
type Question = snapshot.Question

// Answer is the walk that a request would take.
type Answer = snapshot.Answer

// Explain tells what a request would meet under a configuration, without sending it.
func Explain(cfg *config.Config, q Question) (*Answer, error) { return snapshot.Explain(cfg, q) }

// LookAtActor asks the control plane of an answer's service where the actor is that the request is for, with the certificates of
// a component, such as the admin's. It changes nothing: an actor that sleeps goes on sleeping.
func LookAtActor(ctx context.Context, a *Answer, credentials string) (actor.Actor, error) {
	to := a.Service.Actor.Way.Control
	c, err := DialControl(ControlOptions{Address: to.Address, ServerName: to.ServerName, Credentials: credentials})
	if err != nil {
		return actor.Actor{}, err
	}
	defer func() { _ = c.Close() }()
	return c.GetActor(ctx, a.Actor.Asked.Ref)
}
