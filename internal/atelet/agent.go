package atelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// Options of an agent. Client, Worker, Orders, StateDir, Users and Programs are required.
type Options struct {
	// Client calls the control plane as the worker's identity. It belongs to the caller.
	Client *control.Client
	// Worker is what takes part: its name, its labels, and the place where routers find it. Room and epoch are those of the
	// worker's process.
	Worker actor.Worker
	// Orders is the Unix socket where the worker's process takes orders.
	Orders string
	// Broker is where it asks for certificates of actors' keys; nil answers none. Run closes it.
	Broker net.Listener
	// StateDir is for what is known of actors, below it a directory for each run. The agents of all workers of a run have the same.
	StateDir string
	Users    Users
	// Programs is the directory of what images local:NAME are.
	Programs string
	// Hosts is a table of the names that actors resolve, in the form of hosts(5); empty is none.
	Hosts string
	// Interception is a file of who signs what the egress gateway shows in the place of origins; empty is nobody. Authorities are
	// files of whom actors believe besides, and besides the public's.
	Interception string
	Authorities  []string
	// LogDir is where actors' output goes; empty discards it.
	LogDir string
	Log    *slog.Logger // nil discards
}

// Pauses between attempts to reach a worker's process.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	// sweepEvery is how often it is looked for what is left of actors that are over.
	sweepEvery = 30 * time.Second
	// askTime bounds a short question to the worker's process or to the control plane.
	askTime = 10 * time.Second
	// clearTime bounds the removal of everything that a process has left that was killed.
	clearTime = 5 * time.Minute
)

// Agent is one worker's. It lives until Run returns.
type Agent struct {
	o       Options
	orders  *orders
	current atomic.Pointer[session] // nil while the worker's process is not there
}

// New makes an agent, which does nothing before Run.
func New(o Options) (*Agent, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.Users.Check(); err != nil {
		return nil, err
	}
	for what, path := range map[string]string{"the state directory": o.StateDir, "the directory of programs": o.Programs, "the socket of orders": o.Orders} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("%s %q is not absolute", what, path)
		}
	}
	if info, err := os.Stat(o.Programs); err != nil {
		return nil, fmt.Errorf("the directory of programs: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("the directory of programs: %s is none", o.Programs)
	}
	p := programs{hosts: o.Hosts, trusts: trusts{interception: o.Interception, more: o.Authorities}}
	if _, err := p.all(); err != nil {
		return nil, fmt.Errorf("authorities for actors: %w", err)
	}
	if _, err := readHosts(o.Hosts); err != nil {
		return nil, err
	}
	return &Agent{o: o, orders: newOrders(o.Orders)}, nil
}

// Run takes part until ctx ends, the control plane refuses the worker for good, or the broker cannot be served. Actors go on when it ends: another
// agent of the worker goes on with them.
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var broken error
	wg.Go(func() {
		if broken = a.serveBroker(ctx); broken != nil {
			stop()
		}
	})
	err := a.takePart(ctx)
	stop()
	wg.Wait()
	return errors.Join(err, broken)
}

// takePart serves one process of the worker after the other.
func (a *Agent) takePart(ctx context.Context) error {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		began := time.Now()
		err := a.serve(ctx)
		if err != nil && errors.Is(err, errForGood) {
			return err
		}
		if time.Since(began) > 10*time.Second {
			pause = firstPause
		}
		if ctx.Err() != nil {
			break
		}
		a.o.Log.Warn("the worker takes no part", "worker", a.o.Worker.Name, "orders", a.o.Orders, "error", err, "again_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// errForGood is a refusal of the control plane that does not pass by itself.
var errForGood = errors.New("the control plane refuses the worker")

// session is one process of the worker, from finding it to losing it.
type session struct {
	*Agent
	log      *slog.Logger
	about    workerAbout
	roster   *roster
	programs *programs
	exits    chan control.Exit
	queue    chan workerActor // that have ended, and are to be told
}

func (s *session) name() string { return s.o.Worker.Name }

// serve takes part for one process of the worker.
func (a *Agent) serve(ctx context.Context) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.clear(ctx), s.adopt(ctx)); err != nil {
		return err
	}
	a.current.Store(s)
	defer a.current.Store(nil)
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer lose(nil)
	wg.Go(func() { lose(s.watch(ctx)) })
	wg.Go(func() { s.tell(ctx) })
	wg.Go(func() { s.sweep(ctx) })
	w := s.o.Worker
	w.Epoch, w.Actors = s.about.Epoch, s.about.Slots
	err = s.o.Client.Host(ctx, control.HostOptions{
		Worker: w, Sandboxes: s, Exits: s.exits, Log: s.o.Log,
		Attached: func(w actor.Worker) { s.attached(ctx, w) },
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errForGood, err)
	}
	return context.Cause(ctx)
}

