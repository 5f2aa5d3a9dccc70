package control_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
)

// byHand attaches the worker w1 and returns its stream.
func (s system) byHand(t *testing.T) atenetx.Host_AttachClient {
	t.Helper()
	own := s.issue(t, cert.WorkloadLeaf(app.WorkerID("w1"), true))
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, own))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := atenetx.NewHostClient(conn).Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hello := &ateapi.Worker{Metadata: &ateapi.ResourceMetadata{Name: "w1"}, Ips: []string{"10.0.0.1"}, Status: &ateapi.WorkerStatus{Capacity: &ateapi.WorkerResources{Actors: 9}}}
	m := say(t, stream, &atenetx.HostMessage{Hello: hello})
	if m.GetAttached() == nil {
		t.Fatalf("hello is answered by %v", m)
	}
	return stream
}

// say says something and returns what comes then.
func say(t *testing.T, stream atenetx.Host_AttachClient, m *atenetx.HostMessage) *atenetx.PlaneMessage {
	t.Helper()
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func exitOf(a *ateapi.Actor, id uint64) *atenetx.HostMessage {
	m := a.GetMetadata()
	return &atenetx.HostMessage{Exit: &atenetx.Exit{Id: id, Actor: &ateapi.ObjectRef{Atespace: m.GetAtespace(), Name: m.GetName()}, ActorUid: m.GetUid(), Message: "status 3"}}
}

// What is told before the outcome of a start is about something earlier; what is told right behind it counts, whether it is written
// down already that the actor runs or not.
func TestExitAndOutcome(t *testing.T) {
	s := newSystem(t)
	stream := s.byHand(t)
	for i := range 20 {
		ref := actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)}
		s.create(t, ref)
		resumed := make(chan error, 1)
		go func() {
			_, _, err := s.admin.ResumeActor(t.Context(), ref)
			resumed <- err
		}()
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		a := m.GetOrder().GetStart().GetActor()
		if taken := say(t, stream, exitOf(a, 7)).GetExitTaken(); taken.GetId() != 7 {
			t.Fatalf("an exit during the start: %v", taken)
		}
		if err := stream.Send(&atenetx.HostMessage{Outcome: &atenetx.Outcome{Id: m.GetOrder().GetId()}}); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := <-resumed; err != nil {
				t.Errorf("an earlier exit counts: %v", err)
			}
		}
		if taken := say(t, stream, exitOf(a, 8)).GetExitTaken(); taken.GetId() != 8 {
			t.Fatalf("an exit after the start: %v", taken)
		}
		until(t, "it is crashed", func() bool {
			a, err := s.admin.GetActor(t.Context(), ref)
			return err == nil && a.State == actor.Crashed
		})
	}
}

// planeByHand plays the control plane for one worker: each stream is given to what serves the next one.
type planeByHand struct {
	atenetx.UnimplementedHostServer
	streams chan func(atenetx.Host_AttachServer) error
}

func (p *planeByHand) Attach(stream atenetx.Host_AttachServer) error {
	serve, ok := <-p.streams
	if !ok {
		return status.Error(codes.InvalidArgument, "no more")
	}
	m, err := stream.Recv()
	if err == nil {
		err = stream.Send(&atenetx.PlaneMessage{Attached: m.GetHello()})
	}
	return errors.Join(err, serve(stream))
}

// exiting is a worker whose actors end while they are started, and that tells late of how they ended before.
type exiting struct{ exits chan control.Exit }

func (e exiting) Start(_ context.Context, a actor.Actor, _ actor.Template, _ string) error {
	e.exits <- control.Exit{Ref: a.Ref, UID: a.UID, Why: "earlier", Holds: func() bool { return false }}
	e.exits <- control.Exit{Ref: a.Ref, UID: a.UID, Why: "later", Holds: func() bool { return true }}
	return nil
}

func (exiting) Stop(context.Context, actor.Actor, actor.Op) error { return nil }

// TestExitsAreTold: an exit that was not taken is told on each stream, until it is, or the actor is started again; how the new
// one ends is told behind the outcome of its start.
func TestExitsAreTold(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &planeByHand{streams: make(chan func(atenetx.Host_AttachServer) error, 10)}
	own := s.credential(t, s.path("ateapi", "servicedns.podcert.ate.dev", cert.CredentialFile))
	g := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(own)))
	atenetx.RegisterHostServer(g, p)
	go func() { _ = g.Serve(l) }() // until Stop
	defer g.Stop()
	client, err := control.NewClient(l.Addr().String(), s.config(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	broken := status.Error(codes.Unavailable, "broken")
	a := &ateapi.Actor{Metadata: &ateapi.ResourceMetadata{Atespace: "demo", Name: "a1", Uid: "u1"}}
	wantExit := func(stream atenetx.Host_AttachServer, why string) uint64 {
		m, err := stream.Recv()
		if err != nil || m.GetExit().GetMessage() != why || m.GetExit().GetActorUid() == "" {
			t.Errorf("told %v, %v; want an exit %q", m, err, why)
		}
		return m.GetExit().GetId()
	}
	first, exits := uint64(0), make(chan control.Exit)
	p.streams <- func(stream atenetx.Host_AttachServer) error {
		first = wantExit(stream, "first")
		wantExit(stream, "other")
		return broken
	}
	p.streams <- func(stream atenetx.Host_AttachServer) error {
		if id := wantExit(stream, "first"); id != first {
			t.Errorf("told again as %d, not %d", id, first)
		}
		id := wantExit(stream, "other")
		return errors.Join(stream.Send(&atenetx.PlaneMessage{ExitTaken: &atenetx.ExitTaken{Id: id}}),
			stream.Send(&atenetx.PlaneMessage{Order: &atenetx.Order{Id: 5, Start: &atenetx.Start{Actor: a, Template: &ateapi.ActorTemplate{}}}}),
			func() error {
				if m, err := stream.Recv(); err != nil || m.GetOutcome().GetId() != 5 || m.GetOutcome().GetCode() != 0 {
					t.Errorf("%v, %v; want the outcome", m, err)
				}
				wantExit(stream, "later")
				return broken
			}())
	}
	p.streams <- func(stream atenetx.Host_AttachServer) error { // neither of the others
		id := wantExit(stream, "later")
		if err := stream.Send(&atenetx.PlaneMessage{ExitTaken: &atenetx.ExitTaken{Id: id}}); err != nil {
			return err
		}
		exits <- control.Exit{Ref: a1, UID: "u3", Why: "last"}
		wantExit(stream, "last")
		return broken
	}
	p.streams <- func(stream atenetx.Host_AttachServer) error {
		wantExit(stream, "last")
		return broken
	}
	close(p.streams)
	ended := make(chan error, 1)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second) // what is not told is waited for no longer
	defer stop()
	go func() {
		ended <- client.Host(ctx, control.HostOptions{Worker: workerOf("w1", 9, 1), Sandboxes: exiting{exits}, Exits: exits})
	}()
	exits <- control.Exit{Ref: a1, UID: "u1", Why: "first"}
	exits <- control.Exit{Ref: a1, UID: "u2", Why: "other"}
	wantCode(t, "the end", <-ended, actor.InvalidArgument)
}
