package control_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
)

// lost is a control plane of somebody else's that resumes actors and says of a place what it likes.
type lost struct {
	ateapi.UnimplementedControlServer
	place *ateapi.WorkerAssignment
}

func (l *lost) ResumeActor(_ context.Context, r *ateapi.ResumeActorRequest) (*ateapi.ResumeActorResponse, error) {
	return &ateapi.ResumeActorResponse{Resumed: true, Actor: &ateapi.Actor{
		Metadata: &ateapi.ResourceMetadata{Atespace: r.GetActor().GetAtespace(), Name: r.GetActor().GetName(), Uid: "u", Version: 1},
		Status:   &ateapi.ActorStatus{State: ateapi.ActorState_ACTOR_STATE_RUNNING, WorkerAssignment: l.place},
	}}, nil
}

// X8: an answer that does not say where an actor is, or not as an address, is none: the client of the actor gets 500, "routing failed".
func TestX8_NoAddress(t *testing.T) {
	authority, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	own, err := authority.Certificate(cert.ServiceLeaf("localhost"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plane := &lost{}
	s := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(own)))
	ateapi.RegisterControlServer(s, plane)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	defer func() { s.Stop(); <-ended }()
	c, err := control.NewClient(l.Addr().String(), &tls.Config{ServerName: "localhost", RootCAs: authority.Roots()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	at := func(ips ...string) *ateapi.WorkerAssignment {
		return &ateapi.WorkerAssignment{WorkerPodIps: ips, Worker: &ateapi.ObjectRef{Name: "w1"}}
	}
	for i, place := range []*ateapi.WorkerAssignment{nil, at(), at("not-an-ip"), at(""), at("10.0.0.5:80"), at("0.0.0.0"), at("fe80::1%eth0"), at("10.0.0.5", "not-an-ip"), at("10.0.0.5", "10.0.0.6", "10.0.0.7")} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			plane.place = place
			if a, _, err := c.ResumeActor(t.Context(), a1); !errors.Is(err, actor.ErrAnswer) {
				t.Errorf("%v: %+v, %v", place, a.Assignment, err)
			}
		})
	}
	plane.place = at("10.0.0.5")
	if a, resumed, err := c.ResumeActor(t.Context(), a1); err != nil || !resumed || a.Assignment.Addrs[0].String() != "10.0.0.5" {
		t.Errorf("a good one: %+v, %v", a, err)
	}
}
