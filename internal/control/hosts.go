package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/actor"
)

// MaxText bounds the texts that are kept of what a worker says, in bytes.
const MaxText = 4096

// Hosts are the workers that are attached now, and the way by which they are told to run actors. Its methods are safe for
// concurrent use. It owns the streams: Close ends them.
type Hosts struct {
	egress string

	mu     sync.Mutex // guards the rest
	hosts  map[string]*host
	closed bool
	open   sync.WaitGroup // of streams, and who reads them
}

// NewHosts makes an empty set. Actors are started with the address of the egress gateway, host:port; an empty one closes
// all of their outbound connections.
func NewHosts(egressGateway string) *Hosts {
	return &Hosts{egress: egressGateway, hosts: map[string]*host{}}
}

// host is the stream of one worker.
type host struct {
	worker, node string
	out          chan *atenetx.PlaneMessage
	ended        chan struct{} // closed when the stream is to end, or has
	end          func()        // closes ended, once
	wake         chan struct{} // holds one: exits were taken

	mu      sync.Mutex // guards the rest
	next    uint64
	waiting map[uint64]waiter
	taken   []uint64 // exits to be answered
}

// waiter waits for an order's outcome.
type waiter struct {
	starts  string // the UID of the actor that it starts; empty when it stops one
	outcome chan *atenetx.Outcome
}

// starting reports whether an actor is being started.
func (x *host) starting(uid string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, w := range x.waiting {
		if w.starts == uid && uid != "" {
			return true
		}
	}
	return false
}

// take has an exit answered.
func (x *host) take(id uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.taken) >= maxUntold {
		return actor.Refuse(actor.ResourceExhausted, "more than %d exits, and no answer was read", maxUntold)
	}
	x.taken = append(x.taken, id)
	select {
	case x.wake <- struct{}{}:
	default:
	}
	return nil
}

// takes returns the exits to be answered, each once.
func (x *host) takes() []uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.taken
	x.taken = nil
	return out
}

// Ready reports whether a worker is attached.
func (h *Hosts) Ready(worker string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hosts[worker] != nil
}

// Start has an actor started by the worker that it is assigned to.
func (h *Hosts) Start(ctx context.Context, a actor.Actor, t actor.Template) error {
	return h.tell(ctx, h.find(a), &atenetx.Order{Start: &atenetx.Start{Actor: encodeActor(a), Template: encodeTemplate(t), EgressGatewayAddress: h.egress}})
}

var stopReasons = map[actor.Op]atenetx.StopReason{
	actor.Suspend: atenetx.StopReason_STOP_REASON_SUSPEND, actor.Pause: atenetx.StopReason_STOP_REASON_PAUSE,
	actor.Revert: atenetx.StopReason_STOP_REASON_REVERT, actor.Delete: atenetx.StopReason_STOP_REASON_DELETE,
}

// Stop has an actor stopped by the worker that it is assigned to, or by one of the node where it is kept.
func (h *Hosts) Stop(ctx context.Context, a actor.Actor, op actor.Op) error {
	to := h.find(a)
	if to == nil && a.Assignment == nil {
		return fmt.Errorf("no worker of node %s is attached: %w", a.Node, actor.ErrUnavailable)
	}
	return h.tell(ctx, to, &atenetx.Order{Stop: &atenetx.Stop{Actor: encodeActor(a), Reason: stopReasons[op]}})
}

// find returns the stream of the worker that has an actor, or nil.
func (h *Hosts) find(a actor.Actor) *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.Assignment != nil {
		return h.hosts[a.Assignment.Worker]
	}
	var found *host
	for _, x := range h.hosts {
		if x.node == a.Node && (found == nil || x.worker < found.worker) {
			found = x
		}
	}
	return found
}

