package control_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
)

// A worker that takes no orders keeps nobody from ending the control plane.
func TestCloseWithStalledWorker(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ctx := t.Context()
	large := actor.Template{Ref: actor.Ref{Atespace: "demo", Name: "large"}, Containers: []actor.Container{{Name: "main", Image: "i"}}}
	for i := range 128 {
		large.Containers[0].Env = append(large.Containers[0].Env, actor.EnvVar{Name: fmt.Sprint("v", i), Value: strings.Repeat("x", 4000)})
	}
	if _, err := s.admin.CreateTemplate(ctx, large); err != nil {
		t.Fatal(err)
	}
	own := s.issue(t, cert.WorkloadLeaf(app.WorkerID("w1"), true))
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, own))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := atenetx.NewHostClient(conn).Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hello := &ateapi.Worker{Metadata: &ateapi.ResourceMetadata{Name: "w1"}, Ips: []string{"10.0.0.1"}, Status: &ateapi.WorkerStatus{Capacity: &ateapi.WorkerResources{Actors: 9}}}
	if err := stream.Send(&atenetx.HostMessage{Hello: hello}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // and nothing more
		t.Fatal(err)
	}
	const n = 4 // the first fits into what is under way
	ended := make(chan struct{}, n)
	for i := range n {
		ref := actor.Ref{Atespace: "demo", Name: fmt.Sprint("a", i)}
		if _, err := s.admin.CreateActor(ctx, ref, large.Ref, nil); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _, _ = s.admin.ResumeActor(ctx, ref)
			ended <- struct{}{}
		}()
	}
	until(t, "all are told to begin", func() bool {
		all, err := s.admin.ListActors(ctx, "demo")
		for _, a := range all {
			if a.State != actor.Resuming {
				return false
			}
		}
		return err == nil
	})
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	for range n {
		<-ended
	}
}
