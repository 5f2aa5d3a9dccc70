package control

import (
	"context"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
)

func atespaceOf(name string, m actor.Meta) actor.Named { return actor.Named{Name: name, Meta: m} }

func (s *controlServer) CreateAtespace(ctx context.Context, r *ateapi.CreateAtespaceRequest) (*ateapi.Atespace, error) {
	ref, _ := decodeMeta(r.GetAtespace())
	if err := global("atespace.metadata", ref); err != nil {
		return nil, err
	}
	m, err := s.plane.CreateAtespace(ctx, ref.Name)
	return answer(encodeAtespace, atespaceOf(ref.Name, m), err)
}

func (s *controlServer) GetAtespace(ctx context.Context, r *ateapi.GetAtespaceRequest) (*ateapi.Atespace, error) {
	ref := decodeRef(r.GetAtespace())
	if err := global("atespace", ref); err != nil {
		return nil, err
	}
	m, err := s.plane.GetAtespace(ctx, ref.Name)
	return answer(encodeAtespace, atespaceOf(ref.Name, m), err)
}

func (s *controlServer) DeleteAtespace(ctx context.Context, r *ateapi.DeleteAtespaceRequest) (*ateapi.Atespace, error) {
	ref := decodeRef(r.GetAtespace())
	if err := global("atespace", ref); err != nil {
		return nil, err
	}
	m, err := s.plane.DeleteAtespace(ctx, ref.Name, decodeOptions(r.GetOptions()))
	return answer(encodeAtespace, atespaceOf(ref.Name, m), err)
}

func (s *controlServer) ListAtespaces(ctx context.Context, r *ateapi.ListAtespacesRequest) (*ateapi.ListAtespacesResponse, error) {
	after, limit, err := namePage(r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	all, err := s.plane.ListAtespaces(ctx, after, limit)
	if err != nil {
		return nil, err
	}
	out := &ateapi.ListAtespacesResponse{NextPageToken: nextToken(len(all), limit, func() string { return all[limit-1].Name })}
	for _, n := range all {
		out.Atespaces = append(out.Atespaces, encodeAtespace(n))
	}
	return out, nil
}

func (s *controlServer) CreateActorTemplate(ctx context.Context, r *ateapi.CreateActorTemplateRequest) (*ateapi.ActorTemplate, error) {
	t, err := decodeTemplate(r.GetActorTemplate())
	if err != nil {
		return nil, err
	}
	t, err = s.plane.CreateTemplate(ctx, t)
	return answer(encodeTemplate, t, err)
}

func (s *controlServer) GetActorTemplate(ctx context.Context, r *ateapi.GetActorTemplateRequest) (*ateapi.ActorTemplate, error) {
	t, err := s.plane.GetTemplate(ctx, decodeRef(r.GetActorTemplate()))
	return answer(encodeTemplate, t, err)
}

func (s *controlServer) DeleteActorTemplate(ctx context.Context, r *ateapi.DeleteActorTemplateRequest) (*ateapi.ActorTemplate, error) {
	t, err := s.plane.DeleteTemplate(ctx, decodeRef(r.GetActorTemplate()), decodeOptions(r.GetOptions()))
	return answer(encodeTemplate, t, err)
}

func (s *controlServer) ListActorTemplates(ctx context.Context, r *ateapi.ListActorTemplatesRequest) (*ateapi.ListActorTemplatesResponse, error) {
	after, limit, err := namePage(r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	limit = min(limit, maxTemplates)
	all, err := s.plane.ListTemplates(ctx, r.GetAtespace(), after, limit)
	if err != nil {
		return nil, err
	}
	out := &ateapi.ListActorTemplatesResponse{NextPageToken: nextToken(len(all), limit, func() string { return all[limit-1].Ref.Name })}
	for _, t := range all {
		out.ActorTemplates = append(out.ActorTemplates, encodeTemplate(t))
	}
	return out, nil
}

func (s *controlServer) CreateWorker(ctx context.Context, r *ateapi.CreateWorkerRequest) (*ateapi.Worker, error) {
	w, err := decodeWorker(r.GetWorker())
	if err != nil {
		return nil, err
	}
	w, err = s.plane.CreateWorker(ctx, w)
	return answer(encodeWorker, w, err)
}

func (s *controlServer) UpdateWorker(ctx context.Context, r *ateapi.UpdateWorkerRequest) (*ateapi.Worker, error) {
	w, err := decodeWorker(r.GetWorker())
	if err != nil {
		return nil, err
	}
	w, err = s.plane.UpdateWorker(ctx, w, termsOf(r.GetWorker()))
	return answer(encodeWorker, w, err)
}

func (s *controlServer) GetWorker(ctx context.Context, r *ateapi.GetWorkerRequest) (*ateapi.Worker, error) {
	ref := decodeRef(r.GetWorker())
	if err := global("worker", ref); err != nil {
		return nil, err
	}
	w, err := s.plane.GetWorker(ctx, ref.Name)
	return answer(encodeWorker, w, err)
}

func (s *controlServer) DrainWorker(ctx context.Context, r *ateapi.DrainWorkerRequest) (*ateapi.Worker, error) {
	ref := decodeRef(r.GetWorker())
	if err := global("worker", ref); err != nil {
		return nil, err
	}
	w, err := s.plane.DrainWorker(ctx, ref.Name)
	return answer(encodeWorker, w, err)
}

func (s *controlServer) DeleteWorker(ctx context.Context, r *ateapi.DeleteWorkerRequest) (*ateapi.Worker, error) {
	ref := decodeRef(r.GetWorker())
	if err := global("worker", ref); err != nil {
		return nil, err
	}
	w, err := s.plane.DeleteWorker(ctx, ref.Name, decodeOptions(r.GetOptions()))
	if err == nil {
		s.hosts.drop(ref.Name)
	}
	return answer(encodeWorker, w, err)
}

func (s *controlServer) ListWorkers(ctx context.Context, r *ateapi.ListWorkersRequest) (*ateapi.ListWorkersResponse, error) {
	after, limit, err := namePage(r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	all, err := s.plane.ListWorkers(ctx, after, limit)
	if err != nil {
		return nil, err
	}
	out := &ateapi.ListWorkersResponse{NextPageToken: nextToken(len(all), limit, func() string { return all[limit-1].Name })}
	for _, w := range all {
		out.Workers = append(out.Workers, encodeWorker(w))
	}
	return out, nil
}

func (s *controlServer) ListWorkerActorAssignments(ctx context.Context, r *ateapi.ListWorkerActorAssignmentsRequest) (*ateapi.ListWorkerActorAssignmentsResponse, error) {
	ref := decodeRef(r.GetWorker())
	after, limit, err := namePage(r.GetPageSize(), r.GetPageToken()) // a UID is a valid name
	if err == nil {
		err = global("worker", ref)
	}
	if err != nil {
		return nil, err
	}
	all, err := s.plane.ListHosted(ctx, ref.Name, after, limit)
	if err != nil {
		return nil, err
	}
	out := &ateapi.ListWorkerActorAssignmentsResponse{NextPageToken: nextToken(len(all), limit, func() string { return all[limit-1].UID })}
	for _, a := range all {
		out.ActorAssignments = append(out.ActorAssignments, encodeHosted(a))
	}
	return out, nil
}