// tell gives an order and waits for its outcome. What has no outcome wraps actor.ErrUnavailable: the order may have been carried
// out, and may be given again.
func (h *Hosts) tell(ctx context.Context, to *host, o *atenetx.Order) error {
	if to == nil {
		return fmt.Errorf("it is not attached: %w", actor.ErrUnavailable)
	}
	outcome := make(chan *atenetx.Outcome, 1)
	to.mu.Lock()
	to.next++
	o.Id = to.next
	to.waiting[o.GetId()] = waiter{o.GetStart().GetActor().GetMetadata().GetUid(), outcome}
	to.mu.Unlock()
	defer func() {
		to.mu.Lock()
		delete(to.waiting, o.GetId())
		to.mu.Unlock()
	}()
	select {
	case to.out <- &atenetx.PlaneMessage{Order: o}:
	case <-to.ended:
		return fmt.Errorf("it has left: %w", actor.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("it takes no orders in time: %w", actor.ErrUnavailable)
	}
	select {
	case r := <-outcome:
		return outcomeError(r)
	case <-to.ended:
		return fmt.Errorf("it has left: %w", actor.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("it has not answered in time: %w", actor.ErrUnavailable)
	}
}

func outcomeError(r *atenetx.Outcome) error {
	text := clip(r.GetMessage())
	switch codes.Code(r.GetCode()) {
	case codes.OK:
		return nil
	case codes.Unavailable:
		return fmt.Errorf("%s: %w", text, actor.ErrUnavailable)
	}
	if text == "" {
		text = "without a reason"
	}
	return errors.New(text)
}

// clip bounds a text that a worker has sent, and makes it one line that does nothing to a terminal: it may be an actor's.
func clip(text string) string {
	if len(text) > MaxText {
		text = text[:MaxText]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// drop ends the stream of a worker that is not known any more. One that lives attaches again, as another.
func (h *Hosts) drop(worker string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x := h.hosts[worker]; x != nil {
		x.end()
	}
}

// Close ends all streams and waits for their end. No worker attaches after it.
func (h *Hosts) Close() {
	h.mu.Lock()
	h.closed = true
	for _, x := range h.hosts {
		x.end()
	}
	h.mu.Unlock()
	h.open.Wait()
}

// add puts a worker's stream in the place of the one before, which is ended.
func (h *Hosts) add(worker, node string) (*host, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, status.Error(codes.Unavailable, "the control plane is stopping")
	}
	x := &host{worker: worker, node: node, out: make(chan *atenetx.PlaneMessage), ended: make(chan struct{}), wake: make(chan struct{}, 1), waiting: map[uint64]waiter{}}
	x.end = sync.OnceFunc(func() { close(x.ended) })
	if before := h.hosts[worker]; before != nil {
		before.end()
	}
	h.hosts[worker] = x
	h.open.Add(1)
	return x, nil
}

func (h *Hosts) remove(x *host) {
	x.end()
	h.mu.Lock()
	if h.hosts[x.worker] == x {
		delete(h.hosts, x.worker)
	}
	h.mu.Unlock()
	h.open.Done()
}

// Attached are the names of the workers that are attached, in their order.
func (h *Hosts) Attached() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for name := range h.hosts {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// hostServer is the service Host.
type hostServer struct {
	atenetx.UnimplementedHostServer
	plane HostPlane
	hosts *Hosts
	log   *slog.Logger
}

// Attach serves one worker's stream. The calling goroutine sends; another one receives, and ends with the stream, which ends
// when this returns.
func (s *hostServer) Attach(stream atenetx.Host_AttachServer) error {
	ctx, caller := stream.Context(), callerOf(stream.Context())
	w, err := s.hello(stream, caller)
	if err != nil {
		return err
	}
	x, err := s.hosts.add(w.Name, w.Node)
	if err != nil {
		return err
	}
	defer s.hosts.remove(x)
	if err := stream.Send(&atenetx.PlaneMessage{Attached: encodeWorker(w)}); err != nil {
		return err
	}
	s.log.Info("a worker is attached", "worker", w.Name, "caller", caller.ID, "epoch", w.Epoch)
	defer s.log.Info("a worker has left", "worker", w.Name)
	received := make(chan error, 1)
	s.hosts.open.Go(func() { received <- s.receive(ctx, stream, caller, x) })
	expired := time.NewTimer(time.Until(caller.Until))
	defer expired.Stop()
	for {
		select {
		case m := <-x.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-x.wake:
			for _, id := range x.takes() {
				if err := stream.Send(&atenetx.PlaneMessage{ExitTaken: &atenetx.ExitTaken{Id: id}}); err != nil {
					return err
				}
			}
		case err := <-received:
			return err
		case <-x.ended:
			return status.Error(codes.Aborted, "another stream of this worker has begun, the worker was deleted, or the control plane is stopping")
		case <-expired.C:
			return status.Error(codes.Unauthenticated, "the client certificate has ended")
		}
	}
}

// hello reads the first message and registers the worker.
func (s *hostServer) hello(stream atenetx.Host_AttachServer, caller Caller) (w actor.Worker, err error) {
	m, err := stream.Recv()
	if err != nil {
		return w, err
	}
	if m.GetHello() == nil || m.GetOutcome() != nil || m.GetExit() != nil {
		return w, actor.Refuse(actor.InvalidArgument, "the first message must be hello")
	}
	if w, err = decodeWorker(m.GetHello()); err != nil {
		return w, err
	}
	w.ID, w.Draining = caller.ID, false
	return s.plane.AttachWorker(stream.Context(), w)
}

// receive takes outcomes and exits until the stream ends.
func (s *hostServer) receive(ctx context.Context, stream atenetx.Host_AttachServer, caller Caller, x *host) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case m.GetOutcome() != nil && m.GetExit() == nil && m.GetHello() == nil:
			x.mu.Lock()
			w, found := x.waiting[m.GetOutcome().GetId()]
			delete(x.waiting, m.GetOutcome().GetId())
			x.mu.Unlock()
			if found { // else nobody waits for it any more
				w.outcome <- m.GetOutcome()
			}
		case m.GetExit() != nil && m.GetOutcome() == nil && m.GetHello() == nil:
			if err := s.exit(ctx, caller, x, m.GetExit()); err != nil {
				return err
			}
		default:
			return actor.Refuse(actor.InvalidArgument, "a message must be an outcome or an exit")
		}
	}
}

// exit takes one exit. What the store could not write down is not answered, and told again on the next stream.
func (s *hostServer) exit(ctx context.Context, caller Caller, x *host, e *atenetx.Exit) error {
	if x.starting(e.GetActorUid()) {
		return x.take(e.GetId())
	}
	err := s.plane.ExitActor(ctx, caller.ID, decodeRef(e.GetActor()), e.GetActorUid(), clip(e.GetMessage()))
	if err != nil {
		s.log.Warn("an exit was not taken", "worker", x.worker, "error", err)
	}
	if refused := (*actor.Error)(nil); err != nil && !errors.As(err, &refused) {
		return nil
	}
	return x.take(e.GetId())
}
