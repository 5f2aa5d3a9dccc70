package atelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

const (
	// brokerTime bounds one certificate; the worker's process does not wait for longer.
	brokerTime = 10 * time.Second
	// maxRequest bounds a question, in bytes: the control plane takes a signing request of 16 KiB.
	maxRequest = 64 << 10
)

type certificateRequest struct {
	workerActor
	Request []byte
}

type certificateAnswer struct{ Chain [][]byte }

// serveBroker answers the worker's process until ctx ends.
func (a *Agent) serveBroker(ctx context.Context) error {
	if a.o.Broker == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/certificate", a.certificate)
	server := &http.Server{
		Handler: mux, ReadTimeout: brokerTime, WriteTimeout: 2 * brokerTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(a.o.Log.Handler(), slog.LevelWarn),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(a.o.Broker); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("the broker: %w", err)
	}
	return nil
}

// certificate has a key certified, for an actor that is on the worker.
func (a *Agent) certificate(w http.ResponseWriter, r *http.Request) {
	var ask certificateRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(&ask); err != nil {
		decline(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), brokerTime)
	defer cancel()
	chain, status, err := a.mint(ctx, ask)
	if err != nil {
		a.o.Log.Warn("a key was not certified", "worker", a.o.Worker.Name, "actor", ask.Ref, "uid", ask.UID, "error", err)
		decline(w, status, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(certificateAnswer{chain})
}

// mint asks the control plane, unless it is clear without it that the actor is not on this worker.
func (a *Agent) mint(ctx context.Context, ask certificateRequest) (chain [][]byte, status int, err error) {
	s := a.current.Load()
	if s == nil {
		return nil, http.StatusServiceUnavailable, errors.New("the agent has not found the worker's process yet")
	}
	ref, err := actor.ParseRef(ask.Ref)
	if err = errors.Join(err, checkUID(ask.UID)); err != nil {
		return nil, http.StatusBadRequest, err
	}
	r, err := s.roster.get(ask.UID)
	if err != nil {
		return nil, http.StatusInternalServerError, err
	}
	if r.Ref != ask.Ref || !r.here(s.name()) || r.State == over {
		return nil, http.StatusForbidden, fmt.Errorf("actor %s with UID %s is not on worker %s", ask.Ref, ask.UID, s.name())
	}
	chain, err = a.o.Client.MintWorkerCertificate(ctx, ref, ask.UID, ask.Request)
	return chain, statusOf(err), err
}

// statusOf tells what is refused for good from what may be asked for again.
func statusOf(err error) int {
	e := (*actor.Error)(nil)
	if !errors.As(err, &e) {
		return http.StatusServiceUnavailable
	}
	switch e.Code {
	case actor.PermissionDenied, actor.NotFound:
		return http.StatusForbidden
	case actor.Aborted:
		return http.StatusConflict
	case actor.FailedPrecondition:
		return http.StatusPreconditionFailed
	case actor.InvalidArgument:
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

func decline(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
