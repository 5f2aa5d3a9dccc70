package atelet

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// What tests see of the inside.

// The messages of the worker's socket.
type (
	WorkerOrder       = workerOrder
	WorkerAbout       = workerAbout
	WorkerStay        = workerStay
	WorkerEnded       = workerEnded
	CertificateAsk    = certificateRequest
	CertificateAnswer = certificateAnswer
)

var (
	Quantity  = quantity
	ReadHosts = readHosts
	StatusOf  = statusOf
)

// Roster is a roster of a directory.
type Roster struct{ *roster }

// NewRoster opens one.
func NewRoster(dir string, u Users) (Roster, error) {
	r, err := openRoster(dir, u)
	return Roster{r}, err
}

// Claim returns the user of an actor that is about to start, and whether it is thawed.
func (r Roster) Claim(a actor.Actor, worker string) (uint32, bool, error) {
	c, _, err := r.claim(a, worker, 1)
	return c.User, c.Thaw, err
}

// Freeze writes down that an actor is suspended, or that it is being suspended.
func (r Roster) Freeze(uid string, done bool) error {
	_, err := r.change(uid, func(r *record) error {
		if r.State = suspending; done {
			r.State = frozen
		}
		return nil
	})
	return err
}

// Forget removes a record.
func (r Roster) Forget(uid string) error {
	_, err := r.change(uid, func(r *record) error { *r = record{}; return nil })
	return err
}

// Ended has a session of a worker note that an actor has ended, and returns the exit that it tells.
func (r Roster) Ended(ctx context.Context, a actor.Actor, worker string) control.Exit {
	s := &session{Agent: &Agent{}, log: slog.New(slog.DiscardHandler), roster: r.roster, exits: make(chan control.Exit), queue: make(chan workerActor, 1)}
	s.o.Worker.Name = worker
	s.ended(workerEnded{workerActor{a.Ref.String(), a.UID}, "exit status 1"})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go s.tell(ctx)
	return <-s.exits
}

// Order makes the order of an actor of a template, with its program and all that is written for it below a directory.
func Order(dir string, a actor.Actor, t actor.Template) (WorkerOrder, error) {
	p := programs{dir: dir, trust: filepath.Join(dir, "trust"), infos: filepath.Join(dir, "info")}
	return p.order(a, t)
}