// open finds the worker's process.
func (a *Agent) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	about, err := a.orders.about(ctx)
	if err != nil {
		return nil, fmt.Errorf("sluice-worker run must serve the socket: %w", err)
	}
	dir := filepath.Join(a.o.StateDir, filepath.Base(about.Run))
	book, err := openRoster(filepath.Join(dir, "actors"), a.o.Users)
	if err != nil {
		return nil, err
	}
	s := &session{
		Agent: a, about: about, roster: book, log: a.o.Log.With("worker", a.o.Worker.Name),
		programs: &programs{
			dir: a.o.Programs, hosts: a.o.Hosts, trust: filepath.Join(dir, "trust"), infos: filepath.Join(dir, "info"),
			trusts: trusts{interception: a.o.Interception, more: a.o.Authorities},
		},
		exits: make(chan control.Exit), queue: make(chan workerActor, maxUsers),
	}
	s.log.Info("the worker's process is there", "run", about.Run, "epoch", about.Epoch, "slots", about.Slots, "egress_gateway", about.Gateway)
	return s, s.programs.refresh()
}

// clear removes what earlier processes of the worker have left, before the control plane hears of the new one: until then nobody
// else may have those actors.
func (s *session) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	records, err := s.roster.all()
	if err != nil {
		return err
	}
	for _, r := range records {
		if !r.here(s.name()) || r.Epoch == s.about.Epoch {
			continue
		}
		s.log.Warn("an actor was lost with the process of its worker", "actor", r.Ref, "uid", r.UID, "state", string(r.State))
		if err := s.end(ctx, r.UID); err != nil {
			return fmt.Errorf("removing what is left of actor %s: %w", r.Ref, err)
		}
	}
	return nil
}

// watch notes which actors end by themselves, until the process is not there any more, and returns why.
func (s *session) watch(ctx context.Context) error {
	for {
		all, err := s.orders.ended(ctx, s.about.Epoch)
		if err != nil {
			return err
		}
		for _, e := range all {
			s.ended(e)
		}
	}
}

// ended notes that an actor has ended, and has it told.
func (s *session) ended(e workerEnded) {
	_, err := s.roster.change(e.UID, func(r *record) error {
		if r.here(s.name()) && r.State != over {
			r.State, r.How, r.Epoch = over, e.How, s.about.Epoch
		}
		return nil
	})
	if err != nil {
		s.log.Error("the end of an actor was not written down", "actor", e.Ref, "uid", e.UID, "error", err)
	}
	s.log.Warn("an actor ended by itself", "actor", e.Ref, "uid", e.UID, "how", e.How)
	select {
	case s.queue <- e.workerActor:
	default: // the sweep tells
	}
}

// tell hands on who has ended, as the control plane takes it. An actor that is started again before it is told has not ended any
// more.
func (s *session) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.queue:
			r, err := s.roster.get(a.UID)
			ref, perr := actor.ParseRef(a.Ref)
			if err != nil || perr != nil || r.State != over {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case s.exits <- control.Exit{Ref: ref, UID: a.UID, Why: r.How, Holds: func() bool { return s.holds(r) }}:
			}
		}
	}
}

// holds reports whether an actor that is over is so still, with the same record.
func (s *session) holds(was record) bool {
	now, err := s.roster.get(was.UID)
	return err == nil && now.State == over && now.Serial == was.Serial
}
