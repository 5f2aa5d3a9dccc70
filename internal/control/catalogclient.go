package control

import (
	"context"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
)

func decodeAtespace(m *ateapi.Atespace) (actor.Named, error) {
	ref, meta := decodeMeta(m)
	return actor.Named{Name: ref.Name, Meta: meta}, nil
}

// CreateAtespace makes an atespace.
func (c *Client) CreateAtespace(ctx context.Context, name string) (actor.Named, error) {
	m, err := c.control.CreateAtespace(ctx, &ateapi.CreateAtespaceRequest{Atespace: encodeAtespace(actor.Named{Name: name})})
	return read(decodeAtespace, m, err)
}

// GetAtespace reads an atespace.
func (c *Client) GetAtespace(ctx context.Context, name string) (actor.Named, error) {
	m, err := c.control.GetAtespace(ctx, &ateapi.GetAtespaceRequest{Atespace: &ateapi.ObjectRef{Name: name}})
	return read(decodeAtespace, m, err)
}

// DeleteAtespace forgets an atespace that is empty.
func (c *Client) DeleteAtespace(ctx context.Context, name string, t actor.Terms) (actor.Named, error) {
	m, err := c.control.DeleteAtespace(ctx, &ateapi.DeleteAtespaceRequest{Atespace: &ateapi.ObjectRef{Name: name}, Options: encodeOptions(t)})
	return read(decodeAtespace, m, err)
}

// ListAtespaces lists all atespaces.
func (c *Client) ListAtespaces(ctx context.Context) ([]actor.Named, error) {
	return list(func(token string) ([]*ateapi.Atespace, string, error) {
		m, err := c.control.ListAtespaces(ctx, &ateapi.ListAtespacesRequest{PageSize: clientPage, PageToken: token})
		return m.GetAtespaces(), m.GetNextPageToken(), err
	}, decodeAtespace)
}

// CreateTemplate makes a template.
func (c *Client) CreateTemplate(ctx context.Context, t actor.Template) (actor.Template, error) {
	m, err := c.control.CreateActorTemplate(ctx, &ateapi.CreateActorTemplateRequest{ActorTemplate: encodeTemplate(t)})
	return read(decodeTemplate, m, err)
}

// GetTemplate reads a template.
func (c *Client) GetTemplate(ctx context.Context, ref actor.Ref) (actor.Template, error) {
	m, err := c.control.GetActorTemplate(ctx, &ateapi.GetActorTemplateRequest{ActorTemplate: encodeRef(ref)})
	return read(decodeTemplate, m, err)
}

// DeleteTemplate forgets a template.
func (c *Client) DeleteTemplate(ctx context.Context, ref actor.Ref, t actor.Terms) (actor.Template, error) {
	m, err := c.control.DeleteActorTemplate(ctx, &ateapi.DeleteActorTemplateRequest{ActorTemplate: encodeRef(ref), Options: encodeOptions(t)})
	return read(decodeTemplate, m, err)
}

// ListTemplates lists the templates of an atespace.
func (c *Client) ListTemplates(ctx context.Context, atespace string) ([]actor.Template, error) {
	return list(func(token string) ([]*ateapi.ActorTemplate, string, error) {
		m, err := c.control.ListActorTemplates(ctx, &ateapi.ListActorTemplatesRequest{Atespace: atespace, PageSize: clientPage, PageToken: token})
		return m.GetActorTemplates(), m.GetNextPageToken(), err
	}, decodeTemplate)
}

// CreateWorker adds a worker before it comes.
func (c *Client) CreateWorker(ctx context.Context, w actor.Worker) (actor.Worker, error) {
	m, err := c.control.CreateWorker(ctx, &ateapi.CreateWorkerRequest{Worker: encodeWorker(w)})
	return read(decodeWorker, m, err)
}

// UpdateWorker replaces the place, the epoch and the labels of a worker.
func (c *Client) UpdateWorker(ctx context.Context, w actor.Worker, t actor.Terms) (actor.Worker, error) {
	w.Meta = actor.Meta{UID: t.UID, Version: t.Version}
	m, err := c.control.UpdateWorker(ctx, &ateapi.UpdateWorkerRequest{Worker: encodeWorker(w)})
	return read(decodeWorker, m, err)
}

// GetWorker reads a worker.
func (c *Client) GetWorker(ctx context.Context, name string) (actor.Worker, error) {
	m, err := c.control.GetWorker(ctx, &ateapi.GetWorkerRequest{Worker: &ateapi.ObjectRef{Name: name}})
	return read(decodeWorker, m, err)
}

// DrainWorker keeps further actors from a worker.
func (c *Client) DrainWorker(ctx context.Context, name string) (actor.Worker, error) {
	m, err := c.control.DrainWorker(ctx, &ateapi.DrainWorkerRequest{Worker: &ateapi.ObjectRef{Name: name}})
	return read(decodeWorker, m, err)
}

// DeleteWorker forgets a worker; its actors are crashed.
func (c *Client) DeleteWorker(ctx context.Context, name string, t actor.Terms) (actor.Worker, error) {
	m, err := c.control.DeleteWorker(ctx, &ateapi.DeleteWorkerRequest{Worker: &ateapi.ObjectRef{Name: name}, Options: encodeOptions(t)})
	return read(decodeWorker, m, err)
}

// ListWorkers lists all workers.
func (c *Client) ListWorkers(ctx context.Context) ([]actor.Worker, error) {
	return list(func(token string) ([]*ateapi.Worker, string, error) {
		m, err := c.control.ListWorkers(ctx, &ateapi.ListWorkersRequest{PageSize: clientPage, PageToken: token})
		return m.GetWorkers(), m.GetNextPageToken(), err
	}, decodeWorker)
}

// ListHosted lists the actors of a worker, as far as assignments name them: reference, UID, template and epoch.
func (c *Client) ListHosted(ctx context.Context, worker string) ([]actor.Actor, error) {
	return list(func(token string) ([]*ateapi.ActorAssignment, string, error) {
		m, err := c.control.ListWorkerActorAssignments(ctx, &ateapi.ListWorkerActorAssignmentsRequest{Worker: &ateapi.ObjectRef{Name: worker}, PageSize: clientPage, PageToken: token})
		return m.GetActorAssignments(), m.GetNextPageToken(), err
	}, func(m *ateapi.ActorAssignment) (actor.Actor, error) { return decodeHosted(m), nil })
}
