package control

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// Plane is what a Server needs of a control plane, by kinds of resources. Errors are *actor.Error, which the caller is told;
// anything else is Internal, and only logged. Lists return up to limit in the order of names, from the first behind after.
type Plane interface {
	ActorPlane
	PolicyPlane
	AtespacePlane
	TemplatePlane
	WorkerPlane
	HostPlane
}

// ActorPlane keeps actors.
type ActorPlane interface {
	CreateActor(ctx context.Context, ref, template actor.Ref, selector map[string]string) (actor.Actor, error)
	GetActor(ctx context.Context, ref actor.Ref) (actor.Actor, error)
	// ListActors lists those of an atespace, or with an empty one all.
	ListActors(ctx context.Context, atespace string, after actor.Ref, limit int) ([]actor.Actor, error)
	UpdateActor(ctx context.Context, ref, template actor.Ref, selector map[string]string, t actor.Terms) (actor.Actor, error)
	ResumeActor(ctx context.Context, ref actor.Ref) (a actor.Actor, resumed bool, err error)
	SuspendActor(ctx context.Context, ref actor.Ref) (actor.Actor, error)
	PauseActor(ctx context.Context, ref actor.Ref) (actor.Actor, error)
	RevertActor(ctx context.Context, ref actor.Ref) (actor.Actor, error)
	DeleteActor(ctx context.Context, ref actor.Ref, t actor.Terms) (actor.Actor, error)
}

// PolicyPlane keeps the policies of actors.
type PolicyPlane interface {
	CreatePolicy(ctx context.Context, ref actor.Ref, p egress.Policy) (egress.Kept, error)
	GetPolicy(ctx context.Context, ref actor.Ref) (egress.Kept, error)
	UpdatePolicy(ctx context.Context, ref actor.Ref, p egress.Policy, t actor.Terms) (egress.Kept, error)
	DeletePolicy(ctx context.Context, ref actor.Ref, t actor.Terms) (egress.Kept, error)
}

// AtespacePlane keeps atespaces.
type AtespacePlane interface {
	CreateAtespace(ctx context.Context, name string) (actor.Meta, error)
	GetAtespace(ctx context.Context, name string) (actor.Meta, error)
	ListAtespaces(ctx context.Context, after string, limit int) ([]actor.Named, error)
	DeleteAtespace(ctx context.Context, name string, t actor.Terms) (actor.Meta, error)
}

// TemplatePlane keeps templates.
type TemplatePlane interface {
	CreateTemplate(ctx context.Context, t actor.Template) (actor.Template, error)
	GetTemplate(ctx context.Context, ref actor.Ref) (actor.Template, error)
	ListTemplates(ctx context.Context, atespace, after string, limit int) ([]actor.Template, error)
	DeleteTemplate(ctx context.Context, ref actor.Ref, t actor.Terms) (actor.Template, error)
}

// WorkerPlane keeps workers.
type WorkerPlane interface {
	CreateWorker(ctx context.Context, w actor.Worker) (actor.Worker, error)
	GetWorker(ctx context.Context, name string) (actor.Worker, error)
	UpdateWorker(ctx context.Context, w actor.Worker, t actor.Terms) (actor.Worker, error)
	DrainWorker(ctx context.Context, name string) (actor.Worker, error)
	DeleteWorker(ctx context.Context, name string, t actor.Terms) (actor.Worker, error)
	ListWorkers(ctx context.Context, after string, limit int) ([]actor.Worker, error)
	// ListHosted lists by UID.
	ListHosted(ctx context.Context, worker, after string, limit int) ([]actor.Actor, error)
}

// HostPlane serves the processes that host actors. The caller is the identity that such a one has proven.
type HostPlane interface {
	// AttachWorker adds or replaces a worker of the identity w.ID.
	AttachWorker(ctx context.Context, w actor.Worker) (actor.Worker, error)
	RegisterWorker(ctx context.Context, caller, name string, c actor.Capacity) (actor.Worker, error)
	MintWorkerCertificate(ctx context.Context, caller string, ref actor.Ref, uid string, request []byte) ([][]byte, error)
	RequestSuspend(ctx context.Context, caller, worker string, ref actor.Ref, uid string) (actor.Actor, error)
	ExitActor(ctx context.Context, caller string, ref actor.Ref, uid, why string) error
}
