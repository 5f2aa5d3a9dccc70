package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/actor"
)

// Sandboxes is what makes actors run on a worker. Its methods are called concurrently, for one actor at a time. Contexts end with
// the stream by which the order came: the same order may then come again. An error that wraps actor.ErrUnavailable means
// that the same may be tried again; any other crashes the actor.
type Sandboxes interface {
	// Start runs or restores an actor, and returns once it answers its wakeup probe. It may be called again for one that runs.
	// egressGateway is host:port; empty closes all outbound connections.
	Start(ctx context.Context, a actor.Actor, t actor.Template, egressGateway string) error
	// Stop ends an actor for actor.Suspend, Pause, Revert or Delete, and keeps of it what that says. It may be called again
	// for one that is not there any more.
	Stop(ctx context.Context, a actor.Actor, op actor.Op) error
}

// Exit tells that an actor has ended by itself.
type Exit struct {
	Ref actor.Ref
	UID string
	Why string // at most MaxText bytes are kept
	// Holds is asked just before it is told, each time: an exit that does not hold any more is forgotten. nil always holds.
	Holds func() bool
}

// HostOptions describe a worker. Worker and Sandboxes are required.
type HostOptions struct {
	// Worker has a name, addresses, room for actors, a node and an epoch. Its identity is the client's certificate.
	Worker    actor.Worker
	Sandboxes Sandboxes
	// Exits are taken while the worker is attached, and told until the control plane has taken them, also when it is attached
	// again; nil tells none. What is given while an actor is being started is told behind the outcome, unless it does not hold then.
	Exits <-chan Exit
	// Attached is called each time that the control plane has taken the worker, before orders come; nil is not. With another UID
	// than the time before the worker was deleted meanwhile, and whatever still runs on it is nobody's: it has to be ended.
	Attached func(actor.Worker)
	Log      *slog.Logger // nil discards
}

// hostOrders bounds the orders that are carried out at the same time.
const hostOrders = 256

// Host takes part as a worker until ctx ends, attaching again when the stream has ended. It returns an error when the control
// plane refuses the worker for good: its data, or its identity.
func (c *Client) Host(ctx context.Context, o HostOptions) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	wait := 100 * time.Millisecond
	exits := newUntold()
	for {
		began := time.Now()
		err := c.attach(ctx, o, exits)
		if ctx.Err() != nil {
			return nil
		}
		if e := (*actor.Error)(nil); errors.As(err, &e) && (e.Code == actor.PermissionDenied || e.Code == actor.InvalidArgument || e.Code == actor.Unimplemented) {
			return fmt.Errorf("worker %s: %w", o.Worker.Name, err)
		}
		if time.Since(began) > 10*time.Second {
			wait = 100 * time.Millisecond
		}
		o.Log.Warn("the worker is not attached", "worker", o.Worker.Name, "error", err, "again_in", wait)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// hostStream is one attachment.
type hostStream struct {
	HostOptions
	stream atenetx.Host_AttachClient
	untold *untold

	sending sync.Mutex // held over a Send: a stream takes one at a time
	orders  sync.WaitGroup
	room    chan struct{}
}

// attach is one stream from its beginning to its end. Nothing of it runs afterwards.
func (c *Client) attach(ctx context.Context, o HostOptions, exits *untold) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stream, err := c.host.Attach(ctx)
	if err != nil {
		return refusal(err)
	}
	s := &hostStream{HostOptions: o, stream: stream, untold: exits, room: make(chan struct{}, hostOrders)}
	err = s.run(ctx)
	fail(err)
	s.orders.Wait()
	for { // the stream's own goroutines end with it
		if _, rerr := stream.Recv(); rerr != nil {
			return err
		}
	}
}

func (s *hostStream) run(ctx context.Context) error {
	if err := s.send(&atenetx.HostMessage{Hello: encodeWorker(s.Worker)}); err != nil && !ended(err) {
		return refusal(err) // the end of a stream has its reason at Recv
	}
	first, err := s.stream.Recv()
	if err != nil {
		return refusal(err)
	}
	w, err := read(decodeWorker, first.GetAttached(), nil)
	if err == nil && w.Name != s.Worker.Name {
		err = actor.Refuse(actor.Internal, "an answer that cannot be used: it is about worker %.80q", w.Name)
	}
	if err != nil {
		return err
	}
	if s.Attached != nil {
		s.Attached(w)
	}
	s.untold.again()
	s.orders.Go(func() { s.tellExits(ctx) })
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return refusal(err)
		}
		if e := m.GetExitTaken(); e != nil {
			s.untold.taken(e.GetId())
		}
		if o := m.GetOrder(); o != nil { // else of a later version
			if err := s.take(ctx, o); err != nil {
				return err
			}
		}
	}
}

