package control

import (
	"context"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// controlServer is the service Control over a plane. Its methods translate; the embedded type answers Unimplemented to what is
// not here.
type controlServer struct {
	ateapi.UnimplementedControlServer
	plane Plane
	hosts *Hosts
}

// answer translates a result, unless there is an error.
func answer[P, M any](encode func(P) *M, value P, err error) (*M, error) {
	if err != nil {
		return nil, err
	}
	return encode(value), nil
}

func (s *controlServer) CreateActor(ctx context.Context, r *ateapi.CreateActorRequest) (*ateapi.Actor, error) {
	ref, _ := decodeMeta(r.GetActor())
	if tag := r.GetActor().GetSourceTag(); tag != nil {
		return nil, actor.Refuse(actor.NotFound, "tag %.80s of actor %s not found", decodeRef(tag), ref)
	}
	a, err := s.plane.CreateActor(ctx, ref, decodeRef(r.GetActor().GetActorTemplate()), r.GetActor().GetWorkerSelector().GetMatchLabels())
	return answer(encodeActor, a, err)
}

func (s *controlServer) GetActor(ctx context.Context, r *ateapi.GetActorRequest) (*ateapi.Actor, error) {
	a, err := s.plane.GetActor(ctx, decodeRef(r.GetActor()))
	return answer(encodeActor, a, err)
}

func (s *controlServer) UpdateActor(ctx context.Context, r *ateapi.UpdateActorRequest) (*ateapi.Actor, error) {
	if r.GetActor().GetSourceTag() != nil {
		return nil, actor.Refuse(actor.InvalidArgument, "actor.source_tag: cannot be changed")
	}
	ref, _ := decodeMeta(r.GetActor())
	a, err := s.plane.UpdateActor(ctx, ref, decodeRef(r.GetActor().GetActorTemplate()), r.GetActor().GetWorkerSelector().GetMatchLabels(), termsOf(r.GetActor()))
	return answer(encodeActor, a, err)
}

func (s *controlServer) ListActors(ctx context.Context, r *ateapi.ListActorsRequest) (*ateapi.ListActorsResponse, error) {
	after, limit, err := refPage(r.GetPageSize(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	all, err := s.plane.ListActors(ctx, r.GetAtespace(), after, limit)
	if err != nil {
		return nil, err
	}
	out := &ateapi.ListActorsResponse{NextPageToken: nextToken(len(all), limit, func() string { return all[limit-1].Ref.String() })}
	for _, a := range all {
		out.Actors = append(out.Actors, encodeActor(a))
	}
	return out, nil
}

func (s *controlServer) ResumeActor(ctx context.Context, r *ateapi.ResumeActorRequest) (*ateapi.ResumeActorResponse, error) {
	a, resumed, err := s.plane.ResumeActor(ctx, decodeRef(r.GetActor()))
	if err != nil {
		return nil, err
	}
	return &ateapi.ResumeActorResponse{Actor: encodeActor(a), Resumed: resumed}, nil
}

func (s *controlServer) SuspendActor(ctx context.Context, r *ateapi.SuspendActorRequest) (*ateapi.SuspendActorResponse, error) {
	a, err := s.plane.SuspendActor(ctx, decodeRef(r.GetActor()))
	return answer(func(a actor.Actor) *ateapi.SuspendActorResponse {
		return &ateapi.SuspendActorResponse{Actor: encodeActor(a)}
	}, a, err)
}

func (s *controlServer) PauseActor(ctx context.Context, r *ateapi.PauseActorRequest) (*ateapi.PauseActorResponse, error) {
	a, err := s.plane.PauseActor(ctx, decodeRef(r.GetActor()))
	return answer(func(a actor.Actor) *ateapi.PauseActorResponse {
		return &ateapi.PauseActorResponse{Actor: encodeActor(a)}
	}, a, err)
}

func (s *controlServer) RevertActor(ctx context.Context, r *ateapi.RevertActorRequest) (*ateapi.RevertActorResponse, error) {
	a, err := s.plane.RevertActor(ctx, decodeRef(r.GetActor()))
	return answer(func(a actor.Actor) *ateapi.RevertActorResponse {
		return &ateapi.RevertActorResponse{Actor: encodeActor(a)}
	}, a, err)
}

func (s *controlServer) DeleteActor(ctx context.Context, r *ateapi.DeleteActorRequest) (*ateapi.Actor, error) {
	t := decodeOptions(r.GetOptions())
	t.AnyState = r.GetAnyState()
	a, err := s.plane.DeleteActor(ctx, decodeRef(r.GetActor()), t)
	return answer(encodeActor, a, err)
}

func decodeGivenPolicy(p *ateapi.EgressPolicy) (egress.Policy, error) {
	policy, err := DecodePolicy("egress_policy", p)
	if err != nil {
		return policy, actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	return policy, nil
}

func (s *controlServer) CreateActorEgressPolicy(ctx context.Context, r *ateapi.CreateActorEgressPolicyRequest) (*ateapi.EgressPolicy, error) {
	policy, err := decodeGivenPolicy(r.GetEgressPolicy())
	if err != nil {
		return nil, err
	}
	k, err := s.plane.CreatePolicy(ctx, decodeRef(r.GetActor()), policy)
	return answer(encodePolicy, k, err)
}

func (s *controlServer) GetActorEgressPolicy(ctx context.Context, r *ateapi.GetActorEgressPolicyRequest) (*ateapi.EgressPolicy, error) {
	k, err := s.plane.GetPolicy(ctx, decodeRef(r.GetActor()))
	return answer(encodePolicy, k, err)
}

func (s *controlServer) UpdateActorEgressPolicy(ctx context.Context, r *ateapi.UpdateActorEgressPolicyRequest) (*ateapi.EgressPolicy, error) {
	policy, err := decodeGivenPolicy(r.GetEgressPolicy())
	if err != nil {
		return nil, err
	}
	k, err := s.plane.UpdatePolicy(ctx, decodeRef(r.GetActor()), policy, termsOf(r.GetEgressPolicy()))
	return answer(encodePolicy, k, err)
}

func (s *controlServer) DeleteActorEgressPolicy(ctx context.Context, r *ateapi.DeleteActorEgressPolicyRequest) (*ateapi.EgressPolicy, error) {
	k, err := s.plane.DeletePolicy(ctx, decodeRef(r.GetActor()), decodeOptions(r.GetOptions()))
	return answer(encodePolicy, k, err)
}
