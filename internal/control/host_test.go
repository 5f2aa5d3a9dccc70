package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

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
	"github.com/sluice-proxy/sluice/internal/mutual"
)

func signingRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// The names of a request are not looked at.
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"api.ate-system.svc"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// I17: a tunnel's certificate is only for who hosts the actor, and only while it does.
func TestI17_Mint(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	made := s.create(t, a1)
	w1, w2 := s.attach(t, "w1", 2, 1), s.attach(t, "w2", 1, 1)
	csr := signingRequest(t)
	_, err := w1.MintWorkerCertificate(ctx, a1, made.UID, csr)
	wantCode(t, "for who sleeps", err, actor.PermissionDenied)
	if a := s.resume(t, a1); a.Assignment.Worker != "w1" {
		t.Fatalf("on %s", a.Assignment.Worker)
	}
	chain, err := w1.MintWorkerCertificate(ctx, a1, made.UID, csr)
	if err != nil {
		t.Fatal(err)
	}
	checkTunnelLeaf(t, s, chain, csr)
	_, err = w2.MintWorkerCertificate(ctx, a1, made.UID, csr)
	wantCode(t, "for another worker's", err, actor.PermissionDenied)
	_, err = w1.MintWorkerCertificate(ctx, a1, "other", csr)
	wantCode(t, "with another uid", err, actor.Aborted)
	_, err = w1.MintWorkerCertificate(ctx, a1, "", csr)
	wantCode(t, "without a uid", err, actor.InvalidArgument)
	_, err = w1.MintWorkerCertificate(ctx, actor.Ref{Atespace: "demo", Name: "none"}, made.UID, csr)
	wantCode(t, "for nobody", err, actor.NotFound)
	for name, bad := range map[string][]byte{"none": nil, "cut": csr[:len(csr)-1], "changed": append(append([]byte{}, csr[:len(csr)-1]...), csr[len(csr)-1]^1), "large": make([]byte, 16385)} {
		_, err = w1.MintWorkerCertificate(ctx, a1, made.UID, bad)
		wantCode(t, "with a request that is "+name, err, actor.InvalidArgument)
	}
	_, err = s.admin.MintWorkerCertificate(ctx, a1, made.UID, csr)
	wantCode(t, "by the admin", err, actor.PermissionDenied)
	if _, err := s.admin.DeleteActor(ctx, a1, actor.Terms{AnyState: true}); err != nil {
		t.Fatal(err)
	}
	_, err = w1.MintWorkerCertificate(ctx, a1, made.UID, csr)
	wantCode(t, "for who is gone", err, actor.NotFound)
	s.create(t, a1)
	s.resume(t, a1)
	_, err = w1.MintWorkerCertificate(ctx, a1, made.UID, csr)
	wantCode(t, "for who was made again", err, actor.Aborted)
}

