package control_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/api/atenetx"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
)

// allMethods are the methods of the contract, as the generated code knows them, and some that nobody carries.
func allMethods() []string {
	var out []string
	for _, s := range []grpc.ServiceDesc{ateapi.Control_ServiceDesc, ateapi.WorkerService_ServiceDesc, atenetx.Host_ServiceDesc} {
		for _, m := range s.Methods {
			out = append(out, "/"+s.ServiceName+"/"+m.MethodName)
		}
		for _, m := range s.Streams {
			out = append(out, "/"+s.ServiceName+"/"+m.StreamName)
		}
	}
	return append(out, notCarried...)
}

var notCarried = []string{
	"/ateapi.Control/CreateTag", "/ateapi.Control/ListTags", "/ateapi.Control/GetGlobalAccessPolicy", "/ateapi.Control/UpdateAtespaceAccessPolicy",
	"/ateapi.Control/GetEgressPolicyContract", "/nobody.Service/Method", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
}

// mayCall says independently of the table of the package who may call what: the twin of control.Allowed.
func mayCall(who, method string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch who {
	case "router":
		return method == "/ateapi.Control/ResumeActor"
	case "egress":
		return service == "ateapi.Control" && slices.Contains([]string{"GetActor", "GetActorEgressPolicy", "MintActorJWT", "MintActorCertificate"}, name)
	case "worker-w1":
		return service == "ateapi.WorkerService" || service == "atenetx.Host"
	case "admin":
		return service == "ateapi.Control" && name != "MintActorJWT" && name != "MintActorCertificate"
	}
	return false
}

// TestRoles calls every method as everybody, over the wire.
func TestRoles(t *testing.T) {
	s := newSystem(t)
	callers := map[string]*tls.Config{"nobody": s.config(t, nil)}
	for _, name := range []string{"router", "egress", "admin", "worker-w1"} {
		callers[name] = s.config(t, s.credential(t, s.path(name, "podidentity.podcert.ate.dev", cert.CredentialFile)))
	}
	for name, uri := range map[string]string{
		"a workload without a role":  "spiffe://cluster.local/ns/other/sa/x",
		"a worker of another domain": "spiffe://other.local/ns/ate-workers/sa/w1",
		"a name like the admin's":    app.AdminID + "x",
		"a tunnel's identity":        "spiffe://substrate-actor.local/worker-for-actor/demo/a1",
	} {
		callers[name] = s.config(t, s.issue(t, cert.WorkloadLeaf(uri, false)))
	}
	for who, c := range callers {
		conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(c)), grpc.WithNoProxy())
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range allMethods() {
			got := call(t.Context(), conn, method)
			if who == "nobody" && got == codes.Unavailable { // its connection had its time
				got = call(t.Context(), conn, method)
			}
			want := codes.PermissionDenied
			switch {
			case who == "nobody":
				want = codes.Unauthenticated
			case slices.Contains(notCarried, method):
				want = codes.Unimplemented
			case mayCall(who, method):
				if got == codes.PermissionDenied || got == codes.Unauthenticated || got == codes.Unknown || got == codes.Internal || got == codes.Unavailable {
					t.Errorf("%s may call %s and hears %v", who, method, got)
				}
				continue
			}
			if got != want {
				t.Errorf("%s calling %s hears %v, want %v", who, method, got, want)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// call calls a method with an empty message, as a stream, which for the server is the same.
func call(ctx context.Context, conn *grpc.ClientConn, method string) codes.Code {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err == nil {
		_ = stream.SendMsg(&emptypb.Empty{}) // Recv tells why not
		_ = stream.CloseSend()
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	return status.Code(err)
}

// TestAllowed compares the decision with its twin, for every set of roles.
func TestAllowed(t *testing.T) {
	names := map[control.Role]string{control.RoleRouter: "router", control.RoleEgress: "egress", control.RoleWorker: "worker-w1", control.RoleAdmin: "admin"}
	for set := range control.Role(16) {
		for _, method := range append(allMethods(), "", "/", "ateapi.Control/GetActor", "/ateapi.control/GetActor") {
			want := false
			for role, who := range names {
				want = want || set&role != 0 && mayCall(who, method) && !slices.Contains(notCarried, method) && strings.HasPrefix(method, "/")
			}
			if got := control.Allowed(set, method); got != want {
				t.Errorf("roles %04b calling %q: %v, want %v", set, method, got, want)
			}
		}
	}
	r := control.Roles{Router: []string{"spiffe://d/ns/n/sa/r"}, Admin: []string{"spiffe://d/ns/n/sa/a", "spiffe://d/ns/n/sa/r"}, Domain: "d", WorkerNamespace: "w"}
	for id, want := range map[string]control.Role{
		"": 0, "spiffe://d/ns/n/sa/r": control.RoleRouter | control.RoleAdmin, "spiffe://d/ns/n/sa/a": control.RoleAdmin, "spiffe://d/ns/w/sa/x": control.RoleWorker,
		"spiffe://d/ns/w/sa/x/": 0, "spiffe://D/ns/w/sa/x": 0, "spiffe://d/ns/w2/sa/x": 0, "spiffe://e/ns/w/sa/x": 0, "Spiffe://d/ns/n/sa/r": 0,
	} {
		if got := r.Of(id); got != want {
			t.Errorf("%q has roles %04b, want %04b", id, got, want)
		}
	}
	if got := (control.Roles{}).Of(""); got != 0 {
		t.Errorf("nobody has roles %04b without any", got)
	}
}

// What the handshake already refuses, or that a connection would outlive.
func TestIdentities(t *testing.T) {
	s := newSystem(t)
	for name, own := range map[string]*tls.Certificate{
		"a certificate of the services": s.credential(t, s.path("router", "servicedns.podcert.ate.dev", cert.CredentialFile)),
		"a certificate of somebody else": func() *tls.Certificate {
			a, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "podidentity"})
			if err != nil {
				t.Fatal(err)
			}
			c, err := a.Certificate(cert.WorkloadLeaf(app.AdminID, false))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}(),
		"a server's certificate": s.issue(t, cert.Leaf{URI: app.AdminID, Server: true, Life: 1e12}),
	} {
		conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, own))), grpc.WithNoProxy())
		if err != nil {
			t.Fatal(err)
		}
		if got := call(t.Context(), conn, "/ateapi.Control/ListActors"); got != codes.Unavailable {
			t.Errorf("%s: %v", name, got)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A certificate that ends while its connection lasts is good for no further call.
func TestIdentityEnds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, s.issue(t, cert.Leaf{URI: app.AdminID, Client: true, Life: 5e9})))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got := call(t.Context(), conn, "/ateapi.Control/ListActors"); got != codes.OK {
		t.Errorf("before: %v", got)
	}
	until(t, "the certificate has ended", func() bool { return call(t.Context(), conn, "/ateapi.Control/ListActors") == codes.Unauthenticated })
}

