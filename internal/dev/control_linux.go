package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Times of the supervisor's socket.
const (
	askLimit  = 10 * time.Second // a question
	downLimit = 90 * time.Second // until everything is removed
	listLimit = 3 * time.Second  // the list of actors

	downPause = 100 * time.Millisecond // between two looks at everything that is left, which take their time from what is ending
)

// serve answers on the supervisor's socket until the returned func is called. down is called when somebody wants the end.
func (s *supervisor) serve(down func()) (stop func() error, err error) {
	if err := os.Remove(socketOf(s.Dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", socketOf(s.Dir))
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socketOf(s.Dir), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(rw http.ResponseWriter, r *http.Request) { respond(rw, s.status(r.Context())) })
	mux.HandleFunc("POST /v1/down", func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusAccepted)
		down()
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: askLimit}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }() // until stop, which waits
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), askLimit)
		defer cancel()
		err := server.Shutdown(ctx)
		<-ended
		return err
	}, nil
}

// status looks at everything.
func (s *supervisor) status(ctx context.Context) Status {
	out := Status{Run: s.Run, Dir: s.Dir, Supervisor: os.Getpid()}
	for _, p := range s.all() {
		_, how := p.ended()
		out.Parts = append(out.Parts, Part{Name: p.name, Namespace: p.in.Name(), PID: p.pid(), Since: p.since, Ended: how, Log: p.log})
	}
	for _, f := range s.forwards {
		out.Addresses = append(out.Addresses, Address{Name: f.name, Host: f.addr(), Fabric: f.to.String()})
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	actors, err := s.admin.ListActors(ctx, "")
	if err != nil {
		out.ActorsError = err.Error()
	}
	for _, a := range actors {
		line := ActorLine{Actor: a.Ref.String(), State: a.State.String(), Reason: a.Crash}
		if a.Assignment != nil {
			line.Worker = a.Assignment.Worker
		}
		out.Actors = append(out.Actors, line)
	}
	return out
}

// ask has a supervisor answer.
func ask(ctx context.Context, dir, method, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socketOf(dir))
	}}}
	r, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w in %s", ErrNone, dir)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("the supervisor in %s answers %s", dir, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(into)
}

// Look asks the supervisor of a run. Of one that was killed the error says what it has left.
func Look(ctx context.Context, o Options) (st Status, err error) {
	if err := o.place(); err != nil {
		return st, err
	}
	err = ask(ctx, o.Dir, http.MethodGet, "/v1/status", &st)
	return st, o.explained(err)
}

// Down has the supervisor of a run drain and remove everything, and returns once nothing is left.
func Down(ctx context.Context, o Options) error {
	if err := o.place(); err != nil {
		return err
	}
	if err := ask(ctx, o.Dir, http.MethodPost, "/v1/down", nil); err != nil {
		return o.explained(err)
	}
	ctx, cancel := context.WithTimeout(ctx, downLimit)
	defer cancel()
	for {
		left, err := o.left()
		if err == nil && len(left) == 0 {
			if !claimed(o.Run) { // the supervisor has ended as well
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s there is still %v: %w", downLimit, left, errors.Join(err, ErrLeft))
		case <-time.After(downPause):
		}
	}
}

// Clean removes whatever there is of a run whose supervisor was killed, and returns what it found. It refuses a run that is
// supervised.
func Clean(ctx context.Context, o Options) (found []string, err error) {
	if err := o.place(); err != nil {
		return nil, err
	}
	mine, err := claim(o.Run)
	if err != nil {
		return nil, fmt.Errorf("%w; end it with: sluice dev down %s", err, o.named())
	}
	defer mine.Close()
	run, err := fabric.NewRun(o.Run)
	if err != nil {
		return nil, err
	}
	if found, err = o.left(); err != nil {
		return nil, err
	}
	if err := run.Clean(ctx); err != nil {
		return found, err
	}
	if o.ours() {
		if err := os.RemoveAll(o.Dir); err != nil {
			return found, err
		}
	}
	left, err := o.left()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %v", ErrLeft, left))
	}
	return found, err
}

// place checks what is needed to find a run.
func (o *Options) place() error {
	o.Workers, o.Slots = 1, 1
	if err := o.complete(); err != nil {
		return err
	}
	return Check()
}

// left lists what exists of a run: in the kernel, and in the file system.
func (o *Options) left() ([]string, error) {
	run, err := fabric.NewRun(o.Run)
	if err != nil {
		return nil, err
	}
	found, err := run.Left()
	all := make([]string, len(found))
	for i, l := range found {
		all[i] = l.String()
	}
	if o.ours() {
		all = append(all, "directory "+o.Dir)
	}
	slices.Sort(all)
	return all, err
}

// explained adds to ErrNone what there is instead.
func (o *Options) explained(err error) error {
	if !errors.Is(err, ErrNone) {
		return err
	}
	if claimed(o.Run) {
		return fmt.Errorf("%w, but somewhere else (say its --dir): %w", err, runs(o.Run))
	}
	left, lerr := o.left()
	if len(left) > 0 {
		return fmt.Errorf("%w (run %s); one that was killed has left %d things there: sluice dev clean %s", err, o.Run, len(left), o.named())
	}
	if others := claims(); len(others) > 0 {
		return errors.Join(fmt.Errorf("%w (run %s); say the RUN behind the command, there is %s", err, o.Run, strings.Join(others, ", ")), lerr)
	}
	return errors.Join(fmt.Errorf("%w (run %s)", err, o.Run), lerr)
}