// take has an order carried out as soon as there is room for it.
func (s *hostStream) take(ctx context.Context, o *atenetx.Order) error {
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	end := func() {}
	if o.GetStart() != nil {
		end = s.untold.begin(o.GetStart().GetActor().GetMetadata().GetUid())
	}
	s.orders.Go(func() {
		defer func() { end(); <-s.room }()
		err := s.carryOut(ctx, o)
		if err != nil && ctx.Err() != nil {
			return // it failed because the stream ends, which is no failure of the actor's: without an outcome it is tried again
		}
		s.answer(o.GetId(), err)
	})
	return nil
}

func (s *hostStream) send(m *atenetx.HostMessage) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.Send(m)
}

// tellExits tells of exits, those first that were told on an earlier stream and not taken.
func (s *hostStream) tellExits(ctx context.Context) {
	exits := s.Exits
	for {
		for e, ok := s.untold.next(); ok; e, ok = s.untold.next() {
			m := &atenetx.Exit{Id: e.id, Actor: encodeRef(e.Ref), ActorUid: e.UID, Message: clip(e.Why)}
			if err := s.send(&atenetx.HostMessage{Exit: m}); err != nil {
				return // the stream has ended
			}
		}
		from := exits
		if s.untold.full() {
			from = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-s.untold.changed:
		case e, ok := <-from:
			if !ok {
				exits = nil
				continue
			}
			s.untold.add(e)
		}
	}
}

// carryOut does an order. A panic of a sandbox is an error of this order.
func (s *hostStream) carryOut(ctx context.Context, o *atenetx.Order) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("an order panicked", "panic", p)
			err = errors.New("the worker has a fault")
		}
	}()
	switch {
	case o.GetStart() != nil && o.GetStop() == nil:
		a, err := decodeActor(o.GetStart().GetActor())
		if err != nil {
			return err
		}
		t, err := decodeTemplate(o.GetStart().GetTemplate())
		if err != nil {
			return err
		}
		return s.Sandboxes.Start(ctx, a, t, o.GetStart().GetEgressGatewayAddress())
	case o.GetStop() != nil && o.GetStart() == nil:
		a, err := decodeActor(o.GetStop().GetActor())
		if err != nil {
			return err
		}
		for op, reason := range stopReasons {
			if reason == o.GetStop().GetReason() {
				return s.Sandboxes.Stop(ctx, a, op)
			}
		}
	}
	return errors.New("an order that is not known")
}

func (s *hostStream) answer(id uint64, err error) {
	out := &atenetx.Outcome{Id: id}
	switch {
	case errors.Is(err, actor.ErrUnavailable):
		out.Code, out.Message = int32(codes.Unavailable), clip(err.Error())
	case err != nil:
		out.Code, out.Message = int32(codes.Internal), clip(err.Error())
	}
	_ = s.send(&atenetx.HostMessage{Outcome: out}) // the end of the stream is noticed by its reader
}

// RegisterWorker replaces what a worker has to give. The worker must be there.
func (c *Client) RegisterWorker(ctx context.Context, name string, k actor.Capacity) (actor.Worker, error) {
	m, err := c.worker.RegisterWorker(ctx, &ateapi.RegisterWorkerRequest{
		Worker: &ateapi.ObjectRef{Name: name}, Capacity: encodeCapacity(k), Hardware: encodeHardware(k.Hardware),
	})
	return read(decodeWorker, m.GetWorker(), err)
}

// MintWorkerCertificate has a key certified, by a signing request (DER), for tunnels on behalf of an actor that the caller
// hosts. The chain is DER, leaf first. After Aborted, FailedPrecondition or PermissionDenied it must not be tried again.
func (c *Client) MintWorkerCertificate(ctx context.Context, ref actor.Ref, uid string, request []byte) ([][]byte, error) {
	m, err := c.worker.MintWorkerActorCertificate(ctx, &ateapi.MintWorkerActorCertificateRequest{Actor: encodeRef(ref), ActorUid: uid, CertificateSigningRequest: request})
	return m.GetActorCertificates(), refusal(err)
}

// RequestSuspend suspends an actor of a worker of the caller's.
func (c *Client) RequestSuspend(ctx context.Context, worker string, ref actor.Ref, uid string) (actor.Actor, error) {
	m, err := c.worker.RequestActorSuspend(ctx, &ateapi.RequestActorSuspendRequest{Worker: &ateapi.ObjectRef{Name: worker}, Actor: encodeRef(ref), ActorUid: uid})
	return read(decodeActor, m.GetActor(), err)
}