// A client without a certificate does not keep a connection from those who have one, however alive it is.
func TestNobodyStays(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	conn, err := tls.Dial("tcp", s.Addr, s.config(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(12 * time.Second)); err != nil { // before the server takes it for dead
		t.Fatal(err)
	}
	if n, err := io.Copy(new(bytes.Buffer), conn); strings.Contains(fmt.Sprint(err), "timeout") || n == 0 {
		t.Errorf("after %d bytes the connection is still there: %v", n, err)
	}
	if _, err := s.admin.ListActors(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// TestForeignClient speaks gRPC with nothing of gRPC: HTTP/2 of the standard library, and frames by hand.
func TestForeignClient(t *testing.T) {
	s := newSystem(t)
	made := s.create(t, a1)
	post := func(who, method string, m proto.Message) (*http.Response, []byte) {
		c := s.config(t, s.credential(t, s.path(who, "podidentity.podcert.ate.dev", cert.CredentialFile)))
		transport := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true, DisableKeepAlives: true}
		defer transport.CloseIdleConnections()
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.Addr+method, bytes.NewReader(frame))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("Te", "trailers")
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, body
	}
	resp, body := post("egress", "/ateapi.Control/GetActor", &ateapi.GetActorRequest{Actor: &ateapi.ObjectRef{Atespace: "demo", Name: "a1"}})
	var a ateapi.Actor
	if resp.ProtoMajor != 2 || resp.Trailer.Get("Grpc-Status") != "0" || len(body) < 5 || proto.Unmarshal(body[5:], &a) != nil || a.GetMetadata().GetUid() != made.UID {
		t.Errorf("%v, trailer %v, %q", resp.Status, resp.Trailer, body)
	}
	resp, _ = post("egress", "/ateapi.Control/GetActor", &ateapi.GetActorRequest{Actor: &ateapi.ObjectRef{Atespace: "demo", Name: "none"}})
	if got := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status"); got != "5" {
		t.Errorf("what is not there: %q", got)
	}
	// A policy with a field that is not known is not taken.
	p := &ateapi.EgressPolicy{Metadata: &ateapi.ResourceMetadata{Name: "default", Atespace: "demo"}, Rules: []*ateapi.EgressRule{{Http: &ateapi.HTTPRule{Hostnames: []string{"a.test"}}}}}
	p.GetRules()[0].GetHttp().ProtoReflect().SetUnknown([]byte{0x48, 1}) // field 9
	resp, _ = post("admin", "/ateapi.Control/CreateActorEgressPolicy", &ateapi.CreateActorEgressPolicyRequest{Actor: &ateapi.ObjectRef{Atespace: "demo", Name: "a1"}, EgressPolicy: p})
	if got := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status"); got != "3" {
		t.Errorf("a policy with an unknown field: %q %q", got, resp.Header.Get("Grpc-Message"))
	}
}

// config is a client's side that trusts what the control plane shows.
func (s system) config(t *testing.T, own *tls.Certificate) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	text, err := os.ReadFile(s.path("admin", "servicedns.podcert.ate.dev", cert.TrustFile))
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: roots, ServerName: app.AteapiName, NextProtos: []string{"h2"}}
	if own != nil { // also where the server does not ask for what signed it
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	}
	return c
}

func (s system) credential(t *testing.T, path string) *tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(path, path)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// issue makes a certificate of the authority for workloads, whose file it reads.
func (s system) issue(t *testing.T, l cert.Leaf) *tls.Certificate {
	t.Helper()
	a, err := cert.OpenAuthority(cert.AuthorityOptions{Name: cert.WorkloadAuthority, File: s.path("ca", cert.WorkloadAuthority+".pem")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.Certificate(l)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