func checkTunnelLeaf(t *testing.T, s system, chain [][]byte, csr []byte) {
	t.Helper()
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := mutual.OpenTrust(s.path("egress", "actor-id-ca-certs", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	uri, err := mutual.VerifyURI([]*x509.Certificate{leaf}, roots.Roots(), x509.ExtKeyUsageClientAuth)
	if err != nil || uri != "spiffe://substrate-actor.local/worker-for-actor/demo/a1" || len(leaf.DNSNames) > 0 {
		t.Errorf("the leaf is %q and %v, %v", uri, leaf.DNSNames, err)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !key.Equal(request.PublicKey) {
		t.Error("the leaf has another key")
	}
	if life := time.Until(leaf.NotAfter); life > time.Hour || life < 59*time.Minute {
		t.Errorf("it lives %s", life)
	}
}

// A worker's name belongs to who came with it first.
func TestBinding(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	s.attach(t, "w1", 1, 1)
	thief := s.client(t, "worker-w2")
	w := workerOf("w1", 1, 2)
	err := thief.Host(ctx, control.HostOptions{Worker: w, Sandboxes: &worker{}})
	wantCode(t, "attach as another", err, actor.PermissionDenied)
	_, err = thief.RegisterWorker(ctx, "w1", actor.Capacity{Actors: 9})
	wantCode(t, "register as another", err, actor.PermissionDenied)
	if got, err := s.admin.GetWorker(ctx, "w1"); err != nil || got.Actors != 1 || got.Epoch != 1 {
		t.Errorf("the worker is %+v, %v", got, err)
	}
	// One that an admin made before it comes is bound by its registration, which may be done again.
	if _, err := s.admin.CreateWorker(ctx, workerOf("w2", 0, 1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := thief.RegisterWorker(ctx, "w2", actor.Capacity{Actors: 3, Hardware: map[string]string{"architecture": "arm64"}})
		if err != nil || got.Actors != 3 || got.Hardware["architecture"] != "arm64" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	_, err = s.client(t, "worker-w1").RegisterWorker(ctx, "w2", actor.Capacity{Actors: 1})
	wantCode(t, "register what is bound", err, actor.PermissionDenied)
	_, err = thief.RegisterWorker(ctx, "none", actor.Capacity{Actors: 1})
	wantCode(t, "register what is not there", err, actor.NotFound)
	err = thief.Host(ctx, control.HostOptions{Worker: actor.Worker{Name: "w2"}, Sandboxes: &worker{}})
	wantCode(t, "attach without an address", err, actor.InvalidArgument)
}

// TestEarlierNames calls the worker's service by the names of the earlier generation.
func TestEarlierNames(t *testing.T) {
	s := newSystem(t)
	made := s.create(t, a1)
	s.attach(t, "w1", 1, 1)
	s.resume(t, a1)
	own := s.credential(t, s.path("worker-w1", "podidentity.podcert.ate.dev", cert.CredentialFile))
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, own))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := ateapi.NewWorkerServiceClient(conn)
	ref := &ateapi.ObjectRef{Atespace: "demo", Name: "a1"}
	if r, err := c.SetWorkerCapacity(t.Context(), &ateapi.RegisterWorkerRequest{Worker: &ateapi.ObjectRef{Name: "w1"}, Capacity: &ateapi.WorkerResources{Actors: 4}}); err != nil || r.GetWorker().GetStatus().GetCapacity().GetActors() != 4 || r.GetWorker().GetStatus().GetAllocated().GetActors() != 1 {
		t.Errorf("SetWorkerCapacity: %v, %v", r, err)
	}
	if r, err := c.MintAteomActorCertificate(t.Context(), &ateapi.MintWorkerActorCertificateRequest{Actor: ref, ActorUid: made.UID, CertificateSigningRequest: signingRequest(t)}); err != nil || len(r.GetActorCertificates()) != 1 {
		t.Errorf("MintAteomActorCertificate: %v, %v", r, err)
	}
}

func TestRequestSuspend(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	made := s.create(t, a1)
	w1, w2 := s.attach(t, "w1", 2, 1), s.attach(t, "w2", 1, 1)
	_, err := w1.RequestSuspend(ctx, "w1", a1, made.UID)
	wantCode(t, "of who sleeps", err, actor.NotFound)
	s.resume(t, a1)
	_, err = w2.RequestSuspend(ctx, "w2", a1, made.UID)
	wantCode(t, "of another worker's", err, actor.NotFound)
	_, err = w2.RequestSuspend(ctx, "w1", a1, made.UID)
	wantCode(t, "in another worker's name", err, actor.PermissionDenied)
	_, err = w1.RequestSuspend(ctx, "w1", a1, "other")
	wantCode(t, "of another uid", err, actor.Aborted)
	if a, err := w1.RequestSuspend(ctx, "w1", a1, made.UID); err != nil || a.State != actor.Suspended {
		t.Errorf("%+v, %v", a, err)
	}
	_, err = w1.RequestSuspend(ctx, "w1", a1, made.UID)
	wantCode(t, "again", err, actor.NotFound)
}

// An actor that ends by itself is crashed; what others tell of it is not believed.
func TestExit(t *testing.T) {
	s := newSystem(t)
	w1, w2 := s.attach(t, "w1", 2, 1), s.attach(t, "w2", 1, 1)
	s.create(t, a1)
	a := s.resume(t, a1)
	w2.exits <- control.Exit{Ref: a1, UID: a.UID, Why: "a lie"}
	w1.exits <- control.Exit{Ref: a1, UID: "other", Why: "an old one"}
	w1.exits <- control.Exit{Ref: a1, UID: a.UID, Why: "exit status 1 " + strings.Repeat("é", control.MaxText)}
	until(t, "it is crashed", func() bool {
		a, err := s.admin.GetActor(t.Context(), a1)
		return err == nil && a.State == actor.Crashed
	})
	if a, err := s.admin.GetActor(t.Context(), a1); err != nil || !strings.HasPrefix(a.Crash, "the actor ended: exit status 1 é") || len(a.Crash) > 4096 || a.Assignment != nil {
		t.Errorf("%+v, %v", a, err)
	}
}

// What a worker tells of an actor may be the actor's own words, such as the status line of its wakeup probe. Operators read them on
// terminals, which they must not be able to do anything to.
func TestWordsOfActorsAreText(t *testing.T) {
	s := newSystem(t)
	w := s.attach(t, "w1", 2, 1)
	s.create(t, a1)
	const words = "answered 500 \x1b]0;owned\x07\r\x9b2J\u009b2J\nand more é"
	w.failing(func(context.Context, string) error { return errors.New(words) })
	_, _, err := s.admin.ResumeActor(t.Context(), a1)
	wantCode(t, "words", err, actor.Internal)
	a, gerr := s.admin.GetActor(t.Context(), a1)
	if gerr != nil || a.State != actor.Crashed {
		t.Fatalf("%+v, %v", a, gerr)
	}
	for what, text := range map[string]string{"the refusal": err.Error(), "the crash": a.Crash} {
		if strings.ContainsFunc(text, unicode.IsControl) || !strings.Contains(text, "answered 500  ]0;owned") || !strings.Contains(text, "and more é") {
			t.Errorf("%s: %q", what, text)
		}
	}
}

// TestWorkerLeaves: an order without an outcome may be given again, on the same worker.
func TestWorkerLeaves(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	s.create(t, a1)
	w := s.attach(t, "w1", 1, 1)
	under := make(chan struct{})
	w.failing(func(ctx context.Context, _ string) error { close(under); <-ctx.Done(); return ctx.Err() })
	ended := make(chan error, 1)
	go func() {
		_, _, err := s.admin.ResumeActor(ctx, a1)
		ended <- err
	}()
	<-under
	w.end()
	wantCode(t, "its worker has left", <-ended, actor.Unavailable)
	_, _, err := s.admin.ResumeActor(ctx, a1)
	wantCode(t, "while it is away", err, actor.Unavailable)
	if a, err := s.admin.GetActor(ctx, a1); err != nil || a.State != actor.Resuming || a.Assignment == nil {
		t.Errorf("%+v, %v", a, err)
	}
	// Nobody else gets a place there meanwhile, and there is no other worker.
	other := actor.Ref{Atespace: "demo", Name: "other"}
	s.create(t, other)
	_, _, err = s.admin.ResumeActor(ctx, other)
	wantCode(t, "another one", err, actor.ResourceExhausted)
	w = s.attach(t, "w1", 1, 1)
	if a := s.resume(t, a1); a.State != actor.Running || w.runs() != 1 {
		t.Errorf("%+v, %d run", a, w.runs())
	}
	// With another epoch it has lost what it had.
	w.end()
	s.attach(t, "w1", 1, 2)
	if a, err := s.admin.GetActor(ctx, a1); err != nil || a.State != actor.Crashed {
		t.Errorf("%v %+v, %v", a.State, a, err)
	}
	if _, err := s.admin.RevertActor(ctx, a1); err != nil {
		t.Error(err)
	}
	if a := s.resume(t, a1); a.Assignment.Epoch != 2 {
		t.Errorf("%+v", a.Assignment)
	}
}

// The later of two streams of a worker counts, and one that ended by the end of its certificate comes back with another.
func TestStreams(t *testing.T) {
	s := newSystem(t)
	first := s.attach(t, "w1", 1, 1)
	second := s.attach(t, "w1", 1, 1)
	<-first.attached // it comes back by itself, and the second is ended, and so on: one of them is attached
	first.end()
	gone := true
	until(t, "the second has the stream", func() bool {
		if gone {
			s.create(t, a1)
		}
		_, _, err := s.admin.ResumeActor(t.Context(), a1)
		_, derr := s.admin.DeleteActor(t.Context(), a1, actor.Terms{AnyState: true})
		gone = derr == nil // a stream that ends just then leaves it
		return err == nil && derr == nil && second.runs() == 0
	})
}

// TestStreamsByHand says what a worker must not say.
func TestStreamsByHand(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	hello := &ateapi.Worker{Metadata: &ateapi.ResourceMetadata{Name: "w1"}, Ips: []string{"10.0.0.1"}, Status: &ateapi.WorkerStatus{Capacity: &ateapi.WorkerResources{Actors: 1}}}
	for name, tc := range map[string]struct {
		say  []*atenetx.HostMessage
		want codes.Code
	}{
		"nothing of itself":   {[]*atenetx.HostMessage{{}}, codes.InvalidArgument},
		"an outcome first":    {[]*atenetx.HostMessage{{Outcome: &atenetx.Outcome{Id: 1}}}, codes.InvalidArgument},
		"two things at once":  {[]*atenetx.HostMessage{{Hello: hello, Exit: &atenetx.Exit{}}}, codes.InvalidArgument},
		"hello again":         {[]*atenetx.HostMessage{{Hello: hello}, {Hello: hello}}, codes.InvalidArgument},
		"nothing later":       {[]*atenetx.HostMessage{{Hello: hello}, {}}, codes.InvalidArgument},
		"an unasked outcome":  {[]*atenetx.HostMessage{{Hello: hello}, {Outcome: &atenetx.Outcome{Id: 99}}, {}}, codes.InvalidArgument},
		"a worker of demo's":  {[]*atenetx.HostMessage{{Hello: &ateapi.Worker{Metadata: &ateapi.ResourceMetadata{Atespace: "demo", Name: "w1"}, Ips: []string{"10.0.0.1"}}}}, codes.InvalidArgument},
		"what is no address":  {[]*atenetx.HostMessage{{Hello: &ateapi.Worker{Metadata: &ateapi.ResourceMetadata{Name: "w1"}, Ips: []string{"fe80::1%eth0"}}}}, codes.InvalidArgument},
		"an exit of nobody's": {[]*atenetx.HostMessage{{Hello: hello}, {Exit: &atenetx.Exit{}}, {}}, codes.InvalidArgument},
	} {
		if err := s.say(t, cert.WorkloadLeaf(app.WorkerID("w1"), true), tc.say); status.Code(err) != tc.want {
			t.Errorf("saying %s: %v, want %v", name, err, tc.want)
		}
	}
	// A stream ends with the certificate that it was opened with.
	short := cert.Leaf{URI: app.WorkerID("w1"), Client: true, Life: 5 * time.Second}
	if err := s.say(t, short, []*atenetx.HostMessage{{Hello: hello}}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("after the end of the certificate: %v", err)
	}
}

// say opens a stream, says something and returns how it ends.
func (s system) say(t *testing.T, who cert.Leaf, messages []*atenetx.HostMessage) error {
	t.Helper()
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, s.issue(t, who)))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := atenetx.NewHostClient(conn).Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		_ = stream.Send(m) // Recv tells why not
	}
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// Draining workers get no actors, keep those they have, and stay so when they come back.
func TestDrainOverTheWire(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	w := s.attach(t, "w1", 2, 1)
	s.create(t, a1)
	s.resume(t, a1)
	if got, err := s.admin.DrainWorker(ctx, "w1"); err != nil || !got.Draining || got.Hosted != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	other := actor.Ref{Atespace: "demo", Name: "other"}
	s.create(t, other)
	_, _, err := s.admin.ResumeActor(ctx, other)
	wantCode(t, "on a worker that drains", err, actor.ResourceExhausted)
	w.end()
	w = s.attach(t, "w1", 2, 1)
	_, _, err = s.admin.ResumeActor(ctx, other)
	wantCode(t, "when it has come back", err, actor.ResourceExhausted)
	if a, err := s.admin.GetActor(ctx, a1); err != nil || a.State != actor.Running {
		t.Errorf("%v, %v", a.State, err)
	}
	if all, err := s.admin.ListHosted(ctx, "w1"); err != nil || len(all) != 1 || all[0].Ref != a1 || all[0].UID == "" {
		t.Errorf("%+v, %v", all, err)
	}
	deleted, err := s.admin.DeleteWorker(ctx, "w1", actor.Terms{})
	if err != nil {
		t.Error(err)
	}
	// It lives and comes back by itself, as another that does not drain.
	if again := <-w.attached; again.UID == deleted.UID || again.Draining || again.Hosted != 0 {
		t.Errorf("it comes back as %+v", again)
	}
	s.resume(t, other)
	if a, err := s.admin.GetActor(ctx, a1); err != nil || a.State != actor.Crashed {
		t.Errorf("%v, %v", a.State, err)
	}
}
