package control

import (
	"context"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
)

// workerServer is the service WorkerService, under both generations of names.
type workerServer struct {
	ateapi.UnimplementedWorkerServiceServer
	plane HostPlane
}

func (s *workerServer) MintWorkerActorCertificate(ctx context.Context, r *ateapi.MintWorkerActorCertificateRequest) (*ateapi.MintWorkerActorCertificateResponse, error) {
	chain, err := s.plane.MintWorkerCertificate(ctx, callerOf(ctx).ID, decodeRef(r.GetActor()), r.GetActorUid(), r.GetCertificateSigningRequest())
	if err != nil {
		return nil, err
	}
	return &ateapi.MintWorkerActorCertificateResponse{ActorCertificates: chain}, nil
}

func (s *workerServer) MintAteomActorCertificate(ctx context.Context, r *ateapi.MintWorkerActorCertificateRequest) (*ateapi.MintWorkerActorCertificateResponse, error) {
	return s.MintWorkerActorCertificate(ctx, r)
}

func (s *workerServer) RegisterWorker(ctx context.Context, r *ateapi.RegisterWorkerRequest) (*ateapi.RegisterWorkerResponse, error) {
	ref := decodeRef(r.GetWorker())
	if err := global("worker", ref); err != nil {
		return nil, err
	}
	w, err := s.plane.RegisterWorker(ctx, callerOf(ctx).ID, ref.Name, decodeCapacity(r.GetCapacity(), r.GetHardware()))
	return answer(func(w actor.Worker) *ateapi.RegisterWorkerResponse {
		return &ateapi.RegisterWorkerResponse{Worker: encodeWorker(w)}
	}, w, err)
}

func (s *workerServer) SetWorkerCapacity(ctx context.Context, r *ateapi.RegisterWorkerRequest) (*ateapi.RegisterWorkerResponse, error) {
	return s.RegisterWorker(ctx, r)
}

func (s *workerServer) RequestActorSuspend(ctx context.Context, r *ateapi.RequestActorSuspendRequest) (*ateapi.RequestActorSuspendResponse, error) {
	worker := decodeRef(r.GetWorker())
	if err := global("worker", worker); err != nil {
		return nil, err
	}
	a, err := s.plane.RequestSuspend(ctx, callerOf(ctx).ID, worker.Name, decodeRef(r.GetActor()), r.GetActorUid())
	return answer(func(a actor.Actor) *ateapi.RequestActorSuspendResponse {
		return &ateapi.RequestActorSuspendResponse{Actor: encodeActor(a)}
	}, a, err)
}
